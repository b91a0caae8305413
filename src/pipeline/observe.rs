//! The pass over the data: samples run in parallel, each thread with statistics of its own.

use super::samples::each_sample;
use crate::data::{Array, Dataset, Values};
use crate::engine::{Engine, Session};
use crate::observe::{Histogram, Sample, Statistic};
use anyhow::{Context, Result, bail, ensure};

/// What the pass saw.
pub struct Observed {
    /// One per watched tensor.
    pub statistics: Vec<Statistic>,
    /// Samples that were run.
    pub n_samples: usize,
    /// Samples that were left out, with the reason.
    pub skipped: Vec<String>,
    /// The samples that were run, in an order that follows from their contents alone.
    pub by_content: Vec<usize>,
}

/// One thread's share.
#[derive(Default)]
struct Share {
    histograms: Vec<Histogram>,
    records: Vec<(usize, usize, Sample)>,
    skipped: Vec<(usize, String)>,
    hashes: Vec<(u64, usize)>,
}

/// Runs every sample of `dataset` and gathers the statistics of the engine's `n_watched` tensors. The
/// result does not depend on `threads`. `tick` is called once per sample.
///
/// # Errors
/// If a sample cannot be loaded (unless `skip_bad`) or run; the message names it. Of several errors
/// the one with the lowest sample is reported.
pub fn observe(
    engine: &Engine,
    n_watched: usize,
    dataset: &Dataset,
    threads: usize,
    skip_bad: bool,
    tick: &(dyn Fn() + Sync),
) -> Result<Observed> {
    let start = || {
        let histograms = vec![Histogram::default(); n_watched];
        Ok((Share { histograms, ..Share::default() }, engine.session()?))
    };
    let job = |share: &mut Share,
               session: &mut Session,
               sample_idx: usize,
               loaded: Result<Vec<Array>>| {
        let sample = match loaded {
            Ok(sample) => sample,
            Err(error) if skip_bad => {
                share.skipped.push((sample_idx, format!("{error:#}")));
                return Ok(());
            }
            Err(error) => {
                bail!("{error:#}\nhint: --skip-bad-data leaves such samples out");
            }
        };
        let ran = session.run(&sample, &mut |watched, _shape, values| {
            let record = Sample::counted(values, &mut share.histograms[watched]);
            share.records.push((sample_idx, watched, record));
            Ok(())
        });
        ran.with_context(|| format!("`{}`", dataset.name(sample_idx)))?;
        share.hashes.push((hash(&sample), sample_idx));
        Ok(())
    };
    let shares = each_sample(dataset, threads, tick, start, job)?;
    combine(shares, n_watched)
}

fn combine(shares: Vec<Share>, n_watched: usize) -> Result<Observed> {
    let mut statistics: Vec<Statistic> = vec![Statistic::default(); n_watched];
    let mut records = Vec::new();
    let mut skipped = Vec::new();
    let mut hashes = Vec::new();
    for share in shares {
        for (statistic, histogram) in statistics.iter_mut().zip(share.histograms) {
            statistic.histogram.absorb(histogram);
        }
        records.extend(share.records);
        skipped.extend(share.skipped);
        hashes.extend(share.hashes);
    }
    ensure!(!hashes.is_empty(), "no sample could be read, expected at least one: {}", {
        skipped.first().map_or("", |(_, reason)| reason.as_str())
    });
    records.sort_by_key(|(sample_idx, watched, _)| (*watched, *sample_idx));
    for (_, watched, sample) in records {
        let statistic =
            statistics.get_mut(watched).context("the engine named an unknown tensor")?;
        statistic.samples.push(sample);
    }
    skipped.sort();
    let skipped = skipped.into_iter().map(|(_, reason)| reason).collect();
    hashes.sort_unstable();
    let by_content: Vec<usize> = hashes.into_iter().map(|(_, sample_idx)| sample_idx).collect();
    Ok(Observed { statistics, n_samples: by_content.len(), skipped, by_content })
}

/// A number that follows from a sample's values.
fn hash(sample: &[Array]) -> u64 {
    let mut hash = 0u64;
    let mut add = |word: u64| {
        hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    };
    for array in sample {
        match &array.values {
            Values::F32(values) => values.iter().for_each(|v| add(u64::from(v.to_bits()))),
            Values::I64(values) => values.iter().for_each(|v| add(*v as u64)),
            Values::I32(values) => values.iter().for_each(|v| add(*v as u64)),
            Values::I8(values) => values.iter().for_each(|v| add(*v as u64)),
            Values::U8(values) => values.iter().for_each(|v| add(u64::from(*v))),
            Values::Bool(values) => values.iter().for_each(|v| add(u64::from(*v))),
        }
    }
    hash
}
