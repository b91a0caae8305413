//! Range observers, which choose the range of a tensor.
//!
//! In: [`TensorStatistics`] and the [`Grid`] that the tensor will be quantized to. Out: a [`Range`]. The functions are
//! pure; they compute no scales and do not know tensors' names. [`OBSERVERS`] is the open list: a new one is a file
//! here, a `mod` line and a line in the list.

mod auto;
mod bin_centers;
mod ema;
mod entropy;
mod max;
mod mse;
mod percentile;
mod pot_search;
mod shrink;

/// Every observer, with its default option.
pub const OBSERVERS: &[Observer] =
    &[max::MAX, ema::EMA, percentile::PERCENTILE, shrink::SHRINK, entropy::ENTROPY, mse::MSE, auto::AUTO];

pub use auto::AUTO;
pub use bin_centers::BinCenters;
pub use mse::MSE;
pub use pot_search::pot_search;

use crate::diag::none_of;
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::{Context, Result};

/// Chooses the range of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Observer {
    /// The name of the observer on the command line and in a backend's table.
    pub name: &'static str,
    /// Names in other tools, accepted like the name.
    pub aliases: &'static [&'static str],
    /// Value of its option, if it has one: a percentage or a ratio.
    pub option: f64,
    /// Parses an option and returns the observer with it; `None` if the observer has no option.
    parse: Option<fn(Observer, &str) -> Result<Observer>>,
    /// The function behind [`Observer::find`].
    find: fn(&Observer, &TensorStatistics, &Grid) -> Result<Range>,
    /// Whether the observer reads the histogram, not only the extremes.
    pub reads_histogram: bool,
    /// Samples per batch, if the observer averages over batches in [`TensorStatistics::batches`].
    pub batch_size: Option<usize>,
    /// The observers from which the observer chooses, the default first; empty for an observer with a range of its own.
    pub choices: &'static [Observer],
}

impl Observer {
    /// An observer without options that reads the histogram.
    const PLAIN: Observer = Observer {
        name: "",
        aliases: &[],
        option: 0.0,
        parse: None,
        find: |_, statistics, grid| observed(statistics, grid),
        reads_histogram: true,
        batch_size: None,
        choices: &[],
    };

    /// Returns the range. It includes 0, and reaches beyond the observed range only to include 0 or, on a symmetric
    /// signed grid, to be centered on 0. It does not depend on the order in which the histogram was filled.
    ///
    /// # Errors
    /// If the statistics have no finite value.
    pub fn find(&self, statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
        (self.find)(self, statistics, grid)
    }

    /// Returns the name, with the option if there is one, such as `percentile:99.9`. The batch size of `ema` is left
    /// out.
    pub fn spelled(&self) -> String {
        match self.parse {
            Some(_) => format!("{}:{}", self.name, self.option),
            None => self.name.to_string(),
        }
    }
}

/// Splits a spelling into name and option: `percentile` and `99.9` from `percentile:99.9` or `percentile=99.9`. An
/// alias becomes the observer's name.
fn parts(spelling: &str) -> (&str, Option<&str>) {
    let parts = spelling.split_once([':', '=']);
    let (name, option) = parts.map_or((spelling, None), |(name, option)| (name, Some(option)));
    let called = OBSERVERS.iter().find(|observer| observer.aliases.contains(&name));
    (called.map_or(name, |observer| observer.name), option)
}

/// The canonical form of a spelling that [`by_spelling`] accepts: name, colon, option.
pub fn canonical(spelling: &str) -> String {
    match parts(spelling) {
        (name, Some(option)) => format!("{name}:{option}"),
        (name, None) => name.to_string(),
    }
}

/// The observer for a spelling such as `mse`, `percentile:99.9` or `ema=0.95:64`: a name or an alias, and its options.
///
/// # Errors
/// If there is no such observer, the observer takes no option, or the option is not a number or out of bounds.
pub fn by_spelling(spelling: &str) -> Result<Observer> {
    let (name, option) = parts(spelling);
    let Some(observer) = OBSERVERS.iter().find(|observer| observer.name == name) else {
        let names = OBSERVERS.iter().flat_map(|observer| [&[observer.name], observer.aliases].concat());
        return Err(none_of(format_args!("observer `{name}` is unknown"), name, names));
    };
    let Some(option) = option else { return Ok(*observer) };
    let parse = observer.parse.with_context(|| format!("observer `{name}` takes no option, found `{spelling}`"))?;
    parse(*observer, option).with_context(|| format!("observer `{spelling}`"))
}

/// Parses a number.
fn number(text: &str) -> Result<f64> {
    text.parse().ok().with_context(|| format!("`{text}` is not a number"))
}

/// Returns the observed range, widened to include 0, and centered if the grid is.
fn observed(statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let (min, max) = statistics.min_max().context("no finite value was observed, expected at least one")?;
    Ok(fit(Range { min: f64::from(min), max: f64::from(max) }, grid))
}

/// Returns `range` widened to include `min`, `max` and 0, and centered if the grid is.
pub fn covering(range: Range, min: f32, max: f32, grid: &Grid) -> Range {
    let (min, max) = (range.min.min(f64::from(min)), range.max.max(f64::from(max)));
    fit(Range { min, max }, grid)
}

/// Returns `range` widened to include 0, and centered if the grid is.
fn fit(range: Range, grid: &Grid) -> Range {
    let range = Range { min: range.min.min(0.0), max: range.max.max(0.0) };
    if grid.is_centred() { Range::symmetric(range.amax()) } else { range }
}

/// A range observer and its spelling.
#[derive(Debug, Clone)]
pub struct Spelled {
    /// The observer.
    pub observer: Observer,
    /// Name with options, such as `percentile:99.99`.
    pub spelling: String,
}

/// The range observers of a run.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// The observer of activations.
    pub activation: Spelled,
    /// Whether the user named the observer of activations.
    pub is_given: bool,
    /// The observer of weights.
    pub weight: Spelled,
}
