//! What is accepted: what a change must show on held-out samples, and what a network as a whole must reach. The only place
//! that says so.

use crate::metrics::Gain;

/// What a change must show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Acceptance {
    /// Less quantization error, however little.
    Gain,
    /// A gain above so many of its standard deviations; below 0: no loss of so many.
    GainBy(f64),
}

/// Methods that tune a plan: they learn from other samples than those that decide.
pub const TUNING: Acceptance = Acceptance::Gain;
/// Equalization: its objective promised a gain, and two standard deviations are within what the choice of samples does.
pub const EQUALIZATION: Acceptance = Acceptance::GainBy(-2.0);
/// Another observer of activations that keeps nearly the whole range.
pub const WIDE_OBSERVER: Acceptance = Acceptance::GainBy(0.0);
/// A narrower one: what it cuts off shows on images that reach further than those that decide. Figures:
/// docs/design/observers.md.
pub const NARROW_OBSERVER: Acceptance = Acceptance::GainBy(2.0);

impl Acceptance {
    /// Standard deviations that the gain must be above.
    pub fn deviations(self) -> f64 {
        match self {
            Acceptance::Gain => 0.0,
            Acceptance::GainBy(deviations) => deviations,
        }
    }

    /// Whether a change with this gain, in dB, is accepted, and this standard deviation of it. No figure that is NaN or
    /// infinite is a gain.
    pub fn accepts(self, gain_db: f64, standard_deviation_db: f64) -> bool {
        let is_finite = gain_db.is_finite() && standard_deviation_db.is_finite();
        is_finite && gain_db > self.deviations() * standard_deviation_db
    }

    /// Whether a change with this gain is accepted, and gains more than `best_db`, in dB, the best so far.
    pub fn is_best(self, gain: &Gain, best_db: f64) -> bool {
        self.accepts(gain.gain_db, gain.standard_deviation_db) && gain.gain_db > best_db
    }
}

/// What a network as a whole must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// Nothing.
    None,
    /// At least so many dB of SQNR at every output.
    SqnrDb(f64),
    /// Another class than in float for at most so many percent of the samples.
    DropPercent(f64),
    /// At most so many bits per weight; kept by the plan itself.
    WeightBits(f64),
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

impl Limit {
    /// Whether a network reaches it.
    pub fn is_met(self, reached: Reached) -> bool {
        let Reached { sqnr_db, agreement_percent, weight_bits } = reached;
        match self {
            Limit::None => true,
            Limit::SqnrDb(db) => sqnr_db >= db,
            Limit::DropPercent(drop) => agreement_percent.is_some_and(|same| 100.0 - same <= drop),
            Limit::WeightBits(bits) => weight_bits <= bits,
        }
    }

    /// How far a network is from it, in its unit.
    pub fn shortfall(self, reached: Reached) -> f64 {
        let Reached { sqnr_db, agreement_percent, .. } = reached;
        match self {
            Limit::SqnrDb(db) => (db - sqnr_db).max(0.0),
            Limit::DropPercent(drop) => (100.0 - agreement_percent.unwrap_or_default() - drop).max(0.0),
            Limit::None | Limit::WeightBits(_) => 0.0,
        }
    }
}
