//! Values that no grid holds: minus infinity, and those near the pole of a division.

use crate::support::GraphBuilder;
use mqq::backends;
use mqq::observers::by_spelling;
use mqq::onnx::graph::GraphIndex;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::tensor;
use mqq::onnx::value_info::{ValueInfo, ValueInfos};
use mqq::place::{OffGrid, Placement, Selection, place, uses_at_poles};
use mqq::plan::{Observers, decide, off_grid, warning_of_off_grid};
use mqq::statistics::TensorStatistics;

#[test]
fn operators_before_a_pole_that_keep_a_zero_count() {
    let uses = |nodes: &[(&str, &[&str], &str)]| {
        let mut g = GraphBuilder::new(17);
        g.input("x", &[1, 4]);
        g.scalars(&[("minus", -0.5), ("two", 2.0), ("epsilon", 1e-5)]);
        g.tensor(tensor::from_i64("minus_one", &[], &[-1]).unwrap());
        nodes.iter().for_each(|(op, inputs, output)| _ = g.op(op, inputs, output));
        g.output(nodes.last().unwrap().2);
        let model = g.build();
        let graph = model.graph.as_ref().unwrap();
        let uses = uses_at_poles(&GraphIndex::new(graph), graph);
        uses.into_keys().map(|(node, input)| graph.node[node].input[input].clone()).collect::<Vec<_>>()
    };
    let log: (&str, &[&str], &str) = ("Log", &["a"], "y");
    assert_eq!(uses(&[("Abs", &["x"], "a"), log]), ["x", "a"]);
    assert_eq!(uses(&[("Pow", &["x", "two"], "a"), log]), ["x", "a"]);
    assert_eq!(uses(&[("Pow", &["x", "minus"], "y")]), ["x"]);
    assert_eq!(uses(&[("Pow", &["x", "minus_one"], "y")]), ["x"]);
    assert_eq!(uses(&[("Sqrt", &["x"], "a"), ("Transpose", &["a"], "b"), ("Div", &["x", "b"], "y")]), ["x", "a", "b"]);
    // The sum of a number and 0 is not 0, but near 0 if the number is small.
    assert_eq!(uses(&[("Add", &["x", "two"], "a"), log]), ["a"]);
    assert_eq!(uses(&[("Add", &["x", "epsilon"], "a"), log]), ["x", "a"]);
    assert!(uses(&[("Pow", &["x", "two"], "y")]).is_empty());
}

/// A gate `s`, by which `a` is divided.
fn model(op: &str) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 16, 8, 8]);
    g.conv("x", 16, 16, 1, 1, "a");
    g.op("Sigmoid", &["a"], "s");
    g.op(op, &["a", "s"], "d");
    g.op("Mul", &["d", "s"], "m");
    g.conv("m", 16, 16, 1, 1, "y");
    g.output("y");
    g.build()
}

/// A Div by the square root of a gate `s` and an epsilon.
fn normalization() -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 16, 8, 8]);
    g.conv("x", 16, 16, 1, 1, "a");
    g.op("Sigmoid", &["a"], "s");
    g.values("epsilon", &[], &[1e-5]);
    g.ops("e = Add s epsilon; r = Sqrt e; d = Div a r");
    g.conv("d", 16, 16, 1, 1, "y");
    g.output("y");
    g.build()
}

