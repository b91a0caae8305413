//! Rules of backends on models with Q/DQ: each rule with models that keep it and models that break it; no panic on any
//! model.

mod cases;
mod hostile;
mod models;
use crate::support::{Attr, GraphBuilder};
use cases::{CASES, Case};
use models::*;
use mqq::backends;
use mqq::check::{CHECKS, Finding, Severity, findings};
use mqq::diag::explain;
use mqq::onnx::proto::*;
use mqq::onnx::tensor;
use mqq::scheme::Scheme;

/// A table that holds nothing but these calls of rules.
fn table(calls: &str) -> anyhow::Result<Scheme> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let text = format!(
        "name: test\nsource: test\nmin_opset: 13\ntypes: {{}}\nops: {{}}\nplacement: []\n\
         observers: {{ activation: max, weight: max }}\ncheck: {calls}\n"
    );
    std::fs::write(file.path(), text).unwrap();
    backends::resolve(file.path().to_str().unwrap())
}

/// Findings of the rule under test.
fn of_rule(model: &ModelProto, case: &Case) -> Vec<Finding> {
    let scheme = table(&format!("[{}]", case.call)).unwrap();
    findings(model, &scheme).into_iter().filter(|finding| finding.rule == case.rule).collect()
}

#[test]
fn every_rule_is_kept_by_a_good_model_and_broken_by_a_bad_one() {
    let mut failures = Vec::new();
    for case in CASES {
        let kept = of_rule(&good(), case);
        if !kept.is_empty() {
            failures.push(format!("{} {}: a good model breaks it: {kept:?}", case.rule, case.call));
        }
        let mut model = good();
        (case.breaks)(&mut model);
        let broken = of_rule(&model, case);
        let texts: Vec<String> = broken.iter().map(Finding::to_string).collect();
        let found = |part: &&str| texts.iter().any(|text| text.contains(*part));
        if broken.is_empty() || !case.expected.iter().all(found) {
            failures.push(format!("{} {}\n  found    {texts:?}\n  expected {:?}", case.rule, case.call, case.expected));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    let docs = std::fs::read_to_string(crate::support::repository("docs/check.md")).unwrap();
    for check in CHECKS {
        assert!(CASES.iter().any(|case| case.rule == check.name), "no case of {}", check.name);
        assert!(!check.about.is_empty());
        assert!(docs.contains(&format!("| `{}`", check.name)), "docs/check.md: {}", check.name);
    }
}

#[test]
fn integers_that_move_between_q_and_dq_are_not_float() {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 4]);
    g.values("x_scale", &[], &[0.5]);
    g.tensor(tensor::from_integers("x_zp", tensor::DataType::Int8, &[], &[0]).unwrap());
    linear(&mut g, "QuantizeLinear", "x", "x", None);
    g.tensor(tensor::from_i64("shape", &[2], &[2, 2]).unwrap());
    g.op("Reshape", &["x_q", "shape"], "moved");
    linear(&mut g, "DequantizeLinear", "x", "moved", None);
    g.ops("y = Relu x_dq; z = Elu y");
    pair(&mut g, "z", 0.5);
    g.output("z_dq");
    let found = findings(&g.build(), &table("[{ no_float_nodes: { fuse: [Conv] } }]").unwrap());
    let found = found.iter().filter(|finding| finding.rule == "no_float_nodes");
    let texts: Vec<String> = found.map(Finding::to_string).collect();
    assert!(texts.len() == 1 && texts[0].contains("(Elu): `y`: input is float"), "{texts:?}");
}

#[test]
fn concat_shares_the_grid_of_all_its_inputs() {
    let model = |scale: f32| {
        let mut g = GraphBuilder::new(13);
        g.input("a", &[1, 4]);
        g.input("b", &[1, 4]);
        pair(&mut g, "a", 0.5);
        pair(&mut g, "b", scale);
        g.op_with("Concat", &["a_dq", "b_dq"], "j", &[("axis", Attr::Int(1))]);
        pair(&mut g, "j", 0.5);
        g.output("j_dq");
        g.build()
    };
    let scheme = table("[{ shared_grids: { ops: [Concat] } }]").unwrap();
    assert_eq!(findings(&model(0.5), &scheme), []);
    let found = findings(&model(0.25), &scheme);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("`b_dq`: quantization of the input"), "{}", found[0]);
}

