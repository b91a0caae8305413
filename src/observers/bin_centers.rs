//! The squared error that a grid makes of a histogram.

use crate::quant::{Codes, QuantParams};
use crate::statistics::{Bin, Histogram, n_centers_up_to};

/// The centers of a histogram's bins and their counts.
pub struct BinCenters {
    /// The bins, highest first. The last group is filled up with empty bins.
    groups: Vec<BinGroup>,
    negative: SideSums,
    positive: SideSums,
}

/// Bins that are summed side by side.
#[derive(Clone, Copy, Default)]
struct BinGroup {
    centers: [f64; N_GROUP],
    counts: [f64; N_GROUP],
}

const N_GROUP: usize = 4;
/// Number of groups of bins between two comparisons with the limit.
const N_UNTIL_LOOK: usize = 16;

impl BinCenters {
    /// Returns the centers and counts of the bins of a histogram.
    pub fn of(histogram: &Histogram) -> BinCenters {
        let bins: Vec<Bin> = histogram.bins().rev().collect();
        let group = |bins: &[Bin]| {
            let mut group = BinGroup::default();
            for (at, bin) in bins.iter().enumerate() {
                (group.centers[at], group.counts[at]) = (bin.center(), bin.count as f64);
            }
            group
        };
        BinCenters {
            groups: bins.chunks(N_GROUP).map(group).collect(),
            negative: SideSums::of(bins.iter().filter(|bin| bin.center() < 0.0)),
            positive: SideSums::of(bins.iter().rev().filter(|bin| bin.center() > 0.0)),
        }
    }

    /// Returns the sum of squared differences between the centers and their quantized values, one difference per
    /// counted value. If the sum reaches `limit`, the function may stop early and return the sum so far, which is at
    /// least `limit`.
    pub fn squared_error(&self, params: &QuantParams, limit: f64) -> f64 {
        if params.codes != Codes::Affine {
            return self.sum(limit, |x| f64::from(params.fake_quantize(x as f32)));
        }
        let [below, above] = [params.q_min, params.q_max].map(|q| q.abs_diff(params.zero_point));
        // A group of bins takes about as long as a cell of the grid, so the smaller number decides.
        if (below + above) as usize >= self.groups.len() {
            return self.sum(limit, params.fake_quantizer_f64());
        }
        let scale = f64::from(params.scale);
        let sides = [(&self.negative, below), (&self.positive, above)];
        let clipped: f64 = sides.iter().map(|(side, last)| side.error_of_last_cell(scale, *last)).sum();
        if clipped >= limit {
            return clipped;
        }
        sides.iter().map(|(side, last)| side.squared_error(scale, *last)).sum()
    }

    fn sum(&self, limit: f64, quantized: impl Fn(f64) -> f64) -> f64 {
        let mut sums = [0.0; N_GROUP];
        for groups in self.groups.chunks(N_UNTIL_LOOK) {
            for BinGroup { centers, counts } in groups {
                for ((sum, &x), &n) in sums.iter_mut().zip(centers).zip(counts) {
                    let difference = quantized(x) - x;
                    *sum += n * difference * difference;
                }
            }
            if sums.iter().sum::<f64>() >= limit {
                break;
            }
        }
        sums.iter().sum()
    }
}

/// Sums over the bins of one sign, up to each bin. A grid quantizes all values in one of its cells to one value. The
/// squared error of a cell follows from the differences between the sums at its two ends.
struct SideSums {
    /// Number of the first bin.
    first: usize,
    /// At `i`, the sums over the bins nearer to 0 than bin `first + i`.
    in_front: Vec<PowerSums>,
}

/// Sums over bins: of the counts, and of the counts times the first and the second power of the centers. Bins are added
/// by growing magnitude, so that the rounding error of a sum is small beside the values that were added last.
#[derive(Clone, Copy, Default)]
struct PowerSums {
    count: f64,
    sum: f64,
    sum_of_squares: f64,
}

impl PowerSums {
    /// Returns the squared error of the bins that `self` has beyond `start`, if the grid quantizes them to `value`.
    fn squared_error(self, start: PowerSums, value: f64) -> f64 {
        let (n, x, xx) = (self.count - start.count, self.sum - start.sum, self.sum_of_squares - start.sum_of_squares);
        (xx - value * x) + value * (value * n - x)
    }
}

impl SideSums {
    /// Returns the sums over `bins` of one sign, which come nearest to 0 first.
    fn of<'b>(bins: impl Iterator<Item = &'b Bin> + Clone) -> SideSums {
        let number = |bin: &Bin| n_centers_up_to(bin.inner.abs());
        let first = bins.clone().next().map_or(0, number);
        let mut so_far = PowerSums::default();
        let mut in_front = vec![so_far];
        for bin in bins {
            in_front.resize(number(bin) - first + 1, so_far);
            let (n, x) = (bin.count as f64, bin.center().abs());
            so_far = PowerSums {
                count: so_far.count + n,
                sum: so_far.sum + n * x,
                sum_of_squares: so_far.sum_of_squares + n * x * x,
            };
            in_front.push(so_far);
        }
        SideSums { first, in_front }
    }

    /// Returns the sums over the bins up to the middle between the values `cell` and `cell + 1` of a grid.
    fn up_to(&self, scale: f64, cell: u32) -> PowerSums {
        let n = n_centers_up_to((f64::from(cell) + 0.5) * scale);
        self.in_front[n.saturating_sub(self.first).min(self.in_front.len() - 1)]
    }

    fn all(&self) -> PowerSums {
        self.in_front[self.in_front.len() - 1]
    }

    /// Returns the squared error of the values that become the last value of the grid, `last` steps from 0.
    fn error_of_last_cell(&self, scale: f64, last: u32) -> f64 {
        let start = last.checked_sub(1).map_or_else(PowerSums::default, |cell| self.up_to(scale, cell));
        self.all().squared_error(start, f64::from(last) * scale)
    }

    /// Returns the squared error of all values, cell by cell, nearest to 0 first.
    fn squared_error(&self, scale: f64, last: u32) -> f64 {
        let (mut sum, mut start) = (0.0, PowerSums::default());
        for cell in 0..last {
            let end = self.up_to(scale, cell);
            sum += end.squared_error(start, f64::from(cell) * scale);
            start = end;
        }
        sum + self.all().squared_error(start, f64::from(last) * scale)
    }
}
