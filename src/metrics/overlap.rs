//! The overlap of squared deviations, by groups of channels. It ranks quantized networks as the metrics of their tasks
//! do.
//!
//! Let `a` and `b` be the deviations of both networks' values from the median of their channel in the float network.
//! With equal signs, a value adds `min(a², b²)` to the shared sum and `max(a², b²)` to the total. With different signs,
//! it adds nothing to the shared sum, and `(|a| + |b|)²` to the total. The overlap of a group of channels is the shared
//! sum divided by the total, 0 to 1: the Ruzicka similarity of squared deviations.
//!
//! Channels with rare large values (objectness, classes) and all other channels (boxes, logits) form separate groups.
//! Scores beside much larger values (boxes in pixels) have groups of their own. An output's figure is the mean over its
//! groups. No sample counts more than all others together.
//!
//! Figures of the overlap and of the SQNR are in docs/design/evaluation.md.

use super::groups::{ChannelGroup, OutputGroups};
use super::layout::FloatOutput;
use super::metric::{Figure, FigureScale, Measure, Metric, OutputPair, SamplePair};
use rayon::prelude::*;

/// Overlap of squared deviations from the median of each channel: 1 for equal outputs, 0 if a value is NaN or infinite.
/// It does not apply to integer outputs, constant outputs, and outputs whose length varies although the inputs have one
/// shape.
pub const OVERLAP: Metric = Metric {
    name: "overlap",
    title: "overlap",
    scale: FigureScale::SHARE,
    about: "share of the float result that is kept, by squared deviations of groups of channels, 0 to 1",
    task: None,
    prepare: |outputs, _| Box::new(Overlap::new(outputs)),
};

/// Minimum rows of an output of boxes.
const MIN_BOXES: usize = 32;
/// Kurtosis above which a channel is sparse.
const SPARSE: f64 = 10.0;
/// Variance up to which a channel is dead, relative to the largest variance of the output's channels.
const DEAD: f64 = 1e-10;
/// Variance up to which scores have groups of their own, relative to the largest variance of the output's other
/// channels.
const APART: f64 = 1e-4;
/// Minimum samples for the limit on the weight of a sample.
const MIN_SAMPLES: usize = 8;
/// Maximum values of a channel for its median, variance and kurtosis.
const MAX_VALUES: usize = 1 << 17;
/// Number of values of a channel that are added at a time.
const N_LANES: usize = 8;
/// Characters after which a list of channels is cut off.
const MAX_LIST: usize = 40;

#[derive(Debug)]
struct Overlap {
    outputs: Vec<Option<OutputChannels>>,
    groups: Vec<OutputGroups>,
}

/// The channels of an output.
#[derive(Debug)]
struct OutputChannels {
    /// Number of contiguous values of a channel; `None` if it depends on the sample's shape.
    run_length: Option<usize>,
    /// The channel axis; `None` for one channel.
    axis: Option<usize>,
    /// Median of each channel.
    medians: Vec<f64>,
    /// The group of each channel; `None` for a dead channel.
    group_of: Vec<Option<usize>>,
    n_groups: usize,
    /// For each group, the largest sum of squared deviations with which a sample counts in full: the sum over all
    /// samples without the largest one. Infinite for few samples.
    limits: Vec<f64>,
}

/// Median, variance and kurtosis of a channel.
struct ChannelShape {
    median: f64,
    variance: f64,
    kurtosis: f64,
    /// Whether all values are from 0 to 1.
    is_score: bool,
}

impl Overlap {
    fn new(outputs: &[FloatOutput]) -> Overlap {
        let of = |output: &FloatOutput| OutputChannels::of(output, beside_boxes(output, outputs));
        let (outputs, groups) = outputs.iter().map(of).unzip();
        Overlap { outputs, groups }
    }

    /// Returns the channels of each output and their index range in the sums: two entries for each group.
    fn spans(&self) -> impl Iterator<Item = (Option<&OutputChannels>, std::ops::Range<usize>)> {
        let mut end = 0;
        self.outputs.iter().map(move |channels| {
            let start = end;
            end += 2 * channels.as_ref().map_or(0, |channels| channels.n_groups);
            (channels.as_ref(), start..end)
        })
    }
}

