//! No model makes a rule panic.

use super::cases::CASES;
use super::models::{good, graph};
use super::table;
use mqq::backends;
use mqq::check::{Severity, findings};
use mqq::onnx::proto::*;
use mqq::scheme::Scheme;

/// Every rule with parameters that let it look everywhere.
fn every_rule() -> Scheme {
    let calls: Vec<&str> = CASES.iter().map(|case| case.call).filter(|c| !c.is_empty()).collect();
    table(&format!("[{}, {{ per_channel_axis: {{ Conv: output, MatMul: output }} }}]", calls.join(", "))).unwrap()
}

#[test]
fn no_model_makes_a_rule_panic() {
    let mut schemes = vec![every_rule()];
    schemes.extend(backends::BUILT_IN.iter().map(|(name, _)| backends::resolve(name).unwrap()));
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
            let block = AttributeProto { name: Some("block_size".into()), i: Some(-3), ..Default::default() };
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
