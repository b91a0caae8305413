//! Range observers: which interval of a tensor to keep.
//!
//! In: a [`TensorStatistics`] and the [`Grid`] it will be laid on. Out: a [`Range`]. Pure functions; they do
//! not compute scales and do not know tensors' names. [`OBSERVERS`] is the open list: a new one is a file
//! here, a `mod` line and a line in the list.

mod auto;
mod ema;
mod entropy;
mod max;
mod mse;
mod percentile;
mod pot_search;
mod shrink;

pub use auto::Auto;
pub use ema::Ema;
pub use entropy::Entropy;
pub use max::Max;
pub use mse::Mse;
pub use percentile::Percentile;
pub use pot_search::pot_search;
pub use shrink::Shrink;

use crate::diag::{WithHint, did_you_mean};
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::{Context, Result, anyhow, bail, ensure};

/// Chooses the interval of a tensor that its grid will cover.
pub trait Observer: std::fmt::Debug + Sync {
    /// The name on the command line and in a backend table.
    fn name(&self) -> &'static str;

    /// What other tools call it; taken like the name.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// The interval to keep. It lies inside the observed range, is centred on 0 for a symmetric signed
    /// grid, and is the same whatever order the histogram was filled in.
    ///
    /// # Errors
    /// If the statistic holds no finite value, or an option of the observer is out of bounds.
    fn find(&self, statistic: &TensorStatistics, grid: &Grid) -> Result<Range>;

    /// Whether it looks at the histogram; without one, extremes are enough.
    fn reads_histogram(&self) -> bool {
        true
    }

    /// Samples per batch, if it averages over batches; it reads [`TensorStatistics::batches`] then.
    fn batch_size(&self) -> Option<usize> {
        None
    }

    /// The observers that it chooses from, if it does; the first is what it does by itself.
    fn choices(&self) -> &'static [&'static dyn Observer] {
        &[]
    }
}

/// Every observer, with its default options.
pub const OBSERVERS: &[&dyn Observer] =
    &[&Max, &Ema::DEFAULT, &Percentile::DEFAULT, &Shrink::DEFAULT, &Entropy, &Mse, &Auto];

/// A name and its option: `percentile` and `99.9` of `percentile:99.9` or `percentile=99.9`.
fn parts(spelling: &str) -> (&str, Option<&str>) {
    let parts = spelling.split_once([':', '=']);
    let (name, option) = parts.map_or((spelling, None), |(name, option)| (name, Some(option)));
    let called = OBSERVERS.iter().find(|observer| observer.aliases().contains(&name));
    (called.map_or(name, |observer| observer.name()), option)
}

/// The one spelling of a observer among those that [`by_spelling`] takes: its name, a colon, its option.
pub fn canonical(spelling: &str) -> String {
    match parts(spelling) {
        (name, Some(option)) => format!("{name}:{option}"),
        (name, None) => name.to_string(),
    }
}

/// The observer of a spelling such as `mse`, `percentile:99.9` or `ema=0.95:64`: a name or an alias, and its options.
///
/// # Errors
/// If there is no such observer, it takes no option, or the option is no number or out of bounds.
pub fn by_spelling(spelling: &str) -> Result<Box<dyn Observer + Send>> {
    let (name, option) = parts(spelling);
    let (option, batch) = match option.and_then(|text| text.split_once(':')) {
        Some((ratio, batch)) if name == "ema" => (Some(ratio), Some(batch)),
        _ => (option, None),
    };
    let names = || OBSERVERS.iter().map(|observer| observer.name());
    let number = |default: f64| match option {
        None => Ok(default),
        Some(text) => text
            .parse::<f64>()
            .with_context(|| format!("observer `{spelling}`: `{text}` is no number, expected one")),
    };
    let observer: Box<dyn Observer + Send> = match name {
        "percentile" => {
            let percent = number(Percentile::DEFAULT.percent)?;
            ensure!(
                percent > 0.0 && percent <= 100.0,
                "observer `{spelling}`: {percent}, expected above 0 and at most 100"
            );
            Box::new(Percentile { percent })
        }
        "shrink" => {
            let percent = number(Shrink::DEFAULT.percent)?;
            ensure!(
                (0.0..50.0).contains(&percent),
                "observer `{spelling}`: {percent}, expected at least 0 and below 50"
            );
            Box::new(Shrink { percent })
        }
        "ema" => {
            let ratio = number(Ema::DEFAULT.ratio)?;
            ensure!(
                (0.0..1.0).contains(&ratio),
                "observer `{spelling}`: {ratio}, expected at least 0 and below 1"
            );
            let parsed = batch.map_or(Some(Ema::DEFAULT.batch), |text| text.parse().ok());
            let batch = parsed.filter(|batch| *batch > 0).with_context(|| {
                format!(
                    "observer `{spelling}`: batches of `{}` samples, expected 1 or more",
                    batch.unwrap_or_default()
                )
            })?;
            Box::new(Ema { ratio, batch })
        }
        "max" if option.is_none() => Box::new(Max),
        "entropy" if option.is_none() => Box::new(Entropy),
        "mse" if option.is_none() => Box::new(Mse),
        "auto" if option.is_none() => Box::new(Auto),
        _ if names().any(|known| known == name) => {
            bail!("observer `{name}` takes no option, found `{spelling}`")
        }
        _ => {
            let aliases = OBSERVERS.iter().flat_map(|observer| observer.aliases()).copied();
            return Err(anyhow!(
                "observer `{name}` is unknown, expected one of: {}",
                names().collect::<Vec<_>>().join(", ")
            )
            .hint(did_you_mean(name, names().chain(aliases))));
        }
    };
    Ok(observer)
}

/// The observed range, widened to hold 0 and centred where the grid is.
fn observed(statistic: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let (min, max) =
        statistic.min_max().context("no finite value was observed, expected at least one")?;
    Ok(fit(Range { min: f64::from(min), max: f64::from(max) }, grid))
}

/// `range` widened to hold `values` too, and centred where the grid is.
pub fn covering(range: Range, (min, max): (f32, f32), grid: &Grid) -> Range {
    let (min, max) = (range.min.min(f64::from(min)), range.max.max(f64::from(max)));
    fit(Range { min, max }, grid)
}

/// `range` widened to hold 0, and centred where the grid is.
fn fit(range: Range, grid: &Grid) -> Range {
    let range = Range { min: range.min.min(0.0), max: range.max.max(0.0) };
    if grid.is_centred() { Range::symmetric(range.amax()) } else { range }
}

#[cfg(test)]
mod tests;
