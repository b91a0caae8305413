//! `mqq inspect`: the content of a model, and a backend's placement.

use super::files::{DataOption, check_models, ensure_readable};
use super::options::{RARE, SelectArgs, ShapeArgs, resolve_backend, wider_table};
use super::print::{self, out};
use super::{ErrorReport, Failure, complete};
use crate::diag::Exit;
use crate::onnx;
use crate::onnx::inputs::Shapes;
use crate::onnx::integers::type_name;
use crate::onnx::proto::{Dimension, ValueInfoProto};
use crate::pipeline::prepare_for;
use crate::place::{Selection, place};
use crate::prepare::Change;
use crate::report::{self, PlacementReport};
use crate::scheme::Scheme;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  mqq inspect resnet50.onnx
  mqq inspect resnet50.onnx --backend tensorrt
  mqq inspect resnet50.onnx --backend tensorrt --exclude Gemm --verbose";

/// Arguments of `mqq inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// An ONNX model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// Target: a backend (see `mqq backends`) or a YAML table
    #[arg(long, short, value_name = "NAME|FILE", add = complete::backends())]
    backend: Option<String>,
    /// Turn on a switch of the backend's table; repeatable
    #[arg(long = "switch", value_name = "NAME", requires = "backend", display_order = RARE)]
    switches: Vec<String>,
    /// Change a value of the table, such as min_opset=17; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "backend", display_order = RARE)]
    sets: Vec<String>,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// List fused nodes too
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object on stdout
    #[arg(long, display_order = RARE)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Inspection {
    model: String,
    ir_version: i64,
    opset: BTreeMap<String, i64>,
    ops: BTreeMap<String, usize>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// Element types and shapes of `inputs` and `outputs`.
    input_types: Vec<String>,
    output_types: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<PlacementReport>,
}

/// Runs the command.
pub(super) fn run(args: &InspectArgs) -> Result<Exit, Failure> {
    check_models([&args.model], DataOption::HasNot).map_err(Failure::Usage)?;
    let resolve = |name: &String| resolve_backend(name, &args.switches, &args.sets);
    let scheme = args.backend.as_ref().map(resolve).transpose()?;
    let shapes = args.shape.resolve().map_err(Failure::Usage)?;
    let selection = args.select.resolve().map_err(Failure::Usage)?;
    ensure_readable(&args.model)?;
    let model = onnx::load(&args.model)?;
    let graph = model.graph()?;
    let mut ops: BTreeMap<String, usize> = BTreeMap::new();
    for node in &graph.node {
        let op = match node.domain() {
            "" | "ai.onnx" => node.op_type().to_string(),
            domain => format!("{domain}.{}", node.op_type()),
        };
        *ops.entry(op).or_default() += 1;
    }
    let is_constant = |name: &str| graph.initializer_named(name).is_some();
    let of = |values: &[ValueInfoProto], text: fn(&ValueInfoProto) -> String| -> Vec<String> {
        values.iter().filter(|value| !is_constant(value.name())).map(text).collect()
    };
    let name = |value: &ValueInfoProto| value.name().to_string();
    let imports = model.opset_import.iter();
    let mut report = Inspection {
        model: args.model.display().to_string(),
        ir_version: model.ir_version(),
        opset: imports.map(|set| (set.domain().to_string(), set.version())).collect(),
        ops,
        inputs: of(&graph.input, name),
        outputs: of(&graph.output, name),
        input_types: of(&graph.input, type_text),
        output_types: of(&graph.output, type_text),
        placement: None,
    };
    if let Some(scheme) = &scheme {
        let other = wider_table(scheme, &args.switches, &args.sets)?;
        report.placement = Some(placement(&args.model, (scheme, other.as_ref()), &shapes, &selection)?);
    }
    match args.json {
        true => print::object(&report)?,
        false => print(&report, args.verbose),
    }
    Ok(Exit::Done)
}

/// The element type and shape of a value, as `float [1, 3, 224, 224]`; an open dimension has its name, or `?`.
fn type_text(value: &ValueInfoProto) -> String {
    let Some(tensor) = value.tensor_type() else { return "no tensor".to_string() };
    let name = type_name(tensor.elem_type());
    let Some(shape) = &tensor.shape else { return format!("{name}, no shape") };
    let dim = |dim: &Dimension| match dim.dim_value {
        Some(n) if n > 0 => n.to_string(),
        _ if dim.dim_param().is_empty() => "?".to_string(),
        _ => dim.dim_param().to_string(),
    };
    format!("{name} [{}]", shape.dim.iter().map(dim).collect::<Vec<_>>().join(", "))
}

fn print(report: &Inspection, verbose: bool) {
    out!("{}", report.model);
    let sets = report.opset.iter().map(|(domain, version)| match domain.as_str() {
        "" => format!("opset {version}"),
        domain => format!("{domain} {version}"),
    });
    out!("  {}, IR {}", sets.collect::<Vec<_>>().join(", "), report.ir_version);
    for (title, names, types) in
        [("input", &report.inputs, &report.input_types), ("output", &report.outputs, &report.output_types)]
    {
        names.iter().zip(types).for_each(|(name, text)| out!("  {title:<8} {name}: {text}"));
    }
    let ops: Vec<String> = report.ops.iter().map(|(op, n)| format!("{n} {op}")).collect();
    out!("  nodes    {}", ops.join(", "));
    let placement = report.placement.iter().flat_map(|placement| placement.lines(verbose));
    placement.for_each(|line| out!("{line}"));
}

/// The placement by a backend's table, or by the table of wider types for a transformer.
fn placement(
    model: &Path,
    (scheme, wider): (&Scheme, Option<&Scheme>),
    shapes: &Shapes,
    selection: &Selection,
) -> Result<PlacementReport> {
    let backend = scheme.name.clone();
    let (prepared, is_transformer) = prepare_for(model, scheme, wider, &[], shapes)?;
    let other = wider.filter(|_| is_transformer);
    let scheme = other.unwrap_or(scheme);
    let graph = prepared.model.graph()?;
    let placement = place(graph, &prepared.value_info, scheme, selection);
    let refused = prepared.parsed.as_ref().err().map(ErrorReport::of);
    let (engine_error, engine_hint) = refused.map_or((None, None), |e| (Some(e.error), e.hint));
    let mut report = report::placement(graph, &placement);
    (report.backend, report.table) = (backend, other.map(|other| other.name.clone()));
    report.prepared = prepared.changes.iter().map(Change::to_string).collect();
    (report.engine_error, report.engine_hint) = (engine_error, engine_hint);
    Ok(report)
}
