//! What a change must show on held-out samples to be accepted. The only place that says so.

use crate::metrics::{Gain, GroupChange, OVERLAP};
use std::f64::consts::LN_10;

/// What a change must show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    /// The gain must be above so many of its standard deviations.
    pub gain: f64,
    /// And above this share of what the overlap lacks to 1; of an SQNR, as much less error.
    pub least_share: f64,
    /// Whether a smaller gain is enough where the SQNR rises as well and little is at stake: one deviation is at most 0.01.
    pub is_seconded: bool,
    /// No group of channels may lose more than so many of its own.
    pub loss: f64,
}

/// Standard deviation of an overlap's difference up to which a change within chance does no harm to speak of.
const SMALL: f64 = 0.01;

/// Any change.
pub const CHANGE: Acceptance = Acceptance { gain: 1.0, least_share: 0.0, is_seconded: true, loss: 2.0 };
/// A range observer that cuts values off: images that reach further than the held-out ones show more of that. Figures:
/// docs/design/observers.md.
pub const NARROW_OBSERVER: Acceptance = Acceptance { gain: 2.0, least_share: 0.0, is_seconded: false, loss: 1.0 };
/// Operators more, which cost time: they must pay. Figures: docs/design/equalization.md.
pub const INSERTION: Acceptance = Acceptance { gain: 2.0, least_share: 0.1, is_seconded: false, loss: 2.0 };
/// The network of all changes against the one without any.
pub const WHOLE: Acceptance = Acceptance { gain: -1.0, least_share: 0.0, is_seconded: false, loss: 2.0 };

/// Overlap below which a network has little left of what the float one finds. Figures: docs/design/evaluation.md.
pub const LEAST_OVERLAP: f64 = 0.3;

impl Acceptance {
    /// Why a change is rejected; `None` where it is accepted. No figure that is NaN or infinite is a gain.
    pub fn rejects(self, change: &Gain) -> Option<String> {
        let (gain, deviation) = (change.gain(), change.deviation);
        if change.is_unknown || !gain.is_finite() || !deviation.is_finite() {
            return Some("an output has values that are NaN or infinite".to_string());
        }
        let is_small = self.is_seconded && deviation <= SMALL;
        let is_seconded = is_small && gain > 0.0 && change.sqnr_db[1] > change.sqnr_db[0];
        if gain < self.gain * deviation && !is_seconded || gain <= 0.0 && self.gain > 0.0 {
            return Some(match gain > 0.0 {
                true => "the gain is within chance".to_string(),
                false => "no gain".to_string(),
            });
        }
        let lacks = |figure: f64| if change.metric == OVERLAP { 1.0 - figure } else { (-figure / 20.0 * LN_10).exp() };
        let [lacked, lacks] = change.figures.map(lacks);
        if self.least_share > 0.0 && lacked - lacks < self.least_share * lacked {
            return Some(format!("less than {} % of the loss are made up for", 100.0 * self.least_share));
        }
        let worst = change.groups.iter().filter(|group| self.harms(group));
        let worst = worst.min_by(|a, b| a.gain().total_cmp(&b.gain()))?;
        let [before, after] = worst.figures.map(|figure| change.metric.spelled(figure));
        Some(format!("{}: {} {before} -> {after}", worst.name, change.metric.title))
    }

    fn harms(self, group: &GroupChange) -> bool {
        let loss = -group.gain();
        !loss.is_finite() || loss > self.loss * group.deviation && loss > 0.0
    }
}
