//! Each rule on a small graph of its own: what it changes against the same rules without it.

use super::{graph, left_float, place_by, quantized, scheme_with, uses};
use crate::support::{Attr, GraphBuilder};
use mqq::backends;
use mqq::place::{FloatCause, SoftmaxRole};

#[test]
fn inputs_of_listed_operators() {
    let build = |g: &mut GraphBuilder| g.ops("r = Relu x; sum = Add r x; e = Exp r; y = Add sum e");
    let found = quantized("[{ quantize_inputs: { ops: [Add] } }]", build, &["y"]);
    assert_eq!(found, ["x -> sum", "r -> sum", "sum -> y", "e -> y"]);
    let found = quantized("[{ quantize_inputs: { ops: [Add], all_uses: 1 } }]", build, &["y"]);
    assert_eq!(found, ["x -> r, sum", "r -> sum, e", "sum -> y", "e -> y"]);
    // Without a list, every operator with an input row.
    assert_eq!(quantized("[quantize_inputs]", build, &["y"]).len(), 4);
}

#[test]
fn a_computed_bias_stays_float_and_so_does_its_node_where_biases_are_integers() {
    let build = |g: &mut GraphBuilder| {
        g.weight("w", &[16, 16, 1, 1]);
        g.op_with("ReduceMean", &["x"], "mean", &[("axes", Attr::Ints(vec![0, 2, 3])), ("keepdims", Attr::Int(0))]);
        g.ops("bias = Relu mean; y = Conv x w bias");
    };
    let model = graph(build, &["y"]);
    for (backend, float) in [("tflite", &["Conv_y"][..]), ("qnn-htp", &["Conv_y"]), ("tensorrt", &[])] {
        let placement = place_by(&model, &backends::resolve(backend).unwrap(), &[("mean", &[16]), ("bias", &[16])]);
        assert_eq!(left_float(&model, &placement, "computed_bias"), float, "{backend}");
        let uses = uses(&model, &placement);
        assert!(!uses.iter().any(|line| line.starts_with("bias -> y")), "{uses:?}");
    }
}

#[test]
fn computed_scales_of_a_resize_are_no_activation() {
    let build = |g: &mut GraphBuilder| {
        g.op("Exp", &["x"], "scales");
        g.op("Resize", &["x", "", "scales"], "y");
    };
    assert_eq!(quantized("[quantize_inputs]", build, &["y"]), ["x -> y"]);
}

#[test]
fn operators_whose_output_no_integer_kernel_reads() {
    let build = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "a");
        g.conv("x", 16, 16, 3, 1, "b");
        // An operator without a row reads the Concat; a convolution reads the Add past a Relu and a MaxPool.
        g.op_with("Concat", &["a", "b"], "joined", &[("axis", Attr::Int(1))]);
        g.op("Exp", &["joined"], "e");
        g.conv("e", 32, 16, 1, 1, "y");
        g.ops("sum = Add a b; r = Relu sum");
        g.op_with("MaxPool", &["r"], "p", &[("kernel_shape", Attr::Ints(vec![1, 1]))]);
        g.conv("p", 16, 16, 1, 1, "z");
        // The network's end alone reads the product.
        g.op("Mul", &["a", "b"], "end");
    };
    let ops = "[Add, Mul, MaxPool, Concat]";
    let rules = |skip: &str| {
        let followers = format!("{{ quantize_followers: {{ ops: {ops} }} }}");
        format!(
            "[quantize_weighted_inputs, {skip}{followers}, {{ quantize_outputs: {{ past: [Relu] }} }}, share_scales]"
        )
    };
    let skip = "{ skip_unread: { past: [Relu] } }, ";
    let model = graph(build, &["y", "z", "end"]);
    let placement = place_by(&model, &scheme_with(&rules(skip)), &[]);
    assert_eq!(left_float(&model, &placement, "skip_unread"), ["Concat_joined", "Mul_end"]);
    let of_all = place_by(&model, &scheme_with(&rules("{ skip_unread: { past_all: 1 } }, ")), &[]);
    assert_eq!(left_float(&model, &of_all, "skip_unread"), ["Mul_end"], "a convolution reads the Concat behind an Exp");
    let found = quantized(&rules(skip), build, &["y", "z", "end"]);
    assert!(found.iter().all(|uses| !uses.starts_with("joined")), "{found:?}");
    let group = |tensor: &str| placement.activations.iter().find(|found| found.tensor == tensor).unwrap().group;
    assert_ne!(group("a"), group("b"), "a Concat that stays float lets its inputs have scales of their own");
    let found = quantized(&rules(""), build, &["y", "z", "end"]);
    assert!(found.iter().any(|uses| uses.starts_with("joined")), "{found:?}");
}

