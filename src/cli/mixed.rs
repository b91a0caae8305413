//! Options about the precision of single layers.

use crate::mixed::{Goal, Wanted};
use crate::scheme::Scheme;
use anyhow::{Result, ensure};
use clap::Args;

/// Which layers get another precision than the backend's rows give them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Precision of single layers (one goal)")]
pub struct MixedArgs {
    /// Keep the N most sensitive layers float; 0 only measures
    #[arg(long, value_name = "N", group = "goal")]
    keep_float: Option<usize>,
    /// Promote the fewest layers such that every output has so much SQNR, in dB
    #[arg(long, value_name = "DB", group = "goal", allow_hyphen_values = true)]
    target_sqnr: Option<f64>,
    /// Promote the fewest layers such that so many percent of the samples, or fewer, get another class than in float
    #[arg(long, value_name = "PERCENT", group = "goal", allow_hyphen_values = true)]
    max_drop: Option<f64>,
    /// Narrow or widen weights such that they have at most so many bits on average
    #[arg(long, value_name = "BITS", group = "goal", allow_hyphen_values = true)]
    bits_budget: Option<f64>,
    /// What promoted layers get: a name of the backend's key `mixed` [default: float, or else the widest]
    #[arg(long, value_name = "NAME", requires = "goal")]
    raise_to: Option<String>,
}

impl MixedArgs {
    /// What is wanted, if anything; the table's operator set is raised where that needs it.
    pub fn resolve(&self, scheme: &mut Scheme, has_data: bool) -> Result<Option<Wanted>> {
        let goals = [
            self.keep_float.map(Goal::KeepFloat),
            self.target_sqnr.map(Goal::TargetSqnr),
            self.max_drop.map(Goal::MaxDrop),
            self.bits_budget.map(Goal::BitsBudget),
        ];
        let Some(goal) = goals.into_iter().flatten().next() else { return Ok(None) };
        ensure!(has_data, "{} needs --data, expected samples to choose layers by", goal.option());
        Wanted::new(goal, self.raise_to.as_deref(), scheme).map(Some)
    }
}
