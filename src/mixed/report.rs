//! How layers were chosen: for the sidecar, for `--json`, and for people.

use super::goal::{Goal, Reached};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::fmt;

/// How layers were chosen.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mixed {
    /// What was asked for.
    pub goal: Goal,
    /// Whether it was reached, by the final plan.
    pub met: bool,
    /// Samples of the sensitivity analysis.
    pub n_ranking: usize,
    /// Held-out samples, by which the goal is evaluated.
    pub n_judges: usize,
    /// Lowest SQNR of an output of the final plan over the latter, in dB; 200 where there is no error.
    pub sqnr_db: f64,
    /// Samples with the class that float gives them, in percent; absent where no output has class scores.
    pub agreement_percent: Option<f64>,
    /// Bits per weight of the final plan.
    pub weight_bits: f64,
    /// The trade-off: without a choice, then after each.
    pub curve: Vec<CurvePoint>,
    /// Layers with another precision than the table's own, in the order in which they were chosen.
    pub layers: Vec<ChosenLayer>,
    /// What each layer's own precision costs, the most first.
    pub sensitivity: Vec<LayerSensitivity>,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

/// A plan on the way.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Layers with another precision than the table's own.
    pub n_layers: usize,
    /// The layer that was changed last; absent for the first point.
    pub layer: Option<String>,
    /// The precision that it got.
    pub precision: Option<String>,
    /// Lowest SQNR of an output, in dB; 200 where there is no error.
    pub sqnr_db: f64,
    /// Samples with the class that float gives them, in percent; absent where no output has class scores.
    pub agreement_percent: Option<f64>,
    /// Bits per weight.
    pub weight_bits: f64,
    /// Bytes of the weights, without scales.
    pub weight_bytes: usize,
}

/// A layer with another precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChosenLayer {
    /// Name of the node.
    pub layer: String,
    /// Its operator.
    pub op_type: String,
    /// The precision, by the table's name.
    pub precision: String,
    /// How much smaller the error of the outputs was when it was chosen, in dB.
    pub gain_db: f64,
    /// Why, in words.
    pub reason: String,
}

/// What one layer's precision costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSensitivity {
    /// Name of the node.
    pub layer: String,
    /// Its operator.
    pub op_type: String,
    /// SQNR of the outputs where this layer alone is quantized, as the table says, in dB; 200 where that
    /// makes no error.
    pub sqnr_db: f64,
}

impl Mixed {
    /// What was reached, in words.
    pub fn reached(&self) -> String {
        let Mixed { sqnr_db, agreement_percent, weight_bits, .. } = *self;
        let reached = Reached { sqnr_db, agreement_percent, goal: None, weight_bits };
        format!("{} layers, SQNR {reached}", self.layers.len())
    }
}

impl CurvePoint {
    /// A line for people.
    pub fn describe(&self) -> String {
        let CurvePoint { sqnr_db, agreement_percent, weight_bits, .. } = *self;
        let reached = Reached { sqnr_db, agreement_percent, goal: None, weight_bits };
        let last = match (&self.layer, &self.precision) {
            (Some(layer), Some(precision)) => format!("  `{layer}` {precision}"),
            _ => String::new(),
        };
        format!("{:>3} layers  {reached}{last}", self.n_layers)
    }
}

/// A goal that was not reached.
#[derive(Debug)]
pub struct Missed(pub Box<Mixed>);

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missed(mixed) = self;
        write!(
            f,
            "{} was not reached, the best was {} on {} samples; nothing was written",
            mixed.goal.spelled(),
            mixed.reached(),
            mixed.n_judges
        )
    }
}

impl std::error::Error for Missed {}
