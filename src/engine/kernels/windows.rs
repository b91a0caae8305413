//! Sliding windows over planes of float32, vectorised: the only place with pulp, but for the step of a kernel.
//!
//! A plane is copied with its padding and split into phases: with a stride of 2, even and odd rows and columns apart. So
//! each tap of the window is a constant offset for all strides and dilations, and neighbours of the output meet neighbours.
//! Some rows of the output are computed as one line, with the few values between two rows, which are left out. Every value
//! is computed by the same steps in the same order, wherever it stands.

use pulp::{Arch, Simd, WithSimd};
use std::array;
use tract_onnx::tract_core::ops::cnn::PoolSpec;
use tract_onnx::tract_core::ops::nn::DataFormat;

/// Vectors of a block: as many windows are under way at a time.
const BLOCK: usize = 4;
/// Length that a line of whole rows comes to: some kilobytes, that stay in the nearest cache.
const LINE: usize = 2048;
/// More lanes than a vector has on any machine.
const SLACK: usize = 64;

/// Positions of a window along one axis.
#[derive(Clone, Copy)]
struct Positions {
    input: usize,
    output: usize,
    before: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
}

impl Positions {
    /// Number of phases that taps read.
    fn phases(&self) -> usize {
        self.stride.min((self.kernel - 1) * self.dilation + 1)
    }

    /// Length of a phase.
    fn len(&self) -> usize {
        self.output + (self.kernel - 1) * self.dilation / self.stride
    }

    /// The phase of each tap, and where in it the tap begins.
    fn taps(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.kernel).map(move |tap| (tap * self.dilation % self.stride, tap * self.dilation / self.stride))
    }

    /// The part of a phase that holds input, as begin and end, and the first input in it.
    fn inside(&self, phase: usize) -> (usize, usize, usize) {
        let begin = self.before.saturating_sub(phase).div_ceil(self.stride);
        let end = (self.input + self.before).saturating_sub(phase).div_ceil(self.stride).min(self.len());
        (begin, end.max(begin), begin * self.stride + phase - self.before)
    }
}

/// Values of a row that a phase takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Taken {
    from: usize,
    to: usize,
    len: usize,
}

/// Windows over planes of one size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Windows {
    in_len: usize,
    /// Rows and columns of an output plane.
    out: [usize; 2],
    /// Length of a row of a phase.
    pitch: usize,
    /// Length of all phases.
    phases: usize,
    taken: Vec<Taken>,
    /// Distance of values in a row that a phase takes.
    step: usize,
    /// For each tap its place in the phases.
    offsets: Vec<usize>,
}

/// The values of a window become one by a step for each tap.
pub trait WindowStep {
    /// The value of what is not in the plane.
    const OUTSIDE: f32;
    /// The result so far with the values `x` of a tap.
    fn step<S: Simd>(simd: S, so_far: S::f32s, x: S::f32s, weight: S::f32s) -> S::f32s;
}

/// Numbers of the steps of one output plane.
pub struct Weights<'a> {
    /// The result before the first tap.
    pub first: f32,
    /// For each tap.
    pub taps: &'a [f32],
}

impl Windows {
    /// The windows of a pooling or convolution over an input of this shape; `None` where they are not for this module:
    /// channels last, more than two axes, or padding that would take many times the memory of the planes.
    pub fn new(spec: &PoolSpec, shape: &[usize]) -> Option<Windows> {
        let axes = spec.rank();
        let rank = axes
            + match spec.data_format {
                DataFormat::NCHW => 2,
                DataFormat::CHW => 1,
                DataFormat::NHWC | DataFormat::HWC => return None,
            };
        if !(1..=2).contains(&axes) || shape.len() != rank || shape.contains(&0) {
            return None;
        }
        let sizes = &shape[rank - axes..];
        let padding = spec.computed_padding(sizes);
        let along = |axis: usize| Positions {
            input: sizes[axis],
            output: padding[axis].convoluted,
            before: padding[axis].pad_before,
            kernel: spec.kernel_shape[axis],
            stride: spec.stride(axis),
            dilation: spec.dilation(axis),
        };
        let one = Positions { input: 1, output: 1, before: 0, kernel: 1, stride: 1, dilation: 1 };
        let (rows, columns) = if axes == 1 { (one, along(0)) } else { (along(0), along(1)) };
        let (in_len, out_len) = (rows.input * columns.input, rows.output * columns.output);
        let sizes = [rows.phases(), rows.len(), columns.phases(), columns.len()];
        let phases = sizes.into_iter().try_fold(1usize, usize::checked_mul)?;
        (out_len > 0 && phases <= 4 * (in_len + out_len) + (1 << 16)).then(|| Windows {
            in_len,
            out: [rows.output, columns.output],
            pitch: columns.len(),
            phases,
            taken: taken(rows, columns),
            step: columns.stride,
            offsets: rows
                .taps()
                .flat_map(|row| columns.taps().map(move |column| (row, column)))
                .map(|((phase_y, y), (phase_x, x))| place(rows, columns, [phase_y, phase_x]) + y * columns.len() + x)
                .collect(),
        })
    }

    /// Number of taps of a window.
    pub fn n_taps(&self) -> usize {
        self.offsets.len()
    }

    /// Number of values of an output plane.
    pub fn out_len(&self) -> usize {
        self.out[0] * self.out[1]
    }

