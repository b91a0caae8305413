//! From statistics to parameters.
//!
//! In: [`Sites`], a [`Statistic`] per activation, the graph's constants, the [`Scheme`]. Out: a
//! [`QuantPlan`]: scale and zero point of every tensor, the integers of weights and biases. It does not
//! touch the graph.

mod bias;
mod weight;

use crate::import::ImportedRange;
use crate::observe::Statistic;
use crate::onnx::proto::GraphProto;
use crate::place::{ActivationSite, BiasSite, Sites, WeightSite};
use crate::quant::{QuantParams, Range, params_for_range};
use crate::range::RangeFinder;
use crate::scheme::{QType, Scheme};
use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Everything that will be written into the graph.
#[derive(Debug, Clone, Default)]
pub struct QuantPlan {
    /// As [`Sites::activations`].
    pub activations: Vec<PlannedActivation>,
    /// As [`Sites::weights`].
    pub weights: Vec<PlannedWeight>,
    /// As [`Sites::biases`].
    pub biases: Vec<PlannedBias>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// An activation with its parameters.
#[derive(Debug, Clone)]
pub struct PlannedActivation {
    /// Where it is.
    pub site: ActivationSite,
    /// Its integer type.
    pub qtype: QType,
    /// Scale and zero point.
    pub params: QuantParams,
    /// The interval that is kept.
    pub range: Range,
    /// Lowest and highest finite value of this tensor.
    pub observed: Option<(f32, f32)>,
    /// Values that were NaN or infinite.
    pub n_non_finite: u64,
    /// The range finder's name.
    pub observer: &'static str,
}

/// A weight with its parameters.
#[derive(Debug, Clone)]
pub struct PlannedWeight {
    /// Where it is.
    pub site: WeightSite,
    /// Its integer type.
    pub qtype: QType,
    /// One per slice of the axis, or one.
    pub params: Vec<QuantParams>,
    /// The integers, in the order of the values.
    pub integers: Vec<i32>,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Lowest and highest value.
    pub observed: (f32, f32),
    /// The range finder's name.
    pub observer: &'static str,
    /// Slices that are all zero, by position.
    pub dead: Vec<usize>,
}

/// A bias as int32.
#[derive(Debug, Clone)]
pub struct PlannedBias {
    /// Where it is.
    pub site: BiasSite,
    /// One scale per element, or one.
    pub scales: Vec<f32>,
    /// The integers.
    pub integers: Vec<i32>,
}

/// Which range finders to use.
#[derive(Debug, Clone, Copy)]
pub struct Finders<'a> {
    /// For activations.
    pub activation: &'a dyn RangeFinder,
    /// For weights.
    pub weight: &'a dyn RangeFinder,
}

/// Chooses the parameters. `statistics` holds one entry per activation site, in their order; a tensor of
/// `given` has its range from there, and its statistic does not count.
///
/// # Errors
/// If a tensor had no finite value, or a weight or bias is not finite; the message names it.
pub fn decide(
    graph: &GraphProto,
    sites: &Sites,
    statistics: &[Statistic],
    given: Option<&BTreeMap<String, ImportedRange>>,
    scheme: &Scheme,
    finders: Finders,
) -> Result<QuantPlan> {
    ensure!(
        statistics.len() == sites.activations.len(),
        "{} statistics, expected {}: one per activation",
        statistics.len(),
        sites.activations.len()
    );
    let given = |site: usize| given?.get(&sites.activations[site].tensor);
    let mut plan = QuantPlan::default();
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (site_idx, site) in sites.activations.iter().enumerate() {
        members.entry(site.group).or_default().push(site_idx);
    }
    let find_group = |(&group, sites_of_group): (&usize, &Vec<usize>)| {
        let first = &sites.activations[sites_of_group[0]];
        let grid = scheme.types[&first.qtype].grid();
        let mut ranges: Vec<Range> =
            sites_of_group.iter().filter_map(|&site| Some(given(site)?.on(&grid))).collect();
        let mut observed = sites_of_group.iter().filter(|&&site| given(site).is_none());
        let found = observed.next().map(|&first| {
            let mut joint = Cow::Borrowed(&statistics[first]);
            observed.for_each(|&member| joint.to_mut().join(&statistics[member]));
            finders.activation.find(&joint, &grid)
        });
        let range = found.transpose().map(|found| {
            ranges.extend(found);
            ranges.into_iter().reduce(union).unwrap_or(Range { min: 0.0, max: 0.0 })
        });
        let found = range.and_then(|range| Ok((range, params_for_range(range, &grid)?)));
        Ok((group, found.with_context(|| format!("tensor `{}`", first.tensor))?))
    };
    // The first error in the order of the groups is reported, whatever thread met one first.
    let found: Vec<Result<(usize, (Range, QuantParams))>> =
        members.par_iter().map(find_group).collect();
    let groups: BTreeMap<usize, (Range, QuantParams)> = found.into_iter().collect::<Result<_>>()?;
    for (site_idx, (site, statistic)) in sites.activations.iter().zip(statistics).enumerate() {
        let (range, params) = groups[&site.group];
        let n_non_finite = statistic.n_non_finite();
        if n_non_finite > 0 {
            plan.warnings.push(format!(
                "tensor `{}`: {n_non_finite} of {} values are NaN or infinite; they were left out",
                site.tensor,
                n_non_finite + statistic.n_finite()
            ));
        }
        plan.activations.push(PlannedActivation {
            site: site.clone(),
            qtype: scheme.types[&site.qtype].clone(),
            params,
            range,
            observed: statistic.min_max(),
            n_non_finite,
            observer: match given(site_idx) {
                Some(_) => "imported",
                None => finders.activation.name(),
            },
        });
    }
    weight::decide(graph, sites, scheme, finders.weight, &mut plan)?;
    bias::decide(graph, sites, &mut plan)?;
    weight::round(graph, &mut plan)?;
    Ok(plan)
}

fn union(a: Range, b: Range) -> Range {
    Range { min: a.min.min(b.min), max: a.max.max(b.max) }
}
