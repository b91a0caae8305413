//! What mixed precision is asked for, checked against what the table allows.

use crate::diag::{WithHint, did_you_mean};
use crate::scheme::{FLOAT, Precision, Scheme};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the layers are chosen for. Written as the option of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// So many layers stay float: those without which the outputs have the least error.
    KeepFloat(usize),
    /// The fewest layers such that every output has so many dB of SQNR.
    TargetSqnr(f64),
    /// The fewest layers such that at most so many percent of the samples get another class.
    MaxDrop(f64),
    /// Weights have at most so many bits on average.
    BitsBudget(f64),
}

impl Goal {
    /// The option of the command line.
    pub fn option(&self) -> &'static str {
        match self {
            Goal::KeepFloat(_) => "--keep-float",
            Goal::TargetSqnr(_) => "--target-sqnr",
            Goal::MaxDrop(_) => "--max-drop",
            Goal::BitsBudget(_) => "--bits-budget",
        }
    }

    /// The option with its value.
    pub fn spelled(&self) -> String {
        let option = self.option();
        match self {
            Goal::KeepFloat(n) => format!("{option} {n}"),
            Goal::TargetSqnr(value) | Goal::MaxDrop(value) | Goal::BitsBudget(value) => {
                format!("{option} {value}")
            }
        }
    }

    /// A goal that is stricter by `margin`, in its own unit.
    pub(super) fn stricter(&self, margin: f64) -> Goal {
        match *self {
            Goal::TargetSqnr(db) => Goal::TargetSqnr(db + margin),
            Goal::MaxDrop(percent) => Goal::MaxDrop((percent - margin).max(0.0)),
            goal => goal,
        }
    }

    /// Whether a network reaches it.
    pub(super) fn is_met(self, reached: Reached) -> bool {
        match self {
            Goal::KeepFloat(_) => true,
            Goal::TargetSqnr(db) => reached.sqnr_db >= db,
            Goal::MaxDrop(drop) => reached.agreement_percent.is_some_and(|same| 100.0 - same <= drop),
            Goal::BitsBudget(bits) => reached.weight_bits <= bits,
        }
    }

    /// How far a network is from it, in its own unit.
    pub(super) fn shortfall(self, reached: Reached) -> f64 {
        match self {
            Goal::TargetSqnr(db) => (db - reached.sqnr_db).max(0.0),
            Goal::MaxDrop(drop) => (100.0 - reached.agreement_percent.unwrap_or_default() - drop).max(0.0),
            Goal::KeepFloat(_) | Goal::BitsBudget(_) => 0.0,
        }
    }

    fn check(&self) -> Result<()> {
        let (value, low, high, unit) = match *self {
            Goal::KeepFloat(_) => return Ok(()),
            Goal::TargetSqnr(db) => (db, f64::MIN, f64::MAX, "a number of dB"),
            Goal::MaxDrop(percent) => (percent, 0.0, 100.0, "0 to 100 percent"),
            Goal::BitsBudget(bits) => (bits, 1.0, 32.0, "1 to 32 bits"),
        };
        let option = self.option();
        ensure!((low..=high).contains(&value), "{option} is {value}, expected {unit}");
        Ok(())
    }
}

/// What a network reaches.
#[derive(Debug, Clone, Copy)]
pub struct Reached {
    /// Lowest SQNR of an output, in dB.
    pub sqnr_db: f64,
    /// Samples with the class that float gives them, in percent; none where no output has class scores.
    pub agreement_percent: Option<f64>,
    /// Mean over the weights.
    pub weight_bits: f64,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reached { sqnr_db, agreement_percent, weight_bits } = self;
        let same = agreement_percent.map(|p| format!(", agreement {p:.1} %")).unwrap_or_default();
        write!(f, "{sqnr_db:.2} dB{same}, {weight_bits:.2} bits per weight")
    }
}

/// A goal, and what the layers may have to reach it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// What is asked for.
    pub goal: Goal,
    /// Names of the precisions in the table that layers may have besides their own: one that is wider, or
    /// for a budget any for weights.
    pub precisions: Vec<String>,
}

impl Wanted {
    /// Checks a goal; `raise_to` names what chosen layers get, where the table leaves a choice. The table's
    /// `min_opset` is raised where a type needs that.
    ///
    /// # Errors
    /// If the value is out of range, or the table allows nothing that would serve the goal.
    pub fn new(goal: Goal, raise_to: Option<&str>, scheme: &mut Scheme) -> Result<Wanted> {
        goal.check()?;
        let names = || scheme.mixed.keys().map(String::as_str);
        let backend = &scheme.name;
        ensure!(
            !scheme.mixed.is_empty(),
            anyhow!(
                "{}: the table of backend `{backend}` has no key `mixed`, expected what its layers may have besides the types of their rows",
                goal.option()
            )
            .hint("where the target computes in float too, --set 'mixed={float: {}}'")
        );
        let list = || names().collect::<Vec<_>>().join(", ");
        let precisions: Vec<String> = match (goal, raise_to) {
            (Goal::KeepFloat(_) | Goal::BitsBudget(_), Some(_)) => {
                bail!("--raise-to beside {}, expected it beside --target-sqnr or --max-drop", goal.option())
            }
            (Goal::KeepFloat(_), None) => {
                ensure!(
                    scheme.mixed.contains_key(FLOAT),
                    anyhow!("--keep-float: backend `{backend}` has no float, expected one of: {}", list())
                        .hint("--target-sqnr and --max-drop promote layers to these")
                );
                vec![FLOAT.to_string()]
            }
            (Goal::BitsBudget(_), None) => {
                let serves = |p: &Precision| p.activation.is_none();
                scheme.mixed.iter().filter(|(_, p)| serves(p)).map(|(name, _)| name.clone()).collect()
            }
            (_, Some(name)) => {
                ensure!(
                    scheme.mixed.contains_key(name),
                    anyhow!(
                        "--raise-to is `{name}`, which backend `{backend}` does not have, expected one of: {}",
                        list()
                    )
                    .hint(did_you_mean(name, names()))
                );
                vec![name.to_string()]
            }
            (_, None) => vec![widest(scheme).context("no precision")?],
        };
        ensure!(
            !precisions.is_empty(),
            "{}: backend `{backend}` has no other types for weights alone, found: {}",
            goal.option(),
            list()
        );
        precisions.iter().for_each(|name| scheme.make_room_for(name));
        Ok(Wanted { goal, precisions })
    }
}

/// Float, or the precision whose types have most bits, those of activations first.
fn widest(scheme: &Scheme) -> Option<String> {
    if scheme.mixed.contains_key(FLOAT) {
        return Some(FLOAT.to_string());
    }
    let bits =
        |name: &Option<String>| name.as_ref().and_then(|name| scheme.types.get(name)).map_or(0, |qtype| qtype.bits);
    let width = |p: &Precision| (bits(&p.activation), bits(&p.weight));
    scheme.mixed.iter().max_by_key(|(_, precision)| width(precision)).map(|(name, _)| name.clone())
}
