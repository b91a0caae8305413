//! Coordinate descent on channel scales: moves exponents by one while that lowers the quantization error.

use super::objective::{Objective, RangeTerm, WeightTerm, step};
use crate::quant::Grid;

/// Number of exponents per doubling of a channel scale. Powers of two would leave channels up to a factor of 2 apart.
/// Powers of 2^(1/8) gain no more.
pub const PER_OCTAVE: i32 = 4;

/// Largest absolute exponent. It limits the scale of a channel that has almost no values on the samples, so that
/// float32 and unseen data can take it.
pub const MAX_EXPONENT: i32 = 10 * PER_OCTAVE;

/// Maximum sweeps over the channels.
const MAX_SWEEPS: usize = 12 * PER_OCTAVE as usize;

/// Minimum reduction of the quantization error by a move, relative to the error at the start.
const LEAST: f64 = 1e-9;

/// Returns 2 to the power of `exponent` / 4, bit-identical on every machine.
pub fn factor(exponent: i32) -> f64 {
    const PARTS: [f64; PER_OCTAVE as usize] =
        [1.0, 1.189_207_115_002_721, std::f64::consts::SQRT_2, 1.681_792_830_507_429];
    let part = PARTS[exponent.rem_euclid(PER_OCTAVE) as usize];
    let power = u64::from((1023 + exponent.div_euclid(PER_OCTAVE)).unsigned_abs());
    f64::from_bits(power << 52) * part
}

/// The two largest values, and the index of the first.
#[derive(Debug, Clone, Copy, Default)]
struct Top {
    first: f64,
    second: f64,
    at: usize,
}

impl Top {
    fn of(values: impl Iterator<Item = f64>) -> Top {
        let mut top = Top::default();
        for (at, value) in values.enumerate() {
            if value > top.first {
                top = Top { first: value, second: top.first, at };
            } else if value > top.second {
                top.second = value;
            }
        }
        top
    }

    /// Returns the largest value if the value at `at` were `value`.
    fn with(&self, at: usize, value: f64) -> f64 {
        value.max(if at == self.at { self.second } else { self.first })
    }

    /// Whether changing a value from `from` to `to` may change the two largest.
    fn depends_on(&self, from: f64, to: f64) -> bool {
        let higher = from.max(to);
        higher > 0.0 && higher >= self.second
    }
}

/// The grid steps of symmetric ranges. A step is proportional to its range, except on power-of-two grids.
struct Steps {
    grid: Grid,
    unit: Option<f64>,
}

impl Steps {
    fn of(grid: Grid) -> Steps {
        let proportional = grid.scale_rule.power_of_two.is_none();
        Steps { grid, unit: proportional.then(|| step(&grid, -1.0, 1.0)) }
    }

    fn squared(&self, peak: f64) -> f64 {
        let step = self.unit.map_or_else(|| step(&self.grid, -peak, peak), |unit| unit * peak);
        step * step
    }
}

impl RangeTerm {
    /// Returns the two largest upper ends of the scaled channels.
    fn highest(&self, exponents: &[i32]) -> Top {
        Top::of(exponents.iter().zip(&self.high).map(|(&e, high)| high / factor(e)))
    }

    /// Returns the two largest absolute values of lower ends of the scaled channels.
    fn lowest(&self, exponents: &[i32]) -> Top {
        Top::of(exponents.iter().zip(&self.low).map(|(&e, low)| -low / factor(e)))
    }
}

struct RangeState<'a> {
    term: &'a RangeTerm,
    low: Top,
    high: Top,
    /// `sum_c s_c^2 * load_c`.
    load: f64,
    error: f64,
}

impl<'a> RangeState<'a> {
    fn of(term: &'a RangeTerm, exponents: &[i32]) -> RangeState<'a> {
        let (low, high) = (term.lowest(exponents), term.highest(exponents));
        let loads = exponents.iter().zip(&term.load).map(|(&e, load)| load * factor(2 * e));
        let load: f64 = loads.sum();
        let error = step(&term.grid, -low.first, high.first).powi(2) * load;
        RangeState { term, low, high, load, error }
    }

    fn moved(&self, c: usize, from: i32, to: i32) -> f64 {
        let load = self.load + self.term.load[c] * (factor(2 * to) - factor(2 * from));
        let high = self.high.with(c, self.term.high[c] / factor(to));
        let low = self.low.with(c, -self.term.low[c] / factor(to));
        step(&self.term.grid, -low, high).powi(2) * load
    }

    /// Updates the state after channel `c` moved from exponent `from` to `exponents[c]`.
    fn follow(&mut self, c: usize, from: i32, exponents: &[i32]) {
        let to = exponents[c];
        let RangeTerm { grid, low, high, load } = self.term;
        self.load += load[c] * (factor(2 * to) - factor(2 * from));
        if self.high.depends_on(high[c] / factor(from), high[c] / factor(to)) {
            self.high = self.term.highest(exponents);
        }
        if self.low.depends_on(-low[c] / factor(from), -low[c] / factor(to)) {
            self.low = self.term.lowest(exponents);
        }
        self.error = step(grid, -self.low.first, self.high.first).powi(2) * self.load;
    }
}

struct WeightState<'a> {
    term: &'a WeightTerm,
    steps: Steps,
    rows: usize,
    /// The two largest scaled weights of each row.
    tops: Vec<Top>,
    /// `sum_c energy_c / s_c^2`, per group.
    energy: Vec<f64>,
    /// Sum of the squared steps of a group's rows, per group.
    squares: Vec<f64>,
}

