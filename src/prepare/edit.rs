//! Small edits that several passes share.

use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};

/// Takes the attribute `name` off the node.
pub fn take(node: &mut NodeProto, name: &str) -> Option<AttributeProto> {
    let position = node.attribute.iter().position(|attribute| attribute.name() == name)?;
    Some(node.attribute.remove(position))
}

/// Sets an integer attribute.
pub fn set_int(node: &mut NodeProto, name: &str, value: i64) {
    const INT: i32 = 2;
    take(node, name);
    node.attribute.push(AttributeProto {
        name: Some(name.into()),
        r#type: Some(INT),
        i: Some(value),
        ..Default::default()
    });
}

/// Sets a text attribute.
pub fn set_text(node: &mut NodeProto, name: &str, value: &str) {
    const STRING: i32 = 3;
    take(node, name);
    node.attribute.push(AttributeProto {
        name: Some(name.into()),
        r#type: Some(STRING),
        s: Some(value.as_bytes().to_vec().into()),
        ..Default::default()
    });
}

/// A node of the default domain.
pub fn node(op_type: &str, name: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(name.into()),
        op_type: Some(op_type.into()),
        input: inputs.iter().map(|input| input.to_string()).collect(),
        output: vec![output.into()],
        ..Default::default()
    }
}

/// Makes every use of `from`, in nested graphs too, a use of `to`. Outputs of the graph are not uses.
pub fn replace_uses(graph: &mut GraphProto, from: &str, to: &str) {
    for node in &mut graph.node {
        for input in node.input.iter_mut().filter(|input| *input == from) {
            *input = to.to_string();
        }
        for attribute in &mut node.attribute {
            for nested in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                let shadowed = nested.input.iter().any(|value| value.name() == from)
                    || nested.initializer.iter().any(|tensor| tensor.name() == from)
                    || nested.node.iter().any(|node| node.output.iter().any(|o| o == from));
                if !shadowed {
                    replace_uses(nested, from, to);
                }
            }
        }
    }
}
