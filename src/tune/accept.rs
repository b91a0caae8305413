//! The thresholds that a change must pass on held-out samples to be accepted. No other file has such thresholds.

use crate::metrics::{Gain, OVERLAPS};
use std::f64::consts::LN_10;

/// The thresholds of one kind of change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    /// Smallest gain, in standard deviations of the gain.
    pub gain: f64,
    /// Smallest gain as a share of the loss that is left: 1 - overlap, or the relative error where SQNR decides.
    pub least_share: f64,
    /// Whether a smaller gain is enough where the SQNR rises as well and the standard deviation is at most 0.01.
    pub is_seconded: bool,
    /// Largest loss of a group of channels, and of the task's metric, in standard deviations of that loss.
    pub loss: f64,
}

/// Largest standard deviation of an overlap's gain at which a change within noise is harmless.
const SMALL: f64 = 0.01;

/// Least gain of an overlap that must be possible, that is within one standard deviation, for more samples to be run.
/// Figures: docs/design/evaluation.md.
const WORTH: f64 = 0.01;

/// The thresholds of changes that none of the following constants covers.
pub const CHANGE: Acceptance = Acceptance { gain: 1.0, least_share: 0.0, is_seconded: true, loss: 2.0 };
/// The thresholds of a range observer that clips few values. The SQNR on the samples that gave the ranges does not show
/// what it clips in others. Figures: docs/design/observers.md.
pub const CLIPS_LITTLE: Acceptance = Acceptance { is_seconded: false, ..CHANGE };
/// The thresholds of changes that leave less room for unseen values: a range observer that clips, or channels shifted
/// to the middle of their range. Held-out samples understate the loss, because new images may reach further. Figures:
/// docs/design/observers.md, equalization.md.
pub const NARROW: Acceptance = Acceptance { gain: 2.0, least_share: 0.0, is_seconded: false, loss: 1.0 };
/// The thresholds of the `entropy` observer, whose ranges may be far off. Unless it recovers much, later methods gain
/// less on top of it than on top of other observers. Figures: docs/design/observers.md.
pub const ERRATIC: Acceptance = Acceptance { gain: 2.0, least_share: 0.2, is_seconded: false, loss: 1.0 };
/// The thresholds of changes that cost time, so that they must gain more: inserted operators, and layers that stay
/// float or get wider types. Figures: docs/design/equalization.md.
pub const INSERTION: Acceptance = Acceptance { gain: 2.0, least_share: 0.1, is_seconded: false, loss: 2.0 };
/// The thresholds of the network with all changes, compared to the network without changes.
pub const WHOLE: Acceptance = Acceptance { gain: -1.0, least_share: 0.0, is_seconded: false, loss: 2.0 };

/// Overlap below which a network keeps little of the float outputs. Figures: docs/design/evaluation.md.
pub const LEAST_OVERLAP: f64 = 0.3;
/// Overlap from which a network needs no rescue. Figures: docs/design/mixed-precision.md.
pub const FINE: f64 = 0.9;
/// Overlap below which a warning names the steps that gain accuracy.
pub const LOW_OVERLAP: f64 = 0.7;
/// Overlap below which nothing useful is left of a network. Figures: docs/design/evaluation.md.
pub const BROKEN: f64 = 0.2;

impl Acceptance {
    /// Returns the reason to reject a change; `None` to accept it. A NaN or infinite figure is never a gain.
    pub fn rejects(self, change: &Gain) -> Option<String> {
        let (gain, deviation) = (change.gain(), change.deviation);
        if change.has_non_finite || !gain.is_finite() || !deviation.is_finite() {
            return Some("an output has values that are NaN or infinite".to_string());
        }
        let is_small = self.is_seconded && deviation <= SMALL;
        let is_seconded = is_small && gain > 0.0 && change.sqnr_db[1] > change.sqnr_db[0];
        if gain < self.gain * deviation && !is_seconded || gain <= 0.0 && self.gain > 0.0 {
            return Some(match gain > 0.0 {
                true => "the gain is within noise".to_string(),
                false => "no gain".to_string(),
            });
        }
        let lacks =
            |figure: f64| if OVERLAPS.contains(&change.metric) { 1.0 - figure } else { (-figure / 20.0 * LN_10).exp() };
        let [lacked, lacks] = change.figures.map(lacks);
        if self.least_share > 0.0 && lacked - lacks < self.least_share * lacked {
            return Some(format!("it recovers less than {} % of the loss", 100.0 * self.least_share));
        }
        if let Some(task) = change.task.filter(|task| self.is_harmed(task.gain(), task.deviation)) {
            let [before, after] = task.figures.map(|figure| task.metric.with_unit(figure));
            return Some(format!("worse at the task: {} {before} -> {after}", task.metric.title));
        }
        let worst = change.groups.iter().filter(|group| self.is_harmed(group.gain(), group.deviation));
        let worst = worst.min_by(|a, b| a.gain().total_cmp(&b.gain()))?;
        let [before, after] = worst.figures.map(|figure| change.metric.with_unit(figure));
        Some(format!("worse at {}: {} {before} -> {after}", worst.name, change.metric.title))
    }

    /// Whether more samples may turn a rejection into an acceptance that matters. The deciding metric must rise within
    /// noise, the SQNR must rise as well, and the largest gain within one standard deviation must be worth the runs.
    pub fn leaves_open(self, change: &Gain) -> bool {
        let (gain, deviation) = (change.gain(), change.deviation);
        let is_worth_it = !OVERLAPS.contains(&change.metric) || gain + deviation >= WORTH;
        let is_within = gain > 0.0 && gain < self.gain * deviation;
        !change.has_non_finite && is_within && is_worth_it && change.sqnr_db[1] > change.sqnr_db[0]
    }

    /// Whether a gain with this standard deviation is a loss beyond chance.
    fn is_harmed(self, gain: f64, deviation: f64) -> bool {
        !gain.is_finite() || -gain > self.loss * deviation && gain < 0.0
    }
}
