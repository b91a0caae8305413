//! The pass over the data: samples run in parallel, each thread with statistics of its own.

use super::Request;
use super::samples::{SampleSet, each_sample, hash, usable};
use crate::data::Array;
use crate::engine::{Engine, Session};
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::statistics::TensorStatistics;
use anyhow::{Context, Result, ensure};

/// What the pass saw.
pub struct Observed {
    /// One per watched tensor.
    pub statistics: Vec<TensorStatistics>,
    /// One per watched tensor, of its values in other units where these were asked for.
    pub scaled: Vec<Option<TensorStatistics>>,
    /// Samples that were left out, with the reason, by the names of their files.
    pub skipped: Vec<String>,
    /// Number of samples that were run.
    pub n_samples: usize,
}

/// One thread's share.
struct Share {
    /// Of the watched tensors, then of the same in other units.
    statistics: Vec<TensorStatistics>,
    skipped: Vec<(usize, String)>,
}

/// Runs every sample and gathers the statistics of the tensors that the engine watches, of some in other units as well.
/// The result does not depend on the number of threads. Where the range observer averages over batches, all samples are
/// loaded before, to put them in order. Where samples are loaded again, `samples` knows their order afterwards.
///
/// # Errors
/// If a sample cannot be loaded (unless such samples are left out) or run; the message names it. Of several errors
/// the one with the lowest sample is reported.
pub(super) fn observe(
    engine: &Engine,
    watched: &[Option<&ChannelScaling>],
    samples: &SampleSet,
    request: &Request,
    progress: &Progress,
) -> Result<Observed> {
    let (n, dataset) = (watched.len(), &samples.dataset);
    let batch_size = request.activation_observer.0.batch_size;
    let order = match batch_size.is_some_and(|size| size < dataset.len()) {
        true => Some(samples.order(request, progress)?),
        false => None,
    };
    let hashes = samples.hashes(request);
    let start = || {
        let statistics = vec![TensorStatistics::default(); 2 * n];
        Ok((Share { statistics, skipped: Vec::new() }, (engine.session()?, Vec::new())))
    };
    let job = |share: &mut Share,
               (session, scaled): &mut (Session, Vec<f32>),
               sample_idx: usize,
               loaded: Result<Vec<Array>>| {
        let sample = match usable(loaded, request)? {
            Ok(sample) => sample,
            Err(reason) => {
                share.skipped.push((sample_idx, reason));
                return Ok(());
            }
        };
        if let Some(hashes) = &hashes {
            hashes.set(sample_idx, hash(&sample));
        }
        let batch = order.map(|order| order.batch_of(hash(&sample)));
        let ran = session.run(&sample, &mut |at, shape, values| {
            let mut count = |at: usize, values: &[f32]| match batch {
                Some(batch) => share.statistics[at].observe_in(batch, values),
                None => share.statistics[at].observe(values),
            };
            count(at, values);
            if let Some(units) = watched[at] {
                units.apply(shape, values, scaled);
                count(n + at, scaled);
            }
            Ok(())
        });
        ran.with_context(|| format!("`{}`", dataset.name(sample_idx)))?;
        Ok(())
    };
    let tick = progress(dataset.len());
    let shares = each_sample(dataset, request.threads, &*tick, start, job)?;
    let mut shares = shares.into_iter();
    let Share { mut statistics, mut skipped } = shares.next().context("nothing was run")?;
    for share in shares {
        statistics.iter_mut().zip(share.statistics).for_each(|(all, part)| all.merge(&part));
        skipped.extend(share.skipped);
    }
    let (left_out, mut skipped): (Vec<usize>, Vec<String>) = skipped.into_iter().unzip();
    // By the names of their files, as the order of these is to change nothing.
    skipped.sort();
    ensure!(skipped.len() < dataset.len(), "no sample could be read, expected at least one: {}", {
        skipped.first().map_or("", String::as_str)
    });
    if let Some(hashes) = hashes {
        samples.set_order(hashes, left_out, request);
    }
    let n_samples = dataset.len() - skipped.len();
    let scaled = statistics.split_off(n).into_iter().zip(watched);
    let scaled = scaled.map(|(statistic, units)| units.is_some().then_some(statistic)).collect();
    Ok(Observed { statistics, scaled, skipped, n_samples })
}
