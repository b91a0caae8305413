//! Every sample of the data once, several at a time.

use crate::data::{Dataset, Sample};
use anyhow::{Result, anyhow};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Loads every sample of `dataset` and calls `job` with its position, on `threads` threads, each with what
/// `start` makes for it: its share of the result, and what stays in the thread. `tick` is called once per
/// sample. Gives the shares.
///
/// # Errors
/// If `start` or `job` fails: no further sample is begun, and of several errors the one with the lowest
/// sample is given.
pub(super) fn each_sample<S: Send, L>(
    dataset: &Dataset,
    threads: usize,
    tick: &(dyn Fn() + Sync),
    start: impl Fn() -> Result<(S, L)> + Sync,
    job: impl Fn(&mut S, &mut L, usize, Result<Sample>) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<(usize, anyhow::Error)>> = Mutex::new(None);
    let fail = |sample: usize, error: anyhow::Error| {
        stop.store(true, Ordering::Relaxed);
        if let Ok(mut failed) = failed.lock()
            && failed.as_ref().is_none_or(|(earlier, _)| sample < *earlier)
        {
            *failed = Some((sample, error));
        }
    };
    let work = || -> Option<S> {
        let (mut share, mut local) = start().map_err(|error| fail(0, error)).ok()?;
        while !stop.load(Ordering::Relaxed) {
            let sample_idx = next.fetch_add(1, Ordering::Relaxed);
            if sample_idx >= dataset.len() {
                break;
            }
            if let Err(error) = job(&mut share, &mut local, sample_idx, dataset.load(sample_idx)) {
                fail(sample_idx, error);
                break;
            }
            tick();
        }
        Some(share)
    };
    let threads = threads.clamp(1, dataset.len().max(1));
    let shares = if threads == 1 {
        vec![work()]
    } else {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        pool.broadcast(|_| work())
    };
    match failed.into_inner().map_err(|error| anyhow!("{error}"))? {
        Some((_, error)) => Err(error),
        None => Ok(shares.into_iter().flatten().collect()),
    }
}
