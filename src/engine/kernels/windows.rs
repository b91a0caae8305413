//! Sliding windows over planes of float32, in vectors of pulp.
//!
//! A plane is copied with its padding and split into phases: with a stride of 2, into even and odd rows and columns. So
//! each tap of the window is a constant offset for all strides and dilations, and adjacent outputs read adjacent
//! values. Several rows of the output are computed as one line; the few values between two rows are discarded. Every
//! value is computed by the same steps in the same order, wherever it is in the output.

use pulp::{Arch, Simd, WithSimd};
use std::array;
use std::marker::PhantomData;
use std::ops::Range;
use tract_onnx::tract_core::ops::cnn::PoolSpec;
use tract_onnx::tract_core::ops::nn::DataFormat;

/// Number of output planes of a block.
const CHANNELS: usize = 6;
/// Number of values in the phases of all planes for a line: they stay in the second-level cache.
const GROUP: usize = 65_536;
/// Maximum length of a line of several rows: some kilobytes, which stay in the first-level cache.
const LINE: usize = 2048;
/// Extra values of a buffer: more than a vector has lanes on any machine.
pub const SLACK: usize = 64;

/// Positions of a window along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Positions {
    input: usize,
    output: usize,
    before: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
}

impl Positions {
    /// Returns the number of phases that taps read.
    fn phases(&self) -> usize {
        self.stride.min((self.kernel - 1) * self.dilation + 1)
    }

    /// Returns the difference in length between a phase and the output.
    fn overhang(&self) -> usize {
        (self.kernel - 1) * self.dilation / self.stride
    }

    /// Returns the phase of each tap, and the offset of the tap in the phase.
    fn taps(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.kernel).map(move |tap| (tap * self.dilation % self.stride, tap * self.dilation / self.stride))
    }

    /// Returns the part of a phase that holds input, and the position of its first value in the input.
    fn inside(&self, phase: usize) -> (Range<usize>, usize) {
        let begin = self.before.saturating_sub(phase).div_ceil(self.stride);
        let end = (self.input + self.before).saturating_sub(phase).div_ceil(self.stride);
        (begin..end.min(self.output + self.overhang()), begin * self.stride + phase - self.before)
    }
}

/// Windows over planes of one size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Windows {
    rows: Positions,
    columns: Positions,
}

/// The reduction of a window to one value, by a step for each tap.
pub trait WindowStep {
    /// The value of positions outside the plane.
    const OUTSIDE: f32;
    /// Returns the result so far, updated with the values `x` of a tap.
    fn step<S: Simd>(simd: S, so_far: S::f32s, x: S::f32s, weight: S::f32s) -> S::f32s;
}

/// The parameters of the steps for one output plane.
pub struct Weights<'a> {
    /// The result before the first tap.
    pub first: f32,
    /// The weight of each tap.
    pub taps: &'a [f32],
}

