//! Rules about functions that are spelled out as chains of operators.

use super::tails::slice;
use super::{graph, left_float, place_by, scheme_with, uses};
use crate::support::{Attr, GraphBuilder};

/// Nodes that `rule` leaves float behind the rules that quantize everything.
fn found(rule: &str, build: impl Fn(&mut GraphBuilder), output: &str) -> Vec<String> {
    let model = graph(build, &[output]);
    let name = rule.split(':').next().unwrap();
    let scheme = scheme_with(&format!("[quantize_weighted_inputs, {rule}, quantize_inputs]"));
    left_float(&model, &place_by(&model, &scheme, &[]), name)
}

fn hard_swish(g: &mut GraphBuilder, x: &str) {
    for (name, value) in [("three", 3.0), ("zero", 0.0), ("six", 6.0)] {
        g.values(name, &[], &[value]);
    }
    g.op("Add", &[x, "three"], "shifted");
    g.op("Clip", &["shifted", "zero", "six"], "clipped");
    g.op("Mul", &[x, "clipped"], "product");
    g.op("Div", &["product", "six"], "hard");
}

#[test]
fn activation_functions_behind_a_layer() {
    let silu = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        g.op("Sigmoid", &["c"], "s");
        g.op("Mul", &["s", "c"], "silu");
        g.conv("silu", 16, 16, 3, 1, "y");
    };
    assert_eq!(found("skip_fused_gates", silu, "y"), ["Sigmoid_s", "Mul_silu"]);
    let hard = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        hard_swish(g, "c");
        g.conv("hard", 16, 16, 3, 1, "y");
    };
    let nodes = ["Add_shifted", "Clip_clipped", "Mul_product", "Div_hard"];
    assert_eq!(found("skip_fused_gates", hard, "y"), nodes);
    // Elsewhere only where the table asks for it.
    let alone = |g: &mut GraphBuilder| hard_swish(g, "x");
    assert!(found("skip_fused_gates", alone, "hard").is_empty());
    assert_eq!(found("skip_fused_gates: { alone: 1 }", alone, "hard"), nodes);
    // A gate computed from something else is no activation function.
    let gated = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        g.conv("x", 16, 16, 3, 1, "d");
        g.op("Sigmoid", &["d"], "s");
        g.op("Mul", &["s", "c"], "y");
    };
    assert!(found("skip_fused_gates: { alone: 1 }", gated, "y").is_empty());
    // A constant divided by the product is not scaled.
    let inverse = |g: &mut GraphBuilder| {
        g.values("one", &[], &[1.0]);
        g.op("Sigmoid", &["x"], "s");
        g.op("Mul", &["x", "s"], "silu");
        g.op("Div", &["one", "silu"], "y");
    };
    assert_eq!(found("skip_fused_gates: { alone: 1 }", inverse, "y"), ["Sigmoid_s", "Mul_silu"]);
}

#[test]
fn a_fused_activation_function_is_quantized_behind_its_last_node() {
    let model = graph(
        |g| {
            g.conv("x", 16, 16, 3, 1, "c");
            hard_swish(g, "c");
            g.conv("hard", 16, 16, 3, 1, "y");
        },
        &["y"],
    );
    let rules = "[quantize_weighted_inputs, skip_fused_gates, quantize_inputs]";
    let placement = place_by(&model, &scheme_with(rules), &[]);
    assert_eq!(uses(&model, &placement), ["x -> c", "hard -> y"]);
    let placement = place_by(&model, &scheme_with("[quantize_inputs]"), &[]);
    assert_eq!(uses(&model, &placement).len(), 5);
}

fn gelu(g: &mut GraphBuilder) {
    for (name, value) in [("root", std::f32::consts::SQRT_2), ("one", 1.0), ("half", 0.5)] {
        g.values(name, &[], &[value]);
    }
    g.op("Div", &["x", "root"], "scaled");
    g.op("Erf", &["scaled"], "erf");
    g.op("Add", &["erf", "one"], "sum");
    g.op("Mul", &["x", "sum"], "product");
    g.op("Mul", &["product", "half"], "y");
}

