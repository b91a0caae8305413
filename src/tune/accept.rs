//! What a change must show on held-out samples to be accepted. The only place that says so.

use crate::metrics::Gain;

/// What a change must show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    /// The gain must be above so many of its standard deviations.
    pub deviations: f64,
}

/// Methods that tune a plan: they learn from other samples than those that decide.
pub const TUNING: Acceptance = Acceptance { deviations: 1.0 };
/// Equalization.
pub const EQUALIZATION: Acceptance = Acceptance { deviations: 0.0 };
/// Another observer of activations that keeps nearly the whole range.
pub const WIDE_OBSERVER: Acceptance = Acceptance { deviations: 0.0 };
/// A narrower one: what it cuts off shows on images that reach further than those that decide. Figures:
/// docs/design/observers.md.
pub const NARROW_OBSERVER: Acceptance = Acceptance { deviations: 2.0 };

impl Acceptance {
    /// Whether a change is accepted: it gains, and no tensor that an output is evaluated by loses more than the choice of
    /// samples does. No figure that is NaN or infinite is a gain.
    pub fn accepts(self, gain: &Gain) -> bool {
        let Gain { gain_db, standard_deviation_db, does_harm, .. } = *gain;
        let is_finite = gain_db.is_finite() && standard_deviation_db.is_finite();
        is_finite && !does_harm && gain_db > self.deviations * standard_deviation_db
    }
}