#[test]
fn joins_of_joins_are_followed_once_each() {
    let build = |g: &mut GraphBuilder| {
        let mut joined = g.conv("x", 16, 16, 3, 1, "c");
        for i in 0..60 {
            joined = g.op_with("Concat", &[&joined, &joined], &format!("c{i}"), &[("axis", Attr::Int(1))]);
        }
        g.op("Add", &[&joined, &joined], "y");
    };
    let found = quantized("[quantize_weighted_inputs, { quantize_followers: { ops: [Add] } }]", build, &["y"]);
    assert!(found.iter().any(|uses| uses.starts_with("c59 -> y")), "{found:?}");
}

#[test]
fn outputs_move_past_what_alone_follows() {
    let build = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "a");
        g.ops("r = Relu a; d = Dropout r; f = Flatten d; y = Exp f");
    };
    let past = |ops: &str| {
        let rules = format!("[quantize_weighted_inputs, {{ quantize_outputs: {{ past: {ops} }} }}]");
        quantized(&rules, build, &["y"])
    };
    assert_eq!(past("[]"), ["x -> a", "a -> r"]);
    assert_eq!(past("[Relu]"), ["x -> a", "r -> d"]);
    assert_eq!(past("[Relu, Dropout, Flatten]"), ["x -> a", "f -> y"]);
    assert_eq!(past("[Dropout, Flatten]"), ["x -> a", "a -> r"]);
}

#[test]
fn an_activation_behind_an_add_belongs_to_it_where_the_output_is_quantized_past_it() {
    let build = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "a");
        g.conv("x", 16, 16, 3, 1, "b");
        g.ops("sum = Add a b; r = Relu sum");
        g.conv("r", 16, 16, 1, 1, "y");
    };
    let model = graph(build, &["y"]);
    let fused = |past: &str| {
        let rules = "quantize_weighted_inputs, { quantize_followers: { ops: [Add] } }";
        let scheme = scheme_with(&format!("[{rules}, {{ quantize_outputs: {{ past: {past} }} }}]"));
        let placement = place_by(&model, &scheme, &[]);
        let causes = placement.float_nodes.iter().map(|float| float.cause == FloatCause::Fused(2));
        causes.collect::<Vec<_>>()
    };
    assert_eq!(fused("[Relu]"), [true]);
    assert_eq!(fused("[]"), [false]);
}

#[test]
fn expectations_over_a_softmax_stay_float() {
    let left = |columns: usize, function: &str| {
        let build = |g: &mut GraphBuilder| {
            g.op("Flatten", &["x"], "f");
            g.op(function, &["f"], "p");
            g.op("Reshape", &["p", "shape"], "rows");
            g.weight("places", &[16 * 8 * 8, columns]);
            g.op("MatMul", &["rows", "places"], "y");
        };
        let model = graph(build, &["y"]);
        let placement = place_by(&model, &scheme_with("[skip_expectations, quantize_weighted_inputs]"), &[]);
        left_float(&model, &placement, "skip_expectations").len()
    };
    assert_eq!([left(2, "Softmax"), left(64, "Softmax"), left(2, "Sigmoid")], [1, 0, 0]);
}

#[test]
fn every_output_that_is_read_is_quantized() {
    let build = |g: &mut GraphBuilder| {
        g.op_with("Split", &["x"], "a", &[("axis", Attr::Int(1))]);
        g.also_makes("b");
        g.also_makes("unread");
        g.ops("e = Exp a; r = Relu b; f = Exp r; y = Sub e f");
    };
    let rules = "[{ quantize_inputs: { ops: [Split] } }, { quantize_outputs: { past: [Relu] } }]";
    assert_eq!(quantized(rules, build, &["y"]), ["x -> a", "a -> e", "r -> f"]);
}