#[test]
fn gelu_spelled_out() {
    let nodes = ["Div_scaled", "Erf_erf", "Add_sum", "Mul_product", "Mul_y"];
    assert_eq!(found("skip_gelu_chains", gelu, "y"), nodes);
    let scaled_first = |g: &mut GraphBuilder| {
        g.values("half", &[], &[0.5]);
        g.values("one", &[], &[1.0]);
        g.op("Mul", &["x", "half"], "h");
        g.op("Erf", &["x"], "erf");
        g.op("Add", &["erf", "one"], "sum");
        g.op("Mul", &["h", "sum"], "y");
    };
    assert_eq!(found("skip_gelu_chains", scaled_first, "y"), ["Mul_h", "Erf_erf", "Add_sum", "Mul_y"]);
    let with_tanh = |g: &mut GraphBuilder| {
        for (name, value) in [("cube", 3.0), ("c", 0.0447), ("root", 0.7979), ("one", 1.0)] {
            g.values(name, &[], &[value]);
        }
        g.op("Pow", &["x", "cube"], "x3");
        g.op("Mul", &["x3", "c"], "cx3");
        g.op("Add", &["x", "cx3"], "inner");
        g.op("Mul", &["inner", "root"], "scaled");
        g.op("Tanh", &["scaled"], "tanh");
        g.op("Add", &["tanh", "one"], "sum");
        g.op("Mul", &["x", "sum"], "y");
    };
    assert_eq!(found("skip_gelu_chains", with_tanh, "y").len(), 7);
    // SiLU is none.
    let silu = |g: &mut GraphBuilder| {
        g.op("Sigmoid", &["x"], "s");
        g.op("Mul", &["x", "s"], "y");
    };
    assert!(found("skip_gelu_chains", silu, "y").is_empty());
}

#[test]
fn layer_normalization_spelled_out() {
    let norm = |g: &mut GraphBuilder| {
        for (name, value) in [("two", 2.0), ("epsilon", 1e-5)] {
            g.values(name, &[], &[value]);
        }
        g.op("ReduceMean", &["x"], "mean");
        g.op("Sub", &["x", "mean"], "d");
        g.op("Pow", &["d", "two"], "square");
        g.op("ReduceMean", &["square"], "variance");
        g.op("Add", &["variance", "epsilon"], "v");
        g.op("Sqrt", &["v"], "deviation");
        g.op("Div", &["d", "deviation"], "n");
        g.weight("gamma", &[8]);
        g.weight("beta", &[8]);
        g.op("Mul", &["n", "gamma"], "scaled");
        g.op("Add", &["scaled", "beta"], "norm");
        g.conv("norm", 16, 16, 3, 1, "c");
        g.op("Add", &["c", "norm"], "y");
    };
    let nodes = found("skip_layer_norm_chains", norm, "y");
    assert_eq!(nodes.len(), 9, "{nodes:?}");
    assert!(!nodes.contains(&"Add_y".to_string()));
    // The root mean square, with one over the root.
    let rms = |g: &mut GraphBuilder| {
        for (name, value) in [("one", 1.0), ("epsilon", 1e-5)] {
            g.values(name, &[], &[value]);
        }
        g.op("Mul", &["x", "x"], "square");
        g.op("ReduceMean", &["square"], "mean");
        g.op("Add", &["mean", "epsilon"], "v");
        g.op("Sqrt", &["v"], "root");
        g.op("Div", &["one", "root"], "by");
        g.op("Mul", &["x", "by"], "n");
        g.weight("gamma", &[8]);
        g.op("Mul", &["gamma", "n"], "y");
    };
    assert_eq!(found("skip_layer_norm_chains", rms, "y").len(), 7);
    let distance = |g: &mut GraphBuilder| {
        g.op("Mul", &["x", "x"], "square");
        g.op("ReduceSum", &["square"], "sum");
        g.op("Sqrt", &["sum"], "root");
        g.op("Mul", &["x", "root"], "y");
    };
    assert!(found("skip_layer_norm_chains", distance, "y").is_empty());
}

