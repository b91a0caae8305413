//! The largest difference of a single value.

use super::metric::{Better, Figure, FigureScale, Measure, Metric, SamplePair};
use super::value_and_error;

/// Largest absolute difference of a value, in the output's unit; infinite if a value is NaN or infinite. `None`
/// without values.
pub const MAX_ERROR: Metric = Metric {
    name: "max-error",
    title: "largest difference",
    scale: FigureScale { unit: "", decimals: 4, better: Better::Lower, best: 0.0, worst: f64::INFINITY },
    about: "largest absolute difference of a value, in the output's own unit",
    task: None,
    prepare: |outputs, _| Box::new(MaxError { n_outputs: outputs.len() }),
};

/// Sums per output: largest difference, number of values.
const N_SUMS: usize = 2;

#[derive(Debug)]
struct MaxError {
    n_outputs: usize,
}

impl Measure for MaxError {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let of = |output_idx| {
            let Some(output) = sample.output(output_idx) else { return [0.0; N_SUMS] };
            let pairs = output.float.iter().zip(output.quantized);
            let errors = pairs.map(|(&float, &quantized)| value_and_error(float, quantized).1.abs());
            [
                errors.fold(0.0, |largest: f64, error| if error.is_nan() { f64::INFINITY } else { largest.max(error) }),
                output.float.len() as f64,
            ]
        };
        (0..self.n_outputs).flat_map(of).collect()
    }

    fn merge(&self, total: &mut Vec<f64>, sample: &[f64]) {
        for (total, sample) in total.chunks_exact_mut(N_SUMS).zip(sample.chunks_exact(N_SUMS)) {
            total[0] = total[0].max(sample[0]);
            total[1] += sample[1];
        }
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        sums.chunks_exact(N_SUMS).map(|sums| (sums[1] > 0.0).then(|| Figure::of(sums[0]))).collect()
    }
}
