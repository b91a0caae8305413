//! The rule about transformers, on blocks in several spellings.

use super::{graph, left_float, place_by, scheme_with, uses};
use crate::support::{Attr, GraphBuilder};
use mqq::onnx::node;
use mqq::place::ActivationQuantizer;
use mqq::scheme::{Constraint, OpRow};

const RULES: &str =
    "[quantize_linear_inputs_alone, quantize_weighted_inputs, quantize_inputs, quantize_outputs: { past: [Relu] }]";

/// A linear layer with a bias.
fn linear(g: &mut GraphBuilder, x: &str, y: &str) {
    let (weight, bias, product) = (format!("{y}_w"), format!("{y}_b"), format!("{y}_product"));
    g.weight(&weight, &[8, 8]);
    g.weight(&bias, &[8]);
    g.ops(&format!("{product} = MatMul {x} {weight}; {y} = Add {product} {bias}"));
}

/// Attention of one head; its products are `scores` and `mixed`.
fn attention(g: &mut GraphBuilder, x: &str, y: &str) {
    for name in ["q", "k", "v"] {
        linear(g, x, name);
    }
    g.ops("kt = Transpose k; scores = MatMul q kt");
    g.values("root", &[], &[2.8]);
    g.ops("scaled = Div scores root; p = Softmax scaled; mixed = MatMul p v");
    linear(g, "mixed", y);
}

/// A layer normalization spelled out.
fn spelled_out(g: &mut GraphBuilder, x: &str, y: &str) {
    let name = |part: &str| format!("{y}_{part}");
    g.scalars(&[("two", 2.0), ("epsilon", 1e-5)]);
    g.weight(&name("gamma"), &[8]);
    g.weight(&name("beta"), &[8]);
    let axes = [("axes", Attr::Ints(vec![-1]))];
    g.op_with("ReduceMean", &[x], &name("mean"), &axes);
    g.op("Sub", &[x, &name("mean")], &name("centred"));
    g.op("Pow", &[&name("centred"), "two"], &name("squared"));
    g.op_with("ReduceMean", &[&name("squared")], &name("variance"), &axes);
    g.op("Add", &[&name("variance"), "epsilon"], &name("kept"));
    g.op("Sqrt", &[&name("kept")], &name("deviation"));
    g.op("Div", &[&name("centred"), &name("deviation")], &name("normal"));
    g.op("Mul", &[&name("normal"), &name("gamma")], &name("scaled"));
    g.op("Add", &[&name("scaled"), &name("beta")], y);
}

/// GELU with Tanh.
fn gelu(g: &mut GraphBuilder, x: &str, y: &str) {
    let name = |part: &str| format!("{y}_{part}");
    for (constant, value) in [("three", 3.0), ("cubic", 0.044715), ("slope", 0.797_884_6), ("one", 1.0), ("half", 0.5)]
    {
        g.values(constant, &[], &[value]);
    }
    g.op("Pow", &[x, "three"], &name("cube"));
    g.op("Mul", &[&name("cube"), "cubic"], &name("small"));
    g.op("Add", &[x, &name("small")], &name("sum"));
    g.op("Mul", &[&name("sum"), "slope"], &name("sloped"));
    g.op("Tanh", &[&name("sloped")], &name("tanh"));
    g.op("Add", &[&name("tanh"), "one"], &name("lifted"));
    g.op("Mul", &[x, &name("lifted")], &name("gated"));
    g.op("Mul", &[&name("gated"), "half"], y);
}

const LINEAR_INPUTS: [&str; 4] =
    ["n1 -> q_product, k_product, v_product", "mixed -> a_product", "n2 -> m1_product", "g -> m2_product"];

/// The quantized uses, in any order.
fn quantized(build: impl Fn(&mut GraphBuilder), output: &str) -> Vec<String> {
    let model = graph(build, &[output]);
    let mut found = uses(&model, &place_by(&model, &scheme_with(RULES), &[]));
    found.sort();
    found
}

fn sorted(lines: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    lines.sort();
    lines
}

#[test]
fn of_a_block_with_norms_in_front_the_inputs_of_linear_layers_are_quantized() {
    let block = |norm: fn(&mut GraphBuilder, &str, &str)| {
        move |g: &mut GraphBuilder| {
            norm(g, "x", "n1");
            attention(g, "n1", "a");
            g.op("Add", &["x", "a"], "r1");
            norm(g, "r1", "n2");
            linear(g, "n2", "m1");
            gelu(g, "m1", "g");
            linear(g, "g", "m2");
            g.op("Add", &["r1", "m2"], "y");
        }
    };
    let fused = |g: &mut GraphBuilder, x: &str, y: &str| {
        g.weight(&format!("{y}_gamma"), &[8]);
        g.op("LayerNormalization", &[x, &format!("{y}_gamma")], y);
    };
    assert_eq!(quantized(block(spelled_out), "y"), sorted(&LINEAR_INPUTS));
    assert_eq!(quantized(block(fused), "y"), sorted(&LINEAR_INPUTS));
}