#[test]
fn network_inputs_and_outputs() {
    let build = |g: &mut GraphBuilder| {
        g.op("Exp", &["x"], "e");
        g.conv("x", 16, 16, 3, 1, "a");
        g.ops("y = Relu a; z = Exp a");
    };
    let rules = "[quantize_weighted_inputs]";
    assert_eq!(quantized(rules, build, &["y", "z"]), ["x -> a"]);
    let rules = "[quantize_weighted_inputs, quantize_network_inputs]";
    assert_eq!(quantized(rules, build, &["y", "z"]), ["x -> e, a"]);
    // `z` is made by an operator without a row; `y` by a Relu that the rule may look behind.
    let rules = "[quantize_weighted_inputs, { quantize_network_outputs: { past: [Relu] } }]";
    assert_eq!(quantized(rules, build, &["y", "z"]), ["x -> a", "y ->  (output)"]);
    let rules = "[quantize_weighted_inputs, quantize_network_outputs]";
    assert_eq!(quantized(rules, build, &["y", "z"]), ["x -> a"]);
}

#[test]
fn merged_pairs_keep_what_lies_between_them_float() {
    let build = |g: &mut GraphBuilder| g.ops("r = Relu x; m = Mul x r; sum = Add m r; d = Div x r; y = Add d sum");
    let rules = "[{ skip_merged_inputs: { into: [Add], from: [Mul, Div] } }, { quantize_inputs: { ops: [Add] } }]";
    assert_eq!(quantized(rules, build, &["y"]), ["r -> sum", "sum -> y"]);
    let rules = "[{ skip_merged_inputs: { into: [Add], from: [Div] } }, { quantize_inputs: { ops: [Add] } }]";
    assert_eq!(quantized(rules, build, &["y"]), ["r -> sum", "m -> sum", "sum -> y"]);
}

#[test]
fn first_and_last_layers() {
    let build = |g: &mut GraphBuilder| {
        g.op("Relu", &["x"], "r");
        g.conv("r", 16, 16, 3, 1, "a");
        g.conv("x", 16, 16, 3, 1, "b");
        g.op("Concat", &["a", "b"], "joined");
        g.conv("joined", 32, 16, 3, 1, "c");
        g.op("Flatten", &["c"], "f");
        g.weight("w", &[1024, 10]);
        g.op("Gemm", &["f", "w"], "y");
    };
    let model = graph(build, &["y"]);
    let skip = |rule: &str| {
        let scheme = scheme_with(&format!("[{rule}, quantize_weighted_inputs]"));
        uses(&model, &place_by(&model, &scheme, &[]))
    };
    assert_eq!(skip("skip_first_layers"), ["joined -> c", "f -> y"]);
    assert_eq!(skip("skip_last_layers"), ["x -> b", "r -> a", "joined -> c"]);
    assert_eq!(skip("skip_last_layers: { ops: [Conv] }"), ["x -> b", "r -> a", "f -> y"]);
    let types = |rule: &str| -> Vec<String> {
        let placement = place_by(
            &model,
            &scheme_with(&format!("[{{ {rule}: {{ input: wide, weight: wide }} }}, quantize_inputs]")),
            &[],
        );
        let wide = placement.activations.iter().filter(|quantizer| quantizer.qtype == "wide");
        let wide = wide.map(|quantizer| quantizer.tensor.clone());
        let weights = placement.weights.iter().filter(|quantizer| quantizer.qtype == "wide");
        wide.chain(weights.map(|quantizer| quantizer.tensor.clone())).collect()
    };
    assert_eq!(types("set_first_layer_types"), ["x", "r", "a.weight", "b.weight"]);
    assert_eq!(types("set_last_layer_types"), ["f", "w"]);
}

#[test]
fn grouped_convolutions() {
    let build = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "a");
        g.conv("a", 16, 16, 3, 4, "b");
        g.conv("b", 16, 16, 3, 16, "y");
    };
    let rules = |rule: &str| quantized(&format!("[{rule}, quantize_weighted_inputs]"), build, &["y"]);
    assert_eq!(rules("skip_grouped_convs"), ["x -> a"]);
    assert_eq!(rules("skip_grouped_convs: { depthwise: 1 }"), ["x -> a", "a -> b"]);
}

