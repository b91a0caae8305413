//! Which channels of a model get factors and offsets, by what calibration samples show of them.

use super::Stage;
use crate::data::Dataset;
use crate::diag::copy_of;
use crate::emit::{DeclinedFacts, OffsetFacts, SpaceFacts};
use crate::engine::{Parsed, Session};
use crate::equalize::{
    ChannelStatistics, Channels, Choice, Declined, Movable, Reason, Space, Units, Watched, absorb,
    choose, find, movable, scale, watched,
};
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::pipeline::Request;
use crate::scheme::SymmetryName;
use crate::tune::{Method, Methods};
use anyhow::{Context, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What could get factors or offsets.
pub(super) struct Candidates {
    spaces: Vec<Space>,
    declined: Vec<Declined>,
    movables: Vec<Movable>,
    not_absorbed: Vec<Declined>,
}

/// What gets which.
pub(super) struct Changes {
    factors: Vec<(Space, Choice)>,
    declined: Vec<Declined>,
    offsets: Vec<(Movable, Vec<f32>)>,
    not_absorbed: Vec<Declined>,
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
        let (movables, not_absorbed) = match methods.contains(Method::Absorb) {
            true => {
                let tensors =
                    stage.placement.activations.iter().map(|quantizer| quantizer.tensor.as_str());
                movable(graph, stage.value_info, &tensors.collect::<Vec<&str>>())
            }
            false => Default::default(),
        };
        Ok(Candidates { spaces, declined, movables, not_absorbed })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spaces.is_empty() && self.movables.is_empty()
    }

    /// Looks at `samples` and chooses by what is seen; at none where there are no candidates.
    ///
    /// # Errors
    /// If the engine does not run the model or a sample.
    pub fn choose(self, stage: Stage, data: (&Dataset, &[usize])) -> Result<Changes> {
        let is_empty = self.is_empty();
        let Candidates { spaces, declined, movables, not_absorbed } = self;
        let (factors, offsets) = Default::default();
        let mut changes = Changes { factors, declined, offsets, not_absorbed };
        if is_empty {
            return Ok(changes);
        }
        let Stage { model, value_info, placement, request } = stage;
        let graph = model.graph.as_ref().context("model has no graph")?;
        let mut watched = watched(&spaces, graph, value_info, placement);
        let (movables, others): (Vec<Movable>, Vec<Movable>) =
            movables.into_iter().partition(|movable| watch(&mut watched, movable));
        for Movable { tensor, .. } in others {
            let reason = Reason::Misaligned(tensor.clone());
            changes.not_absorbed.push(Declined { tensor, reason });
        }
        let mut statistics = look(model, &watched, data, request)?;
        for movable in movables {
            let tensor = &movable.tensor;
            let Some(seen) = statistics.get_mut(tensor) else { continue };
            match movable.offsets(seen, is_symmetric(tensor, stage)) {
                Ok(by) => {
                    seen.subtract(&by);
                    changes.offsets.push((movable, by));
                }
                Err(reason) => {
                    changes.not_absorbed.push(Declined { tensor: tensor.clone(), reason });
                }
            }
        }
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

/// Whether the tensor lies on a grid whose middle is 0.
fn is_symmetric(tensor: &str, Stage { placement, request, .. }: Stage) -> bool {
    let mut placement = placement.activations.iter().filter(|quantizer| quantizer.tensor == tensor);
    let symmetry = |name: &String| request.scheme.types.get(name).map(|qtype| qtype.symmetry);
    placement.any(|quantizer| symmetry(&quantizer.qtype) == Some(SymmetryName::Symmetric))
}

impl Changes {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.factors.is_empty() && self.offsets.is_empty()
    }

    /// The model with these changes.
    ///
    /// # Errors
    /// If it is not the one that they were found in.
    pub fn made(&self, model: &ModelProto) -> Result<ModelProto> {
        let mut changed = model.clone();
        let graph = changed.graph.as_mut().context("model has no graph")?;
        for (movable, by) in &self.offsets {
            absorb(graph, movable, by)?;
        }
        for (space, choice) in &self.factors {
            scale(graph, space, &choice.factors)?;
        }
        Ok(changed)
    }

    /// The units that tensors get by these changes; `None` where that does not say it all, with offsets.
    pub fn units(&self) -> Option<BTreeMap<String, Units>> {
        let of_space = |(space, choice): &(Space, Choice)| -> Vec<(String, Units)> {
            let tensors = space.tensors.iter();
            let units = |channels: &Channels| Units::new(*channels, &choice.factors);
            tensors.map(|(tensor, channels)| (tensor.clone(), units(channels))).collect()
        };
        let units = || self.factors.iter().flat_map(of_space).collect();
        self.offsets.is_empty().then(units)
    }

    /// Numbers of spaces with factors, of tensors without and of tensors with offsets.
    pub fn counts(&self) -> [usize; 3] {
        [self.factors.len(), self.declined.len(), self.offsets.len()]
    }

    /// The spaces with factors, for the sidecar.
    pub fn spaces(&self, graph: &GraphProto) -> Vec<SpaceFacts> {
        self.factors.iter().map(|(space, choice)| space_facts(graph, space, choice)).collect()
    }

    /// The tensors with offsets, for the sidecar.
    pub fn offsets(&self) -> Vec<OffsetFacts> {
        let facts = |(Movable { tensor, .. }, by): &(Movable, Vec<f32>)| OffsetFacts {
            tensor: tensor.clone(),
            offsets: by.clone(),
        };
        self.offsets.iter().map(facts).collect()
    }

    /// What got no factors, and what no offsets, for the sidecar.
    pub fn refused(&self) -> [Vec<DeclinedFacts>; 2] {
        let facts = |Declined { tensor, reason }: &Declined| DeclinedFacts {
            tensor: tensor.clone(),
            reason: reason.to_string(),
        };
        [&self.declined, &self.not_absorbed].map(|declined| declined.iter().map(facts).collect())
    }
}

/// Adds a tensor to those that are looked at; not where its channels are looked at in another way.
fn watch(watched: &mut Vec<Watched>, movable: &Movable) -> bool {
    let wanted = movable.watched();
    match watched.iter_mut().find(|watched| watched.tensor == wanted.tensor) {
        None => watched.push(wanted),
        // As a whole: of its channels the same follows.
        Some(whole) if whole.channels.n == 1 => *whole = wanted,
        Some(known) => return *known == wanted,
    }
    true
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
    for part in samples.chunks(request.threads.max(1)) {
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
            totals.iter_mut().zip(&part).for_each(|(total, part)| total.absorb(part));
        }
    }
    Ok(names.into_iter().zip(totals).collect())
}

fn space_facts(graph: &GraphProto, space: &Space, choice: &Choice) -> SpaceFacts {
    let name = |end: &crate::equalize::End| node_name(&graph.node[end.node]).to_string();
    SpaceFacts {
        tensor: space.tensor.clone(),
        producers: space.producers.iter().map(name).collect(),
        consumers: space.consumers.iter().map(name).collect(),
        factors: choice.factors.clone(),
    }
}
