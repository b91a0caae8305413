//! `mqq inspect`: shows the content of a model, and a backend's placement.

use super::files::{DataOption, check_models, ensure_readable};
use super::options::{OptionalBackendArgs, RARE, SelectArgs, ShapeArgs};
use super::print::{self, out};
use super::{ErrorReport, Failure};
use crate::diag::{Exit, is_of};
use crate::onnx;
use crate::onnx::data_type::type_name;
use crate::onnx::inputs::{OpenShape, shape_text};
use crate::onnx::node::plain_domain;
use crate::onnx::proto::ValueInfoProto;
use crate::pipeline::prepare_for;
use crate::place::{DetectorTail, Selection, place};
use crate::prepare::{Change, PreparedGraph, prepare_file};
use crate::report::{self, PlacementReport};
use crate::scheme::Scheme;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

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
    #[command(flatten)]
    target: OptionalBackendArgs,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Also list each float node, fused nodes and quantized tensors
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object on stdout
    #[arg(long, display_order = RARE)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Inspection {
    model: String,
    ir_version: i64,
    opset: BTreeMap<String, i64>,
    operators: BTreeMap<String, usize>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// Element types and shapes of `inputs` and `outputs`.
    input_types: Vec<String>,
    output_types: Vec<String>,
    /// The reason that the model cannot be calibrated.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<PlacementReport>,
}

/// Runs the command.
pub(super) fn run(args: &InspectArgs) -> Result<Exit, Failure> {
    check_models([&args.model], DataOption::HasNot).map_err(Failure::Usage)?;
    let (scheme, wider) = args.target.tables()?;
    let shapes = args.shape.resolve().map_err(Failure::Usage)?;
    let selection = args.select.resolve().map_err(Failure::Usage)?;
    ensure_readable(&args.model)?;
    let model = onnx::load(&args.model)?;
    let graph = model.graph()?;
    let mut operators: BTreeMap<String, usize> = BTreeMap::new();
    for node in &graph.node {
        let op = match plain_domain(node.domain()) {
            "" => node.op_type().to_string(),
            domain => format!("{domain}.{}", node.op_type()),
        };
        *operators.entry(op).or_default() += 1;
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
        operators,
        inputs: of(&graph.input, name),
        outputs: of(&graph.output, name),
        input_types: of(&graph.input, type_text),
        output_types: of(&graph.output, type_text),
        engine_error: None,
        engine_hint: None,
        placement: None,
    };
    let refused = if args.target.backend.is_some() {
        let (prepared, is_transformer) = prepare_for(&args.model, &scheme, wider.as_ref(), &[], &shapes)?;
        let other = wider.as_ref().filter(|_| is_transformer);
        let mut placement = placement(&prepared, other.unwrap_or(&scheme), &selection)?;
        (placement.backend, placement.table) = (scheme.name.clone(), other.map(|other| other.name.clone()));
        let refused = prepared.parsed.err();
        let open = refused.as_ref().filter(|error| is_of::<OpenShape>(error)).map(ErrorReport::of);
        placement.open_shape =
            open.map(|open| [Some(open.error), open.hint].into_iter().flatten().collect::<Vec<_>>().join("; "));
        report.placement = Some(placement);
        refused
    } else {
        prepare_file(&args.model, &scheme, &[], &shapes).and_then(|prepared| prepared.parsed).err()
    };
    // An open shape is no error here, because samples may give it.
    if let Some(error) = refused.filter(|error| !is_of::<OpenShape>(error)).as_ref().map(ErrorReport::of) {
        (report.engine_error, report.engine_hint) = (Some(error.error), error.hint);
    }
    match args.json {
        true => print::object(&report)?,
        false => print(&report, args.verbose),
    }
    Ok(Exit::Done)
}

/// Returns the element type and shape of a value, such as `float32 [1, 3, 224, 224]`.
fn type_text(value: &ValueInfoProto) -> String {
    let Some(tensor) = value.tensor_type() else { return "no tensor".to_string() };
    let name = type_name(tensor.elem_type());
    match &tensor.shape {
        Some(shape) => format!("{name} {}", shape_text(shape)),
        None => format!("{name}, no shape"),
    }
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
    let operators: Vec<String> = report.operators.iter().map(|(op, n)| format!("{n} {op}")).collect();
    out!("  nodes    {}", operators.join(", "));
    if let Some(error) = &report.engine_error {
        out!("  cannot be calibrated: {error}");
        report.engine_hint.iter().for_each(|hint| out!("  hint: {hint}"));
    }
    let placement = report.placement.iter().flat_map(|placement| placement.lines(verbose));
    placement.for_each(|line| out!("{line}"));
}

/// Returns the report on the placement by a table.
fn placement(prepared: &PreparedGraph, scheme: &Scheme, selection: &Selection) -> Result<PlacementReport> {
    let graph = prepared.model.graph()?;
    let placement = place(graph, &prepared.value_info, scheme, selection);
    let region = scheme.region.as_ref();
    let is_wide = |tail: &DetectorTail| {
        region.is_some_and(|region| tail.is_wide(graph, &prepared.value_info, &placement, region))
    };
    let mut report = report::placement(graph, &placement, is_wide);
    report.prepared = prepared.changes.iter().map(Change::to_string).collect();
    Ok(report)
}