/// Returns the channel axis of an output [N, rows, channels] or [N, channels, rows] beside boxes [N, rows, 4]: the rows
/// are the same cells of the image. `None` for other outputs, and where both axes have this length.
fn beside_boxes(output: &FloatOutput, outputs: &[FloatOutput]) -> Option<usize> {
    let &[_, a, b] = output.shape else { return None };
    let is_boxes = |other: &&FloatOutput| other.about.is_float && matches!(other.shape, [_, n, 4] if *n >= MIN_BOXES);
    let has_rows = |n: usize| outputs.iter().filter(is_boxes).any(|boxes| boxes.shape[1] == n);
    match (has_rows(a), has_rows(b)) {
        (true, false) => Some(2),
        (false, true) => Some(1),
        _ => None,
    }
}

impl OutputChannels {
    /// Returns the channels along `axis`; along the detected axis if that is `None`.
    fn of(output: &FloatOutput, axis: Option<usize>) -> (Option<OutputChannels>, OutputGroups) {
        let mut groups = OutputGroups { output: output.about.name.clone(), axis: None, groups: Vec::new() };
        let samples = &output.samples;
        let is_constant = samples.len() > 1 && samples.windows(2).all(|pair| pair[0] == pair[1]);
        if !output.about.is_float || samples.is_empty() || !output.has_channels() || is_constant {
            return (None, groups);
        }
        let is_fixed = |axis: usize| output.shapes.iter().all(|shape| shape[axis] == output.shape[axis]);
        let given = output.about.channel_axis.filter(|&axis| axis < output.shape.len() && is_fixed(axis));
        groups.axis = given.or(axis.filter(|&axis| is_fixed(axis))).or_else(|| output.channel_axis());
        let n = groups.axis.map_or(1, |axis| output.shape[axis]);
        let run_length =
            |sample: usize| run_length(output.shapes.get(sample).copied().unwrap_or(output.shape), groups.axis);
        let runs: Vec<(&[f32], usize)> =
            samples.iter().enumerate().map(|(i, values)| (*values, run_length(i))).collect();
        let shapes: Vec<ChannelShape> =
            (0..n).into_par_iter().map(|channel| ChannelShape::of(&runs, n, channel)).collect();
        let largest = [false, true].map(|is_score| {
            let of_kind = shapes.iter().filter(|shape| shape.is_score == is_score);
            of_kind.map(|shape| shape.variance).fold(0.0, f64::max)
        });
        // In one group with boxes in pixels, scores would hardly count.
        let are_apart = largest[1] > 0.0 && largest[1] <= APART * largest[0];
        let kind_of = |shape: &ChannelShape| {
            let is_apart = are_apart && shape.is_score;
            let largest = if are_apart { largest[usize::from(is_apart)] } else { largest[0].max(largest[1]) };
            let kind = if shape.kurtosis > SPARSE { "sparse" } else { "dense" };
            (shape.variance > DEAD * largest).then_some((is_apart, kind))
        };
        let kinds: Vec<Option<(bool, &str)>> = shapes.iter().map(kind_of).collect();
        let mut group_of = vec![None; n];
        for (is_apart, kind) in [(false, "dense"), (false, "sparse"), (true, "dense"), (true, "sparse")] {
            let of_kind = |&channel: &usize| kinds[channel] == Some((is_apart, kind));
            let members: Vec<usize> = (0..n).filter(of_kind).collect();
            if !members.is_empty() {
                members.iter().for_each(|&channel| group_of[channel] = Some(groups.groups.len()));
                let (kind, channels) = (kind.to_string(), ranges(&members));
                groups.groups.push(ChannelGroup { kind, n_channels: members.len(), channels });
            }
        }
        let medians = shapes.iter().map(|shape| shape.median).collect();
        let run_length = output.is_fixed().then(|| run_length(0));
        let (n_groups, limits) = (groups.groups.len(), vec![f64::INFINITY; groups.groups.len()]);
        let mut channels = OutputChannels { run_length, axis: groups.axis, medians, group_of, n_groups, limits };
        channels.limits = channels.limits_of(output);
        ((channels.n_groups > 0).then_some(channels), groups)
    }

