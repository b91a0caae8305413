//! The goal of mixed precision, checked against the backend's table.

use crate::diag::{WithHint, none_of};
use crate::metrics::{AGREEMENT, Metric, SQNR, by_name};
use crate::scheme::{FLOAT, Precision, Scheme};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use std::collections::BTreeMap;
use std::fmt;

/// A figure and its bound, serialized under the name of the option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, Number>", into = "BTreeMap<String, Number>")]
pub struct Goal {
    /// The figure that has to reach the bound.
    pub figure: Bounded,
    /// The bound, in the figure's unit.
    pub bound: f64,
    /// The option's name in the sidecar, such as `target-sqnr`, and its value.
    option_and_value: (String, f64),
}

/// The figure that a goal bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bounded {
    /// Number of layers that stay float, chosen for the least error of the outputs.
    FloatLayers,
    /// The worst figure over the outputs, reached with the fewest promoted layers.
    Metric(Metric),
    /// Mean bits per weight.
    WeightBits,
}

/// The name of rescue, as an option and among the methods.
pub const RESCUE: &str = "rescue";
const KEEP_FLOAT: &str = "keep-float";
const MAX_DROP: &str = "max-drop";
const BITS_BUDGET: &str = "bits-budget";
const TARGET: &str = "target-";

impl Goal {
    /// Returns the goal that `n` layers stay float.
    pub fn keep_float(n: usize) -> Goal {
        Goal { figure: Bounded::FloatLayers, bound: n as f64, option_and_value: (KEEP_FLOAT.to_string(), n as f64) }
    }

    /// Returns the goal of rescue: float layers with up to `percent` of the multiply-adds.
    pub(super) fn rescue(percent: f64) -> Goal {
        Goal { figure: Bounded::FloatLayers, bound: f64::INFINITY, option_and_value: (RESCUE.to_string(), percent) }
    }

    /// Whether the goal is that of rescue.
    pub(super) fn is_rescue(&self) -> bool {
        self.option_and_value.0 == RESCUE
    }

    /// Returns the goal that every output with the metric reaches `bound`.
    pub fn target(metric: Metric, bound: f64) -> Goal {
        Goal { figure: Bounded::Metric(metric), bound, option_and_value: (format!("{TARGET}{}", metric.name), bound) }
    }

    /// Returns the goal that at most `percent` of the samples change their class.
    pub fn max_drop(percent: f64) -> Goal {
        Goal {
            figure: Bounded::Metric(AGREEMENT),
            bound: 100.0 - percent,
            option_and_value: (MAX_DROP.to_string(), percent),
        }
    }

    /// Returns the goal that weights have at most `bits` on average.
    pub fn bits_budget(bits: f64) -> Goal {
        Goal { figure: Bounded::WeightBits, bound: bits, option_and_value: (BITS_BUDGET.to_string(), bits) }
    }

    fn named(name: &str, value: f64) -> Result<Goal> {
        match (name, name.strip_prefix(TARGET)) {
            (KEEP_FLOAT, _) => Ok(Goal::keep_float(value.max(0.0) as usize)),
            (MAX_DROP, _) => Ok(Goal::max_drop(value)),
            (BITS_BUDGET, _) => Ok(Goal::bits_budget(value)),
            (_, Some(metric)) => Ok(Goal::target(by_name(metric)?, value)),
            _ => bail!("goal `{name}` is unknown"),
        }
    }

    /// Returns the command-line option.
    pub fn option(&self) -> String {
        match self.figure {
            Bounded::Metric(metric) if metric != SQNR && self.option_and_value.0 != MAX_DROP => "--target".to_string(),
            _ => format!("--{}", self.option_and_value.0),
        }
    }

    /// Returns the option with its value.
    pub fn spelled(&self) -> String {
        let (option, (name, value)) = (self.option(), &self.option_and_value);
        match option.as_str() {
            "--target" => format!("{option} {}={value}", name.trim_start_matches(TARGET)),
            _ => format!("{option} {value}"),
        }
    }