/// JAX: the variance is the mean of squares minus the square of the mean, sums are scaled, statistics expanded.
#[test]
fn layer_normalization_of_jax() {
    let norm = |g: &mut GraphBuilder| {
        for (name, value) in [("by_n", 0.125), ("zero", 0.0), ("epsilon", 1e-6)] {
            g.values(name, &[], &[value]);
        }
        g.weight("gamma", &[8]);
        g.weight("beta", &[8]);
        g.op("ReduceSum", &["x"], "sum");
        g.op("Mul", &["sum", "by_n"], "mean");
        g.op("Mul", &["x", "x"], "square");
        g.op("ReduceSum", &["square"], "sum_of_squares");
        g.op("Mul", &["sum_of_squares", "by_n"], "mean_of_squares");
        g.op("Mul", &["mean", "mean"], "square_of_mean");
        g.op("Sub", &["mean_of_squares", "square_of_mean"], "difference");
        g.op("Max", &["zero", "difference"], "variance");
        g.op("Add", &["variance", "epsilon"], "v");
        g.op("Sqrt", &["v"], "deviation");
        g.op("Reciprocal", &["deviation"], "by");
        g.op("Mul", &["by", "gamma"], "scale");
        g.op("Sub", &["x", "mean"], "d");
        g.op("Mul", &["d", "scale"], "n");
        g.op("Add", &["n", "beta"], "norm");
        g.conv("norm", 16, 16, 3, 1, "c");
        g.op("Add", &["c", "norm"], "y");
    };
    let nodes = found("skip_layer_norm_chains", norm, "y");
    assert_eq!(nodes.len(), 15, "{nodes:?}");
    assert!(!nodes.contains(&"Add_y".to_string()));
}

/// Keras: the shift is joined with the mean before the tensor.
#[test]
fn layer_normalization_of_keras() {
    let norm = |g: &mut GraphBuilder| {
        g.values("epsilon", &[], &[1e-3]);
        g.weight("gamma", &[8]);
        g.weight("beta", &[8]);
        g.op("ReduceMean", &["x"], "mean");
        g.op("Sub", &["x", "mean"], "d");
        g.op("Mul", &["d", "d"], "square");
        g.op("ReduceMean", &["square"], "variance");
        g.op("Add", &["variance", "epsilon"], "v");
        g.op("Sqrt", &["v"], "deviation");
        g.op("Reciprocal", &["deviation"], "by");
        g.op("Mul", &["by", "gamma"], "scale");
        g.op("Mul", &["x", "scale"], "scaled");
        g.op("Mul", &["mean", "scale"], "scaled_mean");
        g.op("Sub", &["beta", "scaled_mean"], "shift");
        g.op("Add", &["scaled", "shift"], "norm");
        g.op("Relu", &["norm"], "y");
    };
    let nodes = found("skip_layer_norm_chains", norm, "y");
    assert_eq!(nodes.len(), 12, "{nodes:?}");
}

#[test]
fn softmax_spelled_out() {
    let softmax = |g: &mut GraphBuilder| {
        g.op("ReduceMax", &["x"], "largest");
        g.op("Sub", &["x", "largest"], "d");
        g.op("Exp", &["d"], "exp");
        g.op("ReduceSum", &["exp"], "sum");
        g.op("Div", &["exp", "sum"], "probabilities");
        g.op("Mul", &["probabilities", "x"], "y");
    };
    let nodes = ["ReduceMax_largest", "Sub_d", "Exp_exp", "ReduceSum_sum", "Div_probabilities"];
    assert_eq!(found("skip_softmax_chains", softmax, "y"), nodes);
    // The size of a box is no probability.
    let size = |g: &mut GraphBuilder| {
        g.op("Exp", &["x"], "exp");
        g.op("Div", &["exp", "x"], "y");
    };
    assert!(found("skip_softmax_chains", size, "y").is_empty());
}