impl Windows {
    /// Returns the windows of a pooling or convolution over an input of this shape. Returns `None` for channels last,
    /// more than two axes, and padding that would take many times the memory of the planes.
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
        let sizes = [&rows, &columns].map(|axis| axis.phases().checked_mul(axis.output.checked_add(axis.overhang())?));
        let phases = sizes[0].zip(sizes[1]).and_then(|(rows, columns)| rows.checked_mul(columns))?;
        (out_len > 0 && phases <= 4 * (in_len + out_len) + (1 << 16)).then_some(Windows { rows, columns })
    }

    /// Returns the number of taps of a window.
    pub fn n_taps(&self) -> usize {
        self.rows.kernel * self.columns.kernel
    }

    /// Returns the number of values of an output plane.
    pub fn out_len(&self) -> usize {
        self.rows.output * self.columns.output
    }

    /// Returns the rows and columns of an output plane.
    pub fn out_size(&self) -> [usize; 2] {
        [self.rows.output, self.columns.output]
    }

    /// Returns the number of values of an input plane.
    pub fn in_len(&self) -> usize {
        self.rows.input * self.columns.input
    }

    /// Returns the length of a row of a phase.
    pub fn pitch(&self) -> usize {
        self.columns.output + self.columns.overhang()
    }

    /// Writes all planes of `output`. Each `planes` input planes give `each` output planes. `weights` has an entry for
    /// each output plane of a sample, with the taps of all its input planes.
    pub fn run<F: WindowStep>(
        &self,
        input: &[f32],
        [planes, each]: [usize; 2],
        weights: &[Weights],
        output: &mut [f32],
    ) {
        let lines = self.lines(planes);
        let mut phases = vec![F::OUTSIDE; planes * lines.plane_len + SLACK];
        let mut sums = vec![0.0; CHANNELS.min(each) * (lines.n_rows * self.pitch() + SLACK)];
        let outputs = output.chunks_exact_mut(each * self.out_len());
        let weights = weights.chunks_exact(each).cycle();
        for ((input, output), weights) in input.chunks_exact(planes * self.in_len()).zip(outputs).zip(weights) {
            let (phases, sums, step) = (&mut phases[..], &mut sums[..], PhantomData::<F>);
            let (windows, lines) = (self, &lines);
            Arch::new().dispatch(OneGroup { windows, lines, input, weights, phases, sums, output, step });
        }
    }

    /// Returns windows of 4×4 with stride 2, each with the inputs of 2×2 of these windows; `None` unless these windows
    /// are 3×3 with stride and dilation 1.
    pub fn tiles(&self) -> Option<Windows> {
        let axis = |axis: Positions| {
            let Positions { output, kernel: 3, stride: 1, dilation: 1, .. } = axis else { return None };
            Some(Positions { output: output.div_ceil(2), kernel: 4, stride: 2, ..axis })
        };
        Some(Windows { rows: axis(self.rows)?, columns: axis(self.columns)? })
    }

    /// Returns the lines of output rows that are computed from `planes` input planes.
    pub fn lines(&self, planes: usize) -> RowLines {
        let (rows, columns, pitch) = (self.rows, self.columns, self.pitch());
        let n_phases = rows.phases() * columns.phases();
        let n_rows = (LINE.min(GROUP / planes / n_phases) / pitch).clamp(1, rows.output);
        let n_rows = rows.output.div_ceil(rows.output.div_ceil(n_rows));
        let phase_len = (n_rows + rows.overhang()) * pitch;
        let offset = |plane: usize, (phase_y, y): (usize, usize), (phase_x, x): (usize, usize)| {
            ((plane * rows.phases() + phase_y) * columns.phases() + phase_x) * phase_len + y * pitch + x
        };
        let of_row = |plane, row| columns.taps().map(move |column| offset(plane, row, column));
        let of_plane = |plane| rows.taps().flat_map(move |row| of_row(plane, row));
        let offsets = (0..planes).flat_map(of_plane).collect();
        let lines_at = (0..rows.output).step_by(n_rows);
        let copies = lines_at.map(|y| (y, self.row_copies(y, phase_len))).collect();
        RowLines { n_rows, offsets, copies, plane_len: n_phases * phase_len }
    }

    /// Returns the first row of the output in a line, and the number of its rows.
    pub fn rows_of(&self, lines: &RowLines, line: usize) -> (usize, usize) {
        let y = lines.copies[line].0;
        (y, lines.n_rows.min(self.rows.output - y))
    }

    /// Returns the length of a line of rows, with the values between two rows.
    pub fn line_len(&self, n_rows: usize) -> usize {
        (n_rows - 1) * self.pitch() + self.columns.output
    }

    /// Fills the phases of all input planes for a line. Positions outside a plane get `outside`.
    #[inline(always)]
    pub fn fill(&self, lines: &RowLines, line: usize, input: &[f32], outside: f32, phases: &mut [f32]) {
        for (input, phases) in input.chunks_exact(self.in_len()).zip(phases.chunks_exact_mut(lines.plane_len)) {
            for RowCopy { from, to } in &lines.copies[line].1 {
                match from {
                    Some(from) => copy_strided(&input[*from..], self.columns.stride, &mut phases[to.clone()]),
                    None => phases[to.clone()].fill(outside),
                }
            }
        }
    }

    /// Returns the copies from a plane to its phases for a line that begins with row `y` of the output.
    fn row_copies(&self, y: usize, phase_len: usize) -> Vec<RowCopy> {
        let (rows, columns, pitch) = (self.rows, self.columns, self.pitch());
        let inside: Vec<(Range<usize>, usize)> = (0..columns.phases()).map(|phase| columns.inside(phase)).collect();
        let mut copies = Vec::new();
        for (phase_y, row) in (0..rows.phases()).flat_map(|phase| (0..phase_len / pitch).map(move |row| (phase, row))) {
            let from = ((y + row) * rows.stride + phase_y).checked_sub(rows.before).filter(|&y| y < rows.input);
            // Where one line has all rows, rows outside keep their first value.
            if from.is_none() && phase_len == (rows.output + rows.overhang()) * pitch {
                continue;
            }
            for (phase_x, (inside, first)) in inside.iter().enumerate().filter(|(_, (inside, _))| !inside.is_empty()) {
                let to = (phase_y * columns.phases() + phase_x) * phase_len + row * pitch;
                let to = to + inside.start..to + inside.end;
                copies.push(RowCopy { from: from.map(|y| y * columns.input + first), to });
            }
        }
        copies
    }
}

