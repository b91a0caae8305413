//! Multiplications by a scale per channel, in front of layers that channel scales do not reach.
//!
//! Behind SiLU, GELU, hard-swish or a normalization that a residual Add reads too, nothing can take channel scales up. A
//! Mul with one constant per channel in front of the layers' quantizer can: it divides what the layers' weights multiply.
//! It is put in with ones, which changes no value; the search then finds it as a producer like any other.

use super::search::{find, layer_input};
use super::{Reason, Skipped};
use crate::onnx::edit::InsertedMul;
use crate::onnx::graph::{Edge, GraphIndex};
use crate::onnx::names::Names;
use crate::onnx::proto::GraphProto;
use crate::onnx::value_info::{ValueInfo, ValueInfos};
use crate::place::Placement;
use std::collections::BTreeSet;

/// Operators whose weights take the scales.
const LAYERS: [&str; 4] = ["Conv", "ConvTranspose", "Gemm", "MatMul"];

/// Where a Mul makes a group of tensors that are `skipped`: one for all layers that read the tensor quantized.
pub fn insertable(graph: &GraphProto, value_info: &ValueInfos, placement: &Placement) -> Vec<InsertedMul> {
    let (_, skipped) = find(graph, value_info);
    let index = GraphIndex::new(graph);
    let mut names = Names::of(graph);
    let mut inserted = Vec::new();
    for Skipped { tensor, .. } in skipped.iter().filter(|skipped| is_reached_by_a_mul(&skipped.reason)) {
        let quantizer = placement.activations.iter().find(|quantizer| quantizer.tensor == *tensor);
        let (Some(quantizer), Some(shape)) = (quantizer, value_info.shape(tensor)) else { continue };
        if index.producer(tensor).is_none() {
            continue;
        }
        let layers = quantizer.edges.iter().filter_map(|edge| {
            let node = &graph.node[edge.0];
            let (_, channels) =
                layer_input(node, &index, value_info).filter(|_| edge.1 == 0 && LAYERS.contains(&node.op_type()))?;
            let is_own = node.input.get(1).is_some_and(|weight| index.has_only(weight, 1));
            (is_own && channels.fits(shape)).then_some((*edge, channels))
        });
        let layers: Vec<_> = layers.collect();
        let Some(&(_, channels)) = layers.first() else { continue };
        let consumers: Vec<Edge> =
            layers.iter().filter(|(_, other)| *other == channels).map(|(edge, _)| *edge).collect();
        let mut dims = vec![1; shape.len()];
        dims[channels.axis] = shape[channels.axis];
        inserted.push(InsertedMul {
            tensor: tensor.clone(),
            output: names.fresh(&format!("{tensor}_scaled")),
            scales: names.fresh(&format!("{tensor}_scales")),
            dims,
            consumers,
        });
    }
    inserted
}

/// Whether what refused a tensor's group is on the way to its producers, where a Mul cuts it off.
fn is_reached_by_a_mul(reason: &Reason) -> bool {
    match reason {
        Reason::NoWeight(_) | Reason::Unknown(_) | Reason::OneChannel | Reason::NoGain => false,
        Reason::NoProducer(_)
        | Reason::NetworkOutput(_)
        | Reason::Operator { .. }
        | Reason::Bound { .. }
        | Reason::Shared(_)
        | Reason::NotPerChannel(_)
        | Reason::Misaligned(_)
        | Reason::Nested(_) => true,
    }
}

/// What is known of the tensors that the Muls make.
pub fn with_inserted(value_info: &ValueInfos, inserted: &[InsertedMul]) -> ValueInfos {
    let mut value_info = value_info.clone();
    for mul in inserted {
        let known = ValueInfo {
            data_type: value_info.data_type(&mul.tensor),
            shape: value_info.shape(&mul.tensor).map(<[usize]>::to_vec),
        };
        value_info.insert(&mul.output, known.clone());
        value_info.insert(&mul.scales, ValueInfo { shape: Some(mul.dims.clone()), ..known });
    }
    value_info
}

/// The names of the nodes.
pub fn inserted_names(inserted: &[InsertedMul]) -> BTreeSet<String> {
    inserted.iter().map(|mul| mul.output.clone()).collect()
}
