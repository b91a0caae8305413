//! Top-1 accuracy: the share of rows whose best class is the label.

use super::classes::argmax;
use super::layout::FloatOutput;
use super::metric::{Better, Figure, FigureScale, Measure, Metric, SamplePair};

/// Share of rows of class scores whose largest value is at the label, in percent, with the float network's figure. It
/// needs labels.
pub const TOP1: Metric = Metric {
    name: "top1",
    title: "top-1",
    scale: FigureScale { decimals: 2, ..FigureScale::PERCENT },
    about: "rows of class scores whose largest value is the label",
    task: None,
    prepare: |outputs, _| Box::new(RightClasses::new(outputs, RightClasses::share)),
};

/// Percentage points by which the quantized network's top-1 is below that of the float network; 0 if it is not below.
pub const TOP1_DROP: Metric = Metric {
    name: "top1-drop",
    title: "drop of top-1",
    scale: FigureScale { better: Better::Lower, best: 0.0, worst: 100.0, ..TOP1.scale },
    about: "percentage points by which top-1 is below the float network's",
    prepare: |outputs, _| Box::new(RightClasses::new(outputs, RightClasses::drop)),
    ..TOP1
};

/// Sums per output: labeled rows, right rows of the float network, right rows of the quantized network.
const N_SUMS: usize = 3;

#[derive(Debug)]
struct RightClasses {
    n_classes: Vec<Option<usize>>,
    figure: fn([f64; 2]) -> Figure,
}

impl RightClasses {
    fn new(outputs: &[FloatOutput], figure: fn([f64; 2]) -> Figure) -> RightClasses {
        let recognized: Vec<Option<usize>> = outputs.iter().map(FloatOutput::n_classes).collect();
        // Labels imply class scores, even if the values do not look like class scores.
        let by_shape = || outputs.iter().map(FloatOutput::row_length).collect();
        let n_classes = if recognized.iter().any(Option::is_some) { recognized } else { by_shape() };
        RightClasses { n_classes, figure }
    }

    fn share([float, quantized]: [f64; 2]) -> Figure {
        Figure { float: Some(float), ..Figure::of(quantized) }
    }

    fn drop([float, quantized]: [f64; 2]) -> Figure {
        Figure::of((float - quantized).max(0.0))
    }
}

impl Measure for RightClasses {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let mut sums = vec![0.0; N_SUMS * self.n_classes.len()];
        for (output_idx, sums) in sums.chunks_exact_mut(N_SUMS).enumerate() {
            let output = sample.output(output_idx).zip(self.n_classes[output_idx]);
            let (Some((output, n)), Some(labels)) = (output, sample.labels) else { continue };
            // One row of scores for the whole batch is not a row for each entry.
            if output.float.len() != n * labels.len() {
                continue;
            }
            let rows = output.float.chunks_exact(n).zip(output.quantized.chunks_exact(n));
            for ((float, quantized), &label) in rows.zip(labels) {
                sums[0] += 1.0;
                sums[1] += f64::from(u8::from(argmax(float) == Some(label)));
                sums[2] += f64::from(u8::from(argmax(quantized) == Some(label)));
            }
        }
        sums
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        let figure = |sums: &[f64]| {
            let percent = |n: f64| 100.0 * n / sums[0];
            (sums[0] > 0.0).then(|| (self.figure)([percent(sums[1]), percent(sums[2])]))
        };
        sums.chunks_exact(N_SUMS).map(figure).collect()
    }
}
