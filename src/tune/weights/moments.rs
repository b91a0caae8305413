//! Second moments of a layer's inputs and outputs over positions of the calibration samples.

use super::layer::LayerProduct;
use super::problem::LayerData;
use crate::engine::Value;
use crate::simulate::TokenMask;
use mqq_concrete::matrix::{Matrix, square, transposed_product};
use rayon::prelude::*;
use std::ops::Range;

/// Maximum positions: this many per weight of a row, plus `MORE_POSITIONS`.
const POSITIONS_PER_WEIGHT: usize = 40;
const MORE_POSITIONS: usize = 10_000;
/// Approximate number of positions that are multiplied at a time. A sample with more positions is not divided.
const POSITIONS_AT_A_TIME: usize = 256;

/// Second moments of one group of channels.
pub struct Moments {
    /// Sum of `b b^T`, `[n_in, n_in]`.
    pub bb: Matrix,
    /// Sum of `b y^T`, `[n_in, outputs of the group]`.
    pub by: Matrix,
    /// Sum of `b`; after `finish` its mean.
    pub b: Vec<f64>,
    /// Sum of `y`.
    y: Vec<f64>,
    /// Number of positions.
    pub n: usize,
}

impl Moments {
    fn zero(n_in: usize, n_out: usize) -> Moments {
        Moments {
            bb: Matrix::zeros(n_in, n_in),
            by: Matrix::zeros(n_in, n_out),
            b: vec![0.0; n_in],
            y: vec![0.0; n_out],
            n: 0,
        }
    }

    fn add(&mut self, part: &Part) {
        let add = |sums: &mut Matrix, values: &[f32]| {
            for (j, values) in values.chunks(self.b.len()).enumerate() {
                sums.column_mut(j).iter_mut().zip(values).for_each(|(sum, v)| *sum += f64::from(*v));
            }
        };
        add(&mut self.bb, &part.bb);
        add(&mut self.by, &part.by);
        self.b.iter_mut().zip(&part.b).for_each(|(sum, v)| *sum += v);
        self.y.iter_mut().zip(&part.y).for_each(|(sum, v)| *sum += v);
        self.n += part.n;
    }

    /// Turns the sums into covariances where `is_centered`; otherwise into means of the products, with `bias`
    /// subtracted from `y`.
    fn finish(mut self, is_centered: bool, bias: &[f32]) -> Moments {
        let n = self.n.max(1) as f64;
        let b = &self.b;
        let offset = |j: usize| bias.get(j).map_or(0.0, |&bias| f64::from(bias));
        let of_b = b.iter().map(|sum| if is_centered { sum / n } else { 0.0 }).collect::<Vec<_>>();
        let of_y = self.y.iter().enumerate().map(|(j, sum)| if is_centered { sum / n } else { offset(j) }).collect();
        for (matrix, offsets) in [(&mut self.bb, of_b), (&mut self.by, of_y)] {
            for (j, offset) in offsets.into_iter().enumerate() {
                matrix.column_mut(j).iter_mut().zip(b).for_each(|(sum, b_i)| *sum = *sum / n - b_i / n * offset);
            }
        }
        self.b.iter_mut().for_each(|sum| *sum /= n);
        self
    }
}

/// Sums over some positions of some samples. The matrices of [`Moments`] are column-major here.
struct Part {
    bb: Vec<f32>,
    by: Vec<f32>,
    b: Vec<f64>,
    y: Vec<f64>,
    n: usize,
}

impl Part {
    fn of(layer: &LayerProduct, group: usize, samples: &[(&Value, &Value)], positions: &[Vec<usize>]) -> Part {
        let (n_in, n_out) = (layer.n_in, layer.n_out / layer.groups);
        let (mut patches, mut targets) = (Vec::new(), Vec::new());
        for ((x, y), positions) in samples.iter().zip(positions) {
            let Some(outputs) = y.f32s().filter(|_| x.f32s().is_some()) else { continue };
            patches.extend(layer.patches(x, y, group, positions));
            let channels = group * n_out..(group + 1) * n_out;
            let output = |p: usize| channels.clone().map(move |o| outputs[layer.out_at(y, o, p)]);
            targets.extend(positions.iter().flat_map(|&p| output(p)));
        }
        let n = patches.len() / n_in;
        let bb = square(&patches, n_in);
        let by = transposed_product(&patches, &targets, n_in, n_out);
        let sums = |rows: &[f32], n: usize| {
            let mut sums = vec![0f64; n];
            for row in rows.chunks(n) {
                row.iter().zip(&mut sums).for_each(|(v, sum)| *sum += f64::from(*v));
            }
            sums
        };
        Part { bb, by, b: sums(&patches, n_in), y: sums(&targets, n_out), n }
    }
}

/// Returns a function from a sample to its positions to read: at most about `wanted` over all samples, evenly spaced,
/// without the padding in `tokens`.
fn positions<'a>(
    layer: &'a LayerProduct,
    y: &'a [Value],
    tokens: &'a [TokenMask],
    wanted: usize,
) -> impl Fn(usize) -> Vec<usize> + Sync + 'a {
    let n_positions: usize = y.iter().map(|y| layer.n_positions(y)).sum();
    let stride = n_positions.div_ceil(wanted).max(1);
    let counts =
        move |sample: usize, p: usize| tokens.get(sample).is_none_or(|tokens| tokens.counts(y[sample].shape(), p));
    // Each sample starts at another position, so that all parts of the image are covered.
    let all = move |sample: usize| (sample * 7 % stride..layer.n_positions(&y[sample])).step_by(stride);
    move |sample| all(sample).filter(|&p| counts(sample, p)).collect()
}

