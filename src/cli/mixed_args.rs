//! Options of mixed precision: the goal, and the precision of the layers that it raises.

use super::complete;
use super::options::whole;
use crate::data::parse_number;
use crate::diag::WithHint;
use crate::heads::{self, HeadRequest};
use crate::metrics::{self, COCO_MAP, METRICS, MetricBound, TOP1, TOP1_DROP};
use crate::mixed::{Goal, Wanted};
use crate::scheme::Scheme;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;

/// The goal that decides which layers get another precision than the backend's table gives them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Mixed precision (one goal)")]
pub struct MixedArgs {
    /// Keep the N most sensitive layers float; 0 only ranks the layers
    #[arg(long, value_name = "N", group = "goal", value_parser = whole, allow_negative_numbers = true)]
    keep_float: Option<usize>,
    /// Raise precision until every output has this SQNR, in dB
    #[arg(long, value_name = "DB", group = "goal", value_parser = parse_number, allow_hyphen_values = true)]
    target_sqnr: Option<f64>,
    /// Raise precision until each output reaches a figure: overlap=0.95
    #[arg(long, value_name = "NAME=VALUE", group = "goal", add = complete::metrics())]
    target: Option<String>,
    /// Raise precision until at most PERCENT of the samples change top-1 class
    #[arg(long, value_name = "PERCENT", group = "goal", value_parser = parse_number, allow_hyphen_values = true)]
    max_drop: Option<f64>,
    /// Choose the weight type of each layer, with at most BITS bits on average
    #[arg(long, value_name = "BITS", group = "goal", value_parser = parse_number, allow_hyphen_values = true)]
    bits_budget: Option<f64>,
    /// Precision of these layers, one of the table's `mixed` [default: widest]
    #[arg(long, value_name = "NAME", requires = "goal")]
    raise_to: Option<String>,
}

impl MixedArgs {
    /// Returns the goal, if any. Sets the task of `head` to that of the goal's metric, and raises the minimum opset of
    /// `scheme` if the goal needs it. Fails if the goal needs labels or is of another task than `head`, there is no
    /// data, or [`Wanted::new`] refuses the goal.
    pub fn resolve(&self, scheme: &mut Scheme, has_data: bool, head: &mut HeadRequest) -> Result<Option<Wanted>> {
        let target = self.target.as_deref().map(MetricBound::parse).transpose().context("--target")?;
        if let Some(MetricBound { metric, .. }) = target
            && [TOP1, TOP1_DROP, COCO_MAP].contains(&metric)
        {
            let error = anyhow!(
                "--target: metric `{}` needs labels, expected one without: quantization takes no labels",
                metric.name
            );
            let instead = if metric == COCO_MAP { "f1" } else { "agreement" };
            return Err(error.hint(format!(
                "`{instead}` compares with the float model; `mqq compare --labels` measures `{}`",
                metric.name
            )));
        }
        let goals = [
            self.keep_float.map(Goal::keep_float),
            self.target_sqnr.map(|db| Goal::target(metrics::SQNR, db)),
            target.map(|target| Goal::target(target.metric, target.bound)),
            self.max_drop.map(Goal::max_drop),
            self.bits_budget.map(Goal::bits_budget),
        ];
        let goal = goals.into_iter().flatten().next();
        let of_goal = goal.as_ref().and_then(Goal::metric).and_then(|metric| metric.task);
        let given = head.task.or(head.head.as_ref().map(heads::Head::task));
        if let (Some(given), Some(_)) = (given.filter(|given| Some(*given) != of_goal), of_goal) {
            let names = METRICS.iter().filter(|metric| metric.task == Some(given)).map(|metric| metric.name);
            let names = names.collect::<Vec<_>>().join(", ");
            bail!(
                "the task is {}, expected a goal of this task: --target NAME=VALUE with one of {names}",
                given.name()
            );
        }
        let Some(goal) = goal else { return Ok(None) };
        ensure!(has_data, "{} needs --data, expected samples to choose the layers", goal.option());
        head.task = head.task.or(of_goal);
        Wanted::new(goal, self.raise_to.as_deref(), scheme).map(Some)
    }
}
