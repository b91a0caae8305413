//! The pass over the data: samples run in parallel, each thread with statistics of its own.

use super::Request;
use super::samples::each_sample;
use crate::data::{Array, Dataset, Values};
use crate::diag::WithHint;
use crate::engine::{Engine, Session};
use crate::equalize::Units;
use crate::observe::{Histogram, Sample, Statistic};
use crate::progress::Progress;
use anyhow::{Context, Result, ensure};

/// What the pass saw.
pub struct Observed {
    /// One per watched tensor.
    pub statistics: Vec<Statistic>,
    /// One per watched tensor, of its values in other units where these were asked for.
    pub scaled: Vec<Option<Statistic>>,
    /// Samples that were left out, with the reason, by the names of their files.
    pub skipped: Vec<String>,
    /// The samples that were run, in an order that follows from their contents alone.
    pub by_content: Vec<usize>,
}

/// One thread's share.
#[derive(Default)]
struct Share {
    /// Of the watched tensors, then of the same in other units.
    histograms: Vec<Histogram>,
    records: Vec<(usize, usize, Sample)>,
    skipped: Vec<String>,
    hashes: Vec<(u64, usize)>,
}

/// Runs every sample of `dataset` and gathers the statistics of the tensors that the engine watches, of some in
/// other units as well. The result does not depend on the number of threads.
///
/// # Errors
/// If a sample cannot be loaded (unless such samples are left out) or run; the message names it. Of several errors
/// the one with the lowest sample is reported.
pub fn observe(
    engine: &Engine,
    watched: &[Option<&Units>],
    dataset: &Dataset,
    request: &Request,
    progress: &Progress,
) -> Result<Observed> {
    let n = watched.len();
    let start = || {
        let histograms = vec![Histogram::default(); 2 * n];
        Ok((Share { histograms, ..Share::default() }, (engine.session()?, Vec::new())))
    };
    let job = |share: &mut Share,
               (session, scaled): &mut (Session, Vec<f32>),
               sample_idx: usize,
               loaded: Result<Vec<Array>>| {
        let sample = match usable(loaded, request)? {
            Ok(sample) => sample,
            Err(reason) => {
                share.skipped.push(reason);
                return Ok(());
            }
        };
        let ran = session.run(&sample, &mut |at, shape, values| {
            let mut count = |at: usize, values: &[f32]| {
                let record = Sample::counted(values, &mut share.histograms[at]);
                share.records.push((sample_idx, at, record));
            };
            count(at, values);
            if let Some(units) = watched[at] {
                units.convert(shape, values, scaled);
                count(n + at, scaled);
            }
            Ok(())
        });
        ran.with_context(|| format!("`{}`", dataset.name(sample_idx)))?;
        share.hashes.push((hash(&sample), sample_idx));
        Ok(())
    };
    let tick = progress(dataset.len());
    let shares = each_sample(dataset, request.threads, &*tick, start, job)?;
    combine(shares, watched)
}

/// A sample; the reason where it cannot be read and such samples are left out.
fn usable(loaded: Result<Vec<Array>>, request: &Request) -> Result<Result<Vec<Array>, String>> {
    match loaded {
        Ok(sample) => Ok(Ok(sample)),
        Err(error) if request.skip_bad_data => Ok(Err(format!("{error:#}"))),
        Err(error) => Err(error.hint("--skip-bad-data leaves such samples out")),
    }
}

fn combine(shares: Vec<Share>, watched: &[Option<&Units>]) -> Result<Observed> {
    let mut statistics: Vec<Statistic> = vec![Statistic::default(); 2 * watched.len()];
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
    // By the names of their files, as the order of these is to change nothing.
    skipped.sort();
    ensure!(!hashes.is_empty(), "no sample could be read, expected at least one: {}", {
        skipped.first().map_or("", String::as_str)
    });
    records.sort_by_key(|(sample_idx, at, _)| (*at, *sample_idx));
    for (_, at, sample) in records {
        let statistic = statistics.get_mut(at).context("the engine named an unknown tensor")?;
        statistic.samples.push(sample);
    }
    let scaled = statistics.split_off(watched.len()).into_iter().zip(watched);
    let scaled = scaled.map(|(statistic, units)| units.is_some().then_some(statistic)).collect();
    Ok(Observed { statistics, scaled, skipped, by_content: sorted(hashes) })
}

/// The samples that can be read, in the order of [`Observed::by_content`]; nothing is run.
///
/// # Errors
/// If a sample cannot be loaded, unless such samples are left out.
pub fn by_content(dataset: &Dataset, request: &Request, progress: &Progress) -> Result<Vec<usize>> {
    let job = |hashes: &mut Vec<(u64, usize)>, (): &mut (), sample_idx: usize, loaded| {
        let sample = usable(loaded, request)?.ok();
        hashes.extend(sample.map(|sample| (hash(&sample), sample_idx)));
        Ok(())
    };
    let start = || Ok((Vec::new(), ()));
    let tick = progress(dataset.len());
    let shares = each_sample(dataset, request.threads, &*tick, start, job)?;
    Ok(sorted(shares.concat()))
}

/// Samples by their hashes.
fn sorted(mut hashes: Vec<(u64, usize)>) -> Vec<usize> {
    hashes.sort_unstable();
    hashes.into_iter().map(|(_, sample_idx)| sample_idx).collect()
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