/// The tensors that are found where `s` has these values, the nodes that read it quantized then, those that stay float,
/// and the tensors that are left.
fn outcome(backend: &str, model: &ModelProto, values: &[f32]) -> (OffGrid, Vec<String>, Vec<String>, OffGrid) {
    let scheme = backends::resolve(backend).unwrap();
    let graph = model.graph.as_ref().unwrap();
    let mut value_info = ValueInfos::of_model(model);
    for tensor in ["a", "s", "e", "r", "d", "m", "y"] {
        value_info.insert(tensor, ValueInfo { data_type: Some(1), shape: Some(vec![1, 16, 8, 8]) });
    }
    let statistics = |placement: &Placement| -> Vec<TensorStatistics> {
        let of = |tensor: &str| {
            let mut statistic = TensorStatistics::default();
            statistic.observe(if ["s", "e", "r"].contains(&tensor) { values } else { &[-8.0, 1e-6, 8.0] });
            statistic
        };
        placement.activations.iter().map(|quantizer| of(&quantizer.tensor)).collect()
    };
    let observer = by_spelling("max").unwrap();
    let observers = Observers { activation: &observer, weight: &observer };
    let placement = place(graph, &value_info, &scheme, &Selection::default());
    let statistics_before = statistics(&placement);
    let (plan, _) = decide(graph, &placement, &statistics_before, None, &scheme, observers).unwrap();
    let found = off_grid(graph, &plan, &statistics_before);
    let selection = Selection { off_grid: found.clone(), ..Selection::default() };
    let placement = place(graph, &value_info, &scheme, &selection);
    let reads = placement.activations.iter().filter(|quantizer| quantizer.tensor == "s");
    let edges = reads.flat_map(|quantizer| &quantizer.edges);
    let readers = edges.map(|edge| graph.node[edge.0].output[0].clone()).collect();
    let floats = placement.float_nodes.iter().filter(|node| node.rule == "off_grid");
    let floats = floats.map(|node| graph.node[node.node].output[0].clone()).collect();
    let statistics = statistics(&placement);
    let (plan, _) = decide(graph, &placement, &statistics, None, &scheme, observers).unwrap();
    let left = off_grid(graph, &plan, &statistics);
    (found, readers, floats, left)
}

fn names(found: &OffGrid) -> [Vec<&str>; 2] {
    [&found.infinite, &found.near_zero].map(|tensors| tensors.iter().map(String::as_str).collect())
}

#[test]
fn a_divisor_that_a_grid_rounds_to_zero_is_read_as_float() {
    let (found, readers, floats, left) = outcome("tvm", &model("Div"), &[1e-4, 1.0]);
    assert_eq!((names(&found), readers, floats), ([vec![], vec!["s"]], vec!["m".to_string()], vec![]));
    assert!(left.is_empty());
    // The table has a row for Add: the whole node stays float.
    let (found, readers, floats, left) = outcome("tvm", &normalization(), &[1e-4, 1.0]);
    assert_eq!((names(&found), readers, floats), ([vec![], vec!["e", "s"]], vec![], vec!["e".to_string()]));
    assert!(left.is_empty());
    // No divisor, none near 0, and none but 0 itself, by which the float network divides as well.
    for (op, values) in [("Mul", [1e-4, 1.0]), ("Div", [0.1, 1.0]), ("Div", [0.0, 1.0])] {
        let (found, ..) = outcome("tvm", &model(op), &values);
        assert!(found.is_empty(), "{op} {values:?}");
    }
}

#[test]
fn a_target_without_float_units_keeps_nodes_quantized_that_others_read_quantized() {
    // The table has a row for Div.
    let divided = model("Div");
    let (_, readers, floats, left) = outcome("qnn-htp", &divided, &[1e-4, 1.0]);
    assert_eq!((readers, floats), (vec!["d".to_string(), "m".to_string()], vec![]));
    let warning = warning_of_off_grid(&left, &backends::resolve("qnn-htp").unwrap()).unwrap();
    assert!(warning.starts_with("tensor `s`: has values within a step of 0"), "{warning}");
    assert!(warning.ends_with("too large; --backend qnn-htp-a16 has 16 bits, so a smaller step"), "{warning}");
    // The table has a row for Add, but none for Sqrt and Div, which are float anyway.
    let (found, readers, floats, left) = outcome("xint8", &normalization(), &[1e-4, 1.0]);
    assert_eq!((names(&found), readers, floats), ([vec![], vec!["e", "s"]], vec![], vec!["e".to_string()]));
    assert!(left.is_empty() && warning_of_off_grid(&left, &backends::resolve("xint8").unwrap()).is_none());
    // Values below the epsilon do not matter.
    let (found, ..) = outcome("xint8", &normalization(), &[1e-6, 0.5, 1.0]);
    assert_eq!(names(&found), [vec![], vec!["e"]] as [Vec<&str>; 2]);
}

#[test]
fn minus_infinity_that_no_softmax_alone_reads_stays_float() {
    let (found, readers, floats, left) = outcome("openvino", &model("Add"), &[f32::NEG_INFINITY, 0.0]);
    assert_eq!((names(&found), readers), ([vec!["s"], vec![]], vec![]));
    assert_eq!(floats, ["d", "m"]);
    assert!(left.is_empty());
}
