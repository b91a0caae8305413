//! Which channels of a model get scales, by what calibration samples show of them.

use crate::calibrate::SampleSet;
use crate::diag::copy_of;
use crate::engine::{Parsed, Session};
use crate::equalize::{
    ChannelStatistics, End, EqualizationGroup, ObservedTensor, Skipped, choose, inserted_names, observed_tensors,
};
use crate::onnx::edit::{InsertedMul, ModelEdit};
use crate::onnx::inputs::Shapes;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::place::Placement;
use crate::quant::ChannelScaling;
use crate::tune::Setup;
use anyhow::{Context, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What gets which scales.
pub struct ChannelScales {
    /// Groups with a scale per channel.
    chosen: Vec<(EqualizationGroup, Vec<f32>)>,
    /// What gets none, and why.
    pub skipped: Vec<Skipped>,
}

/// Tensors that share a scale per channel; in the sidecar as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaledGroup {
    /// The tensor that names them, whose channels the scales are for.
    pub tensor: String,
    /// Nodes whose weights, gains and biases are divided by the scales.
    pub producers: Vec<String>,
    /// Nodes whose weights are multiplied by them.
    pub consumers: Vec<String>,
    /// One per channel.
    #[serde(rename = "factors")]
    pub scales: Vec<f32>,
}

impl ChannelScales {
    /// Looks at samples, given by their positions in the data, and chooses scales for `groups` by what is seen; at none
    /// where there are no groups.
    ///
    /// # Errors
    /// If the engine does not run the model or a sample.
    pub fn choose(
        setup: Setup,
        model: &ModelProto,
        placement: &Placement,
        (groups, skipped): (Vec<EqualizationGroup>, Vec<Skipped>),
        inserted: &[InsertedMul],
        positions: &[usize],
    ) -> Result<ChannelScales> {
        let mut scales = ChannelScales { chosen: Vec::new(), skipped };
        if groups.is_empty() {
            return Ok(scales);
        }
        let graph = model.graph.as_ref().context("model has no graph")?;
        let observed = observed_tensors(&groups, graph, setup.value_info, placement);
        let samples = setup.samples.context("nothing was observed")?;
        let statistics = look(model, setup.shapes, &observed, samples, positions)?;
        let choices = choose(&groups, &inserted_names(inserted), &statistics, graph, placement, setup.scheme);
        for (group, choice) in groups.into_iter().zip(choices) {
            match choice {
                Ok(choice) => scales.chosen.push((group, choice)),
                Err(reason) => scales.skipped.push(Skipped { tensor: group.tensor, reason }),
            }
        }
        Ok(scales)
    }

    /// Whether a group with scales has this tensor.
    pub fn has_tensor(&self, tensor: &str) -> bool {
        self.chosen.iter().any(|(group, _)| group.tensors.contains_key(tensor))
    }

    /// Takes groups of another graph in place of those of the same tensors.
    pub fn find_again(&mut self, groups: &[EqualizationGroup]) {
        for (group, _) in &mut self.chosen {
            if let Some(found) = groups.iter().find(|found| found.tensor == group.tensor) {
                group.clone_from(found);
            }
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// What gives the model these scales.
    ///
    /// # Errors
    /// None for those that were chosen.
    pub fn edits(&self) -> Result<Vec<ModelEdit>> {
        Ok(self.chosen.iter().map(|(group, scales)| group.edits(scales)).collect::<Result<Vec<_>>>()?.concat())
    }

    /// What the channels of tensors are multiplied by.
    pub fn scalings(&self) -> BTreeMap<String, ChannelScaling> {
        let tensors = self.chosen.iter().flat_map(|(group, scales)| group.tensors.iter().map(move |one| (one, scales)));
        tensors.map(|((tensor, channels), scales)| (tensor.clone(), channels.scaling(scales))).collect()
    }

    /// The groups with scales, by names.
    pub fn groups(&self, graph: &GraphProto) -> Vec<ScaledGroup> {
        let name = |end: &End| node_name(&graph.node[end.node]).to_string();
        let of = |(group, scales): &(EqualizationGroup, Vec<f32>)| ScaledGroup {
            tensor: group.tensor.clone(),
            producers: group.producers.iter().map(name).collect(),
            consumers: group.consumers.iter().map(name).collect(),
            scales: scales.clone(),
        };
        self.chosen.iter().map(of).collect()
    }
}

/// Runs samples of the data and looks at the channels of the watched tensors.
fn look(
    model: &ModelProto,
    shapes: &Shapes,
    observed: &[ObservedTensor],
    samples: &SampleSet,
    positions: &[usize],
) -> Result<BTreeMap<String, ChannelStatistics>> {
    let names: Vec<String> = observed.iter().map(|observed| observed.tensor.clone()).collect();
    let engine = Parsed::new(model, shapes)?.build(&names)?;
    let empty = || observed.iter().map(|observed| ChannelStatistics::new(observed.channels)).collect();
    let mut totals: Vec<ChannelStatistics> = empty();
    // As many samples at a time as there are threads, added in their order.
    for part in positions.chunks(rayon::current_num_threads()) {
        let one = |session: &mut Result<Session>, &sample: &usize| -> Result<Vec<ChannelStatistics>> {
            let session = session.as_mut().map_err(|error| copy_of(error))?;
            let mut seen: Vec<ChannelStatistics> = empty();
            let mut visit = |at: usize, shape: &[usize], values: &[f32]| {
                seen[at].observe(shape, values);
                Ok(())
            };
            Session::run(session, &samples.dataset.load(sample)?, &mut visit)?;
            Ok(seen)
        };
        let parts: Vec<Vec<ChannelStatistics>> =
            part.par_iter().map_init(|| engine.session(), one).collect::<Result<_>>()?;
        for part in parts {
            totals.iter_mut().zip(&part).for_each(|(total, part)| total.merge(part));
        }
    }
    Ok(names.into_iter().zip(totals).collect())
}