#[test]
fn operators_in_front_of_a_logarithm() {
    // A spectrogram: the magnitude of two convolutions, in decibels.
    let spectrogram = |g: &mut GraphBuilder| {
        g.values("tiny", &[], &[1e-10]);
        g.conv("x", 16, 16, 3, 1, "re");
        g.conv("x", 16, 16, 3, 1, "im");
        g.op("Mul", &["re", "re"], "re2");
        g.op("Mul", &["im", "im"], "im2");
        g.op("Add", &["re2", "im2"], "power");
        g.op("Clip", &["power", "tiny"], "some");
        g.op("Log", &["some"], "log");
        g.op("Mul", &["log", "log"], "y");
    };
    let nodes = ["Conv_re", "Conv_im", "Mul_re2", "Mul_im2", "Add_power", "Clip_some"];
    assert_eq!(found("skip_log_chains", spectrogram, "y"), nodes);
    // Features of a network are no signal.
    let of_features = |g: &mut GraphBuilder| {
        g.values("tiny", &[], &[1e-10]);
        g.op("Relu", &["x"], "r");
        g.conv("r", 16, 16, 3, 1, "c");
        g.op("Mul", &["c", "c"], "square");
        g.op("Add", &["square", "tiny"], "some");
        g.op("Log", &["some"], "log");
        g.op("Mul", &["log", "log"], "y");
    };
    assert_eq!(found("skip_log_chains", of_features, "y"), ["Mul_square", "Add_some"]);
    let model = graph(of_features, &["y"]);
    let scheme = scheme_with("[skip_log_chains, quantize_weighted_inputs, quantize_inputs, quantize_outputs]");
    assert_eq!(uses(&model, &place_by(&model, &scheme, &[])), ["r -> c", "log -> y, y"]);
    // In front of a root, from the square on.
    let length = |g: &mut GraphBuilder| {
        g.op("Add", &["x", "x"], "twice");
        g.op("Mul", &["twice", "twice"], "square");
        g.op("ReduceSum", &["square"], "sum");
        g.op("Sqrt", &["sum"], "root");
        g.op("Mul", &["x", "root"], "y");
    };
    assert_eq!(found("skip_log_chains", length, "y"), ["Mul_square", "ReduceSum_sum"]);
    let softplus = |g: &mut GraphBuilder| {
        g.values("one", &[], &[1.0]);
        g.op("Exp", &["x"], "exp");
        g.op("Add", &["exp", "one"], "sum");
        g.op("Log", &["sum"], "y");
    };
    assert!(found("skip_log_chains", softplus, "y").is_empty());
}

#[test]
fn products_of_linear_attention() {
    let of_one_product = |g: &mut GraphBuilder| {
        g.values("epsilon", &[], &[1e-5]);
        g.op("Relu", &["x"], "k");
        g.op("MatMul", &["k", "x"], "kv");
        g.op("MatMul", &["kv", "k"], "both");
        slice(g, "both", 0, 7, 2, "numerator");
        slice(g, "both", 7, 8, 2, "row");
        g.op("Add", &["row", "epsilon"], "denominator");
        g.op("Div", &["numerator", "denominator"], "y");
    };
    assert_eq!(found("skip_linear_attention", of_one_product, "y"), ["MatMul_kv", "MatMul_both"]);
    let by_reciprocal = |g: &mut GraphBuilder| {
        g.values("one", &[], &[1.0]);
        g.op("Relu", &["x"], "k");
        g.op("MatMul", &["k", "x"], "numerator");
        g.op("ReduceSum", &["k"], "sum");
        g.op("Div", &["one", "sum"], "reciprocal");
        g.op("Mul", &["numerator", "reciprocal"], "y");
    };
    assert_eq!(found("skip_linear_attention", by_reciprocal, "y"), ["MatMul_numerator"]);
    // A scaled product, and a mean over weights.
    let others = |g: &mut GraphBuilder| {
        g.values("root", &[], &[4.0]);
        g.op("MatMul", &["x", "x"], "scores");
        g.op("Div", &["scores", "root"], "scaled");
        g.op("Abs", &["x"], "weights");
        g.op("ReduceSum", &["weights"], "sum");
        g.op("Div", &["weights", "sum"], "mean");
        g.op("MatMul", &["mean", "scaled"], "y");
    };
    assert!(found("skip_linear_attention", others, "y").is_empty());
}