#[test]
fn small_convolutions_stay_float_for_the_condition_that_their_shape_misses() {
    let reason_behind = |op: &str, c_in: usize, c_out: usize, k: usize, groups: i64| {
        let build = |g: &mut GraphBuilder| {
            g.op(op, &["x"], "r");
            g.conv("r", c_in, c_out, k, groups, "y");
        };
        let placement =
            place_by(&graph(build, &["y"]), &scheme_with("[skip_small_convs, quantize_weighted_inputs]"), &[]);
        let float = placement.float_nodes.iter().find(|float| float.rule == "skip_small_convs");
        float.map(|float| float.reason.clone())
    };
    let reason = |c_in, c_out, k, groups| reason_behind("Relu", c_in, c_out, k, groups);
    let expected = |(per_group, out): (usize, usize), expected: &str| {
        Some(format!("input channels per group: {per_group}, output channels: {out}, expected {expected}"))
    };
    assert_eq!(reason(36, 12, 3, 1), expected((36, 12), "16 or more for both, or a multiple of 8 for one"));
    assert_eq!(reason(48, 12, 3, 1), None);
    assert_eq!(reason(8, 12, 3, 1), expected((8, 12), "16 or more for one"));
    // At a network input, also behind a Transpose.
    assert_eq!(reason_behind("Transpose", 8, 12, 3, 1), None);
    let multiple = "16 or more for both, or a multiple of 8 for the output channels";
    assert_eq!(reason(12, 12, 3, 12), expected((1, 12), multiple));
    let sides = "16 or more for both, or sides of 3 or more for the kernel [1, 1]";
    assert_eq!(reason(16, 16, 1, 16), expected((1, 16), sides));
    assert_eq!(reason(16, 16, 3, 16), None);
}

#[test]
fn pooling_with_dilations() {
    let build = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 1, 1, "a");
        let kernel = || ("kernel_shape", Attr::Ints(vec![2, 2]));
        g.op_with("AveragePool", &["a"], "b", &[kernel(), ("dilations", Attr::Ints(vec![2, 2]))]);
        g.op_with("AveragePool", &["b"], "c", &[kernel()]);
        g.conv("c", 16, 16, 1, 1, "y");
    };
    let rules = "skip_dilated_pools, quantize_inputs, quantize_outputs";
    assert_eq!(quantized(&format!("[{rules}]"), build, &["y"]), ["x -> a", "b -> c", "c -> y"]);
}

#[test]
fn types_of_single_uses_and_of_winograd_kernels() {
    let model = graph(
        |g| {
            g.conv("x", 16, 16, 3, 1, "plain");
            g.conv("plain", 16, 16, 1, 1, "point");
            g.conv("point", 16, 16, 3, 16, "depthwise");
            let w = g.weight("s.weight", &[16, 16, 3, 3]);
            g.op_with("Conv", &["depthwise", &w], "s", &[("strides", Attr::Ints(vec![2, 2]))]);
            g.op("MatMul", &["s", "x"], "y");
        },
        &["y"],
    );
    let rules = "[{ set_winograd_types: { weight: wide } }, { set_input_type: { ops: [MatMul], input: 0, type: wide } }, quantize_inputs]";
    let placement = place_by(&model, &scheme_with(rules), &[]);
    let wide = placement.weights.iter().filter(|quantizer| quantizer.qtype == "wide");
    assert_eq!(wide.map(|quantizer| quantizer.tensor.as_str()).collect::<Vec<_>>(), ["plain.weight"]);
    let wide = placement.activations.iter().filter(|quantizer| quantizer.qtype == "wide");
    assert_eq!(wide.map(|quantizer| quantizer.tensor.as_str()).collect::<Vec<_>>(), ["s"]);
}

#[test]
fn a_constant_left_operand_gets_its_type() {
    let model = graph(
        |g| {
            let (left, right) = (g.weight("left", &[8, 8]), g.weight("right", &[8, 8]));
            g.ops(&format!("a = MatMul {left} x; y = MatMul a {right}"));
        },
        &["y"],
    );
    let rules = "[{ set_left_constant_type: { ops: [MatMul], type: wide } }, quantize_inputs]";
    let placement = place_by(&model, &scheme_with(rules), &[]);
    let wide = placement.weights.iter().filter(|quantizer| quantizer.qtype == "wide");
    assert_eq!(wide.map(|quantizer| quantizer.tensor.as_str()).collect::<Vec<_>>(), ["left"]);
    assert_eq!(placement.weights.len(), 2);
}

#[test]
fn operands_of_products_that_no_softmax_made_get_their_type() {
    let model = graph(
        |g| {
            g.conv("x", 16, 16, 1, 1, "k");
            g.op_with("Transpose", &["k"], "kt", &[("perm", Attr::Ints(vec![0, 1, 3, 2]))]);
            g.ops("q = Neg x; scores = MatMul q kt; p = Softmax scores; d = Dropout p; mixed = MatMul d x");
            let w = g.weight("w", &[8, 8]);
            g.op("MatMul", &["mixed", &w], "y");
        },
        &["y"],
    );
    let rules = "[{ set_product_input_types: { type: wide, except_behind: [Softmax] } }, quantize_inputs]";
    let placement = place_by(&model, &scheme_with(rules), &[]);
    let types = placement.activations.iter().map(|quantizer| (quantizer.tensor.as_str(), quantizer.qtype.as_str()));
    let types: Vec<(&str, &str)> = types.collect();
    for expected in [("q", "wide"), ("kt", "wide"), ("d", "a"), ("mixed", "a")] {
        assert!(types.contains(&expected), "{expected:?}: {types:?}");
    }
}

