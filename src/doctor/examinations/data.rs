//! Examinations of the data: readable, finite, varied and real samples.

use super::{Examined, Facts, NO_DATA};
use crate::check::Finding;
use crate::diag::count;
use crate::doctor::{DataSurvey, SampleSurvey};
use std::collections::BTreeSet;

/// Samples that cannot be read.
pub(super) fn readable_data(facts: &Facts) -> Examined {
    of_data(facts, |data| match data.unreadable.first() {
        None => Examined::nothing(),
        Some(first) => {
            let found = format!("{}; the first: {first}", some_of(data.unreadable.len(), data));
            let finding = Finding::new("the number of samples that cannot be read", found, "0");
            Examined::error(finding.hint("remove them, or use --skip-bad-data"))
        }
    })
}

/// NaN and infinite values in samples.
pub(super) fn finite_data(facts: &Facts) -> Examined {
    of_data(facts, |data| {
        let bad: Vec<&SampleSurvey> = data.samples.iter().filter(|sample| sample.n_non_finite > 0).collect();
        let Some(first) = bad.iter().min_by_key(|sample| &sample.name) else { return Examined::nothing() };
        let found = format!(
            "{}; the first: `{}`, {}",
            some_of(bad.len(), data),
            first.name,
            count(first.n_non_finite, "such value")
        );
        let finding = Finding::new("the number of samples with NaN or infinite values", found, "0");
        Examined::error(finding.hint("check how the arrays were made"))
    })
}

/// Samples with an input whose values are all equal.
pub(super) fn constant_data(facts: &Facts) -> Examined {
    of_data(facts, |data| {
        let is_never_set = data.samples.iter().all(|sample| sample.has_zero_state);
        let is_constant = |sample: &&SampleSurvey| sample.is_constant || is_never_set;
        let constant: Vec<&SampleSurvey> = data.samples.iter().filter(is_constant).collect();
        let Some(first) = constant.iter().min_by_key(|sample| &sample.name) else { return Examined::nothing() };
        let found = format!("{}; the first: `{}`", some_of(constant.len(), data), first.name);
        let what = "the number of samples with an input that holds a single value";
        let finding = Finding::new(what, found, "0");
        let finding = finding.hint("use real samples: ranges from constant ones do not hold the network's values");
        if 2 * constant.len() > data.samples.len() { Examined::error(finding) } else { Examined::warning(finding) }
    })
}

/// Samples with the same values.
pub(super) fn repeated_data(facts: &Facts) -> Examined {
    of_data(facts, |data| {
        let different = data.samples.iter().map(|sample| sample.hash).collect::<BTreeSet<u64>>().len();
        let repeated = data.samples.len() - different;
        if repeated == 0 {
            return Examined::nothing();
        }
        let what = "the number of samples with the same values as another sample";
        let finding = Finding::new(what, some_of(repeated, data), "0");
        let finding = finding.hint("remove copies: they add no information");
        if different == 1 { Examined::error(finding) } else { Examined::warning(finding) }
    })
}

/// Correlation of neighboring pixels below which an image is noise. Photographs, drawings and text have .5 to 1.
const LEAST_CORRELATION: f64 = 0.2;

/// Images of noise.
pub(super) fn random_data(facts: &Facts) -> Examined {
    of_data(facts, |data| {
        let correlations: Vec<f64> = data.samples.iter().filter_map(|sample| sample.neighbours).collect();
        if correlations.is_empty() {
            let reason = match data.samples.iter().all(|sample| sample.is_constant) {
                true => "all samples are constant",
                false => "no input is an image",
            };
            return Examined::Unknown(reason.to_string());
        }
        let n_random = correlations.iter().filter(|&&correlation| correlation < LEAST_CORRELATION).count();
        if 2 * n_random <= correlations.len() {
            return Examined::nothing();
        }
        let what = format!("the number of noise images (correlation of neighboring pixels below {LEAST_CORRELATION})");
        let finding = Finding::new(what, some_of(n_random, data), "half of them or fewer");
        let finding = finding.hint("use real images: ranges from noise do not hold the network's values");
        // Denoising networks take noise as an input, and the time step as another one.
        match facts.model.graph.as_ref().is_some_and(|graph| graph.input.len() > 1) {
            true => Examined::warning(finding),
            false => Examined::error(finding),
        }
    })
}

/// Minimum number of samples; fewer may be of one class by chance.
const LEAST_SAMPLES: usize = 12;

/// Samples that the network gives all the same class.
pub(super) fn one_class(facts: &Facts) -> Examined {
    of_data(facts, |data| {
        let classes: Vec<usize> = data.samples.iter().filter_map(|sample| sample.class).collect();
        let (Some(n_classes), Some(first)) = (data.n_classes, classes.first()) else {
            let reason = "the outputs are not taken as class scores; --task classify says that they are";
            return Examined::Unknown(reason.to_string());
        };
        if classes.len() < LEAST_SAMPLES {
            return Examined::Unknown(format!("{} are too few", count(classes.len(), "sample")));
        }
        if classes.iter().any(|class| class != first) {
            return Examined::nothing();
        }
        let found = format!("class {first} for all {}", count(classes.len(), "sample"));
        let expected = format!("samples of several of its {n_classes} classes");
        let hint = "use samples of all classes; if the samples already are of several classes, the preprocessing differs from the training";
        Examined::warning(Finding::new("the network's answer", found, expected).hint(hint))
    })
}

fn of_data(facts: &Facts, examine: impl Fn(&DataSurvey) -> Examined) -> Examined {
    facts.data.map_or_else(|| Examined::Unknown(NO_DATA.to_string()), examine)
}

/// Returns text such as `3 of 100`.
fn some_of(n: usize, data: &DataSurvey) -> String {
    format!("{n} of {}", data.samples.len() + data.unreadable.len())
}
