//! A node of a forward pass with its values.

use super::channels::ChannelSum;
use super::single_node::SingleNode;
use crate::engine::Value;
use crate::onnx::proto::NodeProto;
use std::cell::OnceCell;

/// A node that a forward pass has reached.
pub struct NodeAt<'w> {
    /// Its position.
    pub node_idx: usize,
    /// The node.
    pub node: &'w NodeProto,
    /// Its inputs that are not constants, each once.
    pub runtime: &'w [&'w str],
    /// The prepared node of the float network; `None` for a layer where that network is not run.
    pub(super) single: Option<&'w SingleNode>,
    /// The tensors of `runtime` that no later node reads; empty where a hook reads the inputs of the layer.
    pub(super) last: &'w [&'w str],
    /// Values of `runtime` in the float network, per sample; empty where that network is known from another pass.
    pub(super) float_inputs: &'w [&'w [Value]],
    /// Its outputs in the float network, per sample; empty where that network is known from another pass.
    pub(super) float: &'w [Vec<Value>],
    /// Channel sums of its first float output, once they were computed.
    pub(super) sums: OnceCell<Vec<Vec<ChannelSum>>>,
    /// Number of samples, from the first on, that hooks learn from.
    pub n_tune: usize,
}

impl NodeAt<'_> {
    /// Returns the inputs that are not constants in the float network, one value per sample; empty where that network
    /// is known from another pass.
    pub fn float_inputs(&self) -> impl Iterator<Item = &[Value]> {
        self.float_inputs.iter().copied().filter(|values| !values.is_empty())
    }

    /// Returns the first output in the float network, for the first `n_tune` samples; empty where that network is known
    /// from another pass.
    pub fn float_outputs(&self) -> impl Iterator<Item = &Value> {
        self.float.iter().take(self.n_tune).filter_map(|outputs| outputs.first())
    }

    /// Returns channel sums of the first output in the float network, for each of the first `n_tune` samples. `sums`
    /// computes them from [`NodeAt::float_outputs`], unless another pass kept them.
    pub fn float_sums(&self, sums: impl FnOnce() -> Vec<Vec<ChannelSum>>) -> &[Vec<ChannelSum>] {
        self.sums.get_or_init(sums)
    }
}