#[test]
fn inputs_alone_may_share_a_grid() {
    let model = |scale: f32| {
        let mut g = GraphBuilder::new(13);
        g.input("a", &[1, 4]);
        g.input("b", &[1, 4]);
        pair(&mut g, "a", 0.5);
        pair(&mut g, "b", scale);
        g.op("Add", &["a_dq", "b_dq"], "s");
        pair(&mut g, "s", 1.0);
        g.output("s_dq");
        g.build()
    };
    let scheme = table("[{ shared_grids: { ops: [Add], among: inputs } }]").unwrap();
    assert_eq!(findings(&model(0.5), &scheme), []);
    assert_eq!(findings(&model(0.25), &scheme).len(), 1);
}

#[test]
fn tensors_of_different_types_may_have_different_grids() {
    let mut model = good();
    set_scale(&mut model, "p_scale", &[0.5]);
    let of_one_type = table("[{ shared_grids: { ops: [MaxPool], of_one_type: 1 } }]").unwrap();
    assert_eq!(findings(&model, &of_one_type).len(), 1);
    let zero_point = graph(&mut model).initializer.iter_mut().find(|tensor| tensor.name() == "p_zp").unwrap();
    *zero_point = tensor::from_integers("p_zp", tensor::DataType::Uint8, &[], &[128]).unwrap();
    assert_eq!(findings(&model, &of_one_type), []);
}

#[test]
fn only_a_matrix_on_the_right_of_a_product_has_scales_per_channel() {
    let scheme = table("[{ per_channel_axis: { MatMul: columns } }]").unwrap();
    let found = |shape: &[usize], axis: i64, right: bool| -> Vec<String> {
        let mut g = GraphBuilder::new(13);
        g.input("x", &[2, 4, 4]);
        pair(&mut g, "x", 0.5);
        let n = shape.iter().product();
        g.tensor(tensor::from_integers("w_q", tensor::DataType::Int8, shape, &vec![1; n]).unwrap());
        g.values("w_scale", &[4], &[0.5; 4]);
        g.tensor(tensor::from_integers("w_zp", tensor::DataType::Int8, &[4], &[0; 4]).unwrap());
        linear(&mut g, "DequantizeLinear", "w", "w_q", Some(axis));
        g.op("MatMul", if right { &["x_dq", "w_dq"] } else { &["w_dq", "x_dq"] }, "y");
        g.output("y");
        findings(&g.build(), &scheme).iter().map(Finding::to_string).collect()
    };
    assert!(found(&[4, 4], 1, true).is_empty());
    assert!(found(&[4, 4], -1, true).is_empty());
    for (shape, axis, right, expected) in [
        (&[4, 4][..], 0, true, "axis of the scales is 0, expected 1"),
        (&[4, 4], 0, false, "one per channel, expected one for the tensor"),
        (&[2, 4, 4], 2, true, "one per channel, expected one for the tensor"),
        (&[4], 0, true, "one per channel, expected one for the tensor"),
    ] {
        let found = found(shape, axis, right);
        assert!(found.len() == 1 && found[0].contains(expected), "{shape:?}: {found:?}");
    }
}

/// As ONNX Runtime fuses a convolution, or not (tests/python/test_check.py).
#[test]
fn an_activation_is_redundant_where_q_holds_no_value_outside() {
    let scheme = table("[{ quantized_output: { ops: [Conv], past_if_redundant: [Relu, Clip] } }]").unwrap();
    let is_found = |op_type: &str, scale: f32, (data_type, zero_point): (tensor::DataType, i32)| {
        let mut g = GraphBuilder::new(13);
        g.input("x", &[1, 4, 8, 8]);
        pair(&mut g, "x", 0.5);
        g.tensor(tensor::from_integers("w_q", tensor::DataType::Int8, &[4, 4, 1, 1], &[1; 16]).unwrap());
        g.values("w_scale", &[], &[0.5]);
        g.tensor(tensor::from_integers("w_zp", tensor::DataType::Int8, &[], &[0]).unwrap());
        linear(&mut g, "DequantizeLinear", "w", "w_q", None);
        g.op("Conv", &["x_dq", "w_dq"], "c");
        g.scalars(&[("low", 0.0), ("high", 6.0)]);
        g.op(op_type, if op_type == "Clip" { &["c", "low", "high"] } else { &["c"] }, "y");
        g.values("y_scale", &[], &[scale]);
        g.tensor(tensor::from_integers("y_zp", data_type, &[], &[zero_point]).unwrap());
        linear(&mut g, "QuantizeLinear", "y", "y", None);
        linear(&mut g, "DequantizeLinear", "y", "y_q", None);
        g.op("Elu", &["y_dq"], "z");
        g.output("z");
        !findings(&g.build(), &scheme).is_empty()
    };
    let (u8, i8) = (tensor::DataType::Uint8, tensor::DataType::Int8);
    for (op_type, scale, at, expected) in [
        ("Relu", 0.02, (u8, 0), false),
        ("Relu", 0.02, (u8, 128), true),
        ("Relu", 0.02, (i8, 0), true),
        ("Relu", 0.02, (i8, -128), false),
        ("Clip", 0.02, (u8, 0), false),
        ("Clip", 6.0 / 255.0, (u8, 0), false),
        ("Clip", 0.03, (u8, 0), true),
        ("Clip", 0.02, (i8, 0), true),
        ("Clip", 0.02, (i8, -128), false),
    ] {
        assert_eq!(is_found(op_type, scale, at), expected, "{op_type} {scale} {at:?}");
    }
}

