//! The share of rows with an unchanged class.

use super::classes::same_class;
use super::layout::FloatOutput;
use super::metric::{Figure, FigureScale, Measure, Metric, SamplePair};

/// Share of rows of class scores whose largest value stays in place, in percent. It applies only to outputs that are
/// class scores.
pub const AGREEMENT: Metric = Metric {
    name: "agreement",
    title: "agreement",
    scale: FigureScale::PERCENT,
    about: "rows of class scores with the same best class",
    task: None,
    prepare: |outputs, _| Box::new(Agreement { n_classes: outputs.iter().map(FloatOutput::n_classes).collect() }),
};

/// Sums per output: rows, unchanged rows.
const N_SUMS: usize = 2;

#[derive(Debug)]
struct Agreement {
    /// Number of classes per output; `None` if the output is not class scores.
    n_classes: Vec<Option<usize>>,
}

impl Measure for Agreement {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let of = |(output_idx, n_classes): (usize, &Option<usize>)| {
            let Some((output, n)) = sample.output(output_idx).zip(*n_classes) else { return [0.0; N_SUMS] };
            let rows = output.float.chunks_exact(n).zip(output.quantized.chunks_exact(n));
            let n_same = rows.filter(|(float, quantized)| same_class(float, quantized)).count();
            [(output.float.len() / n) as f64, n_same as f64]
        };
        self.n_classes.iter().enumerate().flat_map(of).collect()
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        let figure = |sums: &[f64]| (sums[0] > 0.0).then(|| Figure::of(100.0 * sums[1] / sums[0]));
        sums.chunks_exact(N_SUMS).map(figure).collect()
    }
}
