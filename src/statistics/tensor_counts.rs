//! Statistics of one tensor in little memory: the bins that hold values, and the extremes.

use super::histogram::bin_of;
use super::{Extremes, Histogram, TensorStatistics};
use crate::onnx::{decode_varint, encode_varint};
use anyhow::{Context, Result, ensure};

/// The non-empty bins of a tensor's histogram, and its extremes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TensorCounts {
    /// The number of each bin and the bin's count, ascending by the number.
    bins: Vec<(u32, u64)>,
    extremes: Extremes,
}

impl TensorCounts {
    /// Returns the non-empty bins and the extremes of `statistics`.
    pub fn of(statistics: &TensorStatistics) -> TensorCounts {
        TensorCounts { bins: statistics.histogram.counts(), extremes: statistics.extremes }
    }

    /// Returns the statistics, without batches.
    ///
    /// # Errors
    /// If the number of a bin is too large.
    pub fn statistics(&self) -> Result<TensorStatistics> {
        Ok(TensorStatistics::of(Histogram::of_counts(&self.bins)?, self.extremes))
    }

    /// Extremes over all samples.
    pub fn extremes(&self) -> Extremes {
        self.extremes
    }

    /// Whether the tensor had no value.
    pub fn is_empty(&self) -> bool {
        self.bins.is_empty()
    }

    /// Adds the counts of other samples.
    ///
    /// # Errors
    /// If a count becomes too large for 64 bits.
    pub fn merge(&mut self, other: &TensorCounts) -> Result<()> {
        let mut merged: Vec<(u32, u64)> = Vec::with_capacity(self.bins.len().max(other.bins.len()));
        let both = itertools::merge(self.bins.iter(), other.bins.iter());
        for &(bin, count) in both {
            match merged.last_mut().filter(|(last, _)| *last == bin) {
                Some((_, sum)) => *sum = sum.checked_add(count).context("too many values for 64 bits")?,
                None => merged.push((bin, count)),
            }
        }
        self.bins = merged;
        ensure_countable(&self.bins)?;
        self.extremes.widen(other.extremes);
        Ok(())
    }

    /// Returns the counts as bytes. For each bin: its number minus that of the bin before (-1 before the first), then
    /// its count, both as LEB128.
    pub fn bytes(&self) -> Vec<u8> {
        let (mut bytes, mut next) = (Vec::new(), 0);
        for &(bin, count) in &self.bins {
            encode_varint(u64::from(bin + 1 - next), &mut bytes);
            encode_varint(count, &mut bytes);
            next = bin + 1;
        }
        bytes
    }

    /// Reads counts from bytes that [`TensorCounts::bytes`] wrote.
    ///
    /// # Errors
    /// If the bytes are no counts, or the extremes are not in the outermost bins.
    pub fn from_bytes(mut bytes: &[u8], extremes: Extremes) -> Result<TensorCounts> {
        let (mut bins, mut next) = (Vec::new(), 0u64);
        while !bytes.is_empty() {
            let distance = decode_varint(&mut bytes).ok().context("ends within a number")?;
            let count = decode_varint(&mut bytes).ok().context("ends within a number")?;
            let bin = next.checked_add(distance).and_then(|end| end.checked_sub(1)).filter(|bin| *bin >= next);
            let bin = bin.and_then(|bin| u32::try_from(bin).ok()).context("the bins are not in order")?;
            ensure!(count > 0, "bin {bin} is empty, expected one value or more");
            bins.push((bin, count));
            next = u64::from(bin) + 1;
        }
        ensure_countable(&bins)?;
        let counts = TensorCounts { bins, extremes };
        let outermost = counts.statistics()?.histogram.ends();
        let expected = extremes.get().map(|(min, max)| (bin_of(min), bin_of(max)));
        let is_none = |extremes: Extremes| extremes == Extremes::NONE;
        ensure!(
            outermost == expected && (expected.is_some() || is_none(extremes)),
            "the extremes {} and {} are not in the outermost bins",
            extremes.min,
            extremes.max
        );
        Ok(counts)
    }
}

/// Fails if the sum of all counts does not fit 64 bits.
fn ensure_countable(bins: &[(u32, u64)]) -> Result<()> {
    let sum = bins.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count));
    sum.map(drop).context("too many values for 64 bits")
}
