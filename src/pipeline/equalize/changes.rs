//! Which channels of a model get factors, by what calibration samples show of them.

use super::Stage;
use crate::data::Dataset;
use crate::diag::copy_of;
use crate::engine::{Parsed, Session};
use crate::equalize::{
    ChannelStatistics, Channels, Choice, Declined, Space, Watched, choose, find, watched,
};
use crate::onnx::edit::apply;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::pipeline::Request;
use crate::quant::ChannelScaling;
use crate::sidecar::{ChannelScalesRecord, SkippedRecord};
use crate::tune::{Method, Methods};
use anyhow::{Context, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What could get factors.
pub(super) struct Candidates {
    spaces: Vec<Space>,
    declined: Vec<Declined>,
}

/// What gets which.
pub(super) struct Changes {
    factors: Vec<(Space, Choice)>,
    declined: Vec<Declined>,
}

impl Candidates {
    /// Those that `methods` ask for.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn find(stage: Stage, methods: Methods) -> Result<Candidates> {
        let graph = stage.model.graph.as_ref().context("model has no graph")?;
        let (spaces, declined) = match methods.contains(Method::Equalize) {
            true => find(graph, stage.value_info),
            false => Default::default(),
        };
        Ok(Candidates { spaces, declined })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spaces.is_empty()
    }

    /// Looks at `samples` and chooses by what is seen; at none where there are no candidates.
    ///
    /// # Errors
    /// If the engine does not run the model or a sample.
    pub fn choose(self, stage: Stage, data: (&Dataset, &[usize])) -> Result<Changes> {
        let is_empty = self.is_empty();
        let Candidates { spaces, declined } = self;
        let mut changes = Changes { factors: Vec::new(), declined };
        if is_empty {
            return Ok(changes);
        }
        let Stage { model, value_info, placement, request, .. } = stage;
        let graph = model.graph.as_ref().context("model has no graph")?;
        let watched = watched(&spaces, graph, value_info, placement);
        let statistics = look(model, &watched, data, request)?;
        let choices = choose(&spaces, &statistics, graph, placement, &request.scheme);
        for (space, choice) in spaces.into_iter().zip(choices) {
            match choice {
                Ok(choice) => changes.factors.push((space, choice)),
                Err(reason) => changes.declined.push(Declined { tensor: space.tensor, reason }),
            }
        }
        Ok(changes)
    }
}

impl Changes {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.factors.is_empty()
    }

    /// The model with these changes.
    ///
    /// # Errors
    /// If it is not the one that they were found in.
    pub fn made(&self, model: &ModelProto) -> Result<ModelProto> {
        let mut changed = model.clone();
        let graph = changed.graph.as_mut().context("model has no graph")?;
        for (space, choice) in &self.factors {
            apply(graph, &space.edits(&choice.factors)?)?;
        }
        Ok(changed)
    }

    /// The units that tensors get by these changes.
    pub fn units(&self) -> BTreeMap<String, ChannelScaling> {
        let of_space = |(space, choice): &(Space, Choice)| -> Vec<(String, ChannelScaling)> {
            let tensors = space.tensors.iter();
            let units = |channels: &Channels| channels.scaling(&choice.factors);
            tensors.map(|(tensor, channels)| (tensor.clone(), units(channels))).collect()
        };
        self.factors.iter().flat_map(of_space).collect()
    }

    /// Numbers of spaces with factors and of tensors without.
    pub fn counts(&self) -> [usize; 2] {
        [self.factors.len(), self.declined.len()]
    }

    /// The spaces with factors, for the sidecar.
    pub fn spaces(&self, graph: &GraphProto) -> Vec<ChannelScalesRecord> {
        self.factors.iter().map(|(space, choice)| space_facts(graph, space, choice)).collect()
    }

    /// What got no factors, for the sidecar.
    pub fn declined(&self) -> Vec<SkippedRecord> {
        let facts = |Declined { tensor, reason }: &Declined| SkippedRecord {
            tensor: tensor.clone(),
            reason: reason.to_string(),
        };
        self.declined.iter().map(facts).collect()
    }
}

/// Runs samples of the data and looks at the channels of the watched tensors.
fn look(
    model: &ModelProto,
    watched: &[Watched],
    (dataset, samples): (&Dataset, &[usize]),
    request: &Request,
) -> Result<BTreeMap<String, ChannelStatistics>> {
    let names: Vec<String> = watched.iter().map(|watched| watched.tensor.clone()).collect();
    let engine = Parsed::new(model, &request.shapes)?.build(&names)?;
    let empty = || -> Vec<ChannelStatistics> {
        watched.iter().map(|watched| ChannelStatistics::new(watched.channels)).collect()
    };
    let mut totals = empty();
    // As many samples at a time as there are threads, added in their order.
    for part in samples.chunks(rayon::current_num_threads()) {
        let one =
            |session: &mut Result<Session>, &sample: &usize| -> Result<Vec<ChannelStatistics>> {
                let session = session.as_mut().map_err(|error| copy_of(error))?;
                let mut seen = empty();
                let mut visit = |at: usize, shape: &[usize], values: &[f32]| {
                    seen[at].observe(shape, values);
                    Ok(())
                };
                Session::run(session, &dataset.load(sample)?, &mut visit)?;
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

fn space_facts(graph: &GraphProto, space: &Space, choice: &Choice) -> ChannelScalesRecord {
    let name = |end: &crate::equalize::End| node_name(&graph.node[end.node]).to_string();
    ChannelScalesRecord {
        tensor: space.tensor.clone(),
        producers: space.producers.iter().map(name).collect(),
        consumers: space.consumers.iter().map(name).collect(),
        factors: choice.factors.clone(),
    }
}