#[test]
fn a_bias_in_int8_is_told_from_int32() {
    let mut model = good();
    for (name, data_type) in [("b_q", 3), ("b_zp", 3)] {
        let int8 = tensor::from_integers(name, tensor::DataType::Int8, &[16], &[0; 16]).unwrap();
        assert_eq!(int8.data_type, Some(data_type));
        replace(&mut model, int8);
    }
    let broken = |model: &ModelProto, stored: &str| {
        let scheme = table(&format!("[{{ bias: {{ stored: {stored} }} }}]")).unwrap();
        findings(model, &scheme).len()
    };
    assert_eq!((broken(&model, "int8"), broken(&model, "int32"), broken(&model, "float")), (0, 1, 1));
    assert_eq!((broken(&good(), "int8"), broken(&good(), "float")), (1, 1));
}

#[test]
fn a_mask_may_be_infinite() {
    let mut model = good();
    let mask = tensor::from_f32("mask", &[], &[f32::NEG_INFINITY]).unwrap();
    graph(&mut model).initializer.push(mask);
    insert(&mut model, "Add", "s", 0);
    node(&mut model, "inserted").input.push("mask".into());
    assert_eq!(findings(&model, &table("[]").unwrap()), []);
}

#[test]
fn a_model_that_stays_float_by_its_table_is_no_finding() {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 3, 8, 8]);
    g.conv("x", 3, 4, 1, 1, "y");
    g.output("y");
    let of = |backend: &str| {
        let found = findings(&g.build(), &backends::resolve(backend).unwrap());
        found.iter().any(|finding| finding.rule == "quantized")
    };
    assert!(of("tensorrt") && of("onnxruntime") && !of("nnie"));
}

#[test]
fn the_table_sets_the_severity() {
    let mut model = good();
    set_scale(&mut model, "p_scale", &[0.5]);
    for (extra, expected) in [("", Severity::Error), (", severity: warning", Severity::Warning)] {
        let scheme = table(&format!("[{{ shared_grids: {{ ops: [MaxPool]{extra} }} }}]")).unwrap();
        assert_eq!(findings(&model, &scheme)[0].severity, expected);
    }
}

#[test]
fn wrong_calls_in_a_table_are_explained() {
    let cases = [
        ("[symetric]", "did you mean `symmetric`"),
        ("[{ symmetric: { off: [weight] } }]", "did you mean `of`"),
        ("[{ symmetric: { of: [wieght] } }]", "did you mean `weight`"),
        ("[{ dtypes: { weight: [imt8] } }]", "did you mean `int8`"),
        ("[{ dtype_pairs: { refuse: [int8] } }]", "expected two types"),
        ("[{ paired: { severity: eror } }]", "did you mean `error`"),
        ("[{ fixed_output: { scale: 1/0 } }]", "expected a number or a fraction"),
        ("[{ operator_set: { min: [a] } }]", "expected a whole number"),
        ("[{ per_channel_axis: { Conv: outptu } }]", "did you mean `output`"),
    ];
    for (call, expected) in cases {
        let error = explain(&table(call).unwrap_err());
        assert!(error.contains(expected), "{call}: {error}");
    }
}

#[test]
fn an_axis_from_the_last_is_that_from_the_first() {
    let found = |of_q: i64, of_dq: i64| {
        let mut g = GraphBuilder::new(13);
        g.input("x", &[1, 4, 4, 3]);
        g.values("x_scale", &[3], &[0.5, 0.25, 0.125]);
        g.tensor(tensor::from_integers("x_zp", tensor::DataType::Int8, &[3], &[0; 3]).unwrap());
        linear(&mut g, "QuantizeLinear", "x", "x", Some(of_q));
        linear(&mut g, "DequantizeLinear", "x", "x_q", Some(of_dq));
        g.op("Relu", &["x_dq"], "y");
        g.output("y");
        findings(&g.build(), &table("[paired]").unwrap()).iter().any(|finding| finding.rule == "paired")
    };
    assert_eq!([found(-1, 3), found(3, -1), found(-1, -1), found(1, 3)], [false, false, false, true]);
}
