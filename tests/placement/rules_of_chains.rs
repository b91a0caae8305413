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
    g.scalars(&[("three", 3.0), ("zero", 0.0), ("six", 6.0)]);
    g.op("Add", &[x, "three"], "shifted");
    g.op("Clip", &["shifted", "zero", "six"], "clipped");
    g.op("Mul", &[x, "clipped"], "product");
    g.op("Div", &["product", "six"], "hard");
}

#[test]
fn activation_functions_behind_a_layer() {
    let silu = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        g.ops("s = Sigmoid c; silu = Mul s c");
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
        g.ops("s = Sigmoid d; y = Mul s c");
    };
    assert!(found("skip_fused_gates: { alone: 1 }", gated, "y").is_empty());
    // A constant divided by the product is not scaled.
    let inverse = |g: &mut GraphBuilder| {
        g.values("one", &[], &[1.0]);
        g.ops("s = Sigmoid x; silu = Mul x s; y = Div one silu");
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
    g.scalars(&[("root", std::f32::consts::SQRT_2), ("one", 1.0), ("half", 0.5)]);
    g.ops("scaled = Div x root; erf = Erf scaled; sum = Add erf one; product = Mul x sum; y = Mul product half");
}

#[test]
fn gelu_spelled_out() {
    let nodes = ["Div_scaled", "Erf_erf", "Add_sum", "Mul_product", "Mul_y"];
    assert_eq!(found("skip_gelu_chains", gelu, "y"), nodes);
    let scaled_first = |g: &mut GraphBuilder| {
        g.scalars(&[("half", 0.5), ("one", 1.0)]);
        g.ops("h = Mul x half; erf = Erf x; sum = Add erf one; y = Mul h sum");
    };
    assert_eq!(found("skip_gelu_chains", scaled_first, "y"), ["Mul_h", "Erf_erf", "Add_sum", "Mul_y"]);
    let with_tanh = |g: &mut GraphBuilder| {
        g.scalars(&[("cube", 3.0), ("c", 0.0447), ("root", 0.7979), ("one", 1.0)]);
        g.ops(
            "x3 = Pow x cube; cx3 = Mul x3 c; inner = Add x cx3; scaled = Mul inner root; tanh = Tanh scaled; \
             sum = Add tanh one; y = Mul x sum",
        );
    };
    assert_eq!(found("skip_gelu_chains", with_tanh, "y").len(), 7);
    // SiLU is none.
    let silu = |g: &mut GraphBuilder| g.ops("s = Sigmoid x; y = Mul x s");
    assert!(found("skip_gelu_chains", silu, "y").is_empty());
}

#[test]
fn layer_normalization_spelled_out() {
    let norm = |g: &mut GraphBuilder| {
        g.scalars(&[("two", 2.0), ("epsilon", 1e-5)]);
        g.ops(
            "mean = ReduceMean x; d = Sub x mean; square = Pow d two; variance = ReduceMean square; \
             v = Add variance epsilon; deviation = Sqrt v; n = Div d deviation",
        );
        g.weight("gamma", &[8]);
        g.weight("beta", &[8]);
        g.ops("scaled = Mul n gamma; norm = Add scaled beta");
        g.conv("norm", 16, 16, 3, 1, "c");
        g.op("Add", &["c", "norm"], "y");
    };
    let nodes = found("skip_layer_norm_chains", norm, "y");
    assert_eq!(nodes.len(), 9, "{nodes:?}");
    assert!(!nodes.contains(&"Add_y".to_string()));
    // The root mean square, with one over the root.
    let rms = |g: &mut GraphBuilder| {
        g.scalars(&[("one", 1.0), ("epsilon", 1e-5)]);
        g.ops(
            "square = Mul x x; mean = ReduceMean square; v = Add mean epsilon; root = Sqrt v; by = Div one root; \
             n = Mul x by",
        );
        g.weight("gamma", &[8]);
        g.op("Mul", &["gamma", "n"], "y");
    };
    assert_eq!(found("skip_layer_norm_chains", rms, "y").len(), 7);
    let distance = |g: &mut GraphBuilder| {
        g.ops("square = Mul x x; sum = ReduceSum square; root = Sqrt sum; y = Mul x root");
    };
    assert!(found("skip_layer_norm_chains", distance, "y").is_empty());
}