    /// Returns the bounded metric; `None` for other figures.
    pub fn metric(&self) -> Option<Metric> {
        match self.figure {
            Bounded::Metric(metric) => Some(metric),
            Bounded::FloatLayers | Bounded::WeightBits => None,
        }
    }

    /// Returns the same goal, stricter by `margin` in the figure's unit.
    pub(super) fn stricter(&self, margin: f64) -> Goal {
        let bound = self.metric().map_or(self.bound, |metric| metric.stricter(self.bound, margin));
        Goal { bound, ..self.clone() }
    }

    /// Whether a network meets the goal.
    pub(super) fn is_met(&self, reached: Reached) -> bool {
        match self.figure {
            Bounded::FloatLayers => true,
            Bounded::Metric(metric) => reached.goal.is_some_and(|figure| metric.reaches(figure, self.bound)),
            Bounded::WeightBits => reached.weight_bits <= self.bound,
        }
    }

    /// Returns the figure of the goal's metric in words; `None` where the text of [`Reached`] holds it.
    pub(super) fn words(&self, reached: Reached) -> Option<String> {
        let metric = self.metric().filter(|metric| ![SQNR, AGREEMENT].contains(metric))?;
        Some(format!("{} {}", metric.title, metric.with_unit(reached.goal?)))
    }

    /// Returns the distance of a network from the goal, in the figure's unit; 0 for goals without a metric.
    pub(super) fn shortfall(&self, reached: Reached) -> f64 {
        match (self.metric(), reached.goal) {
            (Some(_), Some(figure)) if !self.is_met(reached) => (self.bound - figure).abs(),
            _ => 0.0,
        }
    }

    fn check(&self) -> Result<()> {
        let (low, high, unit) = match self.figure {
            Bounded::FloatLayers => return Ok(()),
            _ if self.option_and_value.0 == MAX_DROP => (0.0, 100.0, "0 to 100 percent"),
            Bounded::Metric(metric) => return metric.ensure_possible(self.bound).with_context(|| self.option()),
            Bounded::WeightBits => (1.0, 32.0, "1 to 32 bits"),
        };
        let (option, value) = (self.option(), self.option_and_value.1);
        ensure!((low..=high).contains(&value), "{option} is {value}, expected {unit}");
        Ok(())
    }
}

impl TryFrom<BTreeMap<String, Number>> for Goal {
    type Error = anyhow::Error;

    fn try_from(goals: BTreeMap<String, Number>) -> Result<Goal> {
        let (name, value) = goals.first_key_value().context("the goal is missing")?;
        Goal::named(name, value.as_f64().context("the value of the goal is not a number")?)
    }
}

impl From<Goal> for BTreeMap<String, Number> {
    fn from(goal: Goal) -> BTreeMap<String, Number> {
        let (name, value) = goal.option_and_value;
        let number = match goal.figure {
            Bounded::FloatLayers => Some(Number::from(value as u64)),
            Bounded::Metric(_) | Bounded::WeightBits => Number::from_f64(value),
        };
        number.map(|number| (name, number)).into_iter().collect()
    }
}

/// Figures of a network.
#[derive(Debug, Clone, Copy)]
pub struct Reached {
    /// Lowest SQNR over the outputs, in dB.
    pub sqnr_db: f64,
    /// Samples with the float network's class, in percent; `None` where no output has class scores.
    pub agreement_percent: Option<f64>,
    /// The worst figure of the goal's metric; `None` where the goal has none, or no output has a figure.
    pub goal: Option<f64>,
    /// Mean bits per weight.
    pub weight_bits: f64,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reached { sqnr_db, agreement_percent, weight_bits, .. } = self;
        let same = agreement_percent.map(|p| format!(", agreement {p:.1} %")).unwrap_or_default();
        write!(f, "{sqnr_db:.2} dB{same}, {weight_bits:.2} bits per weight")
    }
}