#[test]
fn positions_and_ranks() {
    let sampled = |g: &mut GraphBuilder| {
        g.values("size", &[], &[8.0]);
        g.values("grid", &[1, 8, 8, 2], &[0.5; 128]);
        g.conv("x", 16, 2, 3, 1, "delta");
        g.op_with("Transpose", &["delta"], "last", &[("perm", Attr::Ints(vec![0, 2, 3, 1]))]);
        g.op("Add", &["last", "grid"], "coordinates");
        g.op("Div", &["coordinates", "size"], "normalized");
        g.op("GridSample", &["x", "normalized"], "sampled");
        g.op("Sub", &["coordinates", "grid"], "flow");
        g.op_with("Transpose", &["flow"], "first", &[("perm", Attr::Ints(vec![0, 3, 1, 2]))]);
        g.op("Concat", &["sampled", "first"], "y");
    };
    let nodes = ["Transpose_last", "Add_coordinates", "Div_normalized", "Sub_flow"];
    assert_eq!(found("skip_positions", sampled, "y"), nodes);
    let ranked = |g: &mut GraphBuilder| {
        g.op("MatMul", &["x", "x"], "product");
        g.op("Mul", &["x", "x"], "square");
        g.op("Sub", &["square", "product"], "distance");
        g.op("ArgMin", &["distance"], "y");
    };
    assert_eq!(found("skip_positions", ranked, "y"), ["MatMul_product", "Mul_square", "Sub_distance"]);
    let read = |g: &mut GraphBuilder| {
        g.op("MatMul", &["x", "x"], "product");
        g.op("Mul", &["product", "x"], "square");
        g.op("ArgMin", &["square"], "nearest");
        g.op("Relu", &["square"], "y");
    };
    assert!(found("skip_positions", read, "y").is_empty());
}

#[test]
fn samples_that_are_normalized_by_their_own_statistics() {
    let normalized = |g: &mut GraphBuilder| {
        g.values("epsilon", &[], &[1e-5]);
        g.op("Abs", &["x"], "magnitude");
        g.op("ReduceMean", &["magnitude"], "mean");
        g.op("Add", &["mean", "epsilon"], "scale");
        g.op("Div", &["x", "scale"], "n");
        g.conv("n", 16, 16, 3, 1, "c");
        g.op("Add", &["c", "n"], "sum");
        g.op("Mul", &["sum", "scale"], "y");
    };
    let nodes = ["Add_scale", "Div_n", "Mul_y"];
    assert_eq!(found("skip_input_statistics", normalized, "y"), nodes);
    // A mean of features, as in a squeeze-and-excite block, is no statistic of the input.
    let of_features = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        g.op("ReduceMean", &["c"], "mean");
        g.op("Mul", &["c", "mean"], "y");
    };
    assert!(found("skip_input_statistics", of_features, "y").is_empty());
}

