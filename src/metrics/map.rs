//! Metrics of maps and pictures.

use super::decibels::sqnr_db;
use super::layout::FloatOutput;
use super::metric::{Figure, FigureScale, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{MapHead, OutputView, TaskHead, TaskName};
use anyhow::Result;

/// `10 log10(sum of centered float² / sum of centered error²)` in dB. Signal and error are centered to mean 0 in each
/// channel of each image, so that an offset does not count.
pub const MAP_SQNR: Metric = Metric {
    name: "map-sqnr",
    title: "centred SQNR",
    scale: FigureScale::DECIBELS,
    about: "signal over quantization noise, both with mean 0 in each channel",
    task: Some(TaskName::Map),
    prepare: |outputs, head| Box::new(channels(outputs, head, |a, b, sums| add(centred, a, b, sums), db)),
};

/// SSIM of pictures over squares of 7 pixels, mean over channels and images.
pub const SSIM: Metric = Metric {
    name: "ssim",
    title: "SSIM",
    scale: FigureScale { decimals: 4, worst: -1.0, ..FigureScale::SHARE },
    about: "structural similarity of pictures over squares of 7 pixels, mean over channels and samples",
    task: Some(TaskName::Map),
    prepare: |outputs, head| Box::new(channels(outputs, head, |a, b, sums| add(ssim, a, b, sums), mean)),
};

/// Side of the squares of the SSIM, in pixels.
const SIDE: usize = 7;

/// A function that returns the two sums of a channel.
type AddChannel = fn([usize; 2], Option<f32>, &[f32], &[f32]) -> Option<[f64; 2]>;
/// Height and width, the values of each channel, and the largest value of a picture.
type DecodedMap = ([usize; 2], Vec<Vec<f32>>, Option<f32>);

fn channels(
    outputs: &[FloatOutput],
    head: Option<&TaskHead>,
    add: fn(DecodedMap, DecodedMap, &mut [f64]),
    figure: fn(&[f64]) -> Option<Figure>,
) -> ImageSums<MapHead, DecodedMap> {
    ImageSums { outputs: TaskOutputs::new(outputs, head), n_sums: 2, decode, add, figure }
}

fn decode(outputs: &TaskOutputs<MapHead>, views: &[OutputView]) -> Result<DecodedMap> {
    let (sides, channels) = outputs.head.channels(views)?;
    Ok((sides, channels, outputs.head.peak))
}

fn add(of_channel: AddChannel, (sides, float, peak): DecodedMap, (_, quantized, _): DecodedMap, sums: &mut [f64]) {
    for (a, b) in float.iter().zip(&quantized) {
        let of_channel = of_channel(sides, peak, a, b).unwrap_or_default();
        sums.iter_mut().zip(of_channel).for_each(|(sum, one)| *sum += one);
    }
}

fn db(sums: &[f64]) -> Option<Figure> {
    (sums[0] > 0.0).then(|| Figure::of(sqnr_db(sums[0], sums[1])))
}

fn mean(sums: &[f64]) -> Option<Figure> {
    (sums[1] > 0.0).then(|| Figure::of(sums[0] / sums[1]))
}

/// Returns the sums of squares of the signal and of the error, both centered to mean 0.
fn centred(_: [usize; 2], _: Option<f32>, float: &[f32], quantized: &[f32]) -> Option<[f64; 2]> {
    let sum = |values: &mut dyn Iterator<Item = f64>| {
        let values: Vec<f64> = values.collect();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        values.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
    };
    let errors = float.iter().zip(quantized).map(|(&a, &b)| f64::from(a) - f64::from(b));
    Some([sum(&mut float.iter().map(|&x| f64::from(x))), sum(&mut errors.into_iter())])
}

/// Returns the SSIM of a channel, and 1 to count it; `None` if the map is not a picture, or is smaller than a square.
fn ssim([height, width]: [usize; 2], peak: Option<f32>, float: &[f32], quantized: &[f32]) -> Option<[f64; 2]> {
    let peak = f64::from(peak?);
    if height < SIDE || width < SIDE {
        return None;
    }
    let clipped = |values: &[f32]| -> Vec<f64> { values.iter().map(|&x| f64::from(x).clamp(0.0, peak)).collect() };
    let (a, b) = (clipped(float), clipped(quantized));
    let means = |a: &[f64], b: Option<&[f64]>| square_means([height, width], |i| a[i] * b.map_or(1.0, |b| b[i]));
    let (mean_a, mean_b) = (means(&a, None), means(&b, None));
    let (aa, bb, ab) = (means(&a, Some(&a)), means(&b, Some(&b)), means(&a, Some(&b)));
    let n = (SIDE * SIDE) as f64;
    let unbiased = n / (n - 1.0);
    let (c1, c2) = ((0.01 * peak).powi(2), (0.03 * peak).powi(2));
    let at = |i: usize| {
        let (ma, mb) = (mean_a[i], mean_b[i]);
        let covariance = |product: f64, mean: f64| unbiased * (product - mean);
        let (va, vb, both) = (covariance(aa[i], ma * ma), covariance(bb[i], mb * mb), covariance(ab[i], ma * mb));
        (2.0 * ma * mb + c1) * (2.0 * both + c2) / ((ma * ma + mb * mb + c1) * (va + vb + c2))
    };
    Some([(0..mean_a.len()).map(at).sum::<f64>() / mean_a.len() as f64, 1.0])
}

/// Returns the means over all squares that lie in the picture, by sums over rectangles.
fn square_means([height, width]: [usize; 2], value: impl Fn(usize) -> f64) -> Vec<f64> {
    let row = width + 1;
    let mut sums = vec![0.0; (height + 1) * row];
    for y in 0..height {
        let mut of_row = 0.0;
        for x in 0..width {
            of_row += value(y * width + x);
            sums[(y + 1) * row + x + 1] = sums[y * row + x + 1] + of_row;
        }
    }
    let mean = |y: usize, x: usize| {
        let at = |y: usize, x: usize| sums[y * row + x];
        (at(y + SIDE, x + SIDE) - at(y, x + SIDE) - at(y + SIDE, x) + at(y, x)) / (SIDE * SIDE) as f64
    };
    (0..=height - SIDE).flat_map(|y| (0..=width - SIDE).map(move |x| (y, x))).map(|(y, x)| mean(y, x)).collect()
}
