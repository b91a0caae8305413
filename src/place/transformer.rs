//! Rules about transformers: the network around attention and layer normalization.

use super::Draft;
use super::attention::scores_product;
use super::ends::NetworkEnd;
use super::trace::{BINARY, MOVES, POINTWISE};
use crate::onnx::node::attribute;
use crate::onnx::proto::NodeProto;
use crate::scheme::RuleCall;
use std::collections::BTreeSet;

/// Normalization and attention as one operator, of any domain.
const FUSED: &[&str] = &[
    "LayerNormalization",
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "RMSNormalization",
    "Attention",
    "MultiHeadAttention",
    "GroupQueryAttention",
];

/// Operators that a transformer may have, besides [`FUSED`], pointwise and binary operators and moves.
const BETWEEN: &[&str] = &[
    "MatMul", "Gemm", "Softmax", "LogSoftmax", "Where", "Cast", "Concat", "ReduceMean", "ReduceSum", "ReduceMax",
    "ReduceL2", "Reciprocal", "Sin", "Cos", "FastGelu", "BiasGelu", "QuickGelu", "RotaryEmbedding", "Tile", "Einsum",
    "IsNaN",
];

/// Operators on pixels, at which a transformer ends.
const OF_PIXELS: &[&str] = &[
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "BatchNormalization", "Resize", "Upsample",
];

/// Marks the linear layers of transformers in tables that quantize everything else, too.
pub(super) fn scale_linear_inputs(draft: &mut Draft, _: &RuleCall) {
    for node_idx in draft.transformer() {
        if draft.row(node_idx).is_some() && draft.is_linear_layer(node_idx) {
            draft.linear.insert(node_idx);
        }
    }
}

/// Name of the rule about the inputs of linear layers.
pub const QUANTIZE_LINEAR_INPUTS_ALONE: &str = "quantize_linear_inputs_alone";

/// Leaves everything in a transformer float except the inputs and weights of its linear layers. Source: NNCF,
/// `ModelType.TRANSFORMER` (`quantization/passes.py`, `onnx/quantization/ignored_patterns.py`).
pub(super) fn quantize_linear_inputs_alone(draft: &mut Draft, _: &RuleCall) {
    let transformer = draft.transformer();
    if !transformer.is_empty() {
        for node_idx in draft.end_layers(NetworkEnd::First, &[]) {
            if draft.is_patch_embedding(node_idx) {
                draft.leave_float(node_idx, "the patch embedding of a transformer");
            }
        }
    }
    for node_idx in transformer {
        if draft.row(node_idx).is_none() {
            continue;
        }
        if draft.is_linear_layer(node_idx) {
            draft.linear.insert(node_idx);
            draft.float_outputs.insert(node_idx);
        } else {
            draft.leave_float(node_idx, "part of a transformer, but not a layer with a constant weight");
        }
    }
}

