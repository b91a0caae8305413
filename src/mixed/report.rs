//! The choice of layers: for the sidecar, for `--json`, and as text.

use super::goal::{Goal, Reached};
use crate::diag::count;
use crate::metrics::MAX_DB;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::fmt;

/// The result of mixed precision.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mixed {
    /// The goal.
    pub goal: Goal,
    /// Whether the final plan meets the goal.
    pub met: bool,
    /// Number of samples of the sensitivity analysis.
    pub n_ranking: usize,
    /// Number of held-out samples that evaluate the goal.
    #[serde(alias = "n_judges")]
    pub n_held_out: usize,
    /// Lowest SQNR over the outputs of the final plan on the held-out samples, in dB; 200 without error.
    pub sqnr_db: f64,
    /// Samples with the float network's class, in percent; absent where no output has class scores.
    pub agreement_percent: Option<f64>,
    /// Bits per weight of the final plan.
    pub weight_bits: f64,
    /// Figures before the first choice and after each choice.
    pub curve: Vec<CurvePoint>,
    /// Layers with another precision than their own, in the order in which they were chosen.
    pub layers: Vec<ChosenLayer>,
    /// Cost of each layer's own precision, highest first.
    pub sensitivity: Vec<LayerSensitivity>,
    /// The figure of the goal's metric in words; absent where the others hold it, or the goal has no metric.
    #[serde(skip)]
    pub of_goal: Option<String>,
    /// Wall time, in seconds.
    #[serde(skip)]
    pub seconds: f64,
}

/// A plan during the search.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Number of layers with another precision than their own.
    pub n_layers: usize,
    /// The layer that was changed last; absent for the first point.
    pub layer: Option<String>,
    /// The precision that the layer got.
    pub precision: Option<String>,
    /// Lowest SQNR over the outputs, in dB; 200 without error.
    pub sqnr_db: f64,
    /// Samples with the float network's class, in percent; absent where no output has class scores.
    pub agreement_percent: Option<f64>,
    /// Bits per weight.
    pub weight_bits: f64,
    /// Bytes of the weights, without scales.
    pub weight_bytes: usize,
    /// The figure of the goal's metric, as in [`Mixed`].
    #[serde(skip)]
    pub of_goal: Option<String>,
}

/// A layer with another precision than its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChosenLayer {
    /// Name of the node.
    pub layer: String,
    /// Operator type.
    pub op_type: String,
    /// The precision's name in the table.
    pub precision: String,
    /// Rise of the outputs' mean SQNR when the layer was chosen, in dB.
    pub gain_db: f64,
    /// Reason of the choice, in words.
    pub reason: String,
}

/// Cost of a layer's own precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSensitivity {
    /// Name of the node.
    pub layer: String,
    /// Operator type.
    pub op_type: String,
    /// SQNR of the outputs with this layer alone quantized in its own precision, in dB; 200 without error.
    pub sqnr_db: f64,
}

impl Mixed {
    /// Returns the reached figures in words.
    pub fn reached(&self) -> String {
        format!("{}, {}", count(self.layers.len(), "layer"), self.figures())
    }

    /// Returns the reached figures without the number of layers.
    fn figures(&self) -> String {
        let Mixed { sqnr_db, agreement_percent, weight_bits, .. } = *self;
        let reached = Reached { sqnr_db, agreement_percent, goal: None, weight_bits };
        let of_goal = self.of_goal.as_ref().map(|figure| format!("{figure}, ")).unwrap_or_default();
        // Integer weights have 8 bits or fewer in most tables.
        let float = if weight_bits > 8.0 { " (float weights count as 32)" } else { "" };
        format!("{of_goal}SQNR {reached}{float}")
    }
}

impl CurvePoint {
    /// Returns the point as a line of text.
    pub fn describe(&self) -> String {
        let CurvePoint { sqnr_db, agreement_percent, weight_bits, .. } = *self;
        let reached = Reached { sqnr_db, agreement_percent, goal: None, weight_bits };
        let last = match (&self.layer, &self.precision) {
            (Some(layer), Some(precision)) => format!("  `{layer}` {precision}"),
            _ => String::new(),
        };
        let of_goal = self.of_goal.as_ref().map(|figure| format!("{figure}, ")).unwrap_or_default();
        format!("{:>10}  {of_goal}{reached}{last}", count(self.n_layers, "layer"))
    }
}

impl LayerSensitivity {
    /// Returns the layer as a line of text.
    pub fn describe(&self) -> String {
        let LayerSensitivity { layer, op_type, sqnr_db } = self;
        match *sqnr_db >= MAX_DB {
            true => format!("  no error with {op_type} `{layer}` alone quantized"),
            false => format!("{sqnr_db:>7.2} dB with {op_type} `{layer}` alone quantized"),
        }
    }
}

/// The error of a missed goal: the best result, and the reason where the table tells it.
#[derive(Debug)]
pub struct Missed(pub Box<Mixed>, pub Option<String>);

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missed(mixed, reason) = self;
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        write!(
            f,
            "{} was not reached{reason}; the best result is {} on {}, with {} in another precision; nothing was written",
            mixed.goal.spelled(),
            mixed.figures(),
            count(mixed.n_held_out, "sample"),
            count(mixed.layers.len(), "layer")
        )
    }
}

impl std::error::Error for Missed {}
