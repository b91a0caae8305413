//! Inserts Muls by one constant per channel before layers that channel scales do not reach.
//!
//! After SiLU, GELU, hard-swish, or a normalization that a residual Add reads too, no node can absorb channel scales. A
//! Mul with one constant per channel before the layers' quantizer can: it divides the channels, and the layers' weights
//! multiply them. It is inserted with ones, which changes no value. The search then treats it as any other producer.

use super::search::{find, layer_input};
use super::{Channels, EqualizationGroup, Reason, Skipped};
use crate::diag::{count, grouped};
use crate::onnx::edit::{InsertedAdd, InsertedMul, ModelEdit, edited};
use crate::onnx::graph::GraphIndex;
use crate::onnx::names::Names;
use crate::onnx::node::PRODUCTS;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::value_info::{ValueInfo, ValueInfos};
use crate::place::Placement;
use anyhow::Result;

/// Returns candidate Muls by ones with Adds of zeros. One Mul serves all layers that read a quantized tensor which is
/// in no equalization group.
pub fn insertable(graph: &GraphProto, value_info: &ValueInfos, placement: &Placement) -> Vec<InsertedMul> {
    let (_, skipped) = find(graph, value_info);
    let index = GraphIndex::new(graph);
    let mut names = Names::of(graph);
    let mut inserted = Vec::new();
    for Skipped { tensor, .. } in skipped.iter().filter(|skipped| is_cut_off_by_a_mul(&skipped.reason)) {
        let quantizer = placement.activations.iter().find(|quantizer| quantizer.tensor == *tensor);
        let (Some(quantizer), Some(shape)) = (quantizer, value_info.shape(tensor)) else { continue };
        if index.producer(tensor).is_none() {
            continue;
        }
        let layers = quantizer.edges.iter().filter_map(|edge| {
            let node = &graph.node[edge.0];
            let (_, channels) = layer_input(node, &index, value_info)?;
            let is_layer = edge.1 == 0 && PRODUCTS.contains(&node.op_type()) && channels.fits(shape);
            let is_own = node.input.get(1).is_some_and(|weight| index.has_only(weight, 1));
            (is_layer && is_own).then(|| (node.output[0].clone(), channels))
        });
        let layers: Vec<(String, Channels)> = layers.collect();
        let Some(&(_, channels)) = layers.first() else { continue };
        let same = layers.into_iter().filter(|(_, other)| *other == channels);
        let mut dims = vec![1; shape.len()];
        dims[channels.axis] = shape[channels.axis];
        inserted.push(InsertedMul {
            tensor: tensor.clone(),
            output: names.fresh(&format!("{tensor}_scaled")),
            factors: names.fresh(&format!("{tensor}_scales")),
            values: vec![1.0; shape[channels.axis]],
            shape: dims,
            readers: same.map(|(reader, _)| reader).collect(),
            add: Some(InsertedAdd {
                product: names.fresh(&format!("{tensor}_product")),
                summands: names.fresh(&format!("{tensor}_offsets")),
                values: vec![0.0; shape[channels.axis]],
            }),
        });
    }
    inserted
}

/// Whether the reason lies on the way to the producers, which the search does not follow beyond an inserted Mul.
fn is_cut_off_by_a_mul(reason: &Reason) -> bool {
    match reason {
        Reason::Unknown(_) | Reason::OneChannel | Reason::NoGain => false,
        Reason::NoProducer(_)
        | Reason::NoWeight(_)
        | Reason::NotConstant(_)
        | Reason::NetworkOutput(_)
        | Reason::Operator { .. }
        | Reason::Bound { .. }
        | Reason::Shared(_)
        | Reason::NotPerChannel(_)
        | Reason::Misaligned(_)
        | Reason::Nested(_) => true,
    }
}

/// Adds types and shapes of the tensors that the Muls read and produce.
pub fn with_inserted(mut value_info: ValueInfos, inserted: &[InsertedMul]) -> ValueInfos {
    for mul in inserted {
        let known = ValueInfo {
            data_type: value_info.data_type(&mul.tensor),
            shape: value_info.shape(&mul.tensor).map(<[usize]>::to_vec),
        };
        let constant = ValueInfo { shape: Some(mul.shape.clone()), ..known };
        if let Some(add) = &mul.add {
            value_info.insert(&add.product, known.clone());
            value_info.insert(&add.summands, constant.clone());
        }
        value_info.insert(&mul.output, known);
        value_info.insert(&mul.factors, constant);
    }
    value_info
}

/// Returns a text with the numbers of Muls, Adds, and multiplications per sample.
pub fn describe_inserted(inserted: &[InsertedMul], value_info: &ValueInfos) -> String {
    let shapes = inserted.iter().filter_map(|mul| value_info.shape(&mul.tensor));
    let n_values: usize = shapes.map(|shape| shape.iter().product::<usize>()).sum();
    let muls = count(inserted.len(), "Mul");
    let adds = match inserted.iter().filter(|mul| mul.add.is_some()).count() {
        0 => String::new(),
        n => format!(" and {}", count(n, "Add")),
    };
    format!("{muls}{adds} inserted, {} multiplications per sample", grouped(n_values))
}

/// Returns the model with all Muls and Adds inserted, and its equalization groups.
///
/// # Errors
/// If a Mul does not fit the model.
pub fn groups_of_inserted(
    model: &ModelProto,
    value_info: &ValueInfos,
    inserted: &[InsertedMul],
) -> Result<(ModelProto, Vec<EqualizationGroup>)> {
    let edits: Vec<ModelEdit> = inserted.iter().cloned().map(ModelEdit::InsertMul).collect();
    let model = edited(model, &edits)?;
    let (groups, _) = find(model.graph()?, value_info);
    Ok((model, groups))
}
