//! Compares two plans with the float network.

use super::accept::CHANGE;
use super::method::{Hooks, LayerContext, Memo, Method, Methods};
use super::methods::bias::BIAS;
use super::setup::WeightScheme;
use crate::metrics::Gain;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::simulate::{
    Candidate, Corrected, FloatReference, ForwardPass, MeasuredPlan, OutputOptions, PreparedNodes, Samples,
};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Two networks with the same float outputs, each with its plan.
#[derive(Clone, Copy)]
pub struct Compared<'a> {
    /// The prepared float models.
    pub models: [&'a ModelProto; 2],
    /// The plans of both models.
    pub plans: [&'a QuantPlan; 2],
    /// The placements of both models.
    pub placements: [&'a Placement; 2],
    /// Factors on the channels of the second model's tensors, relative to the first. `Some` only where these factors
    /// and inserted nodes are all that differs. With `None` the second float network is run.
    pub scalings: Option<&'a BTreeMap<String, ChannelScaling>>,
    /// The scheme of both plans.
    pub table: WeightScheme<'a>,
    /// The user's options for the evaluation of outputs.
    pub outputs: OutputOptions<'a>,
    /// Prepared nodes that forward passes share.
    pub prepared: &'a PreparedNodes,
    /// Reports progress, under the name of the stage.
    pub stage: (&'a Progress<'a>, &'a str),
    /// The biases to compare with. If biases stayed uncorrected, mean errors that tuning removes later would decide.
    pub biases: Biases,
}

/// The biases that plans are compared with.
#[derive(Debug, Clone, Copy)]
pub enum Biases {
    /// The model's own biases.
    Kept,
    /// Biases corrected by a method, unless the first plan is worse with them.
    Tried(Method),
    /// Biases corrected by a method.
    Corrected(Method),
}

impl Biases {
    /// Returns the biases for a run with `methods`: corrected by the float network's outputs, or the model's own.
    pub fn of(methods: &Methods) -> Biases {
        if methods.contains(BIAS.name) { Biases::Tried(BIAS) } else { Biases::Kept }
    }

    /// Returns the bias corrections that the first plan is measured with; `None` for its own biases.
    fn choices(self) -> Vec<Option<Method>> {
        match self {
            Biases::Kept => vec![None],
            Biases::Tried(method) => vec![None, Some(method)],
            Biases::Corrected(method) => vec![Some(method)],
        }
    }
}

/// Compares two plans, each for its own float model, on samples by which neither plan was chosen. `known` is the
/// reference that an earlier evaluation of the first plan kept over the same samples. Returns the gain of the second
/// plan, and both references. Biases stay float.
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
    /// Measures network `which` with its biases corrected by each of `choices`. Returns the network's reference, with
    /// the figures of the best choice.
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
        let pass = ForwardPass::new(model, samples.len())?.evaluated_with(self.outputs).evaluated_on_all_samples();
        let pass = pass.sharing(self.prepared).reporting(self.stage.0, self.stage.1);
        let mut pass = pass.with_reference(known.as_ref());
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
