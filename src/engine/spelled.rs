//! Nodes that the engine reads otherwise than ONNX means them, spelled out in its own copy of the model.

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, TensorProto};

/// Spells out the nodes of a graph and of its subgraphs (tract 0.23.9):
///
/// - inputs that are left out at the end of a node's list are dropped from it;
/// - a ConstantOfShape without a value gets the float 0 that it stands for, where the engine reads one of 64 bits;
/// - ONNX Runtime's Attention, which the engine would take for ONNX's as it ignores domains, and GlobalLpPool, of which it
///   computes a mean, get names of their own.
pub(super) fn spell_out(graph: &mut GraphProto) {
    for node in &mut graph.node {
        while node.input.last().is_some_and(String::is_empty) {
            node.input.pop();
        }
        match (node.domain.as_str(), node.op_type.as_str()) {
            ("com.microsoft", "Attention") => node.op_type = "com.microsoft.Attention".to_string(),
            ("" | "ai.onnx", "GlobalLpPool") => node.op_type = "ai.onnx.GlobalLpPool".to_string(),
            ("" | "ai.onnx", "ConstantOfShape") if node.attribute.iter().all(|a| a.name != "value") => {
                node.attribute.push(float_zero());
            }
            _ => {}
        }
        for attribute in &mut node.attribute {
            attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(spell_out);
        }
    }
}

/// The attribute `value` of one float 0.
fn float_zero() -> AttributeProto {
    let (dims, data_type, float_data) = (vec![1], DataType::Float as i32, vec![0.0]);
    let zero = TensorProto { dims, data_type, float_data, ..Default::default() };
    let (name, r#type) = ("value".to_string(), AttributeType::Tensor as i32);
    AttributeProto { name, r#type, t: Some(zero), ..Default::default() }
}