/// Calls `add` with the patches of one group at the positions of every sample. Returns the number of patches, at least
/// 1.
fn each_patch(
    layer: &LayerProduct,
    [b, y]: [&[Value]; 2],
    group: usize,
    positions: impl Fn(usize) -> Vec<usize>,
    mut add: impl FnMut(&[f32]),
) -> f64 {
    let mut n = 0;
    for (sample, (b, y)) in b.iter().zip(y).enumerate() {
        let positions = positions(sample);
        layer.patches(b, y, group, &positions).chunks(layer.n_in).for_each(&mut add);
        n += positions.len();
    }
    n.max(1) as f64
}

/// Returns the variances of the inputs of every group, or their mean squares unless `corrects_bias`: `[groups, n_in]`.
/// Of the outputs only the shapes count.
pub fn variances(
    layer: &LayerProduct,
    LayerData { inputs: b, outputs: y, corrects_bias, tokens, .. }: LayerData,
) -> Vec<f64> {
    let positions = positions(layer, y, tokens, MORE_POSITIONS);
    let of = |group: usize| -> Vec<f64> {
        let (mut sums, mut squares) = (vec![0f64; layer.n_in], vec![0f64; layer.n_in]);
        let n = each_patch(layer, [b, y], group, &positions, |patch| {
            for ((sum, square), &x) in sums.iter_mut().zip(&mut squares).zip(patch) {
                let x = f64::from(x);
                *sum += x;
                *square += x * x;
            }
        });
        let mean = |sum: f64| if corrects_bias { sum / n } else { 0.0 };
        sums.iter().zip(&squares).map(|(s, q)| (q / n - mean(*s).powi(2)).max(0.0)).collect()
    };
    let groups: Vec<Vec<f64>> = (0..layer.groups).into_par_iter().map(of).collect();
    groups.concat()
}

/// Returns the means of the inputs of every group over the samples, `[groups, n_in]`, each of the float and of the
/// `quantized` values. `quantized` must map 0 to 0, because convolutions pad with 0. Of the outputs only the shapes
/// count. The padding in `tokens` is left out.
pub fn input_means(
    layer: &LayerProduct,
    b: &[Value],
    y: &[Value],
    tokens: &[TokenMask],
    quantized: impl Fn(f32) -> f32 + Sync,
) -> Vec<[f64; 2]> {
    let positions = positions(layer, y, tokens, MORE_POSITIONS);
    let of = |group: usize| -> Vec<[f64; 2]> {
        let mut sums = vec![[0f64; 2]; layer.n_in];
        let n = each_patch(layer, [b, y], group, &positions, |patch| {
            for ([sum, of_quantized], &x) in sums.iter_mut().zip(patch) {
                *sum += f64::from(x);
                *of_quantized += f64::from(quantized(x));
            }
        });
        sums.iter().map(|sums| sums.map(|sum| sum / n)).collect()
    };
    let groups: Vec<Vec<[f64; 2]>> = (0..layer.groups).into_par_iter().map(of).collect();
    groups.concat()
}

/// Returns the moments of every group over the samples, bit-identical for any number of threads.
pub fn gather(
    layer: &LayerProduct,
    LayerData { inputs: b, outputs: y, bias, corrects_bias, tokens }: LayerData,
) -> Vec<Moments> {
    let positions = positions(layer, y, tokens, POSITIONS_PER_WEIGHT * layer.n_in + MORE_POSITIONS);
    let positions: Vec<Vec<usize>> = (0..b.len()).map(positions).collect();
    let samples: Vec<(&Value, &Value)> = b.iter().zip(y).collect();
    let batches = batches(&positions);
    let part =
        |group: usize, batch: &Range<usize>| Part::of(layer, group, &samples[batch.clone()], &positions[batch.clone()]);
    let n_out = layer.n_out / layer.groups;
    let zero = || Moments::zero(layer.n_in, n_out);
    let bias = |group: usize| bias.get(group * n_out..(group + 1) * n_out).unwrap_or_default();
    if layer.groups > 1 {
        let whole = |group: usize| {
            let mut sum = zero();
            batches.iter().for_each(|batch| sum.add(&part(group, batch)));
            sum.finish(corrects_bias, bias(group))
        };
        return (0..layer.groups).into_par_iter().map(whole).collect();
    }
    let mut sum = zero();
    for wave in batches.chunks(rayon::current_num_threads().max(1)) {
        let parts: Vec<Part> = wave.par_iter().map(|batch| part(0, batch)).collect();
        parts.iter().for_each(|part| sum.add(part));
    }
    vec![sum.finish(corrects_bias, bias(0))]
}

/// Divides the samples into ranges with enough positions each to be worth adding up their matrices.
fn batches(positions: &[Vec<usize>]) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut n = POSITIONS_AT_A_TIME;
    for (sample, positions) in positions.iter().enumerate() {
        match batches.last_mut() {
            Some(batch) if n < POSITIONS_AT_A_TIME => batch.end = sample + 1,
            _ => {
                batches.push(sample..sample + 1);
                n = 0;
            }
        }
        n += positions.len();
    }
    batches
}
