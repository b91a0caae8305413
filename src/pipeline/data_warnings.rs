//! Warnings about the preprocessing of the data.

use crate::calibrate::{CalibrationOptions, SampleSet};
use crate::data::Preprocessing;
use crate::onnx;
use crate::onnx::inputs::Shapes;
use crate::preprocessing::{PixelBudget, PixelVerdict, better_pixel_values};
use crate::progress::Progress;
use crate::statistics::BetterPixelValues;
use std::path::Path;

/// Limit on the multiply-adds of the check of the preprocessing, which take a few seconds.
const MAX_MULTIPLY_ADDS: f64 = 9e10;

/// The highest value of a pixel before scaling.
const HIGHEST_PIXEL: f64 = 255.0;

/// Returns warnings about the preprocessing, from saved statistics or from the samples. Where samples are run only
/// once, the check of pixel values is left out if it takes more runs than there are samples.
pub(super) fn data_warnings(
    path: &Path,
    shapes: &Shapes,
    samples: &SampleSet,
    options: &CalibrationOptions,
    progress: &Progress,
) -> Vec<String> {
    let max_runs = if samples.used_again() { usize::MAX } else { samples.n_listed() };
    let (warning, better) = match &samples.saved {
        Some(saved) => (saved.about.warnings.clone(), saved.about.pixel_values.clone()),
        None => {
            let better = Some(samples).filter(|_| options.checks_preprocessing);
            let better = better.and_then(|samples| better_preprocessing(path, shapes, samples, max_runs, progress));
            (preprocessing_warning(samples, &options.preprocessing).into_iter().collect(), better)
        }
    };
    let better = better.filter(|better| better.n_runs <= max_runs).map(|better| better.text);
    warning.into_iter().chain(better).collect()
}

/// Returns a warning if images are preprocessed with defaults only, if a mean lies far outside the scaled pixels, or if
/// the preprocessing options have no effect.
pub(super) fn preprocessing_warning(samples: &SampleSet, preprocessing: &Preprocessing) -> Option<String> {
    let is_default = *preprocessing == Preprocessing::default();
    match (samples.preprocessing(), is_default) {
        (Some(applied), true) => {
            Some(format!("no preprocessing is given, so defaults are used: {applied}; `mqq presets` lists presets"))
        }
        (Some(_), false) => warning_of_mean(preprocessing),
        (None, false) => Some(
            "the preprocessing options have no effect: the data are arrays, which are not preprocessed".to_string(),
        ),
        _ => None,
    }
}

/// Returns a warning if a mean is more than twice the highest scaled pixel, as that of other scales is.
fn warning_of_mean(preprocessing: &Preprocessing) -> Option<String> {
    let highest = HIGHEST_PIXEL * preprocessing.scale.unwrap_or(1.0 / HIGHEST_PIXEL);
    let mean = preprocessing.mean.iter().flatten().copied().find(|mean| highest > 0.0 && *mean > 2.0 * highest)?;
    let advice = if mean <= HIGHEST_PIXEL { "; --scale 1 leaves pixels from 0 to 255" } else { "" };
    Some(format!("the mean {mean} is outside the range of the scaled pixels, 0 to {highest:.3}{advice}"))
}

/// Returns pixel values that fit the float network clearly better, if there are any. They are only advice, so a model
/// that cannot be examined is no error.
pub(super) fn better_preprocessing(
    path: &Path,
    shapes: &Shapes,
    samples: &SampleSet,
    max_runs: usize,
    progress: &Progress,
) -> Option<BetterPixelValues> {
    let dataset = samples.dataset().ok()?;
    let model = onnx::load_whole(path).ok()?.model;
    let budget = PixelBudget { n_runs: max_runs, multiply_adds: MAX_MULTIPLY_ADDS, looks_for_hints: false };
    match better_pixel_values(&model, shapes, None, dataset, budget, progress) {
        Ok(PixelVerdict::Better(better)) => Some(BetterPixelValues {
            text: format!("{}; --no-preprocess-check skips this check", better.sentence),
            n_runs: better.n_runs,
        }),
        _ => None,
    }
}
