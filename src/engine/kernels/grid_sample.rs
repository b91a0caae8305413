//! Values of an image at given positions.
//!
//! The pixels of a position and their weights are found once for all channels. Cubic sampling with border padding is taken
//! over because the engine limits its coordinates (tract 0.23.9), as ONNX Runtime does not.
//!
//! Source: ONNX `GridSample`.

use super::{Replacement, TakenOver, replaced_by};
use tract_onnx::tract_core::ops::nn::{GridSample, InterpolationMode, PaddingMode};
use tract_onnx::tract_hir::internal::*;

/// Maximum number of sampled axes.
const MAX_AXES: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
struct GridSampleOp(GridSample);

/// A pixel that contributes to a sampled value.
#[derive(Debug, Clone, Copy, Default)]
struct Tap {
    /// Position in the plane of a channel; the end of the plane, where a 0 is stored, for a pixel outside.
    at: usize,
    weight: f32,
}

/// Takes over grid sampling of float32, nearest or linear, along up to three axes.
pub(super) fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(op) = node.op_as::<GridSample>() else { return Ok(None) };
    let (x, grid) = (model.outlet_fact(node.inputs[0])?, model.outlet_fact(node.inputs[1])?);
    let is_float = [x, grid].iter().all(|fact| fact.datum_type == DatumType::F32);
    let has_pixels = x.shape.as_concrete().is_some_and(|shape| !shape.contains(&0));
    let is_taken = is_float
        && has_pixels
        && match op.mode {
            InterpolationMode::Bicubic => op.padding_mode == PaddingMode::Border && x.rank() == 4,
            _ => (3..=MAX_AXES + 2).contains(&x.rank()),
        };
    Ok(is_taken.then(|| replaced_by(GridSampleOp(op.clone()))))
}

impl GridSampleOp {
    fn is_nearest(&self) -> bool {
        self.0.mode == InterpolationMode::Nearest
    }

    fn is_cubic(&self) -> bool {
        self.0.mode == InterpolationMode::Bicubic
    }

    /// Returns the number of pixels of an axis that contribute to a value.
    fn taps_per_axis(&self) -> usize {
        match self.0.mode {
            InterpolationMode::Nearest => 1,
            InterpolationMode::Bilinear => 2,
            InterpolationMode::Bicubic => 4,
        }
    }

    /// Returns the first and the last coordinate of an axis of `size` pixels.
    fn ends(&self, size: usize) -> (f32, f32) {
        match self.0.align_corners {
            true => (0.0, size as f32 - 1.0),
            false => (-0.5, size as f32 - 0.5),
        }
    }

    /// Converts a coordinate from -1 to 1 to pixels.
    fn pixel(&self, position: f32, size: usize) -> f32 {
        match self.0.align_corners {
            true => (position + 1.0) / 2.0 * (size as f32 - 1.0),
            false => ((position + 1.0) * size as f32 - 1.0) / 2.0,
        }
    }

    /// Returns the index of a pixel on an axis of `size` pixels; `None` for a pixel outside that counts as 0.
    fn index(&self, pixel: i64, size: usize) -> Option<usize> {
        let last = size as i64 - 1;
        let inside = match self.0.padding_mode {
            PaddingMode::Zeros => Some(pixel).filter(|pixel| (0..=last).contains(pixel))?,
            PaddingMode::Border => pixel.clamp(0, last),
            PaddingMode::Reflection => (reflected(pixel as f32, self.ends(size)) as i64).clamp(0, last),
        };
        usize::try_from(inside).ok()
    }

    /// Finds the pixels of one position, whose first coordinate is that of the last axis.
    fn find(&self, position: &[f32], sizes: &[usize], taps: &mut [Tap]) {
        let mut coordinates = [0.0f32; MAX_AXES];
        let axes = || sizes.iter().zip(position.iter().rev());
        for (coordinate, (&size, &position)) in coordinates.iter_mut().zip(axes()) {
            *coordinate = self.pixel(position, size);
            if self.is_nearest() {
                *coordinate = coordinate.round_ties_even();
            }
        }
        let is_outside = |(coordinate, &size): (&f32, &usize)| {
            let (first, last) = self.ends(size);
            *coordinate < first || *coordinate > last
        };
        if !self.is_cubic() && coordinates.iter().zip(sizes).any(is_outside) {
            for (coordinate, &size) in coordinates.iter_mut().zip(sizes) {
                *coordinate = match self.0.padding_mode {
                    PaddingMode::Zeros => *coordinate,
                    PaddingMode::Border => coordinate.clamp(0.0, size as f32 - 1.0),
                    PaddingMode::Reflection => reflected(*coordinate, self.ends(size)),
                };
            }
        }
        let outside = sizes.iter().product();
        for (corner, tap) in taps.iter_mut().enumerate() {
            let (mut at, mut weight, mut corner) = (Some(0), 1.0, corner);
            for (&coordinate, &size) in coordinates.iter().zip(sizes) {
                let step = corner % self.taps_per_axis();
                corner /= self.taps_per_axis();
                let low = if self.is_nearest() { coordinate as i64 } else { coordinate.floor() as i64 };
                let next = low.saturating_add(1);
                let (of_axis, pixel) = match (&self.0.mode, step) {
                    (InterpolationMode::Nearest, _) => (1.0, low),
                    (InterpolationMode::Bilinear, 0) => (next as f32 - coordinate, low),
                    (InterpolationMode::Bilinear, _) => (coordinate - low as f32, next),
                    (InterpolationMode::Bicubic, _) => {
                        (cubic_weight(coordinate - low as f32, step), low.saturating_add(step as i64 - 1))
                    }
                };
                weight *= of_axis;
                at = at.zip(self.index(pixel, size)).map(|(at, index)| at * size + index);
            }
            *tap = Tap { at: at.unwrap_or(outside), weight };
        }
    }
}

