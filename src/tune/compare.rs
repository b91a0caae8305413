//! Two plans against the same float network.

use super::accept::CHANGE;
use super::method::{Hooks, LayerContext, Memo, Method, Methods};
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
    /// Whether biases are corrected on these samples first: mean errors that go away later would decide otherwise.
    pub biases: Biases,
}

/// The biases that plans are compared with.
#[derive(Debug, Clone, Copy)]
pub enum Biases {
    /// As they are.
    Kept,
    /// Corrected by a method where that is no worse for the first plan.
    Tried(Method),
    /// Corrected by a method.
    Corrected(Method),
}

impl Biases {
    /// Those of a run that tries `methods`, which correct them by the outputs of the float network or not at all.
    pub fn of(methods: &Methods) -> Biases {
        if methods.contains(BIAS.name) { Biases::Tried(BIAS) } else { Biases::Kept }
    }

    /// The methods that the first plan is measured with.
    fn choices(self) -> Vec<Option<Method>> {
        match self {
            Biases::Kept => vec![None],
            Biases::Tried(method) => vec![None, Some(method)],
            Biases::Corrected(method) => vec![Some(method)],
        }
    }
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
        None => compared.pass(0, samples, known.cloned(), &compared.biases.choices())?,
    };
    let before = reference.measured.clone().context("internal error: a plan that was not measured")?;
    let converted = compared.scalings.and_then(|scalings| reference.converted(graphs, scalings));
    let choices = compared.biases.choices();
    let choice = *if before.corrected.is_some() { choices.last() } else { choices.first() }.unwrap_or(&None);
    let converted = compared.pass(1, samples, converted, &[choice])?;
    let after = converted.measured.as_ref().context("internal error: a plan that was not measured")?;
    let gain = Gain::of(&before.measured, &after.measured);
    Ok((gain, [reference, converted]))
}

impl Compared<'_> {
    /// What is known by measuring one of the two networks, its biases corrected by each of `choices`: the better where there are
    /// two.
    fn pass(
        &self,
        which: usize,
        samples: Samples,
        known: Option<FloatReference>,
        choices: &[Option<Method>],
    ) -> Result<FloatReference> {
        let (model, plan) = (self.models[which], self.plans[which]);
        let kept = Memo::default();
        let context = |method: &Option<Method>| LayerContext {
            model,
            placement: self.placements[which],
            plan,
            table: self.table,
            samples,
            methods: Methods::among(method.as_slice(), |_| true),
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
        for (Candidate { plan, biases, measured, .. }, method) in candidates.into_iter().zip(choices) {
            let measured = measured.context("internal error: a pass that measured nothing")?;
            if best.as_ref().is_none_or(|best| CHANGE.rejects(&Gain::of(&best.measured, &measured)).is_none()) {
                let corrected = method.is_some().then_some(Corrected { plan, biases });
                best = Some(MeasuredPlan { measured, corrected });
            }
        }
        let mut reference = known.unwrap_or(float);
        reference.measured = best;
        Ok(reference)
    }
}
