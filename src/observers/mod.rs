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
mod options;
mod percentile;
mod pot_search;
mod shrink;

/// Every observer, with its default option.
pub const OBSERVERS: &[Observer] =
    &[max::MAX, ema::EMA, percentile::PERCENTILE, shrink::SHRINK, entropy::ENTROPY, mse::MSE, auto::AUTO];

pub use auto::AUTO;
pub use bin_centers::BinCenters;
pub use mse::MSE;
pub use options::{ObserverOptions, Spelled};
pub use pot_search::pot_search;

use crate::diag::none_of;
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::{Context, Result};

/// Chooses the range of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Observer {
    /// The name on the command line and in a backend's table.
    pub name: &'static str,
    /// Names in other tools, accepted like the name.
    pub aliases: &'static [&'static str],
    /// Value of its option, if it has one: a percentage or a ratio.
    pub option: f64,
    /// Parses an option and returns the observer with it; `None` where it has no option.
    parse: Option<fn(Observer, &str) -> Result<Observer>>,
    /// As [`Observer::find`].
    find: fn(&Observer, &TensorStatistics, &Grid) -> Result<Range>,
    /// Whether it reads the histogram, not only the extremes.
    pub reads_histogram: bool,
    /// Samples per batch, if it averages over batches in [`TensorStatistics::batches`].
    pub batch_size: Option<usize>,
    /// The observers that it chooses from, if it does; the first is its default.
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

    /// The range. It lies inside the observed range, is centred on 0 for a symmetric signed grid, and does not depend
    /// on the order in which the histogram was filled.
    ///
    /// # Errors
    /// If the statistics have no finite value.
    pub fn find(&self, statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
        (self.find)(self, statistics, grid)
    }

    /// Its name, with the option where it has one, such as `percentile:99.9`.
    pub fn spelled(&self) -> String {
        match self.parse {
            Some(_) => format!("{}:{}", self.name, self.option),
            None => self.name.to_string(),
        }
    }
}

/// Name and option: `percentile` and `99.9` from `percentile:99.9` or `percentile=99.9`.
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
/// If there is no such observer, it has no option, or the option is not a number or out of bounds.
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

/// The observed range, widened to include 0, and centred if the grid is.
fn observed(statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let (min, max) = statistics.min_max().context("no finite value was observed, expected at least one")?;
    Ok(fit(Range { min: f64::from(min), max: f64::from(max) }, grid))
}

/// `range` widened to include `min` and `max`, and centred if the grid is.
pub fn covering(range: Range, min: f32, max: f32, grid: &Grid) -> Range {
    let (min, max) = (range.min.min(f64::from(min)), range.max.max(f64::from(max)));
    fit(Range { min, max }, grid)
}

/// `range` widened to include 0, and centred if the grid is.
fn fit(range: Range, grid: &Grid) -> Range {
    let range = Range { min: range.min.min(0.0), max: range.max.max(0.0) };
    if grid.is_centred() { Range::symmetric(range.amax()) } else { range }
}
