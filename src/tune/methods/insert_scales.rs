//! Channel scales by inserted Muls, where no node can absorb the scales and they gain on calibration samples.

use super::channel_scales::ChannelScales;
use super::equalize::scale_samples;
use crate::diag::count;
use crate::equalize::{ScaleOptions, describe_inserted, groups_of_inserted};
use crate::onnx::edit::{InsertedMul, ModelEdit};
use crate::onnx::graph::GraphIndex;
use crate::place::place;
use crate::tune::method::{Action, FloatProposal, Method, ModelContext};
use anyhow::Result;

/// The method that inserts channel scales before layers that [`EQUALIZE`](super::equalize::EQUALIZE) does not reach.
pub const INSERT_SCALES: Method = Method {
    name: "insert-scales",
    title: "inserted channel scales",
    about: "a Mul by one constant per channel before convolutions whose input no other node can scale",
    is_tried: |case| case.effort.level() > 0 && !case.transformer,
    waits: false,
    action: Action::FloatModel(propose),
};

/// Least promised gain of an inserted Mul: half of the quantization error, because it is an extra operator.
const SCALES: ScaleOptions = ScaleOptions { least_gain_db: 3.0, least_share: 0.0 };

/// Proposes Muls, with channel scales chosen on some of the samples. Fails if there are too few samples, or they cannot
/// be run.
fn propose(context: &ModelContext) -> Result<FloatProposal> {
    let ModelContext { setup, model, .. } = *context;
    if !setup.scheme.scales_in_float() {
        return Ok(FloatProposal::default());
    }
    let index = GraphIndex::new(model.graph()?);
    let is_conv = |reader: &String| index.producer(reader).is_some_and(|node| node.op_type().starts_with("Conv"));
    let is_conv = |mul: &&InsertedMul| mul.readers.iter().any(is_conv);
    let muls: Vec<InsertedMul> = setup.insertable.iter().filter(is_conv).map(InsertedMul::without_add).collect();
    if muls.is_empty() {
        return Ok(FloatProposal::default());
    }
    let (with_muls, mut groups) = groups_of_inserted(model, setup.value_info, &muls)?;
    groups.retain(|group| muls.iter().any(|mul| group.tensors.contains_key(&mul.output)));
    let graph = with_muls.graph()?;
    let with_muls_placement = place(graph, setup.value_info, setup.scheme, setup.selection);
    let samples = scale_samples(setup, model)?;
    let scales = ChannelScales::choose(setup, &with_muls, &with_muls_placement, (groups, Vec::new()), samples, SCALES)?;
    let scalings = scales.scalings();
    let used: Vec<InsertedMul> = muls.into_iter().filter(|mul| scalings.contains_key(&mul.output)).collect();
    let details =
        format!("{}; chosen on {}", describe_inserted(&used, setup.value_info), count(samples.len(), "sample"));
    let notes = scales.groups(graph);
    let inserted = used.into_iter().map(ModelEdit::InsertMul);
    Ok(FloatProposal { edits: inserted.chain(scales.edits()?).collect(), scalings, details: vec![details], notes })
}
