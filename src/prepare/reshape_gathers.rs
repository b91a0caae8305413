//! Turns each GatherND that takes all rows of its input in order into a Reshape, for targets of fixed shapes.
//!
//! PyTorch's exporter reads attention masks in this way. The HTP has no GatherND of boolean values.

use super::Change;
use crate::engine::Parsed;
use crate::onnx::graph::{GraphIndex, drop_unused};
use crate::onnx::inputs::Shapes;
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::tensor;
use crate::onnx::value_info::ValueInfos;
use anyhow::Result;

/// Replaces the nodes. The inputs have fixed shapes. Returns the changes, or an empty list without any.
///
/// # Errors
/// If the model has no graph.
pub fn reshape_gathers(model: &mut ModelProto) -> Result<Vec<Change>> {
    if !model.graph()?.node.iter().any(|node| node.op_type() == "GatherND") {
        return Ok(Vec::new());
    }
    // Without shapes, nothing is replaced.
    let value_info = Parsed::new(model, &Shapes::new()).and_then(|mut parsed| parsed.value_info()).unwrap_or_default();
    let graph = model.graph_mut()?;
    let index = GraphIndex::new(graph);
    let shapes: Vec<_> = graph.node.iter().map(|node| reshaped(node, &index, &value_info)).collect();
    let (mut names, mut freed) = (Names::of(graph), Vec::new());
    for (node_idx, shape) in shapes.iter().enumerate().filter_map(|(i, shape)| Some((i, shape.as_ref()?))) {
        let gather = &graph.node[node_idx];
        let stored = names.fresh(&format!("{}_shape", gather.output[0]));
        let reshape = node::make("Reshape", gather.name(), &[&gather.input[0], &stored], &gather.output[0]);
        freed.extend(std::mem::replace(&mut graph.node[node_idx], reshape).input);
        graph.initializer.push(tensor::from_i64(&stored, &[shape.len()], shape)?);
    }
    let n_reshaped = shapes.iter().flatten().count();
    drop_unused(graph, freed);
    Ok(Change::counted([(n_reshaped, Change::ReshapedGathers)]))
}

/// Returns the shape of the output of a GatherND that takes all rows in order; `None` for other nodes.
fn reshaped(node: &NodeProto, index: &GraphIndex, value_info: &ValueInfos) -> Option<Vec<i64>> {
    let is_gather = node::is_standard(node) && node.op_type() == "GatherND" && node::int(node, "batch_dims", 0) == 0;
    let ([x, indices], [_]) = (&node.input[..], &node.output[..]) else { return None };
    let stored = index.initializer(indices).filter(|_| is_gather)?;
    let (shape, positions) = (tensor::shape(stored).ok()?, tensor::i64_values(stored).ok()?);
    let (n_axes, outer) = shape.split_last()?;
    let dims = value_info.shape(x)?;
    let (rows, inner) = dims.split_at_checked(*n_axes)?;
    let n_rows: usize = rows.iter().product();
    let row_of = |position: &[i64]| {
        let in_order = position.iter().zip(rows);
        in_order.fold(0, |row, (&at, &n)| row * n as i64 + at.rem_euclid(n.max(1) as i64))
    };
    let takes_all = *n_axes > 0 && positions.len() == n_rows * n_axes;
    let is_in_order = positions.chunks_exact((*n_axes).max(1)).map(row_of).eq(0..n_rows as i64);
    (takes_all && is_in_order).then(|| outer.iter().chain(inner).map(|&n| n as i64).collect())
}
