//! Second moments of a layer's inputs and outputs, over positions of the calibration samples.

use super::layer::Layer;
use crate::engine::Value;
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};
use rayon::prelude::*;

/// Positions looked at: at most so many per weight of a row, and so many more.
const POSITIONS_PER_WEIGHT: usize = 40;
const MORE_POSITIONS: usize = 10_000;

/// Second moments of one group of channels.
pub struct Moments {
    /// Sum of `b b^T`, `[n_in, n_in]`.
    pub bb: Mat<f64>,
    /// Sum of `b y^T`, `[n_in, outputs of the group]`.
    pub by: Mat<f64>,
    /// Sum of `b`; when finished, its mean.
    pub b: Vec<f64>,
    /// Sum of `y`.
    y: Vec<f64>,
    /// Positions.
    pub n: usize,
}

impl Moments {
    fn zero(n_in: usize, n_out: usize) -> Moments {
        Moments {
            bb: Mat::zeros(n_in, n_in),
            by: Mat::zeros(n_in, n_out),
            b: vec![0.0; n_in],
            y: vec![0.0; n_out],
            n: 0,
        }
    }

    /// The moments of some positions of one sample.
    fn of(layer: &Layer, group: usize, x: &Value, y: &Value, positions: &[usize]) -> Moments {
        let (n_in, n_out) = (layer.n_in, layer.n_out / layer.groups);
        let mut moments = Moments::zero(n_in, n_out);
        let patches = layer.patches(x, y, group, positions);
        let Some(outputs) = y.f32s().filter(|_| !patches.is_empty()) else { return moments };
        let mut targets = Vec::with_capacity(positions.len() * n_out);
        for &p in positions {
            let channels = group * n_out..(group + 1) * n_out;
            targets.extend(channels.map(|o| outputs[layer.out_at(y, o, p)]));
        }
        let b = MatRef::from_row_major_slice(&patches, positions.len(), n_in);
        let t = MatRef::from_row_major_slice(&targets, positions.len(), n_out);
        let product = |right: MatRef<f32>| {
            let mut out = vec![0f32; n_in * right.ncols()];
            let to = MatMut::from_column_major_slice_mut(&mut out, n_in, right.ncols());
            matmul(to, Accum::Replace, b.transpose(), right, 1.0, Par::Seq);
            Mat::from_fn(n_in, right.ncols(), |i, j| f64::from(out[j * n_in + i]))
        };
        moments.bb = product(b);
        moments.by = product(t);
        for patch in patches.chunks(n_in) {
            patch.iter().zip(&mut moments.b).for_each(|(v, sum)| *sum += f64::from(*v));
        }
        for target in targets.chunks(n_out) {
            target.iter().zip(&mut moments.y).for_each(|(v, sum)| *sum += f64::from(*v));
        }
        moments.n = positions.len();
        moments
    }

    fn add(&mut self, other: &Moments) {
        self.bb += &other.bb;
        self.by += &other.by;
        self.b.iter_mut().zip(&other.b).for_each(|(sum, v)| *sum += v);
        self.y.iter_mut().zip(&other.y).for_each(|(sum, v)| *sum += v);
        self.n += other.n;
    }

    /// Means of the products, about the means where `centred`.
    fn finish(mut self, centred: bool) -> Moments {
        let n = self.n.max(1) as f64;
        let (b, y) = (&self.b, &self.y);
        let about = |sum: f64, a: f64, b: f64| match centred {
            true => sum / n - a / n * (b / n),
            false => sum / n,
        };
        self.bb = Mat::from_fn(b.len(), b.len(), |i, j| about(self.bb[(i, j)], b[i], b[j]));
        self.by = Mat::from_fn(b.len(), y.len(), |i, j| about(self.by[(i, j)], b[i], y[j]));
        self.b.iter_mut().for_each(|sum| *sum /= n);
        self
    }
}

/// The positions of each sample that are looked at: at most about `wanted`, spread evenly.
fn positions<'a>(
    layer: &'a Layer,
    y: &'a [Value],
    wanted: usize,
) -> impl Fn(usize) -> Vec<usize> + Sync + 'a {
    let n_positions: usize = y.iter().map(|y| layer.n_positions(y)).sum();
    let stride = n_positions.div_ceil(wanted).max(1);
    // Another first position in each sample, so that not always the same places are seen.
    move |sample| (sample * 7 % stride..layer.n_positions(&y[sample])).step_by(stride).collect()
}

/// Variances of the inputs of every group, or mean squares unless `centred`: `[groups, n_in]`. Only the
/// shapes of `y` count.
pub fn variances(layer: &Layer, b: &[Value], y: &[Value], centred: bool) -> Vec<f64> {
    let positions = positions(layer, y, MORE_POSITIONS);
    let of = |group: usize| -> Vec<f64> {
        let (mut sums, mut squares) = (vec![0f64; layer.n_in], vec![0f64; layer.n_in]);
        let mut n = 0;
        for sample in 0..b.len() {
            let positions = positions(sample);
            let patches = layer.patches(&b[sample], &y[sample], group, &positions);
            for patch in patches.chunks(layer.n_in) {
                for ((sum, square), &x) in sums.iter_mut().zip(&mut squares).zip(patch) {
                    let x = f64::from(x);
                    *sum += x;
                    *square += x * x;
                }
            }
            n += positions.len();
        }
        let n = n.max(1) as f64;
        let mean = |sum: f64| if centred { sum / n } else { 0.0 };
        sums.iter().zip(&squares).map(|(s, q)| (q / n - mean(*s).powi(2)).max(0.0)).collect()
    };
    let groups: Vec<Vec<f64>> = (0..layer.groups).into_par_iter().map(of).collect();
    groups.concat()
}

/// Moments of every group over the samples, whatever the number of threads the same bits.
pub fn gather(layer: &Layer, b: &[Value], y: &[Value], centred: bool) -> Vec<Moments> {
    let positions = positions(layer, y, POSITIONS_PER_WEIGHT * layer.n_in + MORE_POSITIONS);
    let of = |group: usize, sample: usize| {
        Moments::of(layer, group, &b[sample], &y[sample], &positions(sample))
    };
    let zero = || Moments::zero(layer.n_in, layer.n_out / layer.groups);
    if layer.groups > 1 {
        let whole = |group: usize| {
            let mut sum = zero();
            (0..b.len()).for_each(|sample| sum.add(&of(group, sample)));
            sum.finish(centred)
        };
        return (0..layer.groups).into_par_iter().map(whole).collect();
    }
    let mut sum = zero();
    let samples: Vec<usize> = (0..b.len()).collect();
    for wave in samples.chunks(rayon::current_num_threads().max(1)) {
        let parts: Vec<Moments> = wave.par_iter().map(|&sample| of(0, sample)).collect();
        parts.iter().for_each(|part| sum.add(part));
    }
    vec![sum.finish(centred)]
}
