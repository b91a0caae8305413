//! Every built-in table on every operator that it has a row for, and where the row's facts are from: a tiny graph, no image and no
//! engine. The outcome is text in `tests/golden/placement/`; `MQQ_UPDATE_GOLDEN=1` writes it anew.

use super::place_by;
use crate::support::{Attr, GraphBuilder, repository};
use mqq::backends;
use mqq::onnx::node::node_name;
use mqq::onnx::proto::ModelProto;
use mqq::place::Placement;
use mqq::scheme::Scheme;
use std::fmt::Write;

/// Operators of one input of the shape of its output.
const UNARY: &[&str] = &[
    "Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "HardSigmoid", "HardSwish", "Gelu", "LeakyRelu", "Elu", "Clip",
    "LpNormalization", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin",
    "Log", "Identity", "Dropout", "Flatten", "Mish", "Softplus", "Erf", "Exp", "Sqrt", "Neg", "Abs", "Selu",
    "LayerNormalization", "InstanceNormalization", "Sign", "Floor", "Reciprocal", "Sin", "Cos", "Atan",
];

/// Operators of two inputs.
const BINARY: &[&str] = &[
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Add", "Sub", "Mul", "Div", "Max", "Min", "Concat",
    "Pow", "Sum",
];

/// `x -> Conv -> Relu -> a`, `x -> Conv -> b`, the operator on them, and a Conv behind it.
fn graph_of(op: &str) -> Option<ModelProto> {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 16, 8, 8]);
    g.conv("x", 16, 16, 3, 1, "c");
    g.op("Relu", &["c"], "a");
    let kernel = [("kernel_shape", Attr::Ints(vec![2, 2]))];
    g.values("shape", &[4], &[1.0, 16.0, 8.0, 8.0]);
    match op {
        "Conv" => drop(g.conv("a", 16, 16, 3, 1, "o")),
        "ConvTranspose" => {
            g.weight("w", &[16, 16, 2, 2]);
            g.weight("bias", &[16]);
            g.op("ConvTranspose", &["a", "w", "bias"], "o");
        }
        "Gemm" => {
            g.weight("w", &[16, 16]);
            g.weight("bias", &[16]);
            g.op_with("Gemm", &["a", "w", "bias"], "o", &[("transB", Attr::Int(1))]);
        }
        "MatMul" => {
            g.weight("w", &[16, 16]);
            g.op("MatMul", &["a", "w"], "o");
        }
        "PRelu" => {
            g.weight("slope", &[16, 1, 1]);
            g.op("PRelu", &["a", "slope"], "o");
        }
        "BatchNormalization" => {
            for name in ["scale", "bias", "mean", "var"] {
                g.weight(name, &[16]);
            }
            g.op(op, &["a", "scale", "bias", "mean", "var"], "o");
        }
        "LayerNormalization" | "InstanceNormalization" => {
            g.weight("gain", &[16]);
            g.weight("bias", &[16]);
            g.op(op, &["a", "gain", "bias"], "o");
        }
        "Where" => {
            g.values("zero", &[], &[0.0]);
            g.op(op, &["mask", "a", "zero"], "o");
        }
        "MaxPool" | "AveragePool" => drop(g.op_with(op, &["a"], "o", &kernel)),
        "Resize" | "Upsample" => drop(g.op(op, &["a", "", "shape"], "o")),
        "Reshape" | "Expand" | "Tile" | "Pad" | "Slice" | "Gather" | "Unsqueeze" | "Squeeze" | "Split" | "TopK"
        | "GatherElements" | "GatherND" | "GridSample" | "CumSum" => drop(g.op(op, &["a", "shape"], "o")),
        "Transpose" => drop(g.op_with(op, &["a"], "o", &[("perm", Attr::Ints(vec![0, 1, 3, 2]))])),
        "DepthToSpace" | "SpaceToDepth" => drop(g.op_with(op, &["a"], "o", &[("blocksize", Attr::Int(2))])),
        _ if BINARY.contains(&op) => {
            g.conv("x", 16, 16, 3, 1, "b");
            g.op(op, &["a", "b"], "o");
        }
        _ if UNARY.contains(&op) => drop(g.op(op, &["a"], "o")),
        _ => return None,
    }
    g.conv("o", 16, 16, 1, 1, "y");
    g.output("y");
    Some(g.build())
}