/// The lines of an output plane, each of several rows, and the values that a line reads.
pub struct RowLines {
    /// Rows of the output in a line; the last line may have fewer.
    pub n_rows: usize,
    /// The offset of each tap in the phases.
    pub offsets: Vec<usize>,
    /// For each line its first row, and the copies from a plane to its phases.
    copies: Vec<(usize, Vec<RowCopy>)>,
    /// Length of the phases of a plane.
    pub plane_len: usize,
}

/// A copy of values of a row to a phase.
struct RowCopy {
    /// Position of the first value in the plane; `None` for a row outside.
    from: Option<usize>,
    to: Range<usize>,
}

/// Output planes that are computed from the same input planes.
struct OneGroup<'a, F> {
    windows: &'a Windows,
    lines: &'a RowLines,
    input: &'a [f32],
    weights: &'a [Weights<'a>],
    phases: &'a mut [f32],
    sums: &'a mut [f32],
    output: &'a mut [f32],
    step: PhantomData<F>,
}

impl<F: WindowStep> WithSimd for OneGroup<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let OneGroup { windows, lines, input, weights, phases, sums, output, .. } = self;
        let (width, pitch) = (windows.columns.output, windows.pitch());
        for line in 0..lines.n() {
            windows.fill(lines, line, input, F::OUTSIDE, phases);
            let (y, n_rows) = windows.rows_of(lines, line);
            let n_vectors = windows.line_len(n_rows).div_ceil(S::F32_LANES);
            for (weights, output) in weights.chunks(CHANNELS).zip(output.chunks_mut(CHANNELS * windows.out_len())) {
                let sums = S::as_mut_simd_f32s(sums).0;
                compute_lines::<S, F>(simd, weights, phases, &lines.offsets, sums, n_vectors);
                let sums: &[f32] = pulp::bytemuck::cast_slice(sums);
                let sums = sums.chunks(n_vectors * S::F32_LANES);
                for (output, line) in output.chunks_exact_mut(windows.out_len()).zip(sums) {
                    let rows = output[y * width..][..n_rows * width].chunks_exact_mut(width);
                    for (row, from) in rows.zip(line.chunks(pitch)) {
                        row.copy_from_slice(&from[..width]);
                    }
                }
            }
        }
    }
}

impl RowLines {
    /// Returns the number of lines.
    pub fn n(&self) -> usize {
        self.copies.len()
    }
}

