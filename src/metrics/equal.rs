//! Equal values of integer outputs.

use super::metric::{Figure, FigureScale, Measure, Metric, SamplePair};

/// Share of equal values of an integer output, such as indices and labels, in percent. It does not apply to float
/// outputs.
pub const EQUAL: Metric = Metric {
    name: "equal",
    title: "equal values",
    scale: FigureScale { decimals: 2, ..FigureScale::PERCENT },
    about: "equal values of an integer output, such as indexes and labels",
    task: None,
    prepare: |outputs, _| {
        Box::new(Equal { are_integer: outputs.iter().map(|output| !output.about.is_float).collect() })
    },
};

/// Sums per output: values, equal values.
const N_SUMS: usize = 2;

#[derive(Debug)]
struct Equal {
    are_integer: Vec<bool>,
}

impl Measure for Equal {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let of = |(output_idx, is_integer): (usize, &bool)| {
            let Some(output) = sample.output(output_idx).filter(|_| *is_integer) else { return [0.0; N_SUMS] };
            let n_equal = output.float.iter().zip(output.quantized).filter(|(float, other)| float == other).count();
            [output.float.len() as f64, n_equal as f64]
        };
        self.are_integer.iter().enumerate().flat_map(of).collect()
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        let share = |sums: &[f64]| (sums[0] > 0.0).then(|| Figure::of(100.0 * sums[1] / sums[0]));
        sums.chunks_exact(N_SUMS).map(share).collect()
    }
}
