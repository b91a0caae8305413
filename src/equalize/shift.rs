//! Offsets per channel that are subtracted from a tensor and added back by the biases of its readers.
//!
//! For a reader `W x + b` and offsets c, `W (x - c) + (b + W c)` is the same in float. Centered channels make better
//! use of a symmetric grid, and of a grid that all channels share. Source: Outlier Suppression+ (Wei et al. 2023, arXiv
//! 2304.09145, section 4.1).

use super::{EqualizationGroup, GroupEnd};
use crate::onnx::edit::{ModelEdit, NewValues};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node;
use crate::onnx::proto::GraphProto;

/// Returns the name of a Gemm's bias, or of the constant that an Add adds to a MatMul's output; `None` if there is none
/// or another node reads it.
pub fn own_bias<'a>(graph: &'a GraphProto, index: &GraphIndex<'a>, node_idx: usize) -> Option<&'a str> {
    let layer = &graph.node[node_idx];
    let bias = match layer.op_type() {
        "Gemm" if !node::is_scaled(layer) => layer.input.get(2)?,
        "MatMul" => {
            let (add, slot) = index.add_behind(layer)?;
            &add.input[slot]
        }
        _ => return None,
    };
    index.has_only(bias, 1).then_some(bias)
}

/// Returns the edits that shift a group's channels by `offsets`: new values for the constant summand of the tensor's
/// producer, and for the readers' biases. `None` if one of these constants is missing, or if other nodes read it.
pub fn shift(
    group: &EqualizationGroup,
    graph: &GraphProto,
    index: &GraphIndex,
    offsets: &[f32],
) -> Option<Vec<ModelEdit>> {
    let tensor = &group.consumers.first()?.tensor;
    let is_plain =
        |end: &GroupEnd| end.tensor == *tensor && end.channels.run == 1 && end.channels.range() == (0..group.n);
    let producer = index.producer(tensor)?;
    let summand = match producer.op_type() {
        "Add" => &producer.input[index.constant_operand(producer)?],
        "LayerNormalization" => producer.input.get(2)?,
        _ => return None,
    };
    let is_own = group.constants.iter().any(|constant| constant.tensor == *summand && !constant.multiply);
    let summands = index.floats(summand).filter(|summands| is_own && summands.len() == group.n)?;
    let less = summands.iter().zip(offsets).map(|(summand, offset)| summand - offset).collect();
    let mut edits = vec![ModelEdit::ReplaceValues(NewValues { tensor: summand.clone(), values: less })];
    for end in &group.consumers {
        let weight_channels = end.weight_channels.filter(|_| is_plain(end))?;
        let bias = own_bias(graph, index, end.node)?;
        let stored = index.floats(bias).filter(|bias| bias.len() == weight_channels.n_out)?;
        let mut sums: Vec<f64> = stored.iter().map(|&value| f64::from(value)).collect();
        for (i, &weight) in index.floats(graph.node[end.node].input.get(end.slot)?)?.iter().enumerate() {
            let (output, input) = weight_channels.ends(i);
            sums[output] += f64::from(weight) * f64::from(offsets[input]);
        }
        let values = sums.iter().map(|&sum| sum as f32).collect();
        edits.push(ModelEdit::ReplaceValues(NewValues { tensor: bias.to_string(), values }));
    }
    Some(edits)
}