/// A goal, and the precisions that layers may have to reach it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The goal.
    pub goal: Goal,
    /// Names of the table's precisions besides the layers' own: one wider precision, or for a budget any precisions of
    /// weights.
    pub precisions: Vec<String>,
}

impl Wanted {
    /// Checks a goal. `raise_to` names the precision of promoted layers, where the table has several. Raises the
    /// table's `min_opset` where a type needs it.
    ///
    /// # Errors
    /// If the value is out of range, or the table has no precision that serves the goal.
    pub fn new(goal: Goal, raise_to: Option<&str>, scheme: &mut Scheme) -> Result<Wanted> {
        goal.check()?;
        let names = || scheme.mixed.keys().map(String::as_str);
        let backend = &scheme.name;
        ensure!(
            !scheme.mixed.is_empty(),
            anyhow!(
                "{}: the table of backend `{backend}` has no key `mixed`, expected one with precisions for single layers",
                goal.option()
            )
            .hint(match scheme.allows_float_nodes() {
                true => "if the target runs float operators too, add --set 'mixed={float: {}}'",
                false => "the target computes on integers only: try --effort 2, or a backend of 16-bit activations",
            })
        );
        let list = || names().collect::<Vec<_>>().join(", ");
        let precisions: Vec<String> = match (goal.figure, raise_to) {
            (Bounded::FloatLayers | Bounded::WeightBits, Some(_)) => {
                bail!("--raise-to does not apply to {}, expected --target, --target-sqnr or --max-drop", goal.option())
            }
            (Bounded::FloatLayers, None) => {
                ensure!(
                    scheme.mixed.contains_key(FLOAT),
                    anyhow!("--keep-float: backend `{backend}` has no float precision, expected one of: {}", list())
                        .hint("--target-sqnr and --max-drop can promote layers to these precisions")
                );
                vec![FLOAT.to_string()]
            }
            (Bounded::WeightBits, None) => {
                let serves = |p: &Precision| p.activation.is_none();
                scheme.mixed.iter().filter(|(_, p)| serves(p)).map(|(name, _)| name.clone()).collect()
            }
            (_, Some(name)) => {
                ensure!(
                    scheme.mixed.contains_key(name),
                    none_of(
                        format_args!("--raise-to is `{name}`, which backend `{backend}` does not have"),
                        name,
                        names()
                    )
                );
                vec![name.to_string()]
            }
            (_, None) => vec![widest(scheme).context("no precision")?],
        };
        ensure!(
            !precisions.is_empty(),
            "{}: backend `{backend}` has no precision for weights alone, found: {}",
            goal.option(),
            list()
        );
        precisions.iter().for_each(|name| scheme.raise_opset_for(name));
        Ok(Wanted { goal, precisions })
    }
}

/// Returns the precision that rescue gives to layers: float, or a precision with wider activations if the table's
/// operator set has their types.
pub(super) fn rescue_precision(scheme: &Scheme) -> Option<String> {
    let name = widest(scheme)?;
    let is_wider = |precision: &Precision| name == FLOAT || precision.activation.is_some();
    let fits = scheme.mixed.get(&name).is_some_and(is_wider) && scheme.opset_supports(&name);
    fits.then_some(name)
}

/// Returns float, or else the precision with the most bits, compared by activations before weights.
fn widest(scheme: &Scheme) -> Option<String> {
    if scheme.mixed.contains_key(FLOAT) {
        return Some(FLOAT.to_string());
    }
    let bits =
        |name: &Option<String>| name.as_ref().and_then(|name| scheme.types.get(name)).map_or(0, |qtype| qtype.bits);
    let width = |p: &Precision| (bits(&p.activation), bits(&p.weight));
    scheme.mixed.iter().max_by_key(|(_, precision)| width(precision)).map(|(name, _)| name.clone())
}
