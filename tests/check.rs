//! Rules of backends on models with Q/DQ: for each rule what keeps it and what breaks it; no panic on
//! any model.

mod support;

use mqq::onnx::proto::*;
use mqq::onnx::tensor;
use mqq::scheme::{self, Scheme};
use mqq::verify::{CHECKS, Finding, Severity, findings};
use support::{Attr, GraphBuilder};

/// A table that holds nothing but these calls of rules.
fn table(calls: &str) -> anyhow::Result<Scheme> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let text = format!(
        "name: test\nsource: test\nmin_opset: 13\ntypes: {{}}\nops: {{}}\nplacement: []\n\
         observers: {{ activation: max, weight: max }}\ncheck: {calls}\n"
    );
    std::fs::write(file.path(), text).unwrap();
    scheme::resolve(file.path().to_str().unwrap())
}

fn linear(g: &mut GraphBuilder, op_type: &str, tensor: &str, from: &str, axis: Option<i64>) {
    let suffix = if op_type == "QuantizeLinear" { "q" } else { "dq" };
    let (scale, zero_point) = (format!("{tensor}_scale"), format!("{tensor}_zp"));
    let attributes: Vec<_> = axis.iter().map(|axis| ("axis", Attr::Int(*axis))).collect();
    let output = format!("{tensor}_{suffix}");
    g.op_with(op_type, &[from, &scale, &zero_point], &output, &attributes);
}

fn pair(g: &mut GraphBuilder, tensor: &str, scale: f32) {
    g.values(&format!("{tensor}_scale"), &[], &[scale]);
    g.tensor(tensor::from_i8(&format!("{tensor}_zp"), &[], &[0]).unwrap());
    linear(g, "QuantizeLinear", tensor, tensor, None);
    linear(g, "DequantizeLinear", tensor, &format!("{tensor}_q"), None);
}

/// Conv (int8 per channel, int32 bias), Relu, MaxPool, Softmax, every tensor quantized in powers of two.
fn good() -> ModelProto {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 16, 8, 8]);
    pair(&mut g, "x", 0.5);
    let scales: Vec<f32> = (0..16).map(|i| 2f32.powi(-(i % 4))).collect();
    let ints: Vec<i8> = (0..16 * 16).map(|i| (i % 255 - 127) as i8).collect();
    g.tensor(tensor::from_i8("w_q", &[16, 16, 1, 1], &ints).unwrap());
    g.values("w_scale", &[16], &scales);
    g.tensor(tensor::from_i8("w_zp", &[16], &[0; 16]).unwrap());
    linear(&mut g, "DequantizeLinear", "w", "w_q", Some(0));
    g.tensor(tensor::from_i32("b_q", &[16], &[7; 16]).unwrap());
    g.values("b_scale", &[16], &scales.iter().map(|s| 0.5 * s).collect::<Vec<_>>());
    g.tensor(tensor::from_i32("b_zp", &[16], &[0; 16]).unwrap());
    linear(&mut g, "DequantizeLinear", "b", "b_q", Some(0));
    g.op("Conv", &["x_dq", "w_dq", "b_dq"], "c");
    g.op("Relu", &["c"], "r");
    pair(&mut g, "r", 0.25);
    g.op_with("MaxPool", &["r_dq"], "p", &[("kernel_shape", Attr::Ints(vec![2, 2]))]);
    pair(&mut g, "p", 0.25);
    g.op("Softmax", &["p_dq"], "s");
    pair(&mut g, "s", 1.0 / 128.0);
    g.output("s_dq");
    g.build()
}

fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_mut().unwrap()
}

fn node<'a>(model: &'a mut ModelProto, output: &str) -> &'a mut NodeProto {
    graph(model).node.iter_mut().find(|node| node.output[0] == output).unwrap()
}

fn replace(model: &mut ModelProto, new: TensorProto) {
    let old = graph(model).initializer.iter_mut().find(|t| t.name() == new.name());
    *old.unwrap() = new;
}

