//! The cosine of the angle between two networks' outputs.

use super::layout::FloatOutput;
use super::metric::{Figure, FigureScale, Measure, Metric, SamplePair};
use super::value_and_error;

/// Cosine of the angle between both networks' outputs, mean over the samples; -1 if a value is NaN or infinite. `None`
/// for outputs of one value, or without values.
pub const COSINE: Metric = Metric {
    name: "cosine",
    title: "cosine",
    scale: FigureScale { decimals: 4, worst: -1.0, ..FigureScale::SHARE },
    about: "cosine of the angle between the outputs, mean over the samples",
    task: None,
    prepare: |outputs, _| Box::new(Cosine { have_angles: outputs.iter().map(has_angle).collect() }),
};

/// Sums per output: cosines, samples with values.
const N_SUMS: usize = 2;

#[derive(Debug)]
struct Cosine {
    /// Whether each output has more than one value.
    have_angles: Vec<bool>,
}

fn has_angle(output: &FloatOutput) -> bool {
    output.samples.iter().all(|values| values.len() != 1)
}

/// Returns the cosine of two vectors: 1 if both are 0, 0 if one is 0, NaN if a value is NaN or infinite. An infinity at
/// the same place in both counts as 0.
pub fn cosine(float: &[f32], quantized: &[f32]) -> f64 {
    let (mut product, mut squares) = (0.0, [0.0; 2]);
    for (&a, &b) in float.iter().zip(quantized) {
        let (value, error) = value_and_error(a, b);
        let other = value - error;
        product += value * other;
        squares[0] += value * value;
        squares[1] += other * other;
    }
    match squares {
        [0.0, 0.0] => 1.0,
        [a, b] if a == 0.0 || b == 0.0 => 0.0,
        [a, b] => product / (a.sqrt() * b.sqrt()),
    }
}

impl Measure for Cosine {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let of = |output_idx| match sample.output(output_idx).filter(|output| !output.float.is_empty()) {
            Some(output) => [cosine(output.float, output.quantized), 1.0],
            None => [0.0; N_SUMS],
        };
        (0..self.have_angles.len()).flat_map(of).collect()
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        let figure = |(sums, has_angle): (&[f64], &bool)| {
            let mean = sums[0] / sums[1];
            (*has_angle && sums[1] > 0.0)
                .then(|| Figure::of(if mean.is_finite() { mean.clamp(-1.0, 1.0) } else { -1.0 }))
        };
        sums.chunks_exact(N_SUMS).zip(&self.have_angles).map(figure).collect()
    }
}