/// JAX: the variance is the mean of squares minus the square of the mean, sums are scaled, statistics expanded.
#[test]
fn layer_normalization_of_jax() {
    let norm = |g: &mut GraphBuilder| {
        g.scalars(&[("by_n", 0.125), ("zero", 0.0), ("epsilon", 1e-6)]);
        g.weight("gamma", &[8]);
        g.weight("beta", &[8]);
        g.ops(
            "sum = ReduceSum x; mean = Mul sum by_n; square = Mul x x; sum_of_squares = ReduceSum square; \
             mean_of_squares = Mul sum_of_squares by_n; square_of_mean = Mul mean mean; \
             difference = Sub mean_of_squares square_of_mean; variance = Max zero difference; \
             v = Add variance epsilon; deviation = Sqrt v; by = Reciprocal deviation; scale = Mul by gamma; \
             d = Sub x mean; n = Mul d scale; norm = Add n beta",
        );
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
        g.ops(
            "mean = ReduceMean x; d = Sub x mean; square = Mul d d; variance = ReduceMean square; \
             v = Add variance epsilon; deviation = Sqrt v; by = Reciprocal deviation; scale = Mul by gamma; \
             scaled = Mul x scale; scaled_mean = Mul mean scale; shift = Sub beta scaled_mean; \
             norm = Add scaled shift; y = Relu norm",
        );
    };
    let nodes = found("skip_layer_norm_chains", norm, "y");
    assert_eq!(nodes.len(), 12, "{nodes:?}");
}

#[test]
fn softmax_spelled_out() {
    let softmax = |g: &mut GraphBuilder| {
        g.ops(
            "largest = ReduceMax x; d = Sub x largest; exp = Exp d; sum = ReduceSum exp; probabilities = Div exp sum; \
             y = Mul probabilities x",
        );
    };
    let nodes = ["ReduceMax_largest", "Sub_d", "Exp_exp", "ReduceSum_sum", "Div_probabilities"];
    assert_eq!(found("skip_softmax_chains", softmax, "y"), nodes);
    // The size of a box is no probability.
    let size = |g: &mut GraphBuilder| g.ops("exp = Exp x; y = Div exp x");
    assert!(found("skip_softmax_chains", size, "y").is_empty());
}

#[test]
fn operators_in_front_of_a_logarithm() {
    // A spectrogram: the magnitude of two convolutions, in decibels.
    let spectrogram = |g: &mut GraphBuilder| {
        g.values("tiny", &[], &[1e-10]);
        g.conv("x", 16, 16, 3, 1, "re");
        g.conv("x", 16, 16, 3, 1, "im");
        g.ops(
            "re2 = Mul re re; im2 = Mul im im; power = Add re2 im2; some = Clip power tiny; log = Log some; \
             y = Mul log log",
        );
    };
    let nodes = ["Conv_re", "Conv_im", "Mul_re2", "Mul_im2", "Add_power", "Clip_some"];
    assert_eq!(found("skip_log_chains", spectrogram, "y"), nodes);
    // Features of a network are no signal.
    let of_features = |g: &mut GraphBuilder| {
        g.values("tiny", &[], &[1e-10]);
        g.op("Relu", &["x"], "r");
        g.conv("r", 16, 16, 3, 1, "c");
        g.ops("square = Mul c c; some = Add square tiny; log = Log some; y = Mul log log");
    };
    assert_eq!(found("skip_log_chains", of_features, "y"), ["Mul_square", "Add_some"]);
    let model = graph(of_features, &["y"]);
    let scheme = scheme_with("[skip_log_chains, quantize_weighted_inputs, quantize_inputs, quantize_outputs]");
    assert_eq!(uses(&model, &place_by(&model, &scheme, &[])), ["r -> c", "log -> y, y"]);
    // In front of a root, from the square on.
    let length = |g: &mut GraphBuilder| {
        g.ops("twice = Add x x; square = Mul twice twice; sum = ReduceSum square; root = Sqrt sum; y = Mul x root");
    };
    assert_eq!(found("skip_log_chains", length, "y"), ["Mul_square", "ReduceSum_sum"]);
    let softplus = |g: &mut GraphBuilder| {
        g.values("one", &[], &[1.0]);
        g.ops("exp = Exp x; sum = Add exp one; y = Log sum");
    };
    assert!(found("skip_log_chains", softplus, "y").is_empty());
}