/// Copies every `step`-th value.
#[inline(always)]
fn copy_strided(from: &[f32], step: usize, to: &mut [f32]) {
    match step {
        1 => to.copy_from_slice(&from[..to.len()]),
        2 => {
            // The compiler vectorizes loops over pairs. The last value may have no pair.
            let (pairs, end) = (from.chunks_exact(2), 2 * (to.len() - 1));
            to[end / 2] = from[end];
            to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
        }
        _ => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, x)| *to = *x),
    }
}

/// Computes a line of one to [`CHANNELS`] output planes, each of `n` vectors.
#[inline(always)]
fn compute_lines<S: Simd, F: WindowStep>(
    simd: S,
    weights: &[Weights],
    phases: &[f32],
    offsets: &[usize],
    lines: &mut [S::f32s],
    n: usize,
) {
    let lines = &mut lines[..weights.len() * n];
    match weights {
        [a] => match (offsets.try_into(), a.taps.try_into()) {
            (Ok(offsets), Ok(taps)) => line_of_fixed_taps::<S, F, 9>(simd, a.first, phases, offsets, taps, lines),
            _ => lines_of_any_taps::<S, F, 1, 4>(simd, [a], phases, offsets, lines),
        },
        [a, b] => lines_of_any_taps::<S, F, 2, 4>(simd, [a, b], phases, offsets, lines),
        [a, b, c] => lines_of_any_taps::<S, F, 3, 2>(simd, [a, b, c], phases, offsets, lines),
        [a, b, c, d] => lines_of_any_taps::<S, F, 4, 2>(simd, [a, b, c, d], phases, offsets, lines),
        [a, b, c, d, e] => lines_of_any_taps::<S, F, 5, 2>(simd, [a, b, c, d, e], phases, offsets, lines),
        [a, b, c, d, e, f, ..] => lines_of_any_taps::<S, F, 6, 2>(simd, [a, b, c, d, e, f], phases, offsets, lines),
        [] => {}
    }
}

/// Computes a line of one output plane, all `N` taps of a window at once.
#[inline(always)]
fn line_of_fixed_taps<S: Simd, F: WindowStep, const N: usize>(
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

/// Computes a line of `C` output planes with any number of taps, `N` vectors at a time: as many sums as fit in the
/// registers of the processor.
#[inline(always)]
fn lines_of_any_taps<S: Simd, F: WindowStep, const C: usize, const N: usize>(
    simd: S,
    weights: [&Weights; C],
    phases: &[f32],
    offsets: &[usize],
    lines: &mut [S::f32s],
) {
    let (n, mut at) = (lines.len() / C, 0);
    while at + N <= n {
        compute_block::<S, F, C, N>(simd, weights, &phases[at * S::F32_LANES..], offsets, &mut lines[at..], n);
        at += N;
    }
    while at < n {
        compute_block::<S, F, C, 1>(simd, weights, &phases[at * S::F32_LANES..], offsets, &mut lines[at..], n);
        at += 1;
    }
}

/// Computes the first `N` vectors of each of `C` lines of `n` vectors.
#[inline(always)]
fn compute_block<S: Simd, F: WindowStep, const C: usize, const N: usize>(
    simd: S,
    weights: [&Weights; C],
    phases: &[f32],
    offsets: &[usize],
    lines: &mut [S::f32s],
    n: usize,
) {
    let mut so_far = weights.map(|weights| [simd.splat_f32s(weights.first); N]);
    let taps = weights.map(|weights| &weights.taps[..offsets.len()]);
    for (tap, &offset) in offsets.iter().enumerate() {
        let x = &S::as_simd_f32s(&phases[offset..]).0[..N];
        for (so_far, taps) in so_far.iter_mut().zip(taps) {
            let weight = simd.splat_f32s(taps[tap]);
            for (so_far, &x) in so_far.iter_mut().zip(x) {
                *so_far = F::step(simd, *so_far, x, weight);
            }
        }
    }
    for (line, so_far) in lines.chunks_mut(n).zip(so_far) {
        line[..N].copy_from_slice(&so_far);
    }
}
