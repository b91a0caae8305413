//! Functions of a model, which are inlined when it is loaded, and nodes that the engine reads otherwise than ONNX means.

use crate::support::command::{mqq, run};
use crate::support::{GraphBuilder, noise, outputs, write_npy};
use mqq::onnx;
use mqq::onnx::proto::{AttributeProto, FunctionProto, ModelProto, NodeProto, OperatorSetIdProto};
use prost::Message;
use std::fs;
use tempfile::TempDir;

fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        domain: (!domain.is_empty()).then(|| domain.into()),
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: outputs.iter().map(|name| name.to_string()).collect(),
        ..Default::default()
    }
}

fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    let set = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    FunctionProto {
        name: Some(name.into()),
        domain: Some("mine".into()),
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: outputs.iter().map(|name| name.to_string()).collect(),
        node: nodes,
        opset_import: vec![set("", 17), set("mine", 1)],
        ..Default::default()
    }
}

/// A convolution, the nodes, and a convolution behind `b`.
fn model(nodes: Vec<NodeProto>, functions: Vec<FunctionProto>) -> ModelProto {
    let mut graph = GraphBuilder::new(17);
    let x = graph.input("x", &[1, 3, 6, 6]);
    graph.conv(&x, 3, 4, 3, 1, "a");
    let mut model = graph.build();
    model.graph.as_mut().unwrap().node.extend(nodes);
    let mut behind = GraphBuilder::new(17);
    behind.conv("b", 4, 4, 1, 1, "y");
    behind.output("y");
    let behind = behind.build().graph.unwrap();
    let graph = model.graph.as_mut().unwrap();
    graph.node.extend(behind.node);
    graph.initializer.extend(behind.initializer);
    graph.output = behind.output;
    model.functions = functions;
    model.opset_import.push(OperatorSetIdProto { domain: Some("mine".into()), version: Some(1) });
    model
}

fn loaded(model: &ModelProto) -> anyhow::Result<ModelProto> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, model.encode_to_vec()).unwrap();
    onnx::load_whole(&path).map(|loaded| loaded.model)
}

fn refers(name: &str, to: &str) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(1), ref_attr_name: Some(to.into()), ..Default::default() }
}

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(1), f: Some(f), ..Default::default() }
}

#[test]
fn a_call_becomes_the_nodes_of_its_function() {
    // Attributes of the call and defaults; a function in a function; an output that is an input.
    let mut leaky = node("", "LeakyRelu", &["in"], &["out"]);
    leaky.attribute.push(refers("alpha", "slope"));
    let mut inner = function("Leaky", &["in"], &["out"], vec![leaky]);
    inner.attribute_proto.push(float("slope", 0.5));
    let mut given = node("mine", "Leaky", &["t"], &["u"]);
    given.attribute.push(float("slope", 0.125));
    let outer = vec![node("mine", "Leaky", &["p"], &["t"]), given, node("", "Add", &["u", "p"], &["sum"])];
    let outer = function("Outer", &["p", "unused"], &["sum", "p"], outer);
    let calls = vec![node("mine", "Outer", &["a", ""], &["c", "copy"]), node("", "Mul", &["c", "copy"], &["b"])];
    let found = loaded(&model(calls, vec![outer, inner])).unwrap();
    let ops: Vec<&str> = found.graph.as_ref().unwrap().node.iter().map(|node| node.op_type()).collect();
    assert_eq!(ops, ["Conv", "LeakyRelu", "LeakyRelu", "Add", "Identity", "Mul", "Conv"]);
    assert!(found.functions.is_empty());
    let by_hand = |op: &str, inputs: &[&str], output: &str, slope: Option<f32>| {
        let mut node = node("", op, inputs, &[output]);
        node.attribute.extend(slope.map(|slope| float("alpha", slope)));
        node
    };
    let expected = vec![
        by_hand("LeakyRelu", &["a"], "t", Some(0.5)),
        by_hand("LeakyRelu", &["t"], "u", Some(0.125)),
        by_hand("Add", &["u", "a"], "s", None),
        by_hand("Mul", &["s", "a"], "b", None),
    ];
    assert_eq!(outputs(&found, 3), outputs(&model(expected, Vec::new()), 3));
    // Names of nodes and tensors are those of no other, also where a function is called twice.
    let calls = vec![node("mine", "Leaky", &["a"], &["c"]), node("mine", "Leaky", &["c"], &["b"])];
    let mut body = node("", "LeakyRelu", &["in"], &["x"]);
    body.attribute.push(float("alpha", 0.5));
    let twice = function("Leaky", &["in"], &["out"], vec![body, node("", "Neg", &["x"], &["out"])]);
    let found = loaded(&model(calls, vec![twice])).unwrap();
    let nodes = &found.graph.as_ref().unwrap().node;
    let mut names: Vec<&str> = nodes.iter().flat_map(|node| [node.name(), &node.output[0]]).collect();
    let n_names = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n_names, "{names:?}");
}

