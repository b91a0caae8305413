//! The examination of the number of samples.

use super::{Examined, Facts, NO_DATA};
use crate::check::Finding;
use crate::doctor::DataSurvey;
use crate::statistics::Extremes;
use serde::Serialize;

/// Share of a range that may be missing when fewer samples are used.
const TOLERANCE: f64 = 0.2;
/// Share of the tensors that must have nearly the same range from half of the samples.
pub const ENOUGH_SHARE: f64 = 0.9;
/// Minimum number of samples; fewer are too few, whatever the ranges.
pub const MIN_RANGE_SAMPLES: usize = 16;
/// The hint for ranges that grow.
const MORE: &str = "the ranges still grow: use more samples";
/// Number of sets that are averaged for each number of samples.
const N_SETS: usize = 8;

/// The agreement of ranges from some of the samples with ranges from all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RangeAgreement {
    /// Number of samples.
    pub n_samples: usize,
    /// Share of the tensors whose range from that many samples is at least 80 % of the range from all samples, 0 to 1.
    pub share: f64,
}

/// Ranges that still grow: half of the samples give clearly narrower ones.
pub(super) fn enough_data(facts: &Facts) -> Examined {
    let Some(data) = facts.data else { return Examined::Unknown(NO_DATA.to_string()) };
    let agreement = range_agreement(data);
    let n_samples = data.samples.len();
    let finding = match (agreement.iter().rev().nth(1), facts.until_stable) {
        _ if n_samples < MIN_RANGE_SAMPLES => {
            let expected = format!("{MIN_RANGE_SAMPLES} or more");
            Finding::new("the number of samples", n_samples.to_string(), expected).hint("use more samples")
        }
        (_, Some(until_stable)) if until_stable.is_stable => return Examined::nothing(),
        (_, Some(until_stable)) => {
            let found = format!("{n_samples} ({})", until_stable.sentence());
            let expected = "a number from which on no range changes by a step";
            Finding::new("the number of samples", found, expected).hint(MORE)
        }
        (None, None) => return Examined::nothing(),
        (Some(half), None) if half.share >= ENOUGH_SHARE => return Examined::nothing(),
        (Some(half), None) => {
            let what =
                format!("the share of tensors to which half of the {n_samples} samples give a clearly narrower range");
            // Rounded up, so that it is never printed as the limit.
            let found = (100.0 * (1.0 - half.share)).ceil();
            let most = (100.0 * (1.0 - ENOUGH_SHARE)).round();
            Finding::new(what, format!("{found} %"), format!("{most} % or less")).hint(MORE)
        }
    };
    Examined::warning(finding)
}

/// Returns the agreement for all samples, half of them, a quarter and so on, smallest number first. Empty without
/// ranges.
pub fn range_agreement(data: &DataSurvey) -> Vec<RangeAgreement> {
    let n = data.samples.len();
    let tensors: Vec<&[Extremes]> = data.tensors.iter().map(|tensor| &tensor.by_sample[..]).collect();
    let all: Vec<f64> = tensors.iter().map(|by_sample| width(by_sample.iter())).collect();
    let n_known = all.iter().filter(|width| **width > 0.0).count();
    if n_known == 0 {
        return Vec::new();
    }
    let mut sizes: Vec<usize> =
        std::iter::successors(Some(n), |size| Some(size / 2)).take_while(|size| *size > 0).collect();
    sizes.reverse();
    let of_size = |n_samples: usize| {
        let known_from = |start: usize| {
            let is_near = |(by_sample, all): (&&[Extremes], &f64)| {
                let part = by_sample.iter().cycle().skip(start).take(n_samples);
                *all > 0.0 && width(part) >= (1.0 - TOLERANCE) * all
            };
            tensors.iter().zip(&all).filter(|pair| is_near((pair.0, pair.1))).count()
        };
        let n_near: usize = (0..N_SETS).map(|set| known_from(set * n / N_SETS)).sum();
        RangeAgreement { n_samples, share: n_near as f64 / (N_SETS * n_known) as f64 }
    };
    sizes.into_iter().map(of_size).collect()
}

fn width<'e>(extremes: impl Iterator<Item = &'e Extremes>) -> f64 {
    Extremes::of_all(extremes).width_with_zero()
}