#[test]
fn of_a_block_with_norms_behind_the_inputs_of_linear_layers_are_quantized() {
    let block = |g: &mut GraphBuilder| {
        attention(g, "x", "a");
        g.op("Add", &["x", "a"], "r1");
        spelled_out(g, "r1", "n2");
        linear(g, "n2", "m1");
        g.op("Gelu", &["m1"], "g");
        linear(g, "g", "m2");
        g.op("Add", &["n2", "m2"], "r2");
        spelled_out(g, "r2", "y");
    };
    let expected = ["x -> q_product, k_product, v_product", LINEAR_INPUTS[1], LINEAR_INPUTS[2], LINEAR_INPUTS[3]];
    assert_eq!(quantized(block, "y"), sorted(&expected));
}

/// As `torch.onnx` writes scaled dot-product attention.
#[test]
fn attention_with_a_guard_against_nan_is_recognized_without_a_norm() {
    let block = |g: &mut GraphBuilder| {
        for name in ["q", "k", "v"] {
            linear(g, "x", name);
        }
        g.scalars(&[("zero", 0.0)]);
        g.ops("kt = Transpose k; scores = MatMul q kt; p = Softmax scores; is_nan = IsNaN p");
        g.ops("guarded = Where is_nan zero p; mixed = MatMul guarded v");
        linear(g, "mixed", "y");
    };
    assert_eq!(quantized(block, "y"), sorted(&["x -> q_product, k_product, v_product", "mixed -> y_product"]));
}

/// As heads do that gather tokens: attention with queries that are constants, and the mean over tokens.
#[test]
fn constant_queries_and_the_mean_over_tokens_stay_float() {
    let head = |g: &mut GraphBuilder| {
        spelled_out(g, "x", "n");
        linear(g, "n", "k");
        g.op("Transpose", &["k"], "kt");
        g.weight("queries", &[1, 4, 1, 8]);
        g.ops(
            "scores = MatMul queries kt; p = Softmax scores; mixed = MatMul p n; channels = Transpose mixed; \
             mean = GlobalAveragePool channels; flat = Flatten mean",
        );
        linear(g, "flat", "y");
    };
    let model = graph(head, &["y"]);
    let placed = |shape: &[usize]| uses(&model, &place_by(&model, &scheme_with(RULES), &[("channels", shape)]));
    assert_eq!(placed(&[1, 8, 4]), ["n -> k_product", "flat -> y_product"]);
    assert!(placed(&[1, 8, 2, 2]).contains(&"y_product -> y".to_string()));
}

/// Exporters put a Shape behind very many tensors, to reshape them.
#[test]
fn a_shape_that_is_asked_for_changes_nothing() {
    let block = |g: &mut GraphBuilder| {
        spelled_out(g, "x", "n1");
        attention(g, "n1", "a");
        linear(g, "a", "m1");
        gelu(g, "m1", "g");
        linear(g, "g", "y");
    };
    let plain = graph(block, &["y"]);
    let mut asked = plain.clone();
    let nodes = &mut asked.graph.as_mut().unwrap().node;
    let tensors: Vec<String> = nodes.iter().map(|node| node.output[0].clone()).collect();
    nodes.extend(tensors.iter().map(|name| node::make("Shape", "", &[name], &format!("{name}_shape"))));
    for (rules, rule) in [
        (RULES, "quantize_linear_inputs_alone"),
        ("[skip_layer_norm_chains, quantize_inputs]", "skip_layer_norm_chains"),
        ("[skip_gelu_chains, quantize_inputs]", "skip_gelu_chains"),
    ] {
        let scheme = scheme_with(rules);
        let [a, b] = [&plain, &asked].map(|model| {
            let placement = place_by(model, &scheme, &[]);
            let roles: Vec<_> = placement.activations.iter().map(|quantizer| quantizer.softmax).collect();
            (uses(model, &placement), roles, left_float(model, &placement, rule))
        });
        assert!(!a.2.is_empty());
        assert_eq!(a, b, "{rules}");
    }
}