    /// Writes each plane of `output`. Input plane `i` belongs to the planes of `output` from `i * multiplier` on, and
    /// these to the weights from `i * multiplier` on, which begin anew behind the last.
    pub fn run<F: WindowStep>(&self, input: &[f32], multiplier: usize, weights: &[Weights], output: &mut [f32]) {
        let mut phases = vec![F::OUTSIDE; self.phases + SLACK];
        let mut line = vec![0.0; LINE.max(self.pitch) + SLACK];
        let outputs = output.chunks_exact_mut(multiplier * self.out_len());
        let weights = weights.chunks_exact(multiplier).cycle();
        for ((input, output), weights) in input.chunks_exact(self.in_len).zip(outputs).zip(weights) {
            let (windows, phases, line) = (self, &mut phases[..], &mut line[..]);
            let step = std::marker::PhantomData::<F>;
            Arch::new().dispatch(OnePlane { windows, input, weights, phases, line, output, step });
        }
    }
}

/// Where the phase `[y, x]` begins.
fn place(rows: Positions, columns: Positions, [y, x]: [usize; 2]) -> usize {
    (y * columns.phases() + x) * rows.len() * columns.len()
}

fn taken(rows: Positions, columns: Positions) -> Vec<Taken> {
    let mut taken = Vec::new();
    for phase_y in 0..rows.phases() {
        let (begin, end, first) = rows.inside(phase_y);
        for row in begin..end {
            let y = first + (row - begin) * rows.stride;
            for phase_x in 0..columns.phases() {
                let (begin, end, first) = columns.inside(phase_x);
                let to = place(rows, columns, [phase_y, phase_x]) + row * columns.len() + begin;
                taken.push(Taken { from: y * columns.input + first, to, len: end - begin });
            }
        }
    }
    taken.retain(|taken| taken.len > 0);
    taken
}

struct OnePlane<'a, F> {
    windows: &'a Windows,
    input: &'a [f32],
    weights: &'a [Weights<'a>],
    phases: &'a mut [f32],
    line: &'a mut [f32],
    output: &'a mut [f32],
    step: std::marker::PhantomData<F>,
}

impl<F: WindowStep> WithSimd for OnePlane<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let OnePlane { windows, input, weights, phases, line, output, .. } = self;
        let ([_, width], pitch) = (windows.out, windows.pitch);
        for Taken { from, to, len } in &windows.taken {
            take(&input[*from..], windows.step, &mut phases[*to..][..*len]);
        }
        let n_rows = (LINE / pitch).max(1);
        for (weights, output) in weights.iter().zip(output.chunks_exact_mut(windows.out_len())) {
            for (group, rows) in output.chunks_mut(n_rows * width).enumerate() {
                let len = (rows.len() / width - 1) * pitch + width;
                let phases = &phases[group * n_rows * pitch..];
                let line_to = &mut S::as_mut_simd_f32s(line).0[..len.div_ceil(S::F32_LANES)];
                match (windows.offsets[..].try_into(), weights.taps.try_into()) {
                    (Ok(offsets), Ok(taps)) => few::<S, F, 9>(simd, weights.first, phases, offsets, taps, line_to),
                    _ => many::<S, F>(simd, weights, phases, &windows.offsets, line_to),
                }
                for (row, from) in rows.chunks_exact_mut(width).zip(line.chunks(pitch)) {
                    row.copy_from_slice(&from[..width]);
                }
            }
        }
    }
}

/// Copies every `step`-th value.
#[inline(always)]
fn take(from: &[f32], step: usize, to: &mut [f32]) {
    match step {
        1 => to.copy_from_slice(&from[..to.len()]),
        2 => {
            // The compiler makes vectors of pairs. The last value may have no pair.
            let (pairs, end) = (from.chunks_exact(2), 2 * (to.len() - 1));
            to[end / 2] = from[end];
            to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
        }
        _ => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, x)| *to = *x),
    }
}

/// A line of windows of `N` taps, each window at once.
#[inline(always)]
fn few<S: Simd, F: WindowStep, const N: usize>(
    simd: S,
    first: f32,
    phases: &[f32],
    offsets: &[usize; N],
    weights: &[f32; N],
    line: &mut [S::f32s],
) {
    let taps: [&[S::f32s]; N] = array::from_fn(|tap| &S::as_simd_f32s(&phases[offsets[tap]..]).0[..line.len()]);
    let (first, weights) = (simd.splat_f32s(first), weights.map(|weight| simd.splat_f32s(weight)));
    for (i, to) in line.iter_mut().enumerate() {
        *to = (0..N).fold(first, |so_far, tap| F::step(simd, so_far, taps[tap][i], weights[tap]));
    }
}

/// A line of windows of any number of taps, several windows at a time.
#[inline(always)]
fn many<S: Simd, F: WindowStep>(simd: S, weights: &Weights, phases: &[f32], offsets: &[usize], line: &mut [S::f32s]) {
    let (blocks, rest) = line.as_chunks_mut::<BLOCK>();
    let at = blocks.len() * BLOCK * S::F32_LANES;
    for (i, to) in blocks.iter_mut().enumerate() {
        *to = block::<S, F, BLOCK>(simd, weights, &phases[i * BLOCK * S::F32_LANES..], offsets);
    }
    for (i, to) in rest.iter_mut().enumerate() {
        [*to] = block::<S, F, 1>(simd, weights, &phases[at + i * S::F32_LANES..], offsets);
    }
}

/// `N` vectors of windows.
#[inline(always)]
fn block<S: Simd, F: WindowStep, const N: usize>(
    simd: S,
    weights: &Weights,
    phases: &[f32],
    offsets: &[usize],
) -> [S::f32s; N] {
    let mut so_far = [simd.splat_f32s(weights.first); N];
    for (&offset, &weight) in offsets.iter().zip(weights.taps) {
        let (x, weight) = (&S::as_simd_f32s(&phases[offset..]).0[..N], simd.splat_f32s(weight));
        for (so_far, &x) in so_far.iter_mut().zip(x) {
            *so_far = F::step(simd, *so_far, x, weight);
        }
    }
    so_far
}
