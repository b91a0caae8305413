//! The rule about tensors that share quantization parameters.

use super::{Draft, Join, trace};
use crate::scheme::{Constraint, RuleCall};
use std::collections::BTreeSet;

/// The tensors that keep their own quantization parameters at a join.
struct KeepApart<'a> {
    /// Tensors with a prescribed grid: the other tensors would saturate on it, and the backend requantizes. And tensors
    /// whose range replaces a Clip, which a wider range could not.
    tensors: Vec<&'a str>,
    /// Whether to add tensors whose ranges are much narrower than those of the tensors that they are joined with.
    unlike: bool,
}

pub(super) const UNLIKE_APART: &str = "unlike_apart";

/// Name of the rule.
pub const SHARE_SCALES: &str = "share_scales";

/// Makes tensors that an operator only moves or joins share quantization parameters, so that it can run on integers.
pub(super) fn share_scales(draft: &mut Draft, call: &RuleCall) {
    let outputs = draft.graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
    let mut tensors: Vec<&str> = outputs.filter(|output| draft.fixed_output(output).is_some()).collect();
    if call.number("clips_apart", 0) != 0 {
        tensors.extend(draft.clips.keys().copied());
    }
    let apart = KeepApart { tensors, unlike: call.number(UNLIKE_APART, 0) != 0 };
    for (node_idx, node) in draft.graph.node.iter().enumerate() {
        let Some(constraint) = draft.table_row(node_idx).and_then(|row| row.constraint) else { continue };
        // A node that was left float may read and write tensors with all uses quantized. The target takes such a node,
        // between DQ and Q, for a quantized node.
        let is_open = draft.row(node_idx).is_some();
        let inputs = node.input.iter().enumerate();
        let inputs = inputs.filter(|(i, _)| is_open || draft.is_quantized_edge((node_idx, *i)));
        let inputs: Vec<String> = inputs.map(|(_, name)| name.clone()).collect();
        let outputs = node.output.iter().filter(|name| draft.is_quantizer(name)).collect::<Vec<_>>();
        if !is_open && outputs.is_empty() {
            continue;
        }
        match constraint {
            Constraint::SameAsInput => {
                let Some(source) = inputs.first().and_then(|name| draft.quantizer_behind(name)) else {
                    continue;
                };
                let source = source.to_string();
                outputs.into_iter().for_each(|output| draft.share(&source, output));
            }
            Constraint::Fixed { .. } => {}
            Constraint::SameInputs => {
                let sources = draft.free_sources(&inputs, &apart);
                for pair in sources.windows(2) {
                    draft.share(&pair[0], &pair[1]);
                }
            }
            Constraint::SameAsOutput => {
                // The inputs share even if the output stays float, because the kernel joins integers.
                let read = (0..node.input.len()).filter(|&i| draft.is_quantized_edge((node_idx, i)));
                let read: Vec<String> = read.map(|i| node.input[i].clone()).collect();
                for pair in draft.free_sources(&read, &apart).windows(2) {
                    draft.share(&pair[0], &pair[1]);
                }
                for output in outputs {
                    for source in draft.free_sources(&inputs, &apart) {
                        draft.share(&source, output);
                    }
                }
            }
        }
    }
}

impl Draft<'_> {
    /// Returns the quantized tensors before `inputs` that may share parameters: those that do not stay apart.
    fn free_sources(&self, inputs: &[String], apart: &KeepApart) -> Vec<String> {
        let groups: BTreeSet<&str> = apart.tensors.iter().map(|tensor| self.group_of(tensor)).collect();
        let sources = inputs.iter().filter_map(|name| self.quantizer_behind(name));
        let is_unlike = |source: &str| apart.unlike && self.narrow_tensors.contains(source);
        let free = |source: &&str| !(groups.contains(self.group_of(source)) || is_unlike(source));
        sources.filter(free).map(str::to_string).collect()
    }

    /// Whether the table lets tensors with very unlike ranges keep their own quantization parameters.
    pub(super) fn joins_apart(&self) -> bool {
        let lets = |call: &RuleCall| call.rule == SHARE_SCALES && call.number(UNLIKE_APART, 0) != 0;
        self.scheme.placement.iter().any(lets)
    }

    /// Returns every operator that makes quantized tensors share parameters: Concat, and operators whose row constrains
    /// their inputs to share.
    pub(super) fn joins(&self) -> Vec<Join> {
        let may_keep_own_params = self.joins_apart();
        let join = |node_idx: usize| {
            let node = &self.graph.node[node_idx];
            let constraint = self.table_row(node_idx).and_then(|row| row.constraint);
            let shares = matches!(constraint, Some(Constraint::SameInputs | Constraint::SameAsOutput));
            let sources = self.activation_inputs(node_idx).into_iter();
            let sources = sources.filter_map(|i| self.quantizer_behind(&node.input[i]));
            let inputs: Vec<String> = sources.map(str::to_string).collect();
            let sources =
                inputs.iter().filter_map(|input| self.before_moves(input).last().map(str::to_string)).collect();
            let output = node.output.first().filter(|name| self.is_quantizer(name)).cloned();
            let joins = inputs.len() > 1 && (shares || node.op_type() == "Concat" && output.is_some());
            // If it is float, its output is quantized only for other readers.
            let consumers = output.iter().flat_map(|output| self.index.consumers(output));
            let mut quantized_for_all = inputs.iter().filter(|name| self.quantized_tensors.contains_key(name.as_str()));
            let is_apart =
                !consumers.copied().any(|edge| self.edges.contains_key(&edge)) || quantized_for_all.next().is_none();
            let parts_if_float = self.scheme.allows_float_nodes() && is_apart;
            joins.then_some(Join { node: node_idx, inputs, sources, output, may_keep_own_params, parts_if_float })
        };
        (0..self.graph.node.len()).filter_map(join).collect()
    }

    /// Returns `tensor` and the tensors that reach it through operators that only move values, nearest first.
    fn before_moves<'t>(&'t self, tensor: &'t str) -> impl Iterator<Item = &'t str> {
        std::iter::successors(Some(tensor), |tensor| {
            let node = self.index.producer(tensor).filter(|node| trace::MOVES.contains(&node.op_type()))?;
            node.input.first().map(String::as_str)
        })
    }

    /// `tensor`, or the quantized tensor that reaches it through operators that only move values.
    fn quantizer_behind<'t>(&'t self, tensor: &'t str) -> Option<&'t str> {
        self.before_moves(tensor).find(|tensor| self.is_quantizer(tensor))
    }
}