impl<'a> WeightState<'a> {
    fn of(term: &'a WeightTerm, exponents: &[i32]) -> WeightState<'a> {
        let rows = term.n_rows / term.firsts.len();
        let steps = Steps::of(term.grid);
        let mut state = WeightState {
            term,
            steps,
            rows,
            tops: Vec::with_capacity(term.n_rows),
            energy: Vec::new(),
            squares: Vec::new(),
        };
        for (group, &first) in term.firsts.iter().enumerate() {
            for row in 0..rows {
                state.tops.push(state.top(group, row, exponents));
            }
            let energy = (0..term.n_members)
                .map(|member| term.energy[group * term.n_members + member] / factor(2 * exponents[first + member]));
            state.energy.push(energy.sum());
            state.squares.push(state.squares_of(group));
        }
        state
    }

    fn top(&self, group: usize, row: usize, exponents: &[i32]) -> Top {
        let WeightTerm { firsts, n_members, peaks, .. } = self.term;
        let peak = |member: usize| peaks[(group * n_members + member) * self.rows + row];
        let first = firsts[group];
        Top::of((0..*n_members).map(|member| peak(member) * factor(exponents[first + member])))
    }

    fn squares_of(&self, group: usize) -> f64 {
        let tops = &self.tops[group * self.rows..(group + 1) * self.rows];
        tops.iter().map(|top| self.steps.squared(top.first)).sum()
    }

    fn error(&self) -> f64 {
        self.energy.iter().zip(&self.squares).map(|(energy, squares)| energy * squares).sum()
    }

    /// Returns the groups of rows that read channel `c`, each with the channel's index in the group.
    fn groups_of(&self, c: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let n_members = self.term.n_members;
        // `firsts` is sorted. The run of a channel may belong to two groups.
        let from = self.term.firsts.partition_point(|&first| first + n_members <= c);
        let groups = self.term.firsts[from..].iter().take_while(move |&&first| first <= c);
        groups.enumerate().map(move |(i, &first)| (from + i, c - first))
    }

    /// Returns the increase of the quantization error if channel `c` moves from exponent `from` to `to`.
    fn growth(&self, c: usize, from: i32, to: i32) -> f64 {
        let mut growth = 0.0;
        for (group, member) in self.groups_of(c) {
            let at = group * self.term.n_members + member;
            let difference = factor(-2 * to) - factor(-2 * from);
            let energy = self.energy[group] + self.term.energy[at] * difference;
            let peaks = &self.term.peaks[at * self.rows..(at + 1) * self.rows];
            let tops = &self.tops[group * self.rows..(group + 1) * self.rows];
            let by = factor(to);
            let squares = tops.iter().zip(peaks).map(|(top, peak)| top.with(member, peak * by));
            let squares: f64 = squares.map(|peak| self.steps.squared(peak)).sum();
            growth += energy * squares - self.energy[group] * self.squares[group];
        }
        growth
    }

    /// Updates the state after channel `c` moved from exponent `from` to `exponents[c]`.
    fn follow(&mut self, c: usize, from: i32, exponents: &[i32]) {
        let groups: Vec<(usize, usize)> = self.groups_of(c).collect();
        for (group, member) in groups {
            let at = group * self.term.n_members + member;
            let difference = factor(-2 * exponents[c]) - factor(-2 * from);
            self.energy[group] += self.term.energy[at] * difference;
            for row in 0..self.rows {
                let peak = self.term.peaks[at * self.rows + row];
                let (old, new) = (peak * factor(from), peak * factor(exponents[c]));
                let top = self.tops[group * self.rows + row];
                if top.depends_on(old, new) {
                    self.tops[group * self.rows + row] = self.top(group, row, exponents);
                }
            }
            self.squares[group] = self.squares_of(group);
        }
    }
}

/// Returns the quantization error for these exponents.
pub fn error(objective: &Objective, exponents: &[i32]) -> f64 {
    let ranges = objective.ranges.iter().map(|term| RangeState::of(term, exponents).error);
    let weights = objective.weights.iter().map(|term| WeightState::of(term, exponents).error());
    ranges.sum::<f64>() + weights.sum::<f64>()
}

/// Moves exponents by one while that lowers the quantization error. Returns the final error.
pub fn descend(objective: &Objective, exponents: &mut [i32]) -> f64 {
    let mut weights: Vec<WeightState> = objective.weights.iter().map(|term| WeightState::of(term, exponents)).collect();
    let total = error(objective, exponents);
    for _ in 0..MAX_SWEEPS {
        let mut any = false;
        // Recomputed for each sweep: running sums accumulate rounding errors.
        let mut ranges: Vec<RangeState> = objective.ranges.iter().map(|term| RangeState::of(term, exponents)).collect();
        for c in (0..objective.n).filter(|&c| objective.is_live(c)) {
            let from = exponents[c];
            let growth = |to: i32| -> f64 {
                let ranges: f64 = ranges.iter().map(|r| r.moved(c, from, to) - r.error).sum();
                ranges + weights.iter().map(|w| w.growth(c, from, to)).sum::<f64>()
            };
            let moves = [from - 1, from + 1].into_iter().filter(|to| to.abs() <= MAX_EXPONENT);
            let best = moves.map(|to| (growth(to), to)).min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((growth, to)) = best.filter(|(growth, _)| *growth < -LEAST * total) else {
                continue;
            };
            debug_assert!(growth < 0.0);
            exponents[c] = to;
            any = true;
            ranges.iter_mut().for_each(|state| state.follow(c, from, exponents));
            weights.iter_mut().for_each(|state| state.follow(c, from, exponents));
        }
        if !any {
            break;
        }
    }
    error(objective, exponents)
}