#[test]
fn prescribed_grids_do_not_spread_to_other_inputs_of_a_concat() {
    let model = graph(
        |g| {
            g.conv("x", 16, 16, 3, 1, "a");
            g.conv("x", 16, 16, 3, 1, "b");
            g.op("Sigmoid", &["b"], "s");
            g.op_with("MaxPool", &["s"], "p", &[("kernel_shape", Attr::Ints(vec![1, 1]))]);
            g.ops("joined = Concat a s; more = Concat joined p");
            g.conv("more", 48, 16, 3, 1, "y");
        },
        &["y"],
    );
    let placement = place_by(&model, &scheme_with("[quantize_inputs, share_scales]"), &[]);
    let group = |name: &str| placement.activations.iter().find(|s| s.tensor == name).unwrap().group;
    assert_eq!(group("a"), group("joined"));
    assert_ne!(group("s"), group("joined"));
    assert_eq!(group("s"), group("p"));
}

#[test]
fn constants_follow_the_row() {
    let model = graph(
        |g| {
            g.values("half", &[], &[0.5]);
            g.ops("m = Mul x half; s = Sub m half; y = Add s half");
        },
        &["y"],
    );
    let placement = place_by(&model, &scheme_with("[quantize_inputs]"), &[]);
    // One constant, one quantizer; Sub's row has no type for it.
    assert_eq!(placement.weights.len(), 1);
    assert_eq!(placement.weights[0].edges, [(0, 1), (2, 1)]);
    let scheme = scheme_with("[skip_constant_operands: { ops: [Mul] }, quantize_inputs]");
    let placement = place_by(&model, &scheme, &[]);
    assert_eq!(placement.weights[0].edges, [(2, 1)]);
    assert_eq!(left_float(&model, &placement, "skip_constant_operands"), ["Mul_m"]);
}

#[test]
fn numbers_that_become_indices_stay_float_in_every_table() {
    let build = |to: i64| {
        let model = graph(
            |g| {
                g.values("two", &[], &[2.0]);
                g.weight("table", &[64, 16]);
                g.ops("r = Relu x; doubled = Mul r two; moved = Add doubled r");
                g.op_with("Cast", &["moved"], "integers", &[("to", Attr::Int(to))]);
                g.ops("rows = Gather table integers; z = Mul r two");
            },
            &["rows", "z"],
        );
        let placement = place_by(&model, &scheme_with("[quantize_inputs]"), &[]);
        (left_float(&model, &placement, "indices"), uses(&model, &placement))
    };
    const INT64: i64 = 7;
    const UINT8: i64 = 2;
    let (float, quantized) = build(INT64);
    assert_eq!(float, ["Mul_doubled", "Add_moved"]);
    // Other readers of `r` read it on its grid.
    assert!(quantized.contains(&"r -> z".to_string()), "{quantized:?}");
    // Pixels are no indices.
    let (float, quantized) = build(UINT8);
    assert!(float.is_empty());
    assert!(quantized.contains(&"r -> doubled, moved, z".to_string()), "{quantized:?}");
}

#[test]
fn what_only_a_softmax_makes_use_of() {
    let model = graph(
        |g| {
            g.weight("mask", &[8, 8]);
            g.ops(
                "shared = Relu x; scores = Neg shared; masked = Add scores mask; moved = Transpose masked; \
                 weights = Softmax moved; y = Add weights shared",
            );
        },
        &["y"],
    );
    let placement = place_by(&model, &scheme_with("[quantize_inputs]"), &[]);
    let role = |tensor: &str| {
        let of_activation = placement.activations.iter().find(|quantizer| quantizer.tensor == tensor);
        let of_weight = || placement.weights.iter().find(|quantizer| quantizer.tensor == tensor);
        of_activation.map_or_else(|| of_weight().unwrap().softmax, |quantizer| quantizer.softmax)
    };
    assert_eq!(role("scores"), Some(SoftmaxRole::Addend));
    assert_eq!(role("mask"), Some(SoftmaxRole::Addend));
    assert_eq!(role("shared"), None);
    assert_eq!(role("weights"), None);
}