impl Draft<'_> {
    /// Whether more than three of four weights with two dimensions or more belong to linear layers of transformers.
    pub(super) fn is_transformer(&self) -> bool {
        let transformer = self.transformer();
        let has_weight = |node_idx: &usize| {
            let name = self.weight_input(*node_idx).and_then(|slot| self.graph.node[*node_idx].input.get(slot));
            name.and_then(|name| self.index.initializer(name)).is_some_and(|weight| weight.dims.len() >= 2)
        };
        let layers: Vec<usize> = (0..self.graph.node.len()).filter(has_weight).collect();
        let is_linear = |node_idx: &&usize| transformer.contains(node_idx) && self.is_linear_layer(**node_idx);
        4 * layers.iter().filter(is_linear).count() > 3 * layers.len()
    }

    fn is_linear_layer(&self, node_idx: usize) -> bool {
        let node = &self.graph.node[node_idx];
        let rank = |slot: usize| self.index.initializer(&node.input[slot]).map_or(0, |weight| weight.dims.len());
        // A stack of matrices on the left is not a weight: an attention may have constant queries.
        let is_weight = |slot: usize| slot == 1 || rank(slot) == 2;
        matches!(node.op_type(), "MatMul" | "Gemm") && self.weight_input(node_idx).is_some_and(is_weight)
    }

    /// Whether a first layer is a Conv that turns an image into tokens, which shows by windows that do not overlap.
    fn is_patch_embedding(&self, node_idx: usize) -> bool {
        let node = &self.graph.node[node_idx];
        let weight = node.input.get(1).and_then(|weight| self.index.initializer(weight));
        let kernel = weight.filter(|_| node.op_type() == "Conv").and_then(|weight| weight.dims.get(2..));
        let strides = attribute(node, "strides").map(|strides| strides.ints.as_slice());
        kernel.is_some_and(|kernel| kernel.iter().any(|&n| n > 1) && strides == Some(kernel))
    }

    /// Returns the nodes of transformers: attention, layer normalization, and all nodes that are connected to them by
    /// operators of transformers, away from operators on pixels.
    fn transformer(&self) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut pending: Vec<usize> = self.attentions_and_norms();
        while let Some(node_idx) = pending.pop() {
            if !found.insert(node_idx) {
                continue;
            }
            let node = &self.graph.node[node_idx];
            let before = node.input.iter().filter_map(|name| self.index.producer_idx(name));
            let behind = node.output.iter().flat_map(|name| self.index.consumers(name)).map(|(next, _)| *next);
            let next = before.chain(behind).filter(|&next| next < self.graph.node.len());
            pending.extend(next.filter(|&next| self.is_of_tokens(next)));
        }
        found
    }

    /// Whether a node may be part of a transformer and has no operator on pixels directly before or after it.
    fn is_of_tokens(&self, node_idx: usize) -> bool {
        let node = &self.graph.node[node_idx];
        let op = node.op_type();
        let lists = [FUSED, BETWEEN, POINTWISE, BINARY, MOVES];
        let is_known = lists.iter().any(|list| list.contains(&op)) || self.pools_tokens(node);
        is_known && op != "BatchNormalization" && !self.is_beside_pixels(node_idx)
    }

    /// Whether a node takes the mean over all tokens, `[batch, channels, tokens]`.
    fn pools_tokens(&self, node: &NodeProto) -> bool {
        let shape = node.input.first().and_then(|input| self.value_info.shape(input));
        node.op_type() == "GlobalAveragePool" && shape.is_some_and(|shape| shape.len() == 3)
    }

    /// Returns both products of every attention, and the nodes of every layer or RMS normalization.
    fn attentions_and_norms(&self) -> Vec<usize> {
        let mut found = Vec::new();
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            match node.op_type() {
                op if FUSED.contains(&op) => found.push(node_idx),
                "Softmax" => found.extend(self.products_around(node).into_iter().flatten()),
                "Sqrt" => found.extend(self.layer_norm_around(node_idx).into_iter().flatten()),
                _ => {}
            }
        }
        found.retain(|&node_idx| !self.is_beside_pixels(node_idx));
        found
    }

    /// Returns the two products of activations, before and after a Softmax.
    fn products_around(&self, softmax: &NodeProto) -> Option<[usize; 2]> {
        let (scores, _) = scores_product(self, softmax.input.first()?)?;
        let mut tensor = softmax.output.first()?;
        for _ in 0..8 {
            // A guard against NaN reads the tensor twice: `Where(IsNaN(p), 0, p)`.
            let mut readers = self.index.value_readers(tensor).filter_map(|(i, _)| Some((i, self.graph.node.get(i)?)));
            let (node_idx, node) = readers.find(|(_, node)| node.op_type() != "IsNaN")?;
            match node.op_type() {
                "MatMul" => return (self.activation_inputs(node_idx).len() == 2).then_some([scores, node_idx]),
                "Reshape" | "Transpose" | "Where" | "Dropout" | "Cast" | "Mul" | "Identity" => {}
                _ => return None,
            }
            tensor = node.output.first()?;
        }
        None
    }

    /// Whether an operator on pixels produces the node's input or reads its output.
    fn is_beside_pixels(&self, node_idx: usize) -> bool {
        let node = &self.graph.node[node_idx];
        let is_of_pixels = |node: &NodeProto| OF_PIXELS.contains(&node.op_type()) && !self.pools_tokens(node);
        let makes = |name: &String| self.index.producer(name).is_some_and(is_of_pixels);
        let readers = |name: &String| self.index.consumers(name).iter().filter_map(|(i, _)| self.graph.node.get(*i));
        node.input.iter().any(makes) || node.output.iter().flat_map(readers).any(is_of_pixels)
    }
}