    /// Returns the limit of each group, from the samples of `output`.
    fn limits_of(&self, output: &FloatOutput) -> Vec<f64> {
        let squares = |sample_idx: usize| {
            let float = output.samples[sample_idx];
            let shape = output.shapes.get(sample_idx).copied().unwrap_or(output.shape);
            let mut sums = vec![0.0; 2 * self.n_groups];
            self.add(OutputPair { shape, float, quantized: float }, &mut sums);
            sums
        };
        let of_samples: Vec<Vec<f64>> = (0..output.samples.len()).into_par_iter().map(squares).collect();
        let limit = |group: usize| {
            let squares = of_samples.iter().map(|sums| sums[2 * group + 1]);
            let all: f64 = squares.clone().sum();
            let others = all - squares.fold(0.0, f64::max);
            if of_samples.len() >= MIN_SAMPLES && others > 0.0 { others } else { f64::INFINITY }
        };
        (0..self.n_groups).map(limit).collect()
    }

    /// Adds a sample to the shared sum and the total of each group. A sample beyond the limit of a group is scaled down
    /// to it.
    fn add(&self, output: OutputPair, sums: &mut [f64]) {
        let n = self.medians.len();
        let fits = self.axis.is_none_or(|axis| output.shape.get(axis) == Some(&n));
        if self.run_length.is_none() && !fits {
            sums.iter_mut().skip(1).step_by(2).for_each(|all| *all = f64::INFINITY);
            return;
        }
        let run_length = self.run_length.unwrap_or_else(|| run_length(output.shape, self.axis)).max(1);
        let mut of_channels = DeviationSums::new(n);
        if run_length == 1 {
            for (float, quantized) in output.float.chunks(n).zip(output.quantized.chunks(n)) {
                of_channels.add(&self.medians, float, quantized);
            }
        } else {
            let runs = output.float.chunks(run_length).zip(output.quantized.chunks(run_length));
            for (run, (float, quantized)) in runs.enumerate() {
                let mut lanes = DeviationSums::new(N_LANES);
                let medians = [self.medians[run % n]; N_LANES];
                for (float, quantized) in float.chunks(N_LANES).zip(quantized.chunks(N_LANES)) {
                    lanes.add(&medians, float, quantized);
                }
                of_channels.add_lanes(run % n, &lanes);
            }
        }
        let mut squares = vec![0.0; self.n_groups];
        for (channel, group) in self.group_of.iter().enumerate() {
            let [shared, all, of_float] = of_channels.of(channel);
            match group {
                Some(group) => {
                    sums[2 * group] += if all.is_finite() { shared } else { 0.0 };
                    sums[2 * group + 1] += all;
                    squares[*group] += of_float;
                }
                None if all.is_finite() => {}
                None => sums.iter_mut().skip(1).step_by(2).for_each(|all| *all = f64::INFINITY),
            }
        }
        for ((sums, squares), &limit) in sums.chunks_exact_mut(2).zip(squares).zip(&self.limits) {
            if squares > limit {
                sums.iter_mut().for_each(|sum| *sum *= limit / squares);
            }
        }
    }
}

/// Sums per channel: shared sum and total of both networks, and squared deviations of the float network.
struct DeviationSums {
    shared: Vec<f64>,
    all: Vec<f64>,
    of_float: Vec<f64>,
}

impl DeviationSums {
    fn new(n: usize) -> DeviationSums {
        DeviationSums { shared: vec![0.0; n], all: vec![0.0; n], of_float: vec![0.0; n] }
    }

    /// Adds one value per channel. An infinity that both networks have adds nothing. A NaN makes `all` infinite. The
    /// loop has no branches, so that several channels are computed at a time.
    fn add(&mut self, medians: &[f64], float: &[f32], quantized: &[f32]) {
        let values = float.iter().zip(quantized).zip(medians);
        let sums = self.shared.iter_mut().zip(&mut self.all).zip(&mut self.of_float);
        for (((&float, &quantized), median), ((shared, all), of_float)) in values.zip(sums) {
            let counts = !(float.abs() == f32::INFINITY && float == quantized);
            let (a, b) = (f64::from(float) - median, f64::from(quantized) - median);
            let (a_squared, b_squared) = (a * a, b * b);
            let is_same_side = a * b > 0.0;
            let (less, more) = if a_squared < b_squared { (a_squared, b_squared) } else { (b_squared, a_squared) };
            let far = (a.abs() + b.abs()) * (a.abs() + b.abs());
            let far = if far >= 0.0 { far } else { f64::INFINITY };
            *shared += if counts && is_same_side { less } else { 0.0 };
            *all += if counts { if is_same_side { more } else { far } } else { 0.0 };
            *of_float += if counts { a_squared } else { 0.0 };
        }
    }

