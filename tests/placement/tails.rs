//! Tails of detectors, and ends of networks that are none.

use super::{graph, left_float, place_by, scheme_with, uses};
use crate::support::{Attr, GraphBuilder};
use mqq::backends;
use mqq::onnx::node::node_name;
use mqq::onnx::proto::ModelProto;
use mqq::place::{DetectorTail, Placement};

/// A layer of `c_out` channels behind `x`, its output moved to [1, positions, c_out].
fn output_layer(g: &mut GraphBuilder, c_out: usize, name: &str) -> String {
    g.conv("feature", 16, c_out, 1, 1, name);
    reshape(g, name, &[1, c_out as i64, -1], &format!("{name}.rows"))
}

fn reshape(g: &mut GraphBuilder, x: &str, shape: &[i64], y: &str) -> String {
    let shape = integers(g, &format!("{y}.shape"), shape);
    g.op("Reshape", &[x, &shape], y)
}

fn integers(g: &mut GraphBuilder, name: &str, values: &[i64]) -> String {
    g.tensor(mqq::onnx::tensor::from_i64(name, &[values.len()], values).unwrap())
}

fn concat(g: &mut GraphBuilder, inputs: &[&str], axis: i64, y: &str) {
    g.op_with("Concat", inputs, y, &[("axis", Attr::Int(axis))]);
}

pub(super) fn slice(g: &mut GraphBuilder, x: &str, from: i64, to: i64, axis: i64, y: &str) {
    let [starts, ends, axes] = [("starts", from), ("ends", to), ("axes", axis)]
        .map(|(part, value)| integers(g, &format!("{y}.{part}"), &[value]));
    g.op("Slice", &[x, &starts, &ends, &axes], y);
}

/// A convolution with a Relu that the layers behind it read.
fn backbone(g: &mut GraphBuilder) {
    g.conv("x", 16, 16, 3, 1, "stem");
    g.op("Relu", &["stem"], "feature");
}

/// YOLOv8: distances by DFL, boxes of them and anchors, in pixels, beside the scores.
fn yolov8(g: &mut GraphBuilder) {
    backbone(g);
    output_layer(g, 64, "box");
    output_layer(g, 3, "cls");
    reshape(g, "box.rows", &[1, 4, 16, 64], "bins");
    g.op_with("Transpose", &["bins"], "turned", &[("perm", Attr::Ints(vec![0, 2, 1, 3]))]);
    g.op_with("Softmax", &["turned"], "weights", &[("axis", Attr::Int(1))]);
    let numbers: Vec<f32> = (0..16_u8).map(f32::from).collect();
    g.values("arange", &[1, 16, 1, 1], &numbers);
    g.op("Conv", &["weights", "arange"], "mean");
    reshape(g, "mean", &[1, 4, 64], "distances");
    slice(g, "distances", 0, 2, 1, "lt");
    slice(g, "distances", 2, 4, 1, "rb");
    g.weight("anchors", &[1, 2, 64]);
    g.ops("from = Sub anchors lt; to = Add anchors rb");
    concat(g, &["from", "to"], 1, "cells");
    g.values("stride", &[], &[8.0]);
    g.ops("pixels = Mul cells stride; scores = Sigmoid cls.rows");
    concat(g, &["pixels", "scores"], 1, "y");
}

/// YOLOX: offsets, objectness and classes of three levels; decoding is left to who runs it.
fn yolox(g: &mut GraphBuilder) {
    backbone(g);
    for level in 0..3 {
        let name = |part: &str| format!("{part}{level}");
        g.conv("feature", 16, 4, 1, 1, &name("reg"));
        g.conv("feature", 16, 1, 1, 1, &name("obj"));
        g.conv("feature", 16, 3, 1, 1, &name("cls"));
        g.op("Sigmoid", &[&name("obj")], &name("objectness"));
        g.op("Sigmoid", &[&name("cls")], &name("classes"));
        concat(g, &[&name("reg"), &name("objectness"), &name("classes")], 1, &name("level"));
        reshape(g, &name("level"), &[1, 8, -1], &name("rows"));
    }
    concat(g, &["rows0", "rows1", "rows2"], 2, "joined");
    g.op_with("Transpose", &["joined"], "y", &[("perm", Attr::Ints(vec![0, 2, 1]))]);
}

/// YOLOv5 of one level: parts of one layer's Sigmoid become pixels, beside the scores.
fn yolov5(g: &mut GraphBuilder) {
    backbone(g);
    output_layer(g, 8, "head");
    g.op("Sigmoid", &["head.rows"], "s");
    slice(g, "s", 0, 2, 1, "xy");
    slice(g, "s", 2, 4, 1, "wh");
    slice(g, "s", 4, 8, 1, "conf");
    g.scalars(&[("two", 2.0), ("stride", 8.0)]);
    g.weight("grid", &[1, 2, 64]);
    g.weight("anchors", &[1, 2, 64]);
    g.ops(
        "xy2 = Mul xy two; cell = Add xy2 grid; centre = Mul cell stride; wh2 = Mul wh two; squared = Pow wh2 two; \
         size = Mul squared anchors",
    );
    concat(g, &["centre", "size", "conf"], 1, "y");
}

