//! Outcomes of the methods, for the sidecar and the report.

use super::accept::Acceptance;
use crate::metrics::Gain;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The outcome of a method, or of one variant of it.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MethodOutcome {
    /// The method, as `--methods` spells it.
    pub method: String,
    /// The variant, where the method tries several.
    pub variant: Option<String>,
    /// Whether the change was accepted.
    pub accepted: bool,
    /// Why the change was rejected; absent where it was accepted.
    pub reason: Option<String>,
    /// The deciding figures; absent where nothing was measured.
    pub judged: Option<Judged>,
    /// The changes in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// One note per change, and per group that was skipped with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Wall time, in seconds.
    #[serde(skip)]
    pub seconds: f64,
}

/// Figures of a network before and after a change, on held-out samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The metric that decided.
    pub metric: String,
    /// Figures of the metric before and after, over all outputs.
    pub figures: [f64; 2],
    /// Standard deviation of their difference over the samples.
    pub deviation: f64,
    /// Mean SQNR of the outputs before and after, in dB.
    pub sqnr_db: [f64; 2],
    /// Number of held-out samples.
    pub n_samples: usize,
}

impl Judged {
    /// The figures of a change, measured on `n_samples` samples.
    pub fn new(gain: &Gain, n_samples: usize) -> Judged {
        let Gain { metric, figures, deviation, sqnr_db, .. } = *gain;
        Judged { metric: metric.name.to_string(), figures, deviation, sqnr_db, n_samples }
    }
}

impl MethodOutcome {
    /// The outcome of a change that was measured on `n_samples` samples.
    pub fn judged(method: &str, gain: &Gain, acceptance: Acceptance, n_samples: usize) -> MethodOutcome {
        let reason = acceptance.rejects(gain);
        MethodOutcome {
            method: method.to_string(),
            accepted: reason.is_none(),
            reason,
            judged: Some(Judged::new(gain, n_samples)),
            ..MethodOutcome::default()
        }
    }

    /// Rejects an accepted change because another variant gains more.
    pub fn yield_to(&mut self, variant: &str) {
        if self.accepted {
            (self.accepted, self.reason) = (false, Some(format!("{variant} gains more")));
        }
    }

    /// The outcome of a method that could not be tried.
    pub fn skipped(method: &str, reason: String) -> MethodOutcome {
        MethodOutcome { method: method.to_string(), reason: Some(reason), ..MethodOutcome::default() }
    }
}
