//! What a change must show on held-out samples to be accepted. The only place that says so.

use crate::metrics::Gain;

/// What a change must show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    /// The gain must be above so many of its standard deviations; below 0: there is no loss of so many.
    pub deviations: f64,
}

/// Methods that tune a plan: they learn from other samples than those that decide.
pub const TUNING: Acceptance = Acceptance { deviations: 0.0 };
/// Equalization: its objective promised a gain, and two standard deviations are within what the choice of samples does.
pub const EQUALIZATION: Acceptance = Acceptance { deviations: -2.0 };
/// Another observer of activations that keeps nearly the whole range.
pub const WIDE_OBSERVER: Acceptance = Acceptance { deviations: 0.0 };
/// A narrower one: what it cuts off shows on images that reach further than those that decide. Figures:
/// docs/design/observers.md.
pub const NARROW_OBSERVER: Acceptance = Acceptance { deviations: 2.0 };

impl Acceptance {
    /// Whether a change with this gain, in dB, is accepted, and this standard deviation of it. No figure that is NaN or
    /// infinite is a gain.
    pub fn accepts(self, gain_db: f64, standard_deviation_db: f64) -> bool {
        let is_finite = gain_db.is_finite() && standard_deviation_db.is_finite();
        is_finite && gain_db > self.deviations * standard_deviation_db
    }

    /// Whether a change with this gain is accepted, and gains more than `best_db`, in dB, the best so far.
    pub fn is_best(self, gain: &Gain, best_db: f64) -> bool {
        self.accepts(gain.gain_db, gain.standard_deviation_db) && gain.gain_db > best_db
    }
}
