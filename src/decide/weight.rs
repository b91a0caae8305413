//! Parameters and integers of weights.

use super::slices::Slices;
use super::{Pairs, PlannedWeight, QuantPlan, params_for};
use crate::observe::{Sample, Statistic};
use crate::onnx::proto::GraphProto;
use crate::onnx::tensor;
use crate::place::Sites;
use crate::quant::{QuantParams, Range};
use crate::range::RangeFinder;
use crate::scheme::{QType, Scheme};
use anyhow::{Context, Result, ensure};

pub(super) fn values(graph: &GraphProto, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
    let initializer = graph.initializer.iter().find(|tensor| tensor.name() == name);
    let initializer =
        initializer.with_context(|| format!("initializer `{name}` does not exist"))?;
    let read = || Ok((tensor::shape(initializer)?, tensor::f32_values(initializer)?));
    let (shape, values): (_, Vec<f32>) =
        Result::<_>::with_context(read(), || format!("initializer `{name}`"))?;
    let bad = values.iter().filter(|value| !value.is_finite()).count();
    ensure!(
        bad == 0,
        "initializer `{name}`: {bad} of {} values are NaN or infinite, expected finite weights\nhint: leave its node float with --exclude",
        values.len()
    );
    Ok((shape, values))
}

pub(super) fn decide(
    graph: &GraphProto,
    sites: &Sites,
    scheme: &Scheme,
    finder: &dyn RangeFinder,
    plan: &mut QuantPlan,
) -> Result<()> {
    for site in &sites.weights {
        let (shape, values) = values(graph, &site.tensor)?;
        let qtype = scheme.types[&site.qtype].clone();
        let slices = Slices::of(&shape, site.axis, site.block);
        let mut by_slice: Vec<Vec<f32>> = vec![Vec::new(); slices.n];
        for (position, &value) in values.iter().enumerate() {
            by_slice[slices.of_value(position)].push(value);
        }
        let mut params = Vec::with_capacity(slices.n);
        for slice in &by_slice {
            params.push(params_of(slice, &qtype, finder)?.1);
        }
        let dead = |slice: &Vec<f32>| slice.iter().all(|&value| value == 0.0);
        let dead: Vec<usize> = (0..slices.n).filter(|&channel| dead(&by_slice[channel])).collect();
        borrow_scales(&mut params, &dead);
        if !dead.is_empty() && slices.n > 1 {
            plan.warnings.push(format!(
                "initializer `{}`: {} of {} {} are all zero (the first is {}); they take the median scale of the others",
                site.tensor,
                dead.len(),
                slices.n,
                if site.block.is_some() { "blocks" } else { "channels" },
                dead[0]
            ));
        }
        let min = values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut planned = PlannedWeight {
            site: site.clone(),
            qtype,
            params,
            integers: Vec::new(),
            shape,
            observed: (min, max),
            observer: finder.name(),
            dead,
            learned: false,
            pairs: None,
        };
        widen_for_pairs(graph, &values, &mut planned);
        plan.weights.push(planned);
    }
    Ok(())
}

/// Range and parameters of values that are known; those of an empty slice are for a range of width 0.
pub(super) fn params_of(
    values: &[f32],
    qtype: &QType,
    finder: &dyn RangeFinder,
) -> Result<(Range, QuantParams)> {
    let mut statistic = Statistic::default();
    // A histogram per block would cost more than the rest.
    match finder.reads_histogram() || qtype.pot_search > 0 {
        true => statistic.observe(values),
        false => statistic.samples.push(Sample::of(values)),
    }
    let range = match statistic.min_max() {
        None => Range { min: 0.0, max: 0.0 },
        Some(_) => finder.find(&statistic, &qtype.grid())?,
    };
    params_for(&statistic, range, qtype)
}

/// A slice without a value other than 0 takes the median scale of the others.
fn borrow_scales(params: &mut [QuantParams], dead: &[usize]) {
    let mut alive: Vec<f32> = params
        .iter()
        .enumerate()
        .filter(|(channel, _)| !dead.contains(channel))
        .map(|(_, params)| params.scale)
        .collect();
    alive.sort_by(f32::total_cmp);
    if let Some(&median) = alive.get(alive.len() / 2) {
        dead.iter().for_each(|&channel| params[channel].scale = median);
    }
}

/// Widens the scales of rows whose neighbours are too heavy together; the scale of all where there is one.
fn widen_for_pairs(graph: &GraphProto, values: &[f32], weight: &mut PlannedWeight) {
    let node = weight.site.edges.first().and_then(|edge| graph.node.get(edge.0));
    let limit = weight.qtype.max_pair_sum;
    let pairs = node.and_then(|node| Pairs::of(node, &weight.shape, limit));
    // Rows are the slices of the output axis: of Conv and a transposed Gemm the first, else the last.
    let first = node.is_some_and(|node| {
        node.op_type() == "Conv"
            || node.attribute.iter().any(|attr| attr.name() == "transB" && attr.i() != 0)
    });
    let (Some(pairs), false) = (pairs, weight.site.block.is_some()) else { return };
    let n_rows = if first { weight.shape[0] } else { weight.shape[weight.shape.len() - 1] };
    let n = values.len() / n_rows.max(1);
    let mut row = vec![0f32; n];
    for o in 0..n_rows {
        for (k, value) in row.iter_mut().enumerate() {
            *value = values[if first { o * n + k } else { k * n_rows + o }];
        }
        let params = match weight.params.len() {
            1 => &mut weight.params[0],
            _ => &mut weight.params[o],
        };
        loop {
            let q: Vec<i32> = row.iter().map(|&value| params.quantize(value)).collect();
            let load = pairs.load(&q);
            if load <= 1.0 {
                break;
            }
            // Rounding may leave a step too much: then a little wider still.
            let wider = f64::from(params.scale) * load.max(1.002);
            params.scale = weight.qtype.scale_at_least(wider);
        }
    }
    weight.pairs = Some(pairs);
}

/// Rounds the weights, after the biases have had their say about the scales.
pub(super) fn round(graph: &GraphProto, plan: &mut QuantPlan) -> Result<()> {
    for weight in &mut plan.weights {
        let (shape, values) = values(graph, &weight.site.tensor)?;
        let slices = Slices::of(&shape, weight.site.axis, weight.site.block);
        let quantize = |(position, &value): (usize, &f32)| {
            weight.params[slices.of_value(position)].quantize(value)
        };
        weight.integers = values.iter().enumerate().map(quantize).collect();
    }
    Ok(())
}
