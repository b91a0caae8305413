//! The samples that tuning looks at, and what happens where it cannot run.

use super::Request;
use crate::calibrate::SampleSet;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::simulate::Samples;
use crate::tune::{Method, Methods, Reference, Tuned, Tuning, WeightScheme, tune as tune_plan};
use anyhow::Result;
use std::ops::Range;

/// Copies of the largest tensor that are alive at a time, about: input and output of a layer in the float
/// network, and one more for the grid in each quantized one, of which there is one per method.
fn n_copies(methods: Methods) -> usize {
    2 + 3 * methods.iter().filter(|method| method.is_tuning()).count().max(1)
}

/// What is known of the float network, and of the plan, from judging equalization or observers.
pub struct Known {
    /// Positions in the samples by content.
    pub samples: Range<usize>,
    /// What is known.
    pub reference: Reference,
}

/// Tunes the plan as far as `request` asks for. A graph that cannot be walked node by node keeps its plan,
/// with a warning. Without data nothing is tuned.
pub fn tune(
    model: &mut ModelProto,
    plan: &mut QuantPlan,
    placement: &mut Placement,
    value_info: &ValueInfos,
    request: &Request,
    run: Option<&SampleSet>,
    known: Option<&Known>,
) -> Result<Option<Tuned>> {
    let Some(run) = run else { return Ok(None) };
    let methods = methods(request, plan);
    let largest = value_info.largest_activation(model);
    let n = n_samples(run, largest, request, methods);
    if n == 0 || methods == Methods::default() {
        return Ok(None);
    }
    let (inputs, values) = (run.names(), run.values(0..n)?);
    let known = known.filter(|known| known.samples == (0..n));
    let tuning = Tuning {
        table: weight_scheme(request),
        samples: Samples { names: &inputs, values: &values },
        n_tune: request.tune.effort.n_tune(n),
        methods,
        known: known.map(|known| &known.reference),
    };
    let outcome = tune_plan(model, plan, placement, tuning);
    Ok(outcome.unwrap_or_else(|error| {
        plan.warnings.push(format!("not tuned: {error:#}"));
        None
    }))
}

/// The scheme of the request, and its observer of weights.
pub(super) fn weight_scheme(request: &Request) -> WeightScheme<'_> {
    WeightScheme { scheme: &request.scheme, observer: &request.observers.weight.observer }
}

/// How many samples are looked at, those held back included, where the largest activation has `largest` values; they are
/// the first by content.
pub(super) fn n_samples(
    run: &SampleSet,
    largest: usize,
    request: &Request,
    methods: Methods,
) -> usize {
    let bytes = 4 * n_copies(methods) * largest.max(1);
    let limit = request.tune.effort.max_bytes() / bytes;
    request.tune.effort.n_samples(largest).min(limit).min(run.by_content().len())
}

/// The methods of the request that change the float model, before there is a plan.
pub(super) fn exact_methods(request: &Request) -> Methods {
    let methods = request.tune.methods.unwrap_or_else(|| request.tune.effort.methods(false, false));
    methods.iter().filter(|method| method.is_exact()).fold(Methods::default(), Methods::with)
}

/// What to try for a plan. Ranges are refined where range observers are to be chosen from.
pub(super) fn methods(request: &Request, plan: &QuantPlan) -> Methods {
    let few_bits = plan.weights.iter().any(|weight| weight.qtype.bits < 7);
    let methods = request.tune.methods.unwrap_or_else(|| {
        let coarse = plan.weights.iter().filter(|weight| weight.is_coarse()).count();
        request.tune.effort.methods(few_bits, 2 * coarse > plan.weights.len())
    });
    let chooses = plan.activations.iter().any(|planned| !planned.alternatives.is_empty());
    if chooses { methods.with(Method::Ranges) } else { methods }
}
