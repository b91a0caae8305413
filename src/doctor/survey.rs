//! A survey of the samples and of the network's tensors, in one pass.

use crate::calibrate;
use crate::data::{Array, Dataset, Values, no_readable_sample};
use crate::diag::text_of;
use crate::engine::{ShapedEngines, ShapedSession};
use crate::metrics::{EvaluatedOutput, FloatOutput, argmax, n_classes};
use crate::progress::Progress;
use crate::quant::ScaleLayout;
use crate::statistics::Extremes;
use anyhow::{Context, Result, anyhow};
use rayon::prelude::*;
use std::borrow::Cow;

/// Maximum number of samples. They are spread evenly over the data, because neighbors are often alike.
const MAX_SAMPLES: usize = 1000;
/// Maximum number of samples whose class scores decide whether the network is a classifier.
const MAX_SCORES: usize = 256;
/// Minimum height and width of an image, and minimum number of values of an input that can be constant.
const MIN_SIDE: usize = 8;

/// A tensor to survey.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SurveyedTensor {
    /// ONNX name.
    pub tensor: String,
    /// Channel axis; negative counts from the last axis. `None` for a tensor without channels.
    pub channel_axis: Option<isize>,
    /// Number of nodes that read it; 0 for an output of the network.
    pub n_readers: usize,
}

/// The values of a tensor on the samples.
#[derive(Debug, Default)]
pub struct TensorSurvey {
    /// ONNX name.
    pub tensor: String,
    /// Number of nodes that read it.
    pub n_readers: usize,
    /// Extremes of the finite values by sample, in the order of [`DataSurvey::samples`].
    pub by_sample: Vec<Extremes>,
    /// Extremes of the finite values by channel over all samples; empty if samples differ in the number of channels.
    pub by_channel: Vec<Extremes>,
}

impl TensorSurvey {
    /// Returns the extremes over all samples.
    pub fn extremes(&self) -> Extremes {
        Extremes::of_all(&self.by_sample)
    }
}

/// The survey of one sample.
#[derive(Debug)]
pub struct SampleSurvey {
    /// File, and index in a file of several samples.
    pub name: String,
    /// The hash of its values.
    pub hash: u64,
    /// Whether all values of one of its inputs are equal. Zeros count only if no other input varies.
    pub is_constant: bool,
    /// Whether one of its inputs holds zeros beside another that varies, as a state at the start of a stream.
    pub has_zero_state: bool,
    /// Number of NaN and infinite values.
    pub n_non_finite: usize,
    /// Correlation of neighboring pixels in a row, -1 to 1; `None` without an image whose pixels differ.
    pub neighbours: Option<f64>,
    /// The class with the highest score; `None` if the network is no classifier.
    pub class: Option<usize>,
}

/// The survey of the data.
#[derive(Debug, Default)]
pub struct DataSurvey {
    /// Number of samples in the data.
    pub n_listed: usize,
    /// The samples that were run, ordered by hash.
    pub samples: Vec<SampleSurvey>,
    /// Unreadable samples with the reason.
    pub unreadable: Vec<String>,
    /// Number of classes; `None` if the network is no classifier.
    pub n_classes: Option<usize>,
    /// The surveyed tensors.
    pub tensors: Vec<TensorSurvey>,
}

/// The results of one sample.
struct Seen {
    sample: SampleSurvey,
    extremes: Vec<Extremes>,
    by_channel: Vec<Vec<Extremes>>,
    /// Index, shape and values of the output that may be class scores.
    scores: Option<(usize, Vec<usize>, Vec<f32>)>,
}