/// SSD: offsets and classes of two levels, each joined for itself.
fn ssd(g: &mut GraphBuilder) {
    backbone(g);
    for (part, channels) in [("loc", 4), ("conf", 3)] {
        let [a, b] = [0, 1].map(|level| output_layer(g, channels, &format!("{part}{level}")));
        concat(g, &[&a, &b], 2, part);
    }
    g.op_with("Softmax", &["conf"], "scores", &[("axis", Attr::Int(1))]);
}

/// The function that builds a head, and the head's outputs.
type Head = (fn(&mut GraphBuilder), &'static [&'static str]);

fn tails(model: &ModelProto) -> Vec<DetectorTail> {
    place_by(model, &scheme_with("[]"), &[]).tails
}

/// Layers, number of nodes and the sign of each tail.
fn described(model: &ModelProto) -> Vec<(Vec<String>, usize, String)> {
    let nodes = &model.graph.as_ref().unwrap().node;
    let describe = |tail: DetectorTail| {
        let layers = tail.layers.iter().map(|&i| nodes[i].output[0].clone()).collect();
        (layers, tail.nodes.len(), format!("{} {}", nodes[tail.sign].output[0], tail.reason))
    };
    tails(model).into_iter().map(describe).collect()
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn heads_of_detectors() {
    let mean = "mean takes the mean of distributions".to_string();
    assert_eq!(described(&graph(yolov8, &["y"])), [(strings(&["box", "cls"]), 15, mean)]);
    let layers: Vec<String> =
        (0..3).flat_map(|level| ["reg", "obj", "cls"].map(|part| format!("{part}{level}"))).collect();
    let joins = |node: &str| format!("{node} joins the outputs of several layers");
    assert_eq!(described(&graph(yolox, &["y"])), [(layers, 14, joins("level0"))]);
    let parts = "y joins parts of one layer's output".to_string();
    assert_eq!(described(&graph(yolov5, &["y"])), [(strings(&["head"]), 12, parts)]);
    let found = described(&graph(ssd, &["loc", "scores"]));
    let expected = [(strings(&["loc0", "loc1"]), 3, joins("loc")), (strings(&["conf0", "conf1"]), 4, joins("conf"))];
    assert_eq!(found, expected);
}

#[test]
fn suppression_of_boxes_is_of_a_detector_in_any_domain() {
    for (op, domain) in [("NonMaxSuppression", ""), ("EfficientNMS_TRT", "TRT")] {
        let mut model = graph(
            |g| {
                backbone(g);
                output_layer(g, 4, "loc");
                output_layer(g, 3, "conf");
                g.ops("boxes = Exp loc.rows; scores = Sigmoid conf.rows");
                g.op(op, &["boxes", "scores"], "y");
            },
            &["y"],
        );
        model.graph.as_mut().unwrap().node.last_mut().unwrap().domain = Some(domain.into());
        let found = described(&model);
        assert_eq!(found, [(strings(&["loc", "conf"]), 5, "y suppresses boxes".to_string())], "{op}");
    }
}

#[test]
fn a_mean_of_bins_is_of_a_detector_without_output_layers_of_its_own() {
    // The quality of a box is predicted from its distributions.
    let model = graph(
        |g| {
            backbone(g);
            output_layer(g, 16, "box");
            g.op_with("Softmax", &["box.rows"], "weights", &[("axis", Attr::Int(1))]);
            g.conv("weights", 16, 1, 1, 1, "quality");
            g.op("Sigmoid", &["quality"], "score");
            g.op_with("Transpose", &["weights"], "turned", &[("perm", Attr::Ints(vec![0, 2, 1]))]);
            let rising: Vec<f32> = (0..16_u8).map(|bin| f32::from(bin) * f32::from(bin)).collect();
            g.values("bins", &[16], &rising);
            g.op("MatMul", &["turned", "bins"], "y");
        },
        &["y", "score"],
    );
    assert_eq!(described(&model), [(vec![], 2, "y takes the mean of distributions".to_string())]);
}

#[test]
fn ends_that_are_no_tails() {
    let none = |what: &str, build: &dyn Fn(&mut GraphBuilder)| {
        let found = described(&graph(build, &["y"]));
        assert!(found.is_empty(), "{what}: {found:?}");
    };
    none("classifier", &|g| {
        backbone(g);
        g.ops("pooled = GlobalAveragePool feature; flat = Flatten pooled");
        g.weight("w", &[16, 10]);
        g.ops("logits = Gemm flat w; y = Softmax logits");
    });
    none("classes with the highest scores", &|g| {
        backbone(g);
        output_layer(g, 10, "logits");
        g.op("Softmax", &["logits.rows"], "p");
        let k = integers(g, "k", &[5]);
        g.op("TopK", &["p", &k], "y");
        g.also_makes("classes");
    });
    none("map of a segmentation", &|g| {
        backbone(g);
        g.conv("feature", 16, 1, 1, 1, "map");
        g.op("Sigmoid", &["map"], "small");
        g.op("Resize", &["small", "", "scales"], "y");
        g.values("scales", &[4], &[1.0, 1.0, 4.0, 4.0]);
    });
    none("pyramid that a layer reads", &|g| {
        backbone(g);
        g.conv("feature", 16, 8, 1, 1, "a");
        g.conv("feature", 16, 8, 1, 1, "b");
        concat(g, &["a", "b"], 1, "joined");
        g.conv("joined", 16, 3, 1, 1, "map");
        g.op("Sigmoid", &["map"], "y");
    });
    none("residual sum", &|g| {
        backbone(g);
        g.conv("feature", 16, 16, 3, 1, "a");
        g.conv("feature", 16, 16, 1, 1, "b");
        g.op("Add", &["a", "b"], "y");
    });
    none("branches in front of a mean", &|g| {
        backbone(g);
        g.conv("feature", 16, 8, 1, 1, "a");
        g.conv("feature", 16, 8, 3, 1, "b");
        concat(g, &["a", "b"], 1, "joined");
        g.op("GlobalAveragePool", &["joined"], "y");
    });
    none("samples of a batch", &|g| {
        backbone(g);
        g.conv("feature", 16, 8, 1, 1, "a");
        g.conv("feature", 16, 8, 3, 1, "b");
        concat(g, &["a", "b"], 0, "y");
    });
    none("scaling of probabilities by rising constants", &|g| {
        backbone(g);
        output_layer(g, 16, "logits");
        g.op("Softmax", &["logits.rows"], "p");
        g.values("rising", &[4], &[1.0, 2.0, 3.0, 4.0]);
        g.op("Mul", &["p", "rising"], "y");
    });
    none("weights of attention with constant values that do not rise", &|g| {
        backbone(g);
        output_layer(g, 16, "keys");
        g.op_with("Transpose", &["keys.rows"], "turned", &[("perm", Attr::Ints(vec![0, 2, 1]))]);
        g.op("Softmax", &["turned"], "weights");
        g.weight("values", &[16, 1]);
        g.op("MatMul", &["weights", "values"], "y");
    });
}

#[test]
fn a_transformer_has_no_tail() {
    let model = graph(
        |g| {
            let shape = integers(g, "tokens.shape", &[1, 64, 16]);
            g.op("Reshape", &["x", &shape], "tokens");
            for part in ["q", "k", "v"] {
                g.weight(&format!("w.{part}"), &[16, 16]);
                g.op("MatMul", &["tokens", &format!("w.{part}")], part);
            }
            g.op_with("Transpose", &["k"], "kt", &[("perm", Attr::Ints(vec![0, 2, 1]))]);
            g.ops("scores = MatMul q kt; p = Softmax scores; mixed = MatMul p v");
            g.weight("w.out", &[16, 16]);
            g.ops("attention = MatMul mixed w.out; residual = Add attention tokens");
            g.weight("gain", &[16]);
            g.op("LayerNormalization", &["residual", "gain"], "normed");
            slice(g, "normed", 0, 1, 1, "first");
            g.op("ReduceMean", &["normed"], "average");
            concat(g, &["first", "average"], 1, "y");
        },
        &["y"],
    );
    assert!(tails(&model).is_empty());
}

const RULES: &str = "quantize_inputs, { quantize_outputs: { past: [Relu] } }, share_scales";

#[test]
fn a_tail_stays_float_with_what_the_output_layers_make() {
    let model = graph(yolov8, &["y"]);
    let whole = place_by(&model, &scheme_with(&format!("[{RULES}]")), &[]);
    assert!(uses(&model, &whole).contains(&"pixels -> y".to_string()));
    let found = place_by(&model, &scheme_with(&format!("[skip_detector_tail, {RULES}]")), &[]);
    // The output layers read integers.
    assert_eq!(uses(&model, &found), ["x -> stem", "feature -> box, cls"]);
    let weights: Vec<&str> = found.weights.iter().map(|weight| weight.tensor.as_str()).collect();
    assert_eq!(weights, ["stem.weight", "box.weight", "cls.weight"]);
    assert_eq!(left_float(&model, &found, "skip_detector_tail").len(), 15);
}

#[test]
fn targets_with_float_operators_quantize_no_tail() {
    let is_float = |placement: &Placement, model: &ModelProto| {
        let nodes = &model.graph.as_ref().unwrap().node;
        let in_tail = |i: &usize| placement.tails.iter().any(|tail| tail.nodes.contains(i));
        let layers = placement.tails.iter().flat_map(|tail| &tail.layers);
        let made: Vec<&str> = layers.map(|&i| nodes[i].output[0].as_str()).collect();
        let mut quantized = placement.activations.iter().map(|quantizer| quantizer.tensor.as_str());
        !placement.quantized_nodes.iter().any(in_tail) && !quantized.any(|tensor| made.contains(&tensor))
    };
    let heads: [Head; 4] = [(yolov8, &["y"]), (yolox, &["y"]), (yolov5, &["y"]), (ssd, &["loc", "scores"])];
    for (name, _) in backends::BUILT_IN {
        let scheme = backends::resolve(name).unwrap();
        let has_rule = scheme.placement.iter().any(|call| call.rule == "skip_detector_tail");
        let runs_float = scheme.mixed.contains_key("float");
        // These place as others' tools do, or simulate.
        let as_others = name.starts_with("mqbench") || matches!(*name, "tensorrt-nlp" | "academic");
        assert_eq!(has_rule, runs_float && !as_others, "{name}");
        for (head, outputs) in heads.iter().filter(|_| has_rule) {
            let model = graph(head, outputs);
            let placement = place_by(&model, &scheme, &[]);
            assert!(
                !placement.tails.is_empty() && is_float(&placement, &model),
                "{name}: {:?}",
                uses(&model, &placement)
            );
        }
    }
}

#[test]
fn inspecting_shows_the_tail() {
    let report = |build: &dyn Fn(&mut GraphBuilder), rules: &str| {
        let model = graph(build, &["y"]);
        mqq::report::placement(model.graph.as_ref().unwrap(), &place_by(&model, &scheme_with(rules), &[]), |_| false)
    };
    let shown = report(&yolov5, "[skip_detector_tail, quantize_inputs]");
    let lines = shown.lines(false);
    let grouped = |lines: &[String]| lines.iter().filter(|line| line.contains("(skip_detector_tail); first: ")).count();
    assert_eq!((grouped(&lines), grouped(&shown.lines(true))), (1, 0), "{lines:?}");
    assert!(lines.contains(&"  -v lists each node".to_string()), "{lines:?}");
    let of = |title: &str| lines.iter().position(|line| line.starts_with(title)).unwrap();
    let at = of("detector's tail (12):");
    assert!(of("float nodes (") < at && at < of("quantized activations ("), "{lines:?}");
    assert_eq!(lines[at + 1], "  float, `Concat_y` joins parts of one layer's output");
    assert_eq!(lines[at + 2], "  output layers: Conv_head");
    assert!(
        lines[at + 3].starts_with("  nodes: Reshape_head.rows, Sigmoid_s, ") && lines[at + 3].ends_with(", Concat_y")
    );
    let lines = report(&yolov5, "[quantize_inputs]").lines(false);
    assert!(lines.contains(&"  quantized, `Concat_y` joins parts of one layer's output".to_string()));
    let json = serde_json::to_value(report(&yolov5, "[quantize_inputs]")).unwrap();
    let tail = &json["detector_tails"][0];
    assert_eq!((&tail["output_layers"][0], &tail["is_float"]), (&"Conv_head".into(), &false.into()));
    assert_eq!(tail["nodes"].as_array().unwrap().len(), 12);
    let none = serde_json::to_value(report(&backbone_alone, "[quantize_inputs]")).unwrap();
    assert_eq!(none["detector_tails"], serde_json::json!([]));
}

fn backbone_alone(g: &mut GraphBuilder) {
    backbone(g);
    g.op("Sigmoid", &["feature"], "y");
}

#[test]
fn what_is_not_joined_is_quantized_as_ever() {
    let build = |g: &mut GraphBuilder| {
        backbone(g);
        g.conv("feature", 16, 1, 1, 1, "map");
        g.op("Sigmoid", &["map"], "y");
    };
    let model = graph(build, &["y"]);
    for rules in [RULES.to_string(), format!("skip_detector_tail, {RULES}")] {
        let placement = place_by(&model, &scheme_with(&format!("[{rules}]")), &[]);
        assert_eq!(uses(&model, &placement), ["x -> stem", "feature -> map", "map -> y"], "{rules}");
        let names: Vec<&str> =
            placement.quantized_nodes.iter().map(|&i| node_name(&model.graph.as_ref().unwrap().node[i])).collect();
        assert_eq!(names, ["Conv_stem", "Conv_map", "Sigmoid_y"]);
    }
}
