//! Two plans against the same float network.

use super::WeightScheme;
use super::bias_grid::BiasGrids;
use super::hook::TuningHook;
use super::methods::{BIAS, Methods};
use crate::metrics::{Gain, QuantizationError};
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use crate::simulate::{Candidate, Corrected, FloatReference, ForwardPass, Samples};
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

/// What comparing found.
pub struct Comparison {
    /// What the second gains over the first.
    pub gain: Gain,
    /// The errors of both.
    pub errors: [Vec<QuantizationError>; 2],
    /// What the float networks are known by; of the second only where the scalings say how it follows.
    pub references: [Option<FloatReference>; 2],
}

/// Compares two plans, each for a float model of its own, on samples that neither was chosen by. Biases stay float.
/// `known` is what an earlier evaluation over the same samples kept of the first.
///
/// # Errors
/// As [`simulate`](crate::simulate::simulate()).
pub fn compare_plans(compared: Compared, samples: Samples, known: Option<&FloatReference>) -> Result<Comparison> {
    let graph = compared.models[1].graph.as_ref().context("model has no graph")?;
    let (before, reference) = match known.and_then(|known| known.corrected.as_ref()).zip(known) {
        Some((corrected, known)) => (corrected.errors.clone(), known.clone()),
        None => compared.pass(0, samples, known.cloned())?,
    };
    let converted = compared.scalings.and_then(|scalings| reference.converted(graph, scalings));
    let follows = converted.is_some();
    let (after, converted) = compared.pass(1, samples, converted)?;
    let gain = Gain::of(&before, &after);
    Ok(Comparison { gain, errors: [before, after], references: [Some(reference), follows.then_some(converted)] })
}

impl Compared<'_> {
    /// The errors of one of the two networks, and what is known by it.
    fn pass(
        &self,
        which: usize,
        samples: Samples,
        known: Option<FloatReference>,
    ) -> Result<(Vec<QuantizationError>, FloatReference)> {
        let (model, plan) = (self.models[which], self.plans[which]);
        let methods = if self.corrected { Methods::default().with(BIAS) } else { Methods::default() };
        let graph = model.graph.as_ref().context("model has no graph")?;
        let grids = BiasGrids::of(graph, self.placement, plan, self.table);
        let pass = ForwardPass::new(model, samples.len())?.evaluated_by_all().knowing(known.as_ref());
        let pass = pass.with(Candidate::new(plan.clone(), 0)?, TuningHook::new(methods, &grids));
        let (mut candidates, kept) = pass.run_and_keep(samples)?;
        let candidate = candidates.pop().context("internal error: a pass without a candidate")?;
        let Candidate { plan, biases, errors, .. } = candidate;
        let mut reference = known.unwrap_or(kept);
        reference.corrected = self.corrected.then(|| Corrected { plan, biases, errors: errors.clone() });
        Ok((errors, reference))
    }
}