#[test]
fn functions_that_cannot_be_inlined_are_named() {
    let call = |op: &str| vec![node("mine", op, &["a"], &["b"])];
    let circle = function("Circle", &["in"], &["out"], vec![node("mine", "Circle", &["in"], &["out"])]);
    let mut other_opset = function("Other", &["in"], &["out"], vec![node("", "Relu", &["in"], &["out"])]);
    other_opset.opset_import[0].version = Some(11);
    // Each calls the next ten times.
    let bomb = |level: usize| {
        let name = |level| format!("F{level}");
        let mut nodes = Vec::new();
        for i in 0..10 {
            let (from, to) = (format!("t{i}"), format!("t{}", i + 1));
            nodes.push(node("mine", &name(level + 1), &[&from], &[&to]));
        }
        function(&name(level), &["t0"], &["t10"], nodes)
    };
    let mut bombs: Vec<FunctionProto> = (0..9).map(bomb).collect();
    bombs.push(function("F9", &["in"], &["out"], vec![node("", "Relu", &["in"], &["out"])]));
    // Each is known when the next one calls it.
    let chain = |level: usize| {
        function(&format!("C{level}"), &["t"], &["u"], vec![node("mine", &format!("C{}", level + 1), &["t"], &["u"])])
    };
    let mut chained: Vec<FunctionProto> = (0..100).map(chain).collect();
    chained.push(function("C100", &["t"], &["u"], vec![node("", "Relu", &["t"], &["u"])]));
    let upwards = (0..=100)
        .rev()
        .map(|level| node("mine", &format!("C{level}"), &["a"], &[if level == 0 { "b" } else { "" }]))
        .collect();
    let wide = vec![node("mine", "One", &["a", "a"], &["b"])];
    let one = function("One", &["in"], &["out"], vec![node("", "Relu", &["in"], &["out"])]);
    for (model, expected) in [
        (model(call("Circle"), vec![circle]), "(Circle): functions call each other more than 64 deep"),
        (
            model(call("Other"), vec![other_opset]),
            "function `Other` uses version 11 of operator set `ai.onnx`, expected 17",
        ),
        (model(upwards, chained), "functions call each other more than 64 deep"),
        (model(call("F0"), bombs), "functions have more than 1000000 nodes"),
        (model(wide, vec![one]), "node `b` (One): has 2 inputs, expected at most 1, as its function has"),
    ] {
        let error = format!("{:#}", loaded(&model).unwrap_err());
        assert!(error.contains("m.onnx`: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn what_the_engine_reads_otherwise_is_spelled_out_for_all_commands() {
    // A ConstantOfShape without a value is a float 0; empty names at the end stand for inputs that are left out.
    let mut zeros = node("", "ConstantOfShape", &["shape"], &["zeros"]);
    zeros.name = Some("zeros".into());
    let nodes = vec![
        node("", "Shape", &["a"], &["shape"]),
        zeros,
        node("", "Add", &["a", "zeros"], &["c"]),
        node("", "Relu", &["c", "", ""], &["b"]),
    ];
    let mut model = model(nodes, Vec::new());
    let graph = model.graph.as_mut().unwrap();
    graph.node[4].input.truncate(1);
    for node in graph.node.iter_mut().filter(|node| node.op_type() == "Conv") {
        node.input[2] = String::new();
    }
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("m.onnx"), model.encode_to_vec()).unwrap();
    write_npy(&at("x.npy"), &[16, 3, 6, 6], &noise(16 * 108, 1));
    let ran =
        run(mqq().current_dir(folder.path()).args(["calibrate", "m.onnx", "-b", "onnxruntime", "--data", "x.npy"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for command in
        [&["compare", "m.onnx", "m.onnxruntime.onnx"][..], &["compare", "m.onnx", "m.onnx"], &["eval", "m.onnx"]]
    {
        let ran = run(mqq().current_dir(folder.path()).args(command).args(["--data", "x.npy"]));
        assert_eq!(ran.code, 0, "{command:?}: {}", ran.stderr);
    }
    let ran = run(mqq().current_dir(folder.path()).args(["inspect", "m.onnx"]));
    assert!(!ran.stdout.contains("cannot be calibrated"), "{}", ran.stdout);
}
