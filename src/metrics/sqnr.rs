//! The signal-to-quantization-noise ratio.

use super::decibels::{MAX_DB, sqnr_db};
use super::energies;
use super::metric::{Figure, FigureScale, Measure, Metric, SamplePair};

/// `10 log10(sum of float² / sum of (float - quantized)²)` over all values, in dB: [`MAX_DB`] for equal outputs,
/// -[`MAX_DB`] if a value is NaN or infinite, or without values. `None` for an output without float samples: its value is
/// a constant of the graph.
pub const SQNR: Metric = Metric {
    name: "sqnr",
    title: "SQNR",
    scale: FigureScale::DECIBELS,
    about: "signal over quantization noise, all values of an output together",
    task: None,
    prepare: |outputs, _| Box::new(Sqnr { have_samples: outputs.iter().map(|of| !of.samples.is_empty()).collect() }),
};

/// Sums per output: float², error², number of values.
const N_SUMS: usize = 3;

#[derive(Debug)]
struct Sqnr {
    /// Whether each output has float samples. Outputs without any depend on no input, and have no figure.
    have_samples: Vec<bool>,
}

impl Measure for Sqnr {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let mut sums = vec![0.0; N_SUMS * self.have_samples.len()];
        for (output_idx, sums) in sums.chunks_exact_mut(N_SUMS).enumerate() {
            let Some(output) = sample.output(output_idx) else { continue };
            let [signal, noise] = energies(output.float, output.quantized);
            sums[0] += signal;
            sums[1] += noise;
            sums[2] += output.float.len() as f64;
        }
        sums
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        let db = |sums: &[f64]| match *sums {
            [_, _, 0.0] => -MAX_DB,
            [signal, error, _] => sqnr_db(signal, error),
            _ => -MAX_DB,
        };
        let outputs = sums.chunks_exact(N_SUMS).zip(&self.have_samples);
        outputs.map(|(sums, has_samples)| has_samples.then(|| Figure::of(db(sums)))).collect()
    }

    /// Returns the mean over the outputs that differ; [`MAX_DB`] if none differs.
    fn mean(&self, figures: &[Option<Figure>]) -> Option<f64> {
        let differ = figures.iter().flatten().map(|figure| figure.value).filter(|db| *db < MAX_DB);
        let differ: Vec<f64> = differ.collect();
        match differ.is_empty() {
            true => figures.iter().flatten().next().map(|_| MAX_DB),
            false => Some(differ.iter().sum::<f64>() / differ.len() as f64),
        }
    }
}

/// Returns the energy of the error divided by the energy of the signal, from an SQNR in dB; `f64::MAX` if the SQNR
/// could not be measured.
pub fn relative_error(sqnr_db: f64) -> f64 {
    match sqnr_db {
        db if db >= MAX_DB => 0.0,
        db if db <= -MAX_DB || db.is_nan() => f64::MAX,
        db => 10f64.powf(-db / 10.0),
    }
}
