//! Two plans against the same float network.

use super::WeightScheme;
use super::bias_grid::BiasGrids;
use super::hook::TuningHook;
use super::methods::{BIAS, Methods};
use super::reference::Reference;
use crate::metrics::Gain;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use crate::simulate::{Candidate, ForwardPass, Samples};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Two networks that compute the same, each with its plan.
#[derive(Clone, Copy)]
pub struct Compared<'a> {
    /// The prepared float models, with the same nodes.
    pub models: [&'a ModelProto; 2],
    /// Their plans.
    pub plans: [&'a QuantPlan; 2],
    /// Where both are quantized.
    pub placement: &'a Placement,
    /// What channels of the second's tensors are multiplied by, over the first's, where that is all the difference; none
    /// of one model.
    pub scalings: Option<&'a BTreeMap<String, ChannelScaling>>,
    /// The scheme that they follow.
    pub table: WeightScheme<'a>,
    /// Whether biases are to be corrected: both plans have theirs corrected on these samples first. Mean errors that go
    /// away later would decide otherwise.
    pub corrected: bool,
}

/// Compares two plans, each for a float model of its own, on samples that neither was chosen by. Biases stay float.
/// `known` is what an earlier evaluation over the same samples kept of the first. Gives what both float networks are known by,
/// too; of the second only where `scalings` say how it follows.
///
/// # Errors
/// As [`simulate`](crate::simulate::simulate()).
pub fn compare_plans(
    compared: Compared,
    samples: Samples,
    known: Option<&Reference>,
) -> Result<(Gain, [Option<Reference>; 2])> {
    let graph = compared.models[1].graph.as_ref().context("model has no graph")?;
    let corrected = known.and_then(|known| known.corrected.as_ref());
    let (before, reference) = match known.zip(corrected) {
        Some((known, corrected)) => (corrected.errors.clone(), known.clone()),
        None => {
            let (candidate, kept) = compared.pass(0, samples, known)?;
            let reference = known.cloned().unwrap_or(kept);
            (candidate.errors.clone(), reference.with_corrected(candidate, compared.corrected))
        }
    };
    let converted = compared.scalings.and_then(|scalings| reference.converted(graph, scalings));
    let (candidate, _) = compared.pass(1, samples, converted.as_ref())?;
    let gain = Gain::of(&before, &candidate.errors);
    let converted = converted.map(|known| known.with_corrected(candidate, compared.corrected));
    Ok((gain, [Some(reference), converted]))
}

impl Compared<'_> {
    /// The network of one of the two, and what is kept of it.
    fn pass(&self, which: usize, samples: Samples, known: Option<&Reference>) -> Result<(Candidate, Reference)> {
        let (model, plan) = (self.models[which], self.plans[which]);
        let methods = Methods::default();
        let methods = if self.corrected { methods.with(BIAS) } else { methods };
        let graph = model.graph.as_ref().context("model has no graph")?;
        let grids = BiasGrids::of(graph, self.placement, plan, self.table);
        let candidate = Candidate::new(plan.clone(), 0)?;
        let pass = ForwardPass::new(model, samples.len())?.evaluated_by_all();
        let pass = pass.knowing(known.map(|known| &known.float));
        let pass = pass.with(candidate, TuningHook::new(methods, &grids));
        let (mut candidates, float) = pass.run_and_keep(samples)?;
        let candidate = candidates.pop().context("internal error: a pass without a candidate")?;
        Ok((candidate, Reference { float, corrected: None }))
    }
}