/// Runs samples, spread evenly over the data, on the threads of the current pool, and surveys them and `tensors`.
///
/// # Errors
/// If no sample can be read, or a sample cannot be run.
pub fn survey(
    engines: &ShapedEngines,
    tensors: &[SurveyedTensor],
    outputs: &[EvaluatedOutput],
    dataset: &Dataset,
    progress: &Progress,
) -> Result<DataSurvey> {
    let n = dataset.len().min(MAX_SAMPLES);
    let mut order: Vec<usize> = (0..n).map(|i| i * dataset.len() / n).collect();
    order.sort_by_key(|&sample_idx| dataset.shape_rank(sample_idx));
    let tick = progress("data", n);
    let one = |session: &mut Result<_>, sample_idx: &usize| -> Result<Result<Seen, String>> {
        let session: &mut ShapedSession = session.as_mut().map_err(|error: &mut anyhow::Error| anyhow!("{error:#}"))?;
        let seen = see(session, *sample_idx, dataset, tensors, outputs)?;
        tick();
        Ok(seen)
    };
    let seen: Vec<Result<Result<Seen, String>>> = order.par_iter().map_init(|| engines.session(), one).collect();
    let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
    for seen in seen {
        match seen? {
            Ok(seen) => readable.push(seen),
            Err(reason) => unreadable.push(reason),
        }
    }
    let first = unreadable.first().map_or("", String::as_str);
    anyhow::ensure!(!readable.is_empty(), no_readable_sample(first));
    readable.sort_by(|a, b| (a.sample.hash, &a.sample.name).cmp(&(b.sample.hash, &b.sample.name)));
    unreadable.sort();
    let n_classes = add_classes(&mut readable, outputs, dataset.batch());
    let empty = |about: &SurveyedTensor| TensorSurvey {
        tensor: about.tensor.clone(),
        n_readers: about.n_readers,
        ..TensorSurvey::default()
    };
    let mut found: Vec<TensorSurvey> = tensors.iter().map(empty).collect();
    let mut samples = Vec::new();
    for Seen { sample, extremes, by_channel, .. } in readable {
        for ((tensor, extremes), by_channel) in found.iter_mut().zip(extremes).zip(by_channel) {
            tensor.add(extremes, &by_channel);
        }
        samples.push(sample);
    }
    Ok(DataSurvey { n_listed: dataset.len(), samples, unreadable, n_classes, tensors: found })
}

/// Runs a sample. Returns the reason instead if the sample cannot be read.
fn see(
    session: &mut ShapedSession,
    sample_idx: usize,
    dataset: &Dataset,
    tensors: &[SurveyedTensor],
    outputs: &[EvaluatedOutput],
) -> Result<Result<Seen, String>> {
    let sample = match dataset.load(sample_idx) {
        Ok(sample) => sample,
        Err(error) => return Ok(Err(text_of(&error))),
    };
    let mut extremes = vec![Extremes::NONE; tensors.len()];
    let mut by_channel = vec![Vec::new(); tensors.len()];
    let ran = session.run(&sample, &mut |at, shape, values| {
        by_channel[at] = channel_extremes(shape, values, tensors[at].channel_axis);
        by_channel[at].iter().for_each(|channel| extremes[at].widen(*channel));
        Ok(())
    });
    let name = dataset.name(sample_idx);
    let arrays = ran.with_context(|| format!("`{name}`"))?;
    let is_row = |(output, array): (&EvaluatedOutput, &Array)| {
        output.is_float && n_classes(&array.shape, dataset.batch()).is_some()
    };
    let output_idx = outputs.iter().zip(&arrays).position(is_row);
    let scores = output_idx.and_then(|output_idx| {
        let array = arrays.into_iter().nth(output_idx)?;
        let Values::F32(values) = array.values else { return None };
        Some((output_idx, array.shape, values))
    });
    Ok(Ok(Seen { sample: look_at(name, &sample), extremes, by_channel, scores }))
}

impl TensorSurvey {
    fn add(&mut self, extremes: Extremes, by_channel: &[Extremes]) {
        if self.by_sample.is_empty() {
            self.by_channel = by_channel.to_vec();
        } else if self.by_channel.len() == by_channel.len() {
            self.by_channel.iter_mut().zip(by_channel).for_each(|(all, one)| all.widen(*one));
        } else {
            self.by_channel.clear();
        }
        self.by_sample.push(extremes);
    }
}

