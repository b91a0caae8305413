//! Runs samples in parallel, each thread with its own statistics.

use super::samples::{SampleSet, each_of};
use crate::data::{Array, no_readable_sample};
use crate::engine::{ShapedEngines, ShapedSession};
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::statistics::{ChannelExtremes, TensorStatistics};
use anyhow::{Context, Result, ensure};

/// The result of a calibration pass.
pub struct ObservedPass {
    /// Statistics, one per watched tensor.
    pub statistics: Vec<TensorStatistics>,
    /// Statistics of scaled tensors: one per scaling of each watched tensor, in the order of `scalings`.
    pub scaled: Vec<TensorStatistics>,
    /// Channel extremes along the last axis, one per watched tensor; empty where `by_channel` is false.
    pub channels: Vec<ChannelExtremes>,
    /// Skipped samples with the reason, sorted.
    pub skipped: Vec<String>,
    /// Number of samples that were run.
    pub n_samples: usize,
}

/// The results of one thread.
struct Share {
    /// Statistics: one per watched tensor, then one per scaling of each watched tensor.
    statistics: Vec<TensorStatistics>,
    channels: Vec<ChannelExtremes>,
    skipped: Vec<(usize, String)>,
}

/// Data that stays in its thread.
struct Local<'e> {
    session: ShapedSession<'e>,
    /// Buffer for the scaled values of a tensor.
    scaled: Vec<f32>,
}

/// Runs every sample and collects statistics of the tensors that the engines watch. Statistics are also collected for
/// each tensor with each of its `scalings`, and per channel where `by_channel` is true. If the observer averages over
/// batches, all samples are loaded once before, to order them. If later stages load samples again, `samples` has their
/// order after this pass. Fails if a sample cannot be loaded (unless such samples are skipped) or run; the message
/// names it. Of several errors, that of the first sample is returned.
pub fn observe(
    engines: &ShapedEngines,
    scalings: &[Vec<&ChannelScaling>],
    by_channel: &[bool],
    samples: &SampleSet,
    progress: &Progress,
) -> Result<ObservedPass> {
    let (n, n_loaded) = (scalings.len(), samples.n_loaded()?);
    let batch_size = samples.used.batch_size.filter(|size| *size < samples.n_listed());
    let order = batch_size.map(|_| samples.order(progress)).transpose()?;
    let hashes = samples.hashes();
    // Index of the statistics of each tensor's first scaling.
    let first = |at: usize| n + scalings[..at].iter().map(Vec::len).sum::<usize>();
    let firsts: Vec<usize> = (0..=n).map(first).collect();
    let start = || {
        let statistics = vec![TensorStatistics::default(); firsts[n]];
        let share = Share { statistics, channels: vec![ChannelExtremes::default(); n], skipped: Vec::new() };
        Ok((share, Local { session: engines.session()?, scaled: Vec::new() }))
    };
    let job = |share: &mut Share, local: &mut Local, sample_idx: usize, loaded: Result<Vec<Array>>| {
        let Local { session, scaled } = local;
        let sample = match samples.usable(loaded)? {
            Ok(sample) => sample,
            Err(reason) => {
                share.skipped.push((sample_idx, reason));
                return Ok(());
            }
        };
        if let Some(hashes) = &hashes {
            hashes.set(sample_idx, samples.hash(&sample));
        }
        let batch = order.map(|order| order.batch_of(samples.hash(&sample)));
        let ran = session.run(&sample, &mut |at, shape, values| {
            let mut count = |at: usize, values: &[f32]| match batch {
                Some(batch) => share.statistics[at].observe_in(batch, values),
                None => _ = share.statistics[at].observe(values),
            };
            count(at, values);
            if by_channel[at] {
                share.channels[at].observe(shape, values);
            }
            for (scaling, at) in scalings[at].iter().zip(firsts[at]..) {
                scaling.apply(shape, values, scaled);
                count(at, scaled);
            }
            Ok(())
        });
        ran.with_context(|| format!("`{}`", samples.name(sample_idx)))?;
        Ok(())
    };
    let tick = progress("calibration", n_loaded);
    let position = |i: usize| samples.by_shape().map_or(i, |order| order[i]);
    let mut shares = each_of((n_loaded, &position), &|i| samples.load(i), &*tick, start, job)?.into_iter();
    let Share { mut statistics, mut channels, mut skipped } = shares.next().context("nothing was run")?;
    for share in shares {
        statistics.iter_mut().zip(share.statistics).for_each(|(all, part)| all.merge(&part));
        channels.iter_mut().zip(share.channels).for_each(|(all, part)| all.merge(&part));
        skipped.extend(share.skipped);
    }
    let (left_out, mut skipped): (Vec<usize>, Vec<String>) = skipped.into_iter().unzip();
    // Sorted, because the result must not depend on the order of the files.
    skipped.sort();
    let first = skipped.first().map_or("", String::as_str);
    ensure!(skipped.len() < n_loaded, no_readable_sample(first));
    if let Some(hashes) = hashes {
        samples.set_order(hashes, left_out);
    }
    let n_samples = n_loaded - skipped.len();
    skipped.extend(samples.left_out().iter().cloned());
    let scaled = statistics.split_off(n);
    Ok(ObservedPass { statistics, scaled, channels, skipped, n_samples })
}
