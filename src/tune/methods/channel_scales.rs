//! Choice of channel scales from statistics of calibration samples.

use crate::calibrate::SampleSet;
use crate::diag::copy_of;
use crate::engine::{Parsed, ShapedEngines, ShapedSession};
use crate::equalize::{
    ChannelStatistics, EqualizationGroup, GroupEnd, ObservedTensor, ScaleOptions, Skipped, choose, observed_tensors,
};
use crate::onnx::edit::ModelEdit;
use crate::onnx::inputs::Shapes;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::place::Placement;
use crate::quant::ChannelScaling;
use crate::tune::setup::Setup;
use anyhow::{Context, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Channel scales by group, and the groups without any.
pub struct ChannelScales {
    /// Groups with one scale per channel.
    chosen: Vec<(EqualizationGroup, Vec<f32>)>,
    /// Groups that were skipped, with the reason.
    pub skipped: Vec<Skipped>,
}

impl ChannelScales {
    /// Runs the samples at `positions` of the data and chooses scales for the groups for which they promise a gain.
    /// Runs nothing without groups. Groups without scales are added to the given list of skipped groups. Fails if the
    /// engine does not run the model or a sample.
    pub fn choose(
        setup: Setup,
        model: &ModelProto,
        placement: &Placement,
        (groups, skipped): (Vec<EqualizationGroup>, Vec<Skipped>),
        positions: &[usize],
        options: ScaleOptions,
    ) -> Result<ChannelScales> {
        let mut scales = ChannelScales { chosen: Vec::new(), skipped };
        if groups.is_empty() {
            return Ok(scales);
        }
        let graph = model.graph()?;
        let observed = observed_tensors(&groups, graph, setup.value_info, placement);
        let samples = setup.samples.context("there are no calibration samples")?;
        let statistics = look(model, setup.shapes, &observed, samples, positions)?;
        let choices = choose(&groups, &statistics, graph, placement, setup.scheme, options);
        for (group, choice) in groups.into_iter().zip(choices) {
            match choice {
                Ok(choice) => scales.chosen.push((group, choice)),
                Err(reason) => scales.skipped.push(Skipped { tensor: group.tensor, reason }),
            }
        }
        Ok(scales)
    }

    /// Returns the number of groups with channel scales.
    pub fn n_groups(&self) -> usize {
        self.chosen.len()
    }

    /// Returns the edits that apply the scales to the model. Fails if a group cannot take its scales, which does not
    /// happen for a chosen group.
    pub fn edits(&self) -> Result<Vec<ModelEdit>> {
        Ok(self.chosen.iter().map(|(group, scales)| group.edits(scales)).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the factors on the channels of each scaled tensor.
    pub fn scalings(&self) -> BTreeMap<String, ChannelScaling> {
        let tensors = self.chosen.iter().flat_map(|(group, scales)| group.tensors.iter().map(move |one| (one, scales)));
        tensors.map(|((tensor, channels), scales)| (tensor.clone(), channels.scaling(scales))).collect()
    }

    /// Returns one line per group: tensor, producers, readers and scales.
    pub fn groups(&self, graph: &GraphProto) -> Vec<String> {
        let names = |ends: &[GroupEnd]| -> String {
            ends.iter().map(|end| node_name(&graph.node[end.node])).collect::<Vec<_>>().join(", ")
        };
        let of = |(group, scales): &(EqualizationGroup, Vec<f32>)| {
            let min = scales.iter().copied().fold(f32::INFINITY, f32::min);
            let max = scales.iter().copied().fold(0.0, f32::max);
            format!(
                "`{}`: {} -> {}: {} channel scales of {min} to {max}",
                group.tensor,
                names(&group.producers),
                names(&group.consumers),
                scales.len()
            )
        };
        self.chosen.iter().map(of).collect()
    }
}

/// Runs samples of the data and collects statistics of the observed tensors' channels.
fn look(
    model: &ModelProto,
    shapes: &Shapes,
    observed: &[ObservedTensor],
    samples: &SampleSet,
    positions: &[usize],
) -> Result<BTreeMap<String, ChannelStatistics>> {
    let names: Vec<String> = observed.iter().map(|observed| observed.tensor.clone()).collect();
    let engines = ShapedEngines::new(Parsed::new(model, shapes)?, &names)?;
    let empty = || observed.iter().map(|observed| ChannelStatistics::new(observed.channels)).collect();
    let mut totals: Vec<ChannelStatistics> = empty();
    let mut positions = positions.to_vec();
    positions.sort_by_key(|&sample| samples.shape_rank(sample));
    // As many samples at a time as there are threads; statistics are added in the samples' order.
    for part in positions.chunks(rayon::current_num_threads()) {
        let one = |session: &mut Result<ShapedSession>, &sample: &usize| -> Result<Vec<ChannelStatistics>> {
            let session = session.as_mut().map_err(|error| copy_of(error))?;
            let mut seen: Vec<ChannelStatistics> = empty();
            let mut visit = |at: usize, shape: &[usize], values: &[f32]| {
                seen[at].observe(shape, values);
                Ok(())
            };
            session.run(&samples.load(sample)?, &mut visit)?;
            Ok(seen)
        };
        let parts: Vec<Vec<ChannelStatistics>> =
            part.par_iter().map_init(|| engines.session(), one).collect::<Result<_>>()?;
        for part in parts {
            totals.iter_mut().zip(&part).for_each(|(total, part)| total.merge(part));
        }
    }
    Ok(names.into_iter().zip(totals).collect())
}