    /// Adds the sums of several values of one channel.
    fn add_lanes(&mut self, channel: usize, lanes: &DeviationSums) {
        self.shared[channel] += lanes.shared.iter().sum::<f64>();
        self.all[channel] += lanes.all.iter().sum::<f64>();
        self.of_float[channel] += lanes.of_float.iter().sum::<f64>();
    }

    fn of(&self, channel: usize) -> [f64; 3] {
        [self.shared[channel], self.all[channel], self.of_float[channel]]
    }
}

impl ChannelShape {
    /// Computes the statistics of a channel. `samples` holds the values of each sample, and the number of contiguous
    /// values of a channel in them.
    fn of<'v>(samples: &[(&'v [f32], usize)], n_channels: usize, channel: usize) -> ChannelShape {
        let n_values: usize = samples.iter().map(|(values, _)| values.len() / n_channels).sum();
        let of_sample = |&(values, run_length): &(&'v [f32], usize)| values.chunks_exact(run_length);
        let runs = samples.iter().flat_map(|sample| of_sample(sample).skip(channel).step_by(n_channels));
        let values = runs.flatten().step_by(n_values.div_ceil(MAX_VALUES).max(1));
        let mut values: Vec<f32> = values.copied().filter(|value| value.is_finite()).collect();
        let n = values.len().max(1) as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let moment = |power: i32| values.iter().map(|&x| (f64::from(x) - mean).powi(power)).sum::<f64>() / n;
        let (variance, fourth) = (moment(2), moment(4));
        let is_score = values.iter().all(|value| (0.0..=1.0).contains(value));
        ChannelShape { median: median(&mut values), variance, kurtosis: fourth / (variance * variance), is_score }
    }
}

/// Returns the number of contiguous values of a channel.
fn run_length(shape: &[usize], axis: Option<usize>) -> usize {
    shape[axis.map_or(0, |axis| axis + 1)..].iter().product()
}

/// Returns the median: the mean of both middle values for an even number of values, 0 without values.
fn median(values: &mut [f32]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let half = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    let (below, middle, _) = values.select_nth_unstable_by(half, f32::total_cmp);
    let middle = f64::from(*middle);
    match below.iter().copied().max_by(f32::total_cmp) {
        Some(below) if is_even => 0.5 * (middle + f64::from(below)),
        _ => middle,
    }
}

/// Returns the ranges of ascending positions, such as `0-3, 5`.
fn ranges(members: &[usize]) -> String {
    let mut text = String::new();
    for range in members.chunk_by(|a, b| a + 1 == *b) {
        if text.len() > MAX_LIST {
            return text + ", …";
        }
        let comma = if text.is_empty() { "" } else { ", " };
        match *range {
            [one] => text += &format!("{comma}{one}"),
            [first, .., last] => text += &format!("{comma}{first}-{last}"),
            [] => {}
        }
    }
    text
}

impl Measure for Overlap {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let n = self.spans().last().map_or(0, |(_, span)| span.end);
        let mut sums = vec![0.0; n];
        for (output_idx, (channels, span)) in self.spans().enumerate() {
            if let Some((channels, output)) = channels.zip(sample.output(output_idx)) {
                channels.add(output, &mut sums[span]);
            }
        }
        sums
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        let figure = |(channels, span): (Option<&OutputChannels>, std::ops::Range<usize>)| {
            channels?;
            let overlap = |sums: &[f64]| if sums[1] > 0.0 { sums[0] / sums[1] } else { 1.0 };
            let groups: Vec<f64> = sums[span].chunks_exact(2).map(overlap).collect();
            let mean = groups.iter().sum::<f64>() / groups.len() as f64;
            Some(Figure { groups, ..Figure::of(mean) })
        };
        self.spans().map(figure).collect()
    }

    fn groups(&self) -> &[OutputGroups] {
        &self.groups
    }
}
