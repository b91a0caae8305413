//! The rule about tensors on one grid.

use super::{Draft, Rule, trace};
use crate::scheme::{Constraint, ParameterKind, RuleCall};

/// Puts tensors that an operator only moves or joins on one grid, so that it can run on integers.
pub const SHARE_SCALES: Rule = Rule {
    name: "share_scales",
    about: "tensors joined by a row's constraint get one bit-identical scale and zero point; with `clips_apart: 1` not those that a Clip makes which may go where the grid has its effect",
    takes: &[("clips_apart", ParameterKind::Number)],
    apply: share_scales,
};

fn share_scales(draft: &mut Draft, call: &RuleCall) {
    let clips_apart = call.number("clips_apart", 0) != 0;
    for (node_idx, node) in draft.graph.node.iter().enumerate() {
        let Some(constraint) = draft.table_row(node_idx).and_then(|row| row.constraint) else { continue };
        // A node that was left float may read tensors all of whose uses are quantized: between Q and DQ the target takes
        // it for one on integers.
        let is_open = draft.row(node_idx).is_some();
        let inputs = node.input.iter().enumerate();
        let inputs = inputs.filter(|(i, _)| is_open || draft.is_quantized_edge((node_idx, *i)));
        let inputs: Vec<String> = inputs.map(|(_, name)| name.clone()).collect();
        let outputs = node.output.iter().filter(|name| draft.is_quantizer(name)).collect::<Vec<_>>();
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
                let sources = draft.free_sources(&inputs, clips_apart);
                for pair in sources.windows(2) {
                    draft.share(&pair[0], &pair[1]);
                }
            }
            Constraint::SameAsOutput => {
                // Also where the output itself stays float: the kernel joins integers.
                let read = (0..node.input.len()).filter(|&i| draft.is_quantized_edge((node_idx, i)));
                let read: Vec<String> = read.map(|i| node.input[i].clone()).collect();
                for pair in draft.free_sources(&read, clips_apart).windows(2) {
                    draft.share(&pair[0], &pair[1]);
                }
                for output in outputs {
                    for source in draft.free_sources(&inputs, clips_apart) {
                        draft.share(&source, output);
                    }
                }
            }
        }
    }
}

impl Draft<'_> {
    /// The placement behind `inputs` that no row prescribes a grid for: on a prescribed one the others would
    /// saturate, so that the backend converts between the two. With `clips_apart` not those either whose grid takes a
    /// Clip's place: on a wider one it could not.
    fn free_sources(&self, inputs: &[String], clips_apart: bool) -> Vec<String> {
        let sources = inputs.iter().filter_map(|name| self.quantizer_behind(name));
        let clips = |source: &str| self.clips.keys().any(|tensor| self.group_of(tensor) == self.group_of(source));
        let free = |source: &&str| !(self.is_prescribed(source) || clips_apart && clips(source));
        sources.filter(free).map(str::to_string).collect()
    }

    /// Whether a row prescribes the quantization parameters that `tensor` has by now.
    fn is_prescribed(&self, tensor: &str) -> bool {
        let outputs = self.graph.node.iter().flat_map(|node| &node.output);
        let mut prescribed = outputs.filter(|output| self.fixed_output(output).is_some());
        prescribed.any(|output| self.group_of(output) == self.group_of(tensor))
    }

    /// `tensor`, or the quantizer that reaches it through operators that only move values.
    fn quantizer_behind<'t>(&'t self, mut tensor: &'t str) -> Option<&'t str> {
        loop {
            if self.is_quantizer(tensor) {
                return Some(tensor);
            }
            let node = self.index.producer(tensor)?;
            if !trace::MOVES.contains(&node.op_type()) {
                return None;
            }
            tensor = node.input.first()?;
        }
    }
}