fn set_scale(model: &mut ModelProto, name: &str, values: &[f32]) {
    let shape: &[usize] = if values.len() == 1 { &[] } else { &[values.len()] };
    replace(model, tensor::from_f32(name, shape, values).unwrap());
}

/// The same integers and zero points of tensor `t` as another type, whose bits differ.
fn set_type(model: &mut ModelProto, t: &str, data_type: i32) {
    for name in [format!("{t}_q"), format!("{t}_zp")] {
        let found = graph(model).initializer.iter_mut().find(|tensor| tensor.name() == name);
        if let Some(tensor) = found {
            tensor.data_type = Some(data_type);
        }
    }
}

fn insert(model: &mut ModelProto, op_type: &str, before: &str, input: usize) {
    let graph = graph(model);
    let at = graph.node.iter().position(|node| node.output[0] == before).unwrap();
    let from = std::mem::replace(&mut graph.node[at].input[input], "inserted".into());
    let new = NodeProto {
        op_type: Some(op_type.into()),
        input: vec![from],
        output: vec!["inserted".into()],
        ..Default::default()
    };
    graph.node.insert(at, new);
}

struct Case {
    /// One call as in a table, which [`good`] keeps; empty for the rules that every table has.
    call: &'static str,
    rule: &'static str,
    breaks: fn(&mut ModelProto),
    /// Parts of the only finding.
    expected: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        call: "",
        rule: "sound_graph",
        breaks: |m| graph(m).node.swap(0, 1),
        expected: &["x_q", "not made by an earlier node"],
    },
    Case {
        call: "",
        rule: "scope",
        breaks: |m| {
            let branch = GraphProto { node: graph(m).node[..2].to_vec(), ..Default::default() };
            let mut holder = NodeProto { op_type: Some("If".into()), ..Default::default() };
            holder.attribute.push(AttributeProto { g: Some(branch), ..Default::default() });
            graph(m).node.push(holder);
        },
        expected: &["(If)", "2 Q/DQ that are not checked"],
    },
    Case {
        call: "",
        rule: "positive_scales",
        breaks: |m| set_scale(m, "s_scale", &[0.0]),
        expected: &["`s_scale`: scale is 0e0", "above 0"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| node(m, "w_dq").input.truncate(1),
        expected: &["`DequantizeLinear_w_dq`", "1 inputs"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| node(m, "w_dq").attribute[0].i = Some(7),
        expected: &["`w_q`: axis is 7", "rank 4"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| {
            set_scale(m, "b_scale", &[0.5; 15]);
            replace(m, tensor::from_i32("b_zp", &[15], &[0; 15]).unwrap());
        },
        expected: &["`b_scale`: shape of the scale is [15], expected [16]"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| replace(m, tensor::from_i8("w_zp", &[3], &[0; 3]).unwrap()),
        expected: &["`w_zp`: shape of the zero point is [3]"],
    },
    Case {
        call: "",
        rule: "linear_form",
        breaks: |m| {
            replace(m, tensor::from_i16("w_zp", &[16], &[0; 16]).unwrap());
            replace(m, tensor::from_i16("w_q", &[16, 16, 1, 1], &[0; 256]).unwrap());
        },
        expected: &["int16 in operator set 13", "21 or later, or the domain com.microsoft"],
    },
    Case {
        call: "{ operator_set: { min: 13 } }",
        rule: "operator_set",
        breaks: |m| m.opset_import[0].version = Some(12),
        expected: &["operator set is 12, expected 13 or later"],
    },
    Case {
        call: "{ operator_set: { max: 21 } }",
        rule: "operator_set",
        breaks: |m| m.opset_import[0].version = Some(22),
        expected: &["operator set is 22, expected 1 to 21"],
    },
    Case {
        call: "qdq_only",
        rule: "qdq_only",
        breaks: |m| node(m, "c").op_type = Some("QLinearConv".into()),
        expected: &["(QLinearConv)"],
    },
    Case {
        call: "static_inputs",
        rule: "static_inputs",
        breaks: |m| {
            let tensor = graph(m).input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
            tensor.shape.as_mut().unwrap().dim[0] =
                Dimension { dim_param: Some("N".into()), ..Default::default() };
        },
        expected: &["`x`: dimension 0 of the input is `N`"],
    },
    Case {
        call: "constant_parameters",
        rule: "constant_parameters",
        breaks: |m| {
            let mut computed = node(m, "c").clone();
            computed.output = vec!["computed".into()];
            graph(m).node.insert(0, computed);
            node(m, "s_q").input[1] = "computed".into();
            node(m, "s_dq").input[1] = "s_scale".into();
        },
        expected: &["`computed`: scale is computed"],
    },
    Case {
        call: "power_of_two",
        rule: "power_of_two",
        breaks: |m| set_scale(m, "b_scale", &[0.3; 16]),
        expected: &["`b_scale`: scale of the bias [0] of 16 is 3e-1"],
    },
    Case {
        call: "{ symmetric: { of: [weight, bias] } }",
        rule: "symmetric",
        breaks: |m| replace(m, tensor::from_i8("w_zp", &[16], &[1; 16]).unwrap()),
        expected: &["`w_zp`: zero point of the weight [0] of 16 is 1, expected 0"],
    },
    Case {
        call: "{ dtypes: { activation: [int8], weight: [int8, int4], bias: [int32] } }",
        rule: "dtypes",
        breaks: |m| set_type(m, "w", 2),
        expected: &["`w_q`: type of the weight is uint8, expected int8 or int4"],
    },
    Case {
        call: "{ dtypes: { activation: int8, bias: [int32] } }",
        rule: "dtypes",
        breaks: |m| {
            // Without a zero point the type is that of the integers.
            node(m, "b_dq").input.truncate(2);
            replace(m, tensor::from_i8("b_q", &[16], &[0; 16]).unwrap());
        },
        expected: &["`b_q`: type of the bias is int8, expected int32"],
    },
    Case {
        call: "{ dtype_pairs: { refuse: [int8/uint8] } }",
        rule: "dtype_pairs",
        breaks: |m| set_type(m, "w", 2),
        expected: &["(Conv)", "int8/uint8"],
    },
    Case {
        call: "{ integer_range: { of: [weight], min: -127, max: 127 } }",
        rule: "integer_range",
        breaks: |m| {
            replace(m, tensor::from_i8("w_q", &[16, 16, 1, 1], &[-128; 256]).unwrap());
        },
        expected: &["`w_q`: an integer of the weight is -128, expected -127 to 127"],
    },
    Case {
        call: "{ per_tensor: { of: [activation] } }",
        rule: "per_tensor",
        breaks: |m| {
            set_scale(m, "s_scale", &[0.5; 16]);
            replace(m, tensor::from_i8("s_zp", &[16], &[0; 16]).unwrap());
            node(m, "s_q").input[0] = "p_dq".into();
            let quantize = node(m, "s_q").clone();
            graph(m).node.retain(|node| node.output[0] != "s_dq");
            graph(m).output[0].name = quantize.output.first().cloned();
        },
        expected: &["number of scales of the activation is 16, expected 1"],
    },
    Case {
        call: "{ per_channel_axis: { Conv: 0, MatMul: output } }",
        rule: "per_channel_axis",
        breaks: |m| node(m, "w_dq").attribute[0].i = Some(1),
        expected: &["(Conv)", "axis of the scales is 1, expected 0"],
    },
    Case {
        call: "{ per_channel_axis: { Gemm: none } }",
        rule: "per_channel_axis",
        breaks: |m| node(m, "c").op_type = Some("Gemm".into()),
        expected: &["one per channel, expected one for the tensor"],
    },
    Case {
        call: "{ per_channel_axis: { Conv: output, Gemm: output } }",
        rule: "per_channel_axis",
        breaks: |m| {
            // Without transB the columns are the outputs.
            node(m, "c").op_type = Some("Gemm".into());
        },
        expected: &["axis of the scales is 0, expected 1"],
    },
    Case {
        call: "paired",
        rule: "paired",
        breaks: |m| insert(m, "Clip", "r_dq", 0),
        expected: &["`r_q`: result of Q is read by Clip"],
    },
    Case {
        call: "paired",
        rule: "paired",
        breaks: |m| {
            let again = tensor::from_f32("again", &[], &[0.250_000_03]).unwrap();
            graph(m).initializer.push(again);
            node(m, "p_dq").input[1] = "again".into();
        },
        expected: &["`p_q`: grid of DQ is scale 2.5000003e-1, zero point 0"],
    },
    Case {
        call: "paired",
        rule: "paired",
        breaks: |m| {
            node(m, "c").input[0] = "x".into();
            graph(m).node.retain(|node| node.output[0] != "x_dq");
        },
        expected: &["`x_q`: result of Q is read by no node"],
    },
    Case {
        call: "{ bias: { stored: int32 } }",
        rule: "bias",
        breaks: |m| set_scale(m, "b_scale", &[0.3; 16]),
        expected: &["scale [0] of the bias is 3e-1", "scale of the input times"],
    },
    Case {
        call: "{ bias: { stored: int32 } }",
        rule: "bias",
        breaks: |m| replace(m, tensor::from_i32("b_zp", &[16], &[1; 16]).unwrap()),
        expected: &["zero point of the bias"],
    },
    Case {
        call: "{ bias: { stored: int32 } }",
        rule: "bias",
        breaks: |m| {
            graph(m).initializer.push(tensor::from_f32("float", &[16], &[0.0; 16]).unwrap());
            node(m, "c").input[2] = "float".into();
        },
        expected: &["`float`: bias is float, expected int32"],
    },
    Case {
        call: "{ shared_grids: { ops: [MaxPool] } }",
        rule: "shared_grids",
        breaks: |m| set_scale(m, "p_scale", &[0.5]),
        expected: &["(MaxPool)", "`p`: grid of the output is scale 5e-1", "`r_dq` (scale 2.5e-1"],
    },
    Case {
        call: "{ fixed_output: { ops: [Softmax], dtype: int8, scale: 1/128, zero_point: 0 } }",
        rule: "fixed_output",
        breaks: |m| set_scale(m, "s_scale", &[0.01]),
        expected: &["`s`: grid of the int8 output is scale 1e-2", "scale 7.8125e-3, zero point 0"],
    },
    Case {
        call: "{ quantized_inputs: { ops: [Conv] } }",
        rule: "quantized_inputs",
        breaks: |m| node(m, "c").input[0] = "x".into(),
        expected: &["`x`: input is float"],
    },
    Case {
        call: "{ quantized_output: { ops: [Conv], past: [Relu] } }",
        rule: "quantized_output",
        breaks: |m| node(m, "p").input[0] = "r".into(),
        expected: &["(Conv): `r`: output is read as float by MaxPool"],
    },
    Case {
        call: "{ no_float_nodes: { fuse: [Relu] } }",
        rule: "no_float_nodes",
        breaks: |m| insert(m, "Elu", "s_q", 0),
        expected: &["(Elu): `s`: input is float"],
    },
];

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
            failures.push(format!(
                "{} {}\n  found    {texts:?}\n  expected {:?}",
                case.rule, case.call, case.expected
            ));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    let docs = std::fs::read_to_string(support::repository("docs/check.md")).unwrap();
    for check in CHECKS {
        assert!(CASES.iter().any(|case| case.rule == check.name()), "no case of {}", check.name());
        assert!(!check.description().is_empty());
        assert!(docs.contains(&format!("| `{}`", check.name())), "docs/check.md: {}", check.name());
    }
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
    assert!(found[0].to_string().contains("`b_dq`: grid of the input"), "{}", found[0]);
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
fn a_bias_in_int8_is_told_from_int32() {
    let mut model = good();
    for (name, data_type) in [("b_q", 3), ("b_zp", 3)] {
        let int8 = tensor::from_i8(name, &[16], &[0; 16]).unwrap();
        assert_eq!(int8.data_type, Some(data_type));
        replace(&mut model, int8);
    }
    let broken = |model: &ModelProto, stored: &str| {
        let scheme = table(&format!("[{{ bias: {{ stored: {stored} }} }}]")).unwrap();
        findings(model, &scheme).len()
    };
    assert_eq!(
        (broken(&model, "int8"), broken(&model, "int32"), broken(&model, "float")),
        (0, 1, 1)
    );
    assert_eq!((broken(&good(), "int8"), broken(&good(), "float")), (1, 1));
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
        ("[{ operator_set: { min: [a] } }]", "expected Number"),
        ("[{ per_channel_axis: { Conv: outptu } }]", "did you mean `output`"),
    ];
    for (call, expected) in cases {
        let error = format!("{:#}", table(call).unwrap_err());
        assert!(error.contains(expected), "{call}: {error}");
    }
}

/// Every rule with parameters that let it look everywhere.
fn every_rule() -> Scheme {
    let calls: Vec<&str> = CASES.iter().map(|case| case.call).filter(|c| !c.is_empty()).collect();
    table(&format!(
        "[{}, {{ per_channel_axis: {{ Conv: output, MatMul: output }} }}]",
        calls.join(", ")
    ))
    .unwrap()
}

#[test]
fn no_model_makes_a_rule_panic() {
    let mut schemes = vec![every_rule()];
    schemes.extend(scheme::BUILT_IN.iter().map(|(name, _)| scheme::resolve(name).unwrap()));
    let n_nodes = good().graph.unwrap().node.len();
    let n_tensors = good().graph.unwrap().initializer.len();
    let of_nodes: &[fn(&mut NodeProto)] = &[
        |n| n.input.clear(),
        |n| n.input.truncate(1),
        |n| n.input.iter_mut().for_each(String::clear),
        |n| n.output.clear(),
        |n| n.output[0].clear(),
        |n| n.op_type = None,
        |n| n.attribute.clear(),
        |n| n.attribute.iter_mut().for_each(|a| *a = AttributeProto::default()),
        |n| n.attribute.iter_mut().for_each(|a| a.i = Some(i64::MIN)),
        |n| {
            let block = AttributeProto {
                name: Some("block_size".into()),
                i: Some(-3),
                ..Default::default()
            };
            n.attribute.push(block);
        },
        |n| n.input[0] = n.output[0].clone(),
        |n| n.input.push("s_dq".into()),
        |n| n.op_type = Some("MatMul".into()),
        |n| n.op_type = Some("Constant".into()),
        |n| n.domain = Some("com.microsoft".into()),
    ];
    let of_tensors: &[fn(&mut TensorProto)] = &[
        |t| t.dims = vec![-1],
        |t| t.dims = vec![i64::MAX, i64::MAX],
        |t| t.dims = vec![0],
        |t| t.dims = vec![3, 5, 7],
        |t| t.raw_data = None,
        |t| t.raw_data = Some(bytes::Bytes::from_static(b"x")),
        |t| t.data_type = Some(-5),
        |t| t.data_type = Some(22),
        |t| t.data_type = None,
        |t| t.data_location = Some(1),
        |t| t.name = None,
    ];
    let check = |model: &ModelProto| {
        for scheme in &schemes {
            for finding in findings(model, scheme) {
                assert!(!finding.to_string().is_empty());
            }
        }
    };
    for i in 0..n_nodes {
        for edit in of_nodes {
            let mut model = good();
            edit(&mut graph(&mut model).node[i]);
            check(&model);
        }
    }
    for i in 0..n_tensors {
        for edit in of_tensors {
            let mut model = good();
            edit(&mut graph(&mut model).initializer[i]);
            check(&model);
        }
    }
    let no_graph = ModelProto { graph: None, ..good() };
    assert!(findings(&no_graph, &schemes[0]).iter().any(|f| f.severity == Severity::Error));
    check(&ModelProto { opset_import: vec![], ..good() });
    check(&ModelProto { graph: Some(GraphProto::default()), ..good() });
}
