//! Two plans against the same float network.

use super::WeightScheme;
use super::bias_grid::BiasGrids;
use super::judge;
use super::methods::{Method, Methods};
use super::reference::Reference;
use super::variant::Variant;
use super::walk::Walk;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use crate::simulate::Samples;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Two plans on the same samples.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanComparison {
    /// Mean SQNR of the outputs, in dB.
    pub sqnr_db: [f64; 2],
    /// How much less noise the second has, in dB.
    pub gain_db: f64,
    /// How far that is a matter of the samples, in dB: one standard deviation.
    pub standard_deviation_db: f64,
}

impl PlanComparison {
    /// Whether the gain is above so many standard deviations; below 0: whether it is not a loss of so many. No figure
    /// that is NaN or infinite is a gain.
    pub fn is_gain_by(&self, deviations: f64) -> bool {
        let PlanComparison { gain_db, standard_deviation_db, .. } = *self;
        let is_finite = gain_db.is_finite() && standard_deviation_db.is_finite();
        is_finite && gain_db > deviations * standard_deviation_db
    }
}

/// Two networks that compute the same, each with its plan.
#[derive(Clone, Copy)]
pub struct Compared<'a> {
    /// The prepared float models, with the same nodes.
    pub models: [&'a ModelProto; 2],
    /// Their plans.
    pub plans: [&'a QuantPlan; 2],
    /// Where both are quantized.
    pub placement: &'a Placement,
    /// The units of the second's tensors that are others than the first's, where that is all the difference; none of
    /// one model.
    pub units: Option<&'a BTreeMap<String, ChannelScaling>>,
    /// The scheme that they follow.
    pub table: WeightScheme<'a>,
    /// Whether biases are to be corrected: both plans have theirs corrected on these samples first. Mean errors that go
    /// away later would decide otherwise.
    pub corrected: bool,
}

/// Compares two plans, each for a float model of its own, on samples that neither was chosen by. Biases stay float.
/// `known` is what an earlier walk over the same samples kept of the first. Gives what both float networks are known by,
/// too; of the second only where `units` say how it follows.
///
/// # Errors
/// As [`simulate`](super::simulate).
pub fn compare_plans(
    compared: Compared,
    samples: Samples,
    known: Option<&Reference>,
) -> Result<(PlanComparison, [Option<Reference>; 2])> {
    let graph = compared.models[1].graph.as_ref().context("model has no graph")?;
    let corrected = known.and_then(Reference::corrected);
    let (before, reference) = match known.zip(corrected) {
        Some((known, corrected)) => (corrected.noise.clone(), known.clone()),
        None => {
            let (variant, kept) = compared.walk(0, samples, known)?;
            let reference = known.cloned().unwrap_or(kept);
            (variant.noise.clone(), reference.with_corrected(variant, compared.corrected))
        }
    };
    let converted = compared.units.and_then(|units| reference.converted(graph, units));
    let (variant, _) = compared.walk(1, samples, converted.as_ref())?;
    let comparison = PlanComparison {
        sqnr_db: [judge::sqnr_db(&before), judge::sqnr_db(&variant.noise)],
        gain_db: judge::gain_db(&before, &variant.noise),
        standard_deviation_db: judge::chance_db(&before, &variant.noise),
    };
    let converted = converted.map(|known| known.with_corrected(variant, compared.corrected));
    Ok((comparison, [Some(reference), converted]))
}

impl Compared<'_> {
    /// The network of one of the two, and what is kept of it.
    fn walk(
        &self,
        which: usize,
        samples: Samples,
        known: Option<&Reference>,
    ) -> Result<(Variant, Reference)> {
        let (model, plan) = (self.models[which], self.plans[which]);
        let methods = Methods::default();
        let methods = if self.corrected { methods.with(Method::Bias) } else { methods };
        let graph = model.graph.as_ref().context("model has no graph")?;
        let grids = BiasGrids::of(graph, self.placement, plan, self.table);
        let variant = Variant::new(plan.clone(), methods, 0);
        let walk = Walk::new(model, vec![variant], samples.len())?.judged_by_all().knowing(known);
        let (variants, kept) = walk.with_bias_grids(&grids).run_and_keep(samples)?;
        let variant = variants.into_iter().next().context("internal error: a walk of nothing")?;
        Ok((variant, kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_gain_by(gain_db: f64, standard_deviation_db: f64, deviations: f64) -> bool {
        PlanComparison { sqnr_db: [0.0; 2], gain_db, standard_deviation_db }.is_gain_by(deviations)
    }

    #[test]
    fn a_gain_is_above_what_chance_does() {
        assert!(is_gain_by(0.5, 0.2, 2.0) && !is_gain_by(0.5, 0.3, 2.0));
        assert!(is_gain_by(-0.5, 0.3, -2.0) && !is_gain_by(-0.5, 0.2, -2.0));
        assert!(!is_gain_by(0.0, 0.0, 0.0) && !is_gain_by(0.0, 0.0, -2.0));
    }

    #[test]
    fn what_could_not_be_measured_is_no_gain() {
        for unknown in [f64::NAN, f64::INFINITY] {
            for deviations in [-2.0, 0.0, 2.0] {
                assert!(!is_gain_by(unknown, 0.0, deviations));
                assert!(!is_gain_by(1.0, unknown, deviations));
                assert!(!is_gain_by(-1.0, unknown, deviations));
            }
        }
    }
}
