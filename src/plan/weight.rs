//! Parameters and integers of weights.

use super::block::least_error;
use super::mask::Mask;
use super::{Pairs, PlannedActivation, PlannedWeight, params_for};
use crate::diag::WithHint;
use crate::observers::{self, Observer};
use crate::onnx::node;
use crate::onnx::proto::GraphProto;
use crate::onnx::tensor;
use crate::place::{Placement, WeightQuantizer};
use crate::quant::{QuantParams, Range, ScaleLayout};
use crate::scheme::{QType, Scheme};
use crate::statistics::TensorStatistics;
use anyhow::{Context, Result, anyhow, ensure};
use rayon::prelude::*;
use std::borrow::{Borrow, Cow};
use std::sync::Arc;

/// Largest absolute value of a negligible slice, as a share of the weight's largest absolute value. The slice's own
/// scale would vanish beside the other scales in float32, and the scale of its bias would be subnormal.
const NEGLIGIBLE_SHARE: f32 = 1.0 / (1 << 24) as f32;

pub(super) fn values(graph: &GraphProto, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
    let (shape, values) = read(graph, name)?;
    ensure_finite(name, &values)?;
    Ok((shape, values))
}

/// Returns shape and values of a weight or constant. The values of a mask of attention are raised, as by
/// [`Mask::raise`].
pub(super) fn values_of(graph: &GraphProto, quantizer: &WeightQuantizer) -> Result<(Vec<usize>, Vec<f32>)> {
    let (shape, mut values) = read(graph, &quantizer.tensor)?;
    if let Some(role) = quantizer.softmax {
        let mut statistic = TensorStatistics::default();
        statistic.observe(&values);
        if let Some(mask) = Mask::in_values(&statistic, role) {
            values.iter_mut().for_each(|value| *value = mask.raise(*value));
        }
    }
    ensure_finite(&quantizer.tensor, &values)?;
    Ok((shape, values))
}

fn read(graph: &GraphProto, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
    let initializer = graph.initializer_named(name).with_context(|| format!("initializer `{name}` does not exist"))?;
    let read = || Ok((tensor::shape(initializer)?, tensor::f32_values(initializer)?));
    Result::<_>::with_context(read(), || format!("initializer `{name}`"))
}

fn ensure_finite(name: &str, values: &[f32]) -> Result<()> {
    let bad = values.iter().filter(|value| !value.is_finite()).count();
    ensure!(
        bad == 0,
        anyhow!("initializer `{name}`: {bad} of {} values are NaN or infinite, expected finite weights", values.len())
            .hint(match values.iter().any(|value| value.is_nan()) {
                true => "export the float model again: it has NaN weights, so its outputs are NaN",
                false => "if the target runs float operators, keep its node float with --exclude",
            })
    );
    Ok(())
}

pub(super) fn decide(
    graph: &GraphProto,
    placement: &Placement,
    scheme: &Scheme,
    observer: &Observer,
) -> Result<Vec<PlannedWeight>> {
    let planned = |quantizer: &WeightQuantizer| planned(graph, quantizer, &scheme.types[&quantizer.qtype], observer);
    // Of several errors, the first in the order of the weights is returned.
    let weights: Vec<Result<PlannedWeight>> = placement.weights.par_iter().map(planned).collect();
    weights.into_iter().collect()
}

/// Returns the statistics of activations, extended by the values of constant tables that share an activation's
/// parameters. All rows of a table count, also those that no sample looked up. A constant with one value is not a
/// table.
pub(super) fn with_constant_tables<'a, S: Borrow<TensorStatistics>>(
    graph: &GraphProto,
    placement: &Placement,
    statistics: &'a [S],
) -> Result<Vec<Cow<'a, TensorStatistics>>> {
    let mut all: Vec<Cow<TensorStatistics>> = statistics.iter().map(|one| Cow::Borrowed(one.borrow())).collect();
    for quantizer in &placement.weights {
        let Some(activation) = &quantizer.shares_with else { continue };
        let shared = placement.activations.iter().position(|other| other.tensor == *activation);
        let (_, values) = values_of(graph, quantizer)?;
        if let Some(shared) = shared.filter(|_| values.len() > 1) {
            all[shared].to_mut().observe(&values);
        }
    }
    Ok(all)
}

/// Gives each constant that shares an activation's parameters the scale, zero point and type of the activation. The
/// activation loses its candidate ranges.
pub fn share(weights: &mut [PlannedWeight], activations: &mut [PlannedActivation]) {
    for weight in weights {
        let Some(name) = &weight.quantizer.shares_with else { continue };
        let shared = activations.iter_mut().find(|activation| activation.quantizer.tensor == *name);
        if let Some(PlannedActivation { params, qtype, candidates, .. }) = shared {
            (weight.params, weight.qtype) = (vec![*params], qtype.clone());
            candidates.clear();
        }
    }
}

