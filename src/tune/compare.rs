//! Two plans against the same float network.

use super::WeightScheme;
use super::bias_grid::BiasGrids;
use super::methods::{Method, Methods};
use super::reference::Reference;
use super::variant::Variant;
use super::walk::Walk;
use crate::metrics::Gain;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use crate::simulate::Samples;
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
) -> Result<(Gain, [Option<Reference>; 2])> {
    let graph = compared.models[1].graph.as_ref().context("model has no graph")?;
    let corrected = known.and_then(Reference::corrected);
    let (before, reference) = match known.zip(corrected) {
        Some((known, corrected)) => (corrected.errors.clone(), known.clone()),
        None => {
            let (variant, kept) = compared.walk(0, samples, known)?;
            let reference = known.cloned().unwrap_or(kept);
            (variant.errors.clone(), reference.with_corrected(variant, compared.corrected))
        }
    };
    let converted = compared.units.and_then(|units| reference.converted(graph, units));
    let (variant, _) = compared.walk(1, samples, converted.as_ref())?;
    let gain = Gain::of(&before, &variant.errors);
    let converted = converted.map(|known| known.with_corrected(variant, compared.corrected));
    Ok((gain, [Some(reference), converted]))
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