#[test]
fn products_of_linear_attention() {
    let of_one_product = |g: &mut GraphBuilder| {
        g.values("epsilon", &[], &[1e-5]);
        g.ops("k = Relu x; kv = MatMul k x; both = MatMul kv k");
        slice(g, "both", 0, 7, 2, "numerator");
        slice(g, "both", 7, 8, 2, "row");
        g.ops("denominator = Add row epsilon; y = Div numerator denominator");
    };
    assert_eq!(found("skip_linear_attention", of_one_product, "y"), ["MatMul_kv", "MatMul_both"]);
    let by_reciprocal = |g: &mut GraphBuilder| {
        g.values("one", &[], &[1.0]);
        g.ops(
            "k = Relu x; numerator = MatMul k x; sum = ReduceSum k; reciprocal = Div one sum; \
             y = Mul numerator reciprocal",
        );
    };
    assert_eq!(found("skip_linear_attention", by_reciprocal, "y"), ["MatMul_numerator"]);
    // A scaled product, and a mean over weights.
    let others = |g: &mut GraphBuilder| {
        g.values("root", &[], &[4.0]);
        g.ops(
            "scores = MatMul x x; scaled = Div scores root; weights = Abs x; sum = ReduceSum weights; \
             mean = Div weights sum; y = MatMul mean scaled",
        );
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
        g.ops("product = MatMul x x; square = Mul x x; distance = Sub square product; y = ArgMin distance");
    };
    assert_eq!(found("skip_positions", ranked, "y"), ["MatMul_product", "Mul_square", "Sub_distance"]);
    let read = |g: &mut GraphBuilder| {
        g.ops("product = MatMul x x; square = Mul product x; nearest = ArgMin square; y = Relu square");
    };
    assert!(found("skip_positions", read, "y").is_empty());
}

#[test]
fn samples_that_are_normalized_by_their_own_statistics() {
    let normalized = |g: &mut GraphBuilder| {
        g.values("epsilon", &[], &[1e-5]);
        g.ops("magnitude = Abs x; mean = ReduceMean magnitude; scale = Add mean epsilon; n = Div x scale");
        g.conv("n", 16, 16, 3, 1, "c");
        g.ops("sum = Add c n; y = Mul sum scale");
    };
    let nodes = ["Add_scale", "Div_n", "Mul_y"];
    assert_eq!(found("skip_input_statistics", normalized, "y"), nodes);
    // A mean of features, as in a squeeze-and-excite block, is no statistic of the input.
    let of_features = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        g.ops("mean = ReduceMean c; y = Mul c mean");
    };
    assert!(found("skip_input_statistics", of_features, "y").is_empty());
}

#[test]
fn attention() {
    let masked = |g: &mut GraphBuilder| {
        g.values("root", &[], &[4.0]);
        g.input("mask", &[1, 16, 8, 8]);
        g.ops("scores = MatMul x x; scaled = Div scores root; masked = Add scaled mask; weights = Softmax masked");
        g.op_with("Transpose", &["x"], "v", &[("perm", Attr::Ints(vec![0, 1, 3, 2]))]);
        g.op("MatMul", &["weights", "v"], "y");
    };
    assert_eq!(found("skip_attention_scores", masked, "y"), ["MatMul_scores", "MatMul_y"]);
    assert_eq!(found("skip_attention_output", masked, "y"), ["MatMul_y"]);
    // As GPT-2 and OPT mask: a difference, and a lower bound.
    let bounded = |g: &mut GraphBuilder| {
        g.scalars(&[("kept", 1.0), ("left_out", 1e4), ("lowest", -1e5)]);
        g.input("mask", &[1, 16, 8, 8]);
        g.ops(
            "scores = MatMul x x; added = Add scores mask; times = Mul added kept; masked = Sub times left_out; \
             bounded = Max masked lowest; weights = Softmax bounded; y = MatMul weights x",
        );
    };
    assert_eq!(found("skip_attention_scores", bounded, "y"), ["MatMul_scores", "MatMul_y"]);
    let unmasked = |g: &mut GraphBuilder| {
        g.ops("scores = MatMul x x; weights = Softmax scores; v = Relu x; y = MatMul weights v");
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
        g.ops(
            "w = Gather words ids; p = Gather positions ids; p1 = Unsqueeze p; e1 = Add w p1; e2 = Add x e1; \
             r = Relu e2; y = Add r x",
        );
    };
    assert_eq!(found("skip_embedding_adds", build, "y"), ["Add_e1", "Add_e2"]);
}

#[test]
fn squeeze_and_excite() {
    let block = |source: &'static str| {
        move |g: &mut GraphBuilder| {
            g.ops(&format!("r = Relu x; mean = GlobalAveragePool {source}"));
            g.conv("mean", 16, 16, 1, 1, "down");
            g.op("Relu", &["down"], "d");
            g.conv("d", 16, 16, 1, 1, "up");
            g.ops("gate = Sigmoid up; y = Mul r gate");
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
