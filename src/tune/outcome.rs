//! Outcomes of the methods, for the sidecar and the report.

use super::accept::Acceptance;
use crate::heads::{TaskHead, TaskName};
use crate::metrics::{Gain, TaskChange};
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
    /// Reason of the rejection; absent where the change was accepted.
    pub reason: Option<String>,
    /// The deciding figures; absent where nothing was measured.
    pub judged: Option<Judged>,
    /// The changes in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// One note per change, and one with the reason per skipped group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Wall time, in seconds.
    #[serde(skip)]
    pub seconds: f64,
}

impl MethodOutcome {
    /// Returns the outcome in a word.
    pub fn verdict(&self) -> &'static str {
        match (self.accepted, &self.judged) {
            (true, _) => "accepted",
            (false, Some(_)) => "rejected",
            (false, None) => "skipped",
        }
    }
}

/// Figures of a network before and after a change, on held-out samples.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The metric that decided.
    pub metric: String,
    /// Figures of the metric before and after, over all outputs.
    pub figures: [f64; 2],
    /// Standard deviation of their difference over the samples.
    pub deviation: f64,
    /// Figures of the task's metric; absent where the task is not known.
    pub task: Option<JudgedTask>,
    /// Mean SQNR of the outputs before and after, in dB.
    pub sqnr_db: [f64; 2],
    /// Number of held-out samples.
    pub n_samples: usize,
}

/// The network's task and head, by which changes are evaluated as well.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluatedTask {
    /// The task.
    pub task: TaskName,
    /// The head's name, or the path of its file.
    pub head: String,
    /// Reason for which the head was recognized; absent where the user named the head.
    pub recognized_by: Option<String>,
}

impl EvaluatedTask {
    /// Returns the task of a head.
    pub fn new(head: &TaskHead) -> EvaluatedTask {
        let TaskHead { head, reason, .. } = head;
        EvaluatedTask { task: head.task(), head: head.name.clone(), recognized_by: reason.clone() }
    }

    /// Returns a text such as `detect, head yolox, recognized by ...`.
    pub fn describe(&self) -> String {
        let by = self.recognized_by.as_ref().map(|reason| format!(", recognized by {reason}"));
        format!("{}, head {}{}", self.task.name(), self.head, by.unwrap_or_default())
    }
}

/// Figures of the task's metric before and after a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgedTask {
    /// The metric.
    pub metric: String,
    /// Figures before and after the change.
    pub figures: [f64; 2],
    /// Standard deviation of their difference over the samples.
    pub deviation: f64,
}

impl JudgedTask {
    fn new(TaskChange { metric, figures, deviation }: TaskChange) -> JudgedTask {
        JudgedTask { metric: metric.name.to_string(), figures, deviation }
    }
}

impl Judged {
    /// Returns the figures of a change, measured on `n_samples` samples.
    pub fn new(gain: &Gain, n_samples: usize) -> Judged {
        let Gain { metric, figures, deviation, sqnr_db, .. } = *gain;
        let task = gain.task.map(JudgedTask::new);
        Judged { metric: metric.name.to_string(), figures, deviation, task, sqnr_db, n_samples }
    }
}

impl MethodOutcome {
    /// Returns the outcome of a change that was measured on `n_samples` samples.
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

    /// Rejects an accepted change because the other variant `variant` gains more.
    pub fn reject_for(&mut self, variant: &str) {
        if self.accepted {
            (self.accepted, self.reason) = (false, Some(format!("{variant} gains more")));
        }
    }

    /// Returns the outcome of a method that could not be tried.
    pub fn skipped(method: &str, reason: String) -> MethodOutcome {
        MethodOutcome { method: method.to_string(), reason: Some(reason), ..MethodOutcome::default() }
    }
}