#[test]
fn attention() {
    let masked = |g: &mut GraphBuilder| {
        g.values("root", &[], &[4.0]);
        g.input("mask", &[1, 16, 8, 8]);
        g.op("MatMul", &["x", "x"], "scores");
        g.op("Div", &["scores", "root"], "scaled");
        g.op("Add", &["scaled", "mask"], "masked");
        g.op("Softmax", &["masked"], "weights");
        g.op_with("Transpose", &["x"], "v", &[("perm", Attr::Ints(vec![0, 1, 3, 2]))]);
        g.op("MatMul", &["weights", "v"], "y");
    };
    assert_eq!(found("skip_attention_scores", masked, "y"), ["MatMul_scores", "MatMul_y"]);
    assert_eq!(found("skip_attention_output", masked, "y"), ["MatMul_y"]);
    // As GPT-2 and OPT mask: a difference, and a lower bound.
    let bounded = |g: &mut GraphBuilder| {
        for (name, value) in [("kept", 1.0), ("left_out", 1e4), ("lowest", -1e5)] {
            g.values(name, &[], &[value]);
        }
        g.input("mask", &[1, 16, 8, 8]);
        g.op("MatMul", &["x", "x"], "scores");
        g.op("Add", &["scores", "mask"], "added");
        g.op("Mul", &["added", "kept"], "times");
        g.op("Sub", &["times", "left_out"], "masked");
        g.op("Max", &["masked", "lowest"], "bounded");
        g.op("Softmax", &["bounded"], "weights");
        g.op("MatMul", &["weights", "x"], "y");
    };
    assert_eq!(found("skip_attention_scores", bounded, "y"), ["MatMul_scores", "MatMul_y"]);
    let unmasked = |g: &mut GraphBuilder| {
        g.op("MatMul", &["x", "x"], "scores");
        g.op("Softmax", &["scores"], "weights");
        g.op("Relu", &["x"], "v");
        g.op("MatMul", &["weights", "v"], "y");
    };
    assert!(found("skip_attention_scores", unmasked, "y").is_empty());
    assert!(found("skip_attention_output", unmasked, "y").is_empty());
}

#[test]
fn sums_of_embeddings() {
    let build = |g: &mut GraphBuilder| {
        g.input("ids", &[1, 8]);
        g.weight("words", &[100, 16]);
        g.weight("positions", &[8, 16]);
        g.op("Gather", &["words", "ids"], "w");
        g.op("Gather", &["positions", "ids"], "p");
        g.op("Unsqueeze", &["p"], "p1");
        g.op("Add", &["w", "p1"], "e1");
        g.op("Add", &["x", "e1"], "e2");
        g.op("Relu", &["e2"], "r");
        g.op("Add", &["r", "x"], "y");
    };
    assert_eq!(found("skip_embedding_adds", build, "y"), ["Add_e1", "Add_e2"]);
}

#[test]
fn squeeze_and_excite() {
    let block = |source: &'static str| {
        move |g: &mut GraphBuilder| {
            g.op("Relu", &["x"], "r");
            g.op("GlobalAveragePool", &[source], "mean");
            g.conv("mean", 16, 16, 1, 1, "down");
            g.op("Relu", &["down"], "d");
            g.conv("d", 16, 16, 1, 1, "up");
            g.op("Sigmoid", &["up"], "gate");
            g.op("Mul", &["r", "gate"], "y");
        }
    };
    assert_eq!(found("skip_squeeze_excite", block("r"), "y"), ["GlobalAveragePool_mean", "Mul_y"]);
    assert!(found("skip_squeeze_excite", block("x"), "y").is_empty());
}

#[test]
fn tensorrt_runs_a_spelled_out_hard_swish_at_the_end_of_its_convolution() {
    let build = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        hard_swish(g, "c");
        g.conv("hard", 16, 16, 3, 1, "y");
    };
    let model = graph(build, &["y"]);
    let scheme = mqq::backends::resolve("tensorrt").unwrap();
    assert_eq!(uses(&model, &place_by(&model, &scheme, &[])), ["x -> c", "hard -> y"]);
}
