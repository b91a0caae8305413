//! Effort spent on tuning, and the number of samples.

/// Effort spent on tuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u8);

/// Minimum held-out samples, where at least as many are left to learn from. With fewer, the overlap does not tell good
/// from bad (docs/design/evaluation.md).
const HELD_OUT: usize = 16;
/// Number of values of the largest tensor, over all samples, up to which more samples cost little.
const CHEAP: usize = 1 << 22;

impl Effort {
    /// The levels, each with a description.
    pub const LEVELS: &[(&str, &str)] = &[
        ("0", "range observers only"),
        ("1", "equalization, smoothing, observer search, bias correction, learned rounding where needed"),
        ("2", "as 1, with 96 samples instead of 32, and range search where rounding is not learned"),
        ("3", "as 1, with 96 samples and learned rounding of all weights"),
    ];

    /// Parses a level, one digit.
    pub fn of(level: &str) -> Option<Effort> {
        Effort::LEVELS.iter().position(|(name, _)| *name == level).map(|level| Effort(level as u8))
    }

    /// Returns the level as a number.
    pub fn level(self) -> u8 {
        self.0
    }

    /// Whether methods read the samples again after calibration.
    pub fn looks_again(self) -> bool {
        self.0 > 0
    }

    /// Returns the number of samples to use, held-out ones included, where the network's largest tensor has `largest`
    /// values per sample.
    pub fn n_samples(self, largest: usize) -> usize {
        match self.0 {
            0 => 0,
            1 => (CHEAP / largest.max(1)).clamp(32, 96),
            _ => 96,
        }
    }

    /// Returns the approximate limit on the bytes that the tensors of all samples take at a time. Where all samples
    /// would take more, fewer are used.
    pub fn max_bytes(self) -> usize {
        if self.0 <= 1 { 1 << 30 } else { 3 << 30 }
    }

    /// Returns the number of samples to learn from, of `n`. The others are held out: a quarter up to effort 1, a third
    /// above, but at least 16 (half of `n` if that is less) and at least 2.
    pub fn n_tune(self, n: usize) -> usize {
        let share = if self.0 <= 1 { n / 4 } else { n / 3 };
        n.saturating_sub(share.max(HELD_OUT.min(n / 2)).max(2))
    }
}