/// Returns a weight with its parameters, not rounded yet.
fn planned(
    graph: &GraphProto,
    quantizer: &WeightQuantizer,
    qtype: &QType,
    observer: &Observer,
) -> Result<PlannedWeight> {
    let (shape, values) = values_of(graph, quantizer)?;
    let layout = ScaleLayout::of(&shape, quantizer.axis, quantizer.block);
    let by_slice = layout.by_scale(&values);
    let mut params = Vec::with_capacity(layout.n);
    for slice in &by_slice {
        // A histogram per block would cost more than everything else.
        params.push(match quantizer.block.is_some() && observer.name == observers::MSE.name {
            true => least_error(slice, &qtype.grid())?,
            false => params_of(slice, qtype, observer)?.1,
        });
    }
    let peak = |slice: &[f32]| slice.iter().fold(0f32, |peak, value| peak.max(value.abs()));
    let negligible_peak = peak(&values) * NEGLIGIBLE_SHARE;
    let is_negligible = |slice: &Vec<f32>| peak(slice) <= negligible_peak;
    let negligible: Vec<usize> = (0..layout.n).filter(|&channel| is_negligible(&by_slice[channel])).collect();
    borrow_scales(&mut params, &negligible);
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut planned = PlannedWeight {
        quantizer: quantizer.clone(),
        qtype: qtype.clone(),
        params,
        integers: Arc::default(),
        shape,
        observed: (min, max),
        observer: observer.name,
        negligible,
        learned: false,
        pairs: None,
    };
    widen_for_pairs(graph, &values, &mut planned);
    Ok(planned)
}

/// Returns range and parameters for the given values; for no values, those of a range of width 0.
pub(super) fn params_of(values: &[f32], qtype: &QType, observer: &Observer) -> Result<(Range, QuantParams)> {
    let mut statistic = TensorStatistics::default();
    match observer.reads_histogram || qtype.pot_search > 0 {
        true => _ = statistic.observe(values),
        false => statistic.observe_extremes(values),
    }
    let range = match statistic.min_max() {
        None => Range { min: 0.0, max: 0.0 },
        Some(_) => observer.find(&statistic, &qtype.grid())?,
    };
    params_for(&statistic, range, qtype)
}

/// Gives negligible slices the median scale of the other slices.
fn borrow_scales(params: &mut [QuantParams], negligible: &[usize]) {
    let mut alive: Vec<f32> = params
        .iter()
        .enumerate()
        .filter(|(channel, _)| !negligible.contains(channel))
        .map(|(_, params)| params.scale)
        .collect();
    alive.sort_by(f32::total_cmp);
    if let Some(&median) = alive.get(alive.len() / 2) {
        negligible.iter().for_each(|&channel| params[channel].scale = median);
    }
}

/// Widens the scale of each row in which a pair of weights exceeds the limit, or the scale that all rows share.
fn widen_for_pairs(graph: &GraphProto, values: &[f32], weight: &mut PlannedWeight) {
    let Some(&(node_idx, input_idx)) = weight.quantizer.edges.first() else { return };
    let Some(node) = graph.node.get(node_idx) else { return };
    let pairs = Pairs::of(node, input_idx, &weight.shape, weight.qtype.max_pair_sum);
    let (Some(pairs), false) = (pairs, weight.quantizer.block.is_some()) else { return };
    let axis = node::axis_position(node::output_axis(node, input_idx), weight.shape.len());
    if weight.quantizer.axis.is_some_and(|of_scales| of_scales != axis) {
        // The scales are not per row: none can be widened for one row.
        return;
    }
    let by_row = ScaleLayout::of(&weight.shape, Some(axis), None).by_scale(values);
    for (o, row) in by_row.iter().enumerate() {
        let params = match weight.quantizer.axis {
            None => &mut weight.params[0],
            Some(_) => &mut weight.params[o],
        };
        loop {
            let q: Vec<i32> = row.iter().map(|&value| params.quantize(value)).collect();
            let load = pairs.load(&q);
            if load <= 1.0 {
                break;
            }
            // Rounding may leave a pair above the limit by a step. The scale is then widened once more.
            let wider = f64::from(params.scale) * load.max(1.002);
            params.scale = weight.qtype.scale_at_least(wider);
        }
    }
    weight.pairs = Some(pairs);
}

/// Rounds a weight to the nearest integers. Must run after [`decide_biases`](super::decide_biases), which may widen
/// scales.
///
/// # Errors
/// If a value is not finite; the message names the initializer.
pub fn round(graph: &GraphProto, weight: &mut PlannedWeight) -> Result<()> {
    weight.integers = Arc::new(weight.nearest(graph)?.into());
    Ok(())
}