/// Sets the class of each sample and returns the number of classes; `None` if the network is no classifier.
fn add_classes(seen: &mut [Seen], outputs: &[EvaluatedOutput], batch: usize) -> Option<usize> {
    let rows = seen.iter().take(MAX_SCORES).map(|seen| seen.scores.as_ref());
    let rows: Vec<&(usize, Vec<usize>, Vec<f32>)> = rows.collect::<Option<_>>()?;
    let (output_idx, shape, _) = rows.first()?;
    let output = FloatOutput {
        about: outputs.get(*output_idx)?,
        batch,
        shape,
        samples: rows.iter().map(|(_, _, values)| &values[..]).collect(),
        shapes: Vec::new(),
    };
    let n_classes = output.n_classes()?;
    for seen in seen {
        let scores = seen.scores.as_ref().map(|(_, _, values)| &values[..values.len().min(n_classes)]);
        seen.sample.class = scores.and_then(argmax);
    }
    Some(n_classes)
}

/// Returns the lowest and highest finite value of each channel.
fn channel_extremes(shape: &[usize], values: &[f32], axis: Option<isize>) -> Vec<Extremes> {
    let axis = axis.map(|axis| if axis < 0 { shape.len() as isize + axis } else { axis });
    let axis = axis.and_then(|axis| usize::try_from(axis).ok()).filter(|axis| *axis < shape.len());
    let layout = ScaleLayout::of(shape, axis, None);
    let mut found = vec![Extremes::NONE; layout.n];
    layout.for_each_run(|channel, run| {
        for &value in values[run].iter().filter(|value| value.is_finite()) {
            found[channel].widen(Extremes { min: value, max: value });
        }
    });
    found
}

/// Surveys the values of a sample.
fn look_at(name: String, sample: &[Array]) -> SampleSurvey {
    let (mut n_non_finite, mut neighbours) = (0, None);
    // The value of each input with a single value, and `None` for other inputs.
    let mut single: Vec<Option<f32>> = Vec::new();
    // One of several float inputs may be a cache, an adjacency matrix or noise, and look like an image.
    let has_floats = |array: &&Array| matches!(array.values, Values::F32(_) | Values::U8(_));
    let is_alone = sample.iter().filter(has_floats).count() == 1;
    for array in sample {
        let values: Cow<[f32]> = match &array.values {
            Values::F32(values) => Cow::Borrowed(values),
            Values::U8(values) => values.iter().copied().map(f32::from).collect(),
            _ => continue,
        };
        n_non_finite += values.iter().filter(|value| !value.is_finite()).count();
        if values.len() >= MIN_SIDE {
            let is_single = values.windows(2).all(|pair| pair[0].to_bits() == pair[1].to_bits());
            single.push(values.first().copied().filter(|_| is_single));
        }
        if is_alone {
            neighbours = correlation(&array.shape, &values);
        }
    }
    let has_zero_state = single.contains(&Some(0.0)) && single.contains(&None);
    let is_constant = single.iter().flatten().any(|&value| value != 0.0 || !has_zero_state);
    let hash = calibrate::hash(sample);
    SampleSurvey { name, hash, is_constant, has_zero_state, n_non_finite, neighbours, class: None }
}

/// Returns the correlation of neighboring pixels in the rows of an image with one to four channels, on axis 1 or last.
/// Returns `None` if the array is no image, or all its values are equal.
fn correlation(shape: &[usize], values: &[f32]) -> Option<f64> {
    let is_channels = |n: usize| (1..=4).contains(&n);
    let (height, width, stride) = match *shape {
        [_, c, h, w] if is_channels(c) => (h, w, 1),
        [_, h, w, c] if is_channels(c) => (h, w, c),
        _ => return None,
    };
    if height < MIN_SIDE || width < MIN_SIDE {
        return None;
    }
    let mut sums = [0.0; 5];
    let mut n = 0.0;
    for row in values.chunks_exact(width * stride) {
        for (&a, &b) in row.iter().zip(&row[stride..]).filter(|(a, b)| a.is_finite() && b.is_finite()) {
            let (a, b) = (f64::from(a), f64::from(b));
            [a, b, a * a, b * b, a * b].iter().zip(&mut sums).for_each(|(value, sum)| *sum += value);
            n += 1.0;
        }
    }
    let [a, b, aa, bb, ab] = sums.map(|sum: f64| sum / n);
    let variances = (aa - a * a) * (bb - b * b);
    (n > 0.0 && variances > 0.0).then(|| (ab - a * b) / variances.sqrt())
}