/// One operator's outcome, a line per tensor and node.
fn outcome(model: &ModelProto, placement: &Placement) -> String {
    let nodes = &model.graph.as_ref().unwrap().node;
    let names = |positions: &mut dyn Iterator<Item = usize>| {
        positions.map(|i| node_name(&nodes[i])).collect::<Vec<_>>().join(", ")
    };
    let mut text = String::new();
    for quantizer in &placement.activations {
        let first_of_group = placement.activations.iter().find(|other| other.group == quantizer.group);
        let shares = match first_of_group {
            Some(first) if first.tensor != quantizer.tensor => {
                format!(", the grid of {}", first.tensor)
            }
            _ => String::new(),
        };
        let fixed = quantizer
            .fixed
            .map_or(String::new(), |fixed| format!(", scale {} zero point {}", fixed.scale, fixed.zero_point));
        let output = if quantizer.network_output { ", network output" } else { "" };
        let clip = if quantizer.clip.is_some() { ", may take in what makes it" } else { "" };
        let readers = names(&mut quantizer.edges.iter().map(|edge| edge.0));
        writeln!(text, "  {} ({}{shares}{fixed}{output}{clip}) -> {readers}", quantizer.tensor, quantizer.qtype)
            .unwrap();
    }
    // Those of the convolutions around it are the same everywhere.
    let around = |name: &str| ["b.", "c.", "y."].iter().any(|conv| name.starts_with(conv));
    for quantizer in placement.weights.iter().filter(|quantizer| !around(&quantizer.tensor)) {
        let axis = quantizer.axis.map_or(String::new(), |axis| format!(", axis {axis}"));
        let shares = quantizer.shares_with.as_ref().map_or(String::new(), |name| format!(", the grid of {name}"));
        writeln!(text, "  constant {} ({}{axis}{shares})", quantizer.tensor, quantizer.qtype).unwrap();
    }
    for quantizer in placement.biases.iter().filter(|quantizer| !around(&quantizer.tensor)) {
        writeln!(text, "  bias {} ({})", quantizer.tensor, quantizer.qtype.as_deref().unwrap_or("int32")).unwrap();
    }
    for float in &placement.float_nodes {
        let rule = if float.rule.is_empty() { "" } else { &format!(" [{}]", float.rule) };
        writeln!(text, "  float {}: {}{rule}", node_name(&nodes[float.node]), float.reason).unwrap();
    }
    text
}

fn every_op_of(scheme: &Scheme) -> String {
    let shapes: &[(&str, &[usize])] = &[
        ("c", &[1, 16, 8, 8]),
        ("a", &[1, 16, 16, 16]),
        ("b", &[1, 16, 8, 8]),
        ("o", &[1, 16, 16, 16]),
        ("y", &[1, 16, 16, 16]),
    ];
    let mut text = format!("source: {}\n", scheme.source);
    for (op, row) in &scheme.ops {
        let model = graph_of(op).unwrap_or_else(|| panic!("no tiny graph for {op}: add one above"));
        let placement = place_by(&model, scheme, shapes);
        let source = row.source.as_ref().map_or(String::new(), |source| format!(": {source}"));
        write!(text, "{op}{source}\n{}", outcome(&model, &placement)).unwrap();
    }
    text
}

#[test]
fn every_table_on_every_operator_of_it() {
    let update = std::env::var_os("MQQ_UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for (name, _) in backends::BUILT_IN {
        let found = every_op_of(&backends::resolve(name).unwrap());
        let file = repository(&format!("tests/golden/placement/{name}.txt"));
        if update {
            std::fs::write(&file, found).unwrap();
            continue;
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        if found != expected {
            let differ = found.lines().zip(expected.lines()).find(|(a, b)| a != b);
            wrong.push(format!("{name}: {differ:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "found and expected differ (MQQ_UPDATE_GOLDEN=1 writes what was found):\n{}",
        wrong.join("\n")
    );
}
