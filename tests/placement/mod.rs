//! Placement rules one by one, every table on every operator, and comparison with vendors' own tools.

mod document;
mod every_op;
mod fold;
mod rules;
mod rules_of_chains;
mod tails;
mod transformers;
mod vendors;

use crate::support::GraphBuilder;
use mqq::backends;
use mqq::onnx::node::node_name;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::value_info::{ValueInfo, ValueInfos};
use mqq::place::{ActivationQuantizer, Placement, Selection, place};
use mqq::scheme::Scheme;

/// Placement of `model` for a table; tensors of `shapes` have these shapes.
fn place_by(model: &ModelProto, scheme: &Scheme, shapes: &[(&str, &[usize])]) -> Placement {
    let mut value_info = ValueInfos::of_model(model);
    for (name, shape) in shapes {
        value_info.insert(name, ValueInfo { data_type: Some(1), shape: Some(shape.to_vec()) });
    }
    place(model.graph.as_ref().unwrap(), &value_info, scheme, &Selection::default())
}

/// A table with rows for the usual operators and these placement rules, a YAML list.
fn scheme_with(placement: &str) -> Scheme {
    let yaml = format!(
        r#"
name: test
source: test
min_opset: 13
types:
  a: {{ bits: 8, signed: false, symmetry: asymmetric }}
  w: {{ bits: 8, signed: true, symmetry: symmetric }}
  wide: {{ bits: 8, signed: true, symmetry: asymmetric }}
observers: {{ activation: max, weight: max }}
ops:
  Conv: {{ input: a, weight: {{ type: w }}, output: a }}
  Gemm: {{ input: a, weight: {{ type: w }}, output: a }}
  MatMul: {{ input: a, weight: {{ type: w }}, output: a }}
  Add: {{ input: a, constant: a, output: a }}
  Sub: {{ input: a, output: a }}
  Mul: {{ input: a, constant: a, output: a }}
  Div: {{ input: a, output: a }}
  Pow: {{ input: a, output: a }}
  Sigmoid: {{ input: a, output: a, constraint: {{ fixed_output: {{ scale: 0.00390625, zero_point: 0 }} }} }}
  AveragePool: {{ input: a, output: a }}
  GlobalAveragePool: {{ input: a, output: a }}
  MaxPool: {{ input: a, output: a, constraint: same_as_input }}
  Concat: {{ input: a, output: a, constraint: same_as_output }}
  Resize: {{ input: a, output: a, constraint: same_as_input }}
  Split: {{ input: a, output: a, constraint: same_as_input }}
placement: {placement}
"#
    );
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    backends::resolve(file.path().to_str().unwrap()).unwrap()
}

/// `tensor -> node, node`, a line per quantized activation; ` (output)` where the network's is quantized.
fn uses(model: &ModelProto, placement: &Placement) -> Vec<String> {
    let nodes = &model.graph.as_ref().unwrap().node;
    let line = |quantizer: &ActivationQuantizer| {
        let readers: Vec<&str> = quantizer.edges.iter().map(|edge| nodes[edge.0].output[0].as_str()).collect();
        let output = if quantizer.network_output { " (output)" } else { "" };
        format!("{} -> {}{output}", quantizer.tensor, readers.join(", "))
    };
    placement.activations.iter().map(line).collect()
}

/// The tensors that the rules quantize in a graph from `x` to the last of `outputs`.
fn quantized(placement: &str, build: impl Fn(&mut GraphBuilder), outputs: &[&str]) -> Vec<String> {
    let model = graph(build, outputs);
    uses(&model, &place_by(&model, &scheme_with(placement), &[]))
}

/// A graph with input `x` of `[1, 16, 8, 8]`.
fn graph(build: impl Fn(&mut GraphBuilder), outputs: &[&str]) -> ModelProto {
    let mut builder = GraphBuilder::new(17);
    builder.input("x", &[1, 16, 8, 8]);
    build(&mut builder);
    for output in outputs {
        builder.output(output);
    }
    builder.build()
}

/// Names of the nodes that a rule left float.
fn left_float(model: &ModelProto, placement: &Placement, rule: &str) -> Vec<String> {
    let nodes = &model.graph.as_ref().unwrap().node;
    let floats = placement.float_nodes.iter().filter(|float| float.rule == rule);
    floats.map(|float| node_name(&nodes[float.node]).to_string()).collect()
}
