//! Figures of how two models' outputs agree.

use serde::Serialize;

/// Sums over the samples of one output. Results do not depend on anything but the order of the samples.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    signal: f64,
    noise: f64,
    max_difference: f64,
    n_samples: usize,
    n_agree: usize,
    n_labelled: usize,
    n_right: [usize; 2],
}

/// What is reported of one output.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// ONNX name.
    pub output: String,
    /// `10 log10(sum of float^2 / sum of (float - quantized)^2)` over all samples, in dB; absent where
    /// the outputs are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqnr_db: Option<f64>,
    /// Largest absolute difference, in the output's own unit.
    pub max_difference: f64,
    /// Samples with the same largest element, in percent.
    pub agreement_percent: f64,
    /// Samples whose largest element is the label, float and quantized, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1_percent: Option<[f64; 2]>,
    /// Samples compared.
    pub n_samples: usize,
}

/// Position of the largest value; the first of equal ones.
pub fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

impl Comparison {
    /// Adds one sample of the output.
    pub fn add(&mut self, float: &[f32], quantized: &[f32], label: Option<usize>) {
        let (mut signal, mut noise) = (0.0, 0.0);
        for (a, b) in float.iter().zip(quantized) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            signal += a * a;
            noise += (a - b) * (a - b);
            self.max_difference = self.max_difference.max((a - b).abs());
        }
        self.signal += signal;
        self.noise += noise;
        self.n_samples += 1;
        let top = [argmax(float), argmax(quantized)];
        self.n_agree += usize::from(top[0] == top[1]);
        if let Some(label) = label {
            self.n_labelled += 1;
            for (n_right, top) in self.n_right.iter_mut().zip(top) {
                *n_right += usize::from(top == label);
            }
        }
    }

    /// Adds the samples of `other` behind those seen so far.
    pub fn absorb(&mut self, other: &Comparison) {
        self.signal += other.signal;
        self.noise += other.noise;
        self.max_difference = self.max_difference.max(other.max_difference);
        self.n_samples += other.n_samples;
        self.n_agree += other.n_agree;
        self.n_labelled += other.n_labelled;
        for (n_right, other) in self.n_right.iter_mut().zip(other.n_right) {
            *n_right += other;
        }
    }

    /// The figures of output `output`.
    pub fn figures(&self, output: &str) -> Figures {
        let percent = |n: usize, of: usize| 100.0 * n as f64 / of.max(1) as f64;
        Figures {
            output: output.to_string(),
            sqnr_db: (self.noise > 0.0).then(|| 10.0 * (self.signal / self.noise).log10()),
            max_difference: self.max_difference,
            agreement_percent: percent(self.n_agree, self.n_samples),
            top1_percent: (self.n_labelled > 0)
                .then(|| self.n_right.map(|n| percent(n, self.n_labelled))),
            n_samples: self.n_samples,
        }
    }
}
