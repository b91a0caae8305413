//! The gain of one quantized network over another on the same samples.

use super::jackknife::jackknife;
use super::metric::{Figure, Metric};
use super::prepared::Measurement;
use super::sqnr::SQNR;

/// The gain of the second network over the first, in the deciding metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Gain {
    /// The deciding metric.
    pub metric: Metric,
    /// Figures before and after, over all outputs. Without a figure: NaN, or the metric's best figure for a metric of a
    /// task.
    pub figures: [f64; 2],
    /// Standard deviation of the difference of the figures over the samples (jackknife on paired samples), in the
    /// metric's unit; 0 if a value is NaN or infinite, and for fewer than two samples.
    pub deviation: f64,
    /// The change of each group of channels, or of each output where the metric has no groups.
    pub groups: Vec<GroupChange>,
    /// The change of the task's metric; `None` if the task is not known.
    pub task: Option<TaskChange>,
    /// Mean SQNR of the outputs before and after, in dB.
    pub sqnr_db: [f64; 2],
    /// Whether the second network has a NaN or infinite value.
    pub has_non_finite: bool,
}

/// The change of a group of channels between two networks.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupChange {
    /// Name of the output, followed by the group if the metric has groups.
    pub name: String,
    /// Figures before and after.
    pub figures: [f64; 2],
    /// Standard deviation of the difference of the figures.
    pub deviation: f64,
}

/// The change of the metric of the network's task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskChange {
    /// The task's metric.
    pub metric: Metric,
    /// Figures before and after.
    pub figures: [f64; 2],
    /// Standard deviation of the difference of the figures.
    pub deviation: f64,
}

/// Returns the figures of all groups. An output without groups counts as one.
fn group_figures(figures: &[Option<Figure>]) -> Vec<f64> {
    let of = |figure: &Figure| match figure.groups.is_empty() {
        true => vec![figure.value],
        false => figure.groups.clone(),
    };
    figures.iter().flatten().flat_map(of).collect()
}

/// Returns one figure for all outputs, followed by the figures of the groups, without the sample `left_out`.
fn all_figures(measured: &Measurement, metric: Metric, left_out: Option<usize>) -> Vec<f64> {
    let figures = measured.figures_without(metric, left_out);
    // Without that sample there may be nothing to find, and outputs that depend on no input have no figure.
    let mean = measured.mean_of(metric, &figures).unwrap_or(metric.scale.best);
    std::iter::once(mean).chain(group_figures(&figures)).collect()
}

impl Gain {
    /// Returns the gain of `after` over `before`. Both have the same samples and prepared metrics.
    pub fn of(before: &Measurement, after: &Measurement) -> Gain {
        let metric = before.deciding();
        let [first, second] = [before, after].map(|measured| all_figures(measured, metric, None));
        let deviations = match before.has_non_finite(metric) || after.has_non_finite(metric) {
            true => vec![0.0; first.len()],
            false => {
                deviations(before, after, |measured, left_out| all_figures(measured, metric, left_out), first.len())
            }
        };
        let figures = |i: usize| [first[i], second.get(i).copied().unwrap_or(f64::NAN)];
        let names = group_names(before, metric);
        let change = |(i, name)| GroupChange { name, figures: figures(i + 1), deviation: deviations[i + 1] };
        Gain {
            metric,
            figures: figures(0),
            deviation: deviations[0],
            task: TaskChange::of(before, after),
            groups: names.into_iter().take(first.len() - 1).enumerate().map(change).collect(),
            sqnr_db: [before, after].map(|measured| measured.mean(SQNR).unwrap_or_default()),
            has_non_finite: after.has_non_finite(metric) || !after.non_finite_outputs().is_empty(),
        }
    }

    /// Returns the improvement of the second network, in the metric's unit.
    pub fn gain(&self) -> f64 {
        let [before, after] = self.figures;
        after - before
    }
}

impl GroupChange {
    /// Returns the improvement of the second network, in the metric's unit.
    pub fn gain(&self) -> f64 {
        self.figures[1] - self.figures[0]
    }
}

impl TaskChange {
    /// Returns the change; `None` if the task is not known or a network has no figure.
    fn of(before: &Measurement, after: &Measurement) -> Option<TaskChange> {
        let metric = before.of_task()?;
        let figures = [before.mean(metric)?, after.mean(metric)?];
        let figure = |measured: &Measurement, left_out: Option<usize>| {
            let figures = measured.figures_without(metric, left_out);
            // Without that sample there may be nothing to find.
            vec![measured.mean_of(metric, &figures).unwrap_or(metric.scale.best)]
        };
        Some(TaskChange { metric, figures, deviation: deviations(before, after, figure, 1)[0] })
    }

    /// Returns the improvement of the second network, in the metric's unit.
    pub fn gain(&self) -> f64 {
        self.figures[1] - self.figures[0]
    }
}

/// Returns the standard deviation of the difference of each of `n_figures` figures, by leaving out one sample at a
/// time.
fn deviations(
    before: &Measurement,
    after: &Measurement,
    figures: impl Fn(&Measurement, Option<usize>) -> Vec<f64>,
    n_figures: usize,
) -> Vec<f64> {
    let n = before.n_samples().min(after.n_samples());
    if n < 2 {
        return vec![0.0; n_figures];
    }
    let difference = |left_out: usize| -> Vec<f64> {
        let [a, b] = [before, after].map(|measured| figures(measured, Some(left_out)));
        a.iter().zip(&b).map(|(a, b)| b - a).collect()
    };
    let differences: Vec<Vec<f64>> = (0..n).map(difference).collect();
    let of = |i: usize| differences.iter().map(move |difference| difference.get(i).copied().unwrap_or_default());
    (0..n_figures).map(|i| jackknife(of(i))).collect()
}

/// Returns the names of the groups that have figures.
fn group_names(measured: &Measurement, metric: Metric) -> Vec<String> {
    if metric.task.is_some() {
        return vec!["all outputs".to_string()];
    }
    let figures = measured.figures(metric);
    let outputs = measured.prepared().outputs().iter().enumerate().zip(&figures);
    let of = |((output_idx, output), figure): ((usize, &String), &Option<Figure>)| -> Vec<String> {
        let groups = measured.prepared().groups().get(output_idx).map(|of| of.groups.as_slice()).unwrap_or_default();
        match figure {
            None => Vec::new(),
            Some(figure) if figure.groups.is_empty() => vec![format!("output `{output}`")],
            Some(_) => groups.iter().map(|group| format!("output `{output}`, {}", group.describe())).collect(),
        }
    };
    outputs.flat_map(of).collect()
}
