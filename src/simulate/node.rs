//! Single nodes: what the graph says of them, and where a forward pass meets them.

use super::channels::ChannelSum;
use super::single_node::SingleNode;
use crate::engine::Value;
use crate::onnx::proto::NodeProto;
use std::cell::OnceCell;

/// A node that a forward pass has come to.
pub struct NodeAt<'w> {
    /// Its position.
    pub node_idx: usize,
    /// The node.
    pub node: &'w NodeProto,
    /// Its inputs that are no constants, without repetition.
    pub runtime: &'w [&'w str],
    /// The node in the float network; none for a layer where that network is not run.
    pub(super) single: Option<&'w SingleNode>,
    /// The values of `runtime` in the float network, per sample; nothing where that is known from another pass.
    pub(super) float_inputs: &'w [&'w [Value]],
    /// What it makes there, per sample; nothing where the float network is known from another pass.
    pub(super) float: &'w [Vec<Value>],
    /// Sums of the channels of its first output there, once they are asked for.
    pub(super) sums: OnceCell<Vec<Vec<ChannelSum>>>,
    /// Samples of the pass.
    pub n_samples: usize,
    /// The first so many samples are learned from.
    pub n_tune: usize,
}

impl NodeAt<'_> {
    /// The inputs that are no constants in the float network, a value per sample of the pass; nothing where that network is
    /// known from another pass.
    pub fn float_inputs(&self) -> impl Iterator<Item = &[Value]> {
        self.float_inputs.iter().copied().filter(|values| !values.is_empty())
    }

    /// The first output in the float network, for the samples that are learned from; nothing where that network is known
    /// from another pass.
    pub fn float_outputs(&self) -> impl Iterator<Item = &Value> {
        self.float.iter().take(self.n_tune).filter_map(|outputs| outputs.first())
    }

    /// The sums of the channels of the first output in the float network, per sample that is learned from, as `sums`
    /// makes them of [`NodeAt::float_outputs`]; those of another pass where it kept them.
    pub fn float_sums(&self, sums: impl FnOnce() -> Vec<Vec<ChannelSum>>) -> &[Vec<ChannelSum>] {
        self.sums.get_or_init(sums)
    }
}
