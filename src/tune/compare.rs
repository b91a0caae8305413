//! Two plans against the same float network.

use super::accept::CHANGE;
use super::method::{Hooks, LayerContext, Memo, Methods};
use super::methods::bias::BIAS;
use super::setup::WeightScheme;
use crate::metrics::{ChannelAxes, Gain};
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use crate::simulate::{Candidate, Corrected, FloatReference, ForwardPass, MeasuredPlan, Samples};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Two networks that compute the same, each with its plan.
#[derive(Clone, Copy)]
pub struct Compared<'a> {
    /// The prepared float models.
    pub models: [&'a ModelProto; 2],
    /// Their plans.
    pub plans: [&'a QuantPlan; 2],
    /// Where they are quantized.
    pub placements: [&'a Placement; 2],
    /// What channels of the second's tensors are multiplied by, over the first's, where that and inserted nodes are all the
    /// difference; `None` where the second float network is to be run.
    pub scalings: Option<&'a BTreeMap<String, ChannelScaling>>,
    /// The scheme that they follow.
    pub table: WeightScheme<'a>,
    /// Axes of channels that the user gives, by output.
    pub axes: &'a ChannelAxes,
    /// Whether biases are to be corrected: both plans have theirs corrected on these samples first, unless that is worse. Mean
    /// errors that go away later would decide otherwise.
    pub corrected: bool,
}

/// Compares two plans, each for a float model of its own, on samples that neither was chosen by. Biases stay float.
/// `known` is what an earlier evaluation over the same samples kept of the first. Gives what both float networks are known by,
/// too.
///
/// # Errors
/// As [`simulate`](crate::simulate::simulate()).
pub fn compare_plans(
    compared: Compared,
    samples: Samples,
    known: Option<&FloatReference>,
) -> Result<(Gain, [FloatReference; 2])> {
    let graphs = [compared.models[0].graph()?, compared.models[1].graph()?];
    let measured = known.filter(|known| known.measured.is_some()).cloned();
    let reference = match measured {
        Some(known) => known,
        None => {
            let choices: &[bool] = if compared.corrected { &[false, true] } else { &[false] };
            compared.pass(0, samples, known.cloned(), choices)?
        }
    };
    let before = reference.measured.clone().context("internal error: a plan that was not measured")?;
    let converted = compared.scalings.and_then(|scalings| reference.converted(graphs, scalings));
    let converted = compared.pass(1, samples, converted, &[before.corrected.is_some()])?;
    let after = converted.measured.as_ref().context("internal error: a plan that was not measured")?;
    let gain = Gain::of(&before.measured, &after.measured);
    Ok((gain, [reference, converted]))
}

impl Compared<'_> {
    /// What is known by measuring one of the two networks: with corrected biases or without, as `choices` say, the better
    /// where there are two.
    fn pass(
        &self,
        which: usize,
        samples: Samples,
        known: Option<FloatReference>,
        choices: &[bool],
    ) -> Result<FloatReference> {
        let (model, plan) = (self.models[which], self.plans[which]);
        let kept = Memo::default();
        let context = |&corrected: &bool| LayerContext {
            model,
            placement: self.placements[which],
            plan,
            table: self.table,
            samples,
            methods: Methods::among(&[BIAS], |_| corrected),
            kept: &kept,
        };
        let contexts: Vec<LayerContext> = choices.iter().map(context).collect();
        let pass = ForwardPass::new(model, samples.len())?.with_axes(self.axes).evaluated_by_all();
        let mut pass = pass.knowing(known.as_ref());
        for context in &contexts {
            pass = pass.with(Candidate::new(plan.clone(), 0)?, Hooks::of(context)?);
        }
        let (candidates, float) = pass.run_and_keep(samples)?;
        let mut best: Option<MeasuredPlan> = None;
        for (Candidate { plan, biases, measured, .. }, &corrected) in candidates.into_iter().zip(choices) {
            let measured = measured.context("internal error: a pass that measured nothing")?;
            if best.as_ref().is_none_or(|best| CHANGE.rejects(&Gain::of(&best.measured, &measured)).is_none()) {
                let corrected = corrected.then_some(Corrected { plan, biases });
                best = Some(MeasuredPlan { measured, corrected });
            }
        }
        let mut reference = known.unwrap_or(float);
        reference.measured = best;
        Ok(reference)
    }
}
