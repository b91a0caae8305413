//! Rounds of collecting, which stop once more samples change no range by a step.

use crate::diag::count;
use serde::Serialize;
use serde_with::skip_serializing_none;

/// Number of samples at the end of the first round. Each round doubles the number.
const FIRST: usize = 16;
/// Number of successive rounds that must change no range.
const IN_A_ROW: usize = 2;
/// Largest change of a range that counts as none, in steps.
const STEP: f64 = 1.0;

/// The change of a tensor's range by a round: the root mean square of the change of the tensor's quantized values, in
/// steps.
#[derive(Debug, Clone, PartialEq)]
pub struct RangeChange {
    /// ONNX name.
    pub tensor: String,
    /// The change, in steps of the tensor's grid.
    pub steps: f64,
}

/// The samples up to the end of a round.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Round {
    /// Number of samples of the list up to the end of the round.
    pub n_samples: usize,
    /// Number of ranges that the round changed by more than a step.
    pub n_changed: usize,
    /// The tensor whose range changed most; absent in the first round, and if a tensor had no value.
    pub tensor: Option<String>,
    /// The change of that tensor's range, in steps.
    pub steps: Option<f64>,
}

impl Round {
    fn is_stable(&self) -> bool {
        self.steps.is_some_and(|steps| steps <= STEP)
    }
}

/// The rounds over a list of samples, which stop once more samples change no range by a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UntilStable {
    /// Number of samples in the list.
    pub n_listed: usize,
    /// Number of samples of the list that were taken.
    pub n_samples: usize,
    /// Whether the last rounds changed no range by more than a step.
    pub is_stable: bool,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Number of samples below which the rounds do not stop.
    #[serde(skip)]
    least: usize,
}

impl UntilStable {
    /// Returns the state before the first round over `n_listed` samples. The rounds do not stop below `least` samples.
    pub fn new(n_listed: usize, least: usize) -> UntilStable {
        UntilStable { n_listed, n_samples: 0, is_stable: false, rounds: Vec::new(), least }
    }

    /// Returns the number of samples at the end of the next round; `None` if no round follows.
    pub fn next(&self) -> Option<usize> {
        let is_done = self.n_samples == self.n_listed || self.is_stable && self.n_samples >= self.least;
        (!is_done).then(|| (2 * self.n_samples).max(FIRST).min(self.n_listed))
    }

    /// Adds the next round. `changes` has one entry per range; `None` if the ranges cannot be compared with the ranges
    /// of the round before.
    pub fn add(&mut self, changes: Option<Vec<RangeChange>>) {
        let Some(n_samples) = self.next() else { return };
        let changes = changes.unwrap_or_default();
        let n_changed = changes.iter().filter(|change| change.steps > STEP).count();
        let most = changes.into_iter().max_by(|a, b| a.steps.total_cmp(&b.steps));
        let (tensor, steps) = most.map(|most| (most.tensor, most.steps)).unzip();
        self.rounds.push(Round { n_samples, n_changed, tensor, steps });
        self.n_samples = n_samples;
        let n_stable = self.rounds.iter().rev().take_while(|round| round.is_stable()).count();
        self.is_stable = n_stable >= IN_A_ROW;
    }

    /// Returns a text such as `64 of 500 samples were enough: from 16 to 64 no range changed by a step`.
    pub fn sentence(&self) -> String {
        let UntilStable { n_listed, n_samples, rounds, .. } = self;
        let taken = if n_samples < n_listed { "were enough" } else { "were taken" };
        let taken = match n_listed {
            1 => "1 of 1 sample was taken".to_string(),
            _ => format!("{n_samples} of {n_listed} samples {taken}"),
        };
        if self.is_stable {
            let from = rounds.len().checked_sub(IN_A_ROW + 1).map_or(0, |before| rounds[before].n_samples);
            return format!("{taken}: from {from} to {n_samples} no range changed by a step");
        }
        let pairs = rounds.iter().zip(rounds.iter().skip(1)).rev();
        let changed = pairs.filter(|(_, round)| !round.is_stable()).find_map(|(before, round)| {
            let (tensor, steps) = (round.tensor.as_ref()?, round.steps?);
            let ranges = count(round.n_changed, "range");
            let (from, to) = (before.n_samples, round.n_samples);
            Some(format!("from {from} to {to} still changed {ranges} by a step or more, most of all `{tensor}`: by {steps:.1} steps"))
        });
        match changed {
            Some(changed) => format!("{taken}, and those {changed}"),
            None => format!("{taken}, which is too few to tell whether more samples would change a range"),
        }
    }
}
