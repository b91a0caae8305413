//! Bounds that a comparison must meet.

use super::by_name;
use super::metric::{Better, Figure, Metric};
use super::prepared::Measurement;
use crate::diag::WithHint;
use anyhow::{Context, Result, anyhow, ensure};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;
use std::fmt;

/// A bound on a metric. It holds for every output that has the metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricBound {
    /// The metric.
    pub metric: Metric,
    /// The worst passing figure, in the metric's unit.
    pub bound: f64,
}

/// A missed gate.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MissedGate {
    /// The metric.
    #[serde(deserialize_with = "named")]
    pub metric: Metric,
    /// The output; absent if no output has the metric, or if the metric has one figure for the network.
    pub tensor: Option<String>,
    /// The figure; absent if it could not be measured.
    pub value: Option<f64>,
    /// The worst passing figure.
    pub bound: f64,
}

/// Reads the name of a metric.
fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Metric, D::Error> {
    by_name(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl MetricBound {
    /// Parses `NAME=VALUE`. A value in percent may end in `%`.
    ///
    /// # Errors
    /// If the metric is unknown, or the value is not a number that a figure can have. Also if the value is probably a
    /// fraction of 1, but the metric is in percent.
    pub fn parse(text: &str) -> Result<MetricBound> {
        let (name, bound) = text.split_once('=').with_context(|| format!("found `{text}`, expected NAME=VALUE"))?;
        let (metric, bound) = (by_name(name.trim())?, bound.trim());
        let in_percent = bound.strip_suffix('%').filter(|_| metric.scale.unit == "%");
        let number = || format!("found `{bound}`, expected a number for metric `{}`", metric.name);
        let value: f64 = in_percent.unwrap_or(bound).trim().parse().ok().with_context(number)?;
        ensure!(value.is_finite(), "found `{bound}`, expected a finite number for metric `{}`", metric.name);
        let is_fraction =
            metric.scale.unit == "%" && metric.scale.better == Better::Higher && value > 0.0 && value <= 1.0;
        if is_fraction && in_percent.is_none() {
            let error = anyhow!("found `{bound}`, expected a percentage above 1 for metric `{}`", metric.name);
            let (name, percent) = (metric.name, format!("{:.*}", metric.scale.decimals, 100.0 * value));
            return Err(error.hint(format!(
                "the metric is in percent: `{name}={percent}` for {percent} %, `{name}={value}%` for {value} %"
            )));
        }
        MetricBound::new(metric, value)
    }

    /// Returns a bound on a metric.
    ///
    /// # Errors
    /// If no figure of the metric can have this value.
    pub fn new(metric: Metric, bound: f64) -> Result<MetricBound> {
        metric.ensure_possible(bound)?;
        Ok(MetricBound { metric, bound })
    }

    /// Returns the outputs that miss the bound. Outputs with NaN or infinite values, for which `is_known` is false,
    /// miss every gate. A figure that could not be measured does not pass.
    pub fn missed(&self, measured: &Measurement, is_known: impl Fn(usize) -> bool) -> Vec<MissedGate> {
        let MetricBound { metric, bound } = *self;
        let figures = measured.figures(metric);
        let names = measured.prepared().outputs();
        if metric.task.is_some() {
            let known = (0..names.len()).all(is_known) && !measured.has_non_finite(metric);
            let value = figures.iter().flatten().map(|figure| figure.value).find(|value| known && value.is_finite());
            let passes = value.is_some_and(|value| metric.reaches(value, bound));
            return if passes { Vec::new() } else { vec![MissedGate { metric, tensor: None, value, bound }] };
        }
        if figures.iter().all(Option::is_none) {
            return vec![MissedGate { metric, tensor: None, value: None, bound }];
        }
        let of = |(output_idx, figure): (usize, &Option<Figure>)| {
            let value = figure.as_ref()?.value;
            let known = is_known(output_idx) && value.is_finite();
            let passes = known && metric.reaches(value, bound);
            let tensor = names.get(output_idx).cloned();
            (!passes).then_some(MissedGate { metric, tensor, value: known.then_some(value), bound })
        };
        figures.iter().enumerate().filter_map(of).collect()
    }
}

impl fmt::Display for MissedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissedGate { metric, tensor, value, bound } = self;
        match tensor {
            Some(tensor) => write!(f, "output `{tensor}`: ")?,
            None if metric.task.is_some() => {}
            None => write!(f, "no output has this metric: ")?,
        }
        match value {
            Some(value) => write!(f, "{} is {}", metric.title, metric.with_unit(*value))?,
            None => write!(f, "{} was not measured", metric.title)?,
        }
        let side = match metric.scale.better {
            Better::Higher => "more",
            Better::Lower => "less",
        };
        write!(f, ", expected {bound}{} or {side}", metric.unit_suffix())
    }
}