#[test]
fn ranges_of_linear_inputs_hold_all_values() {
    let model = graph(
        |g| {
            attention(g, "x", "a");
            linear(g, "a", "y");
        },
        &["y"],
    );
    let placement = place_by(&model, &scheme_with(RULES), &[]);
    assert!(placement.activations.iter().all(|quantizer| quantizer.linear));
    let plain = place_by(&model, &scheme_with("[quantize_weighted_inputs]"), &[]);
    assert!(!plain.activations.iter().any(|quantizer| quantizer.linear));
}

#[test]
fn convolutions_and_what_is_beside_them_are_placed_as_without_a_transformer() {
    let with_attention = |g: &mut GraphBuilder| {
        g.conv("x", 16, 16, 3, 1, "c");
        g.ops("s = Sigmoid c; gated = Mul c s");
        g.conv("gated", 16, 24, 1, 1, "qkv");
        g.ops("tokens = Reshape qkv shape; q = Split tokens");
        g.also_makes("k");
        g.also_makes("v");
        g.ops("scores = MatMul q k; p = Softmax scores; mixed = MatMul v p; pixels = Reshape mixed shape");
        g.conv("pixels", 8, 16, 1, 1, "projected");
        g.op("Add", &["gated", "projected"], "sum");
        g.conv("sum", 16, 16, 1, 1, "y");
    };
    let found = quantized(with_attention, "y");
    for line in ["gated -> qkv, sum", "pixels -> projected", "sum -> y", "c -> s, gated"] {
        assert!(found.iter().any(|one| one == line), "{line}: {found:?}");
    }
    assert!(!found.iter().any(|line| line.starts_with("p ->") || line.contains("scores")), "{found:?}");
}

/// Each patch is looked at once, by a layer that costs little; what it loses is lost for all layers behind.
#[test]
fn the_embedding_of_patches_stays_float() {
    let with_stride = |stride: i64| {
        move |g: &mut GraphBuilder| {
            g.weight("patches_w", &[8, 16, 4, 4]);
            let attributes = [("strides", Attr::Ints(vec![stride, stride]))];
            g.op_with("Conv", &["x", "patches_w"], "patches", &attributes);
            g.ops("rows = Reshape patches shape; tokens = Transpose rows");
            attention(g, "tokens", "y");
        }
    };
    let has_image = |found: Vec<String>| found.iter().any(|line| line.starts_with("x ->"));
    assert!(!has_image(quantized(with_stride(4), "y")));
    assert!(has_image(quantized(with_stride(2), "y")));
}

#[test]
fn a_network_without_attention_or_norm_is_no_transformer() {
    let perceptron = |g: &mut GraphBuilder| {
        linear(g, "x", "a");
        g.op("Relu", &["a"], "r");
        linear(g, "r", "y");
    };
    let found = quantized(perceptron, "y");
    assert!(found.contains(&"a_product -> a".to_string()), "{found:?}");
}

/// Where all else is quantized, too, these are marked, and outputs are quantized as by other rules.
#[test]
fn inputs_of_linear_layers_are_marked_beside_quantized_outputs() {
    let model = graph(
        |g| {
            attention(g, "x", "a");
            linear(g, "a", "y");
        },
        &["y"],
    );
    let placement = place_by(&model, &scheme_with("[scale_linear_inputs, quantize_inputs, quantize_outputs]"), &[]);
    let linear = |quantizer: &&ActivationQuantizer| quantizer.linear;
    let marked: Vec<&str> = placement.activations.iter().filter(linear).map(|it| it.tensor.as_str()).collect();
    assert_eq!(marked, ["x", "mixed", "a"]);
    assert!(placement.activations.iter().any(|quantizer| quantizer.tensor == "q_product"));
}

/// An embedding table has the parameters of what is looked up in it.
#[test]
fn constants_of_operators_without_activations_are_quantized() {
    let build = |g: &mut GraphBuilder| {
        g.weight("table", &[5, 8]);
        g.ops("looked_up = Gather table ids; y = Add x looked_up");
    };
    let model = graph(build, &["y"]);
    let with_rows = |rules: &str| {
        let mut scheme = scheme_with(rules);
        let row = OpRow {
            constraint: Some(Constraint::SameAsInput),
            constant: Some("a".into()),
            ..scheme.ops["Add"].clone()
        };
        scheme.ops.insert("Gather".into(), row);
        place_by(&model, &scheme, &[])
    };
    let placement = with_rows("[quantize_inputs, quantize_constant_inputs: { ops: [Gather] }, quantize_outputs]");
    let shared: Vec<_> = placement.weights.iter().map(|it| (it.tensor.as_str(), it.shares_with.as_deref())).collect();
    assert_eq!(shared, [("table", Some("looked_up"))]);
    assert!(with_rows("[quantize_inputs, quantize_outputs]").weights.is_empty());
}
