//! Folds a Pad with zeros into the convolutions behind it.
//!
//! A Pad is folded if all its readers are Convs that read it as their first input, and none of them chooses its own
//! padding (`auto_pad`). Its amounts must be constant, not negative, and 0 on the batch and channel axes. The amounts
//! are added to the attribute `pads` of each Conv.

use super::Change;
use super::renamed_tensors::RenamedTensors;
use crate::onnx::graph::{GraphIndex, drop_unused};
use crate::onnx::node;
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::tensor;
use anyhow::Result;
use std::collections::BTreeSet;

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let index = GraphIndex::new(graph);
    let mut folded = Vec::new();
    for (node_idx, pad) in graph.node.iter().enumerate() {
        let Some(amounts) = spatial_zero_padding(&index, pad) else { continue };
        let output = &pad.output[0];
        let readers = index.consumers(output);
        let sums: Option<Vec<(usize, Vec<i64>)>> = readers
            .iter()
            .map(|&(reader, slot)| {
                Some((reader, with_padding(graph.node.get(reader).filter(|_| slot == 0)?, &amounts)?))
            })
            .collect();
        if let Some(sums) = sums.filter(|sums| !sums.is_empty() && !index.is_output(output)) {
            folded.push((node_idx, sums));
        }
    }
    let n_folded = folded.len();
    let (mut renamed, mut gone, mut constants) = (RenamedTensors::default(), BTreeSet::new(), Vec::new());
    for (node_idx, sums) in folded {
        let pad = &graph.node[node_idx];
        renamed.insert(pad.output[0].clone(), pad.input[0].clone());
        constants.extend(pad.input[1..].iter().cloned());
        gone.insert(node_idx);
        for (reader, pads) in sums {
            node::set_ints(&mut graph.node[reader], "pads", pads);
        }
    }
    renamed.apply(graph, &gone);
    drop_unused(graph, constants);
    Ok(Change::counted([(n_folded, Change::FoldedPads)]))
}

/// Returns the amounts of zeros that a Pad adds before and after each spatial axis, `[before…, after…]`; `None` for
/// other nodes and other Pads.
fn spatial_zero_padding(index: &GraphIndex, pad: &NodeProto) -> Option<Vec<i64>> {
    let given = |slot: usize| pad.input.get(slot).filter(|name| !name.is_empty());
    let is_zero = given(2).is_none_or(|value| index.floats(value).is_some_and(|values| values == [0.0]));
    let is_plain = pad.op_type() == "Pad" && node::is_standard(pad) && given(3).is_none();
    if !is_plain || !is_zero || node::text(pad, "mode", "constant") != "constant" {
        return None;
    }
    let amounts = tensor::i64_values(index.initializer(given(1)?)?).ok()?;
    let rank = amounts.len() / 2;
    let (front, behind) = amounts.split_at_checked(rank)?;
    let in_space = rank > 2 && behind.len() == rank && front[..2] == [0, 0] && behind[..2] == [0, 0];
    (in_space && amounts.iter().all(|&amount| amount >= 0)).then(|| [&front[2..], &behind[2..]].concat())
}

/// Returns the padding of a Conv plus these amounts; `None` for other nodes, and if the Conv chooses its own padding.
fn with_padding(conv: &NodeProto, amounts: &[i64]) -> Option<Vec<i64>> {
    let is_conv = conv.op_type() == "Conv" && node::is_standard(conv);
    let own = match node::text(conv, "auto_pad", "NOTSET").as_str() {
        "NOTSET" => node::attribute(conv, "pads").map_or(vec![0; amounts.len()], |pads| pads.ints.clone()),
        _ => return None,
    };
    let sum = |(own, more): (&i64, &i64)| own.checked_add(*more);
    own.iter().zip(amounts).map(sum).collect::<Option<Vec<i64>>>().filter(|_| is_conv && own.len() == amounts.len())
}