/// Returns the weight of pixel `step` of four, where the coordinate is `beyond` the second, 0 to 1.
///
/// Source: ONNX Runtime, `core/providers/cpu/tensor/grid_sample.cc`.
fn cubic_weight(beyond: f32, step: usize) -> f32 {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    match step {
        0 => far(beyond + 1.0),
        1 => near(beyond),
        2 => near(1.0 - beyond),
        _ => far(2.0 - beyond),
    }
}

/// Returns a coordinate reflected at the ends of an axis until it is between them.
fn reflected(coordinate: f32, (first, last): (f32, f32)) -> f32 {
    let (length, beyond) = (last - first, if coordinate < first { first - coordinate } else { coordinate - last });
    if length == 0.0 {
        return first;
    }
    if !(coordinate < first || coordinate > last) {
        return coordinate;
    }
    let n = (beyond / length) as i32;
    let rest = beyond - n as f32 * length;
    match (coordinate < first) == (n % 2 == 0) {
        true => first + rest,
        false => last - rest,
    }
}

impl Replacement for GridSampleOp {
    fn name(&self) -> &'static str {
        "mqq.GridSample"
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.0
    }

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, grid) = args_2!(inputs);
        let ([n, channels, sizes @ ..], [_, positions @ .., _]) = (x.shape(), grid.shape()) else {
            bail!("the inputs have ranks {} and {}, expected 3 or more", x.rank(), grid.rank())
        };
        let shape: TVec<usize> = [*n, *channels].iter().chain(positions).copied().collect();
        let (n_pixels, n_positions) = (sizes.iter().product::<usize>(), positions.iter().product::<usize>());
        let n_taps = self.taps_per_axis().pow(sizes.len() as u32);
        let mut y = Tensor::zero::<f32>(&shape)?;
        if n_positions == 0 {
            return Ok(tvec!(y.into_tvalue()));
        }
        let (x, grid) = (x.try_as_plain_ram()?.as_slice::<f32>()?, grid.try_as_plain_ram()?.as_slice::<f32>()?);
        let mut taps = vec![Tap::default(); n_positions * n_taps];
        // The last value, 0, stands for pixels outside.
        let mut plane = vec![0.0; n_pixels + 1];
        let samples = x.chunks_exact(channels * n_pixels).zip(grid.chunks_exact(n_positions * sizes.len()));
        let mut results = y.try_as_plain_ram_mut()?;
        for ((x, grid), y) in samples.zip(results.as_slice_mut::<f32>()?.chunks_exact_mut(channels * n_positions)) {
            for (position, taps) in grid.chunks_exact(sizes.len()).zip(taps.chunks_exact_mut(n_taps)) {
                self.find(position, sizes, taps);
            }
            for (x, y) in x.chunks_exact(n_pixels).zip(y.chunks_exact_mut(n_positions)) {
                plane[..n_pixels].copy_from_slice(x);
                match n_taps {
                    1 => sample::<1>(&plane, &taps, y),
                    2 => sample::<2>(&plane, &taps, y),
                    4 => sample::<4>(&plane, &taps, y),
                    8 => sample::<8>(&plane, &taps, y),
                    _ => sample::<16>(&plane, &taps, y),
                }
            }
        }
        Ok(tvec!(y.into_tvalue()))
    }
}

/// Writes weighted sums of `N` pixels each to `y`.
fn sample<const N: usize>(plane: &[f32], taps: &[Tap], y: &mut [f32]) {
    for (y, taps) in y.iter_mut().zip(taps.as_chunks::<N>().0) {
        *y = taps.iter().fold(0.0, |sum, tap| sum + tap.weight * plane[tap.at]);
    }
}
