//! The samples of the data, loaded in parallel, and their content order, which does not depend on the order of the
//! files.

use super::{CalibrationOptions, Use};
use crate::aligned::give_free_memory_back;
use crate::data::{Array, Dataset, Sample, Values};
use crate::diag::{WithHint, text_of};
use crate::engine::{Parsed, Value};
use crate::onnx::inputs::{InputSpec, ShapeRange, Shapes, close_given};
use crate::progress::Progress;
use crate::statistics::SavedStatistics;
use anyhow::{Result, anyhow};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The hint on a sample that cannot be read.
pub const SKIPPING: &str = "--skip-bad-data skips samples that cannot be read";

/// The data, and the content order of its samples once all have been loaded.
pub struct SampleSet {
    /// The samples by position in the data; `None` where only saved statistics are given.
    dataset: Option<Dataset>,
    /// The positions of the samples grouped by shape; `None` where all have one shape.
    by_shape: Option<Vec<usize>>,
    /// Statistics of the samples: read from a file, or collected for a file.
    pub saved: Option<Arc<SavedStatistics>>,
    /// The model's inputs.
    pub inputs: Vec<InputSpec>,
    pub(super) used: Use,
    skip_bad_data: bool,
    order: OnceLock<Order>,
    lack: OnceLock<String>,
}

/// The content order of the readable samples: by the hash of their values.
pub struct Order {
    /// The positions of the samples in content order; empty where no later stage loads samples again.
    pub by_content: Vec<usize>,
    /// The lowest hash of each batch except the first batch.
    starts: Vec<u64>,
}

impl SampleSet {
    /// Opens the data for the inputs of a model. Samples may have different sizes along open axes, except where the
    /// user has `given` a shape.
    ///
    /// # Errors
    /// If the data cannot be found or does not fit the inputs.
    pub fn open(parsed: &Parsed, options: &CalibrationOptions, given: &Shapes, used: Use) -> Result<SampleSet> {
        let CalibrationOptions { data, preprocessing, limit, spread, skip_bad_data, saved, .. } = options;
        let mut inputs = parsed.inputs().to_vec();
        close_given(&mut inputs, given);
        let dataset = match data.is_empty() && saved.is_some() {
            true => None,
            false => Some(Dataset::open(data, &inputs, preprocessing, *limit)?),
        };
        let dataset = dataset.map(|dataset| dataset.take_spread(spread.unwrap_or(usize::MAX)));
        give_free_memory_back();
        let loads_again = used.loads_again || used.batch_size.is_some();
        let dataset = dataset.map(|dataset| if loads_again { dataset.keeping_images() } else { dataset });
        let (skip_bad_data, saved) = (*skip_bad_data, saved.clone());
        let (order, lack) = Default::default();
        if let (None, Some(saved)) = (&dataset, &saved) {
            let Use { batch_size, loads_again } = used;
            // The samples kept in the file are already in content order.
            _ = OnceLock::set(&order, Order::new(saved.hashes.clone(), Vec::new(), batch_size, loads_again));
        }
        let by_shape = dataset.as_ref().and_then(|dataset| dataset.by_shape(0));
        Ok(SampleSet { dataset, by_shape, saved, inputs, used, skip_bad_data, order, lack })
    }

    /// Returns the samples by position in the data.
    ///
    /// # Errors
    /// If only saved statistics are given.
    pub fn dataset(&self) -> Result<&Dataset> {
        self.dataset.as_ref().ok_or_else(|| self.record_lack("samples".to_string()))
    }

    /// Keeps `n` of the samples, as [`Dataset::take_spread`]. Call it before the content order is known.
    #[must_use]
    pub fn take_spread(self, n: usize) -> SampleSet {
        let dataset = self.dataset.map(|dataset| dataset.take_spread(n));
        let by_shape = dataset.as_ref().and_then(|dataset| dataset.by_shape(0));
        SampleSet { dataset, by_shape, ..self }
    }

    /// Returns the positions of the samples grouped by shape; `None` where all have one shape.
    pub(super) fn by_shape(&self) -> Option<&[usize]> {
        self.by_shape.as_deref()
    }

    /// Returns the shapes of each input; `None` where all samples have one shape.
    pub fn input_shapes(&self) -> Option<Vec<ShapeRange>> {
        self.dataset.as_ref().and_then(Dataset::input_shapes)
    }

    /// Returns the rank of a sample's shape by size, as [`Dataset::shape_rank`].
    pub fn shape_rank(&self, sample_idx: usize) -> usize {
        self.dataset.as_ref().map_or(0, |dataset| dataset.shape_rank(sample_idx))
    }

    /// Returns a hash of a sample's values, and of its shapes where they differ from those of the inputs.
    pub(super) fn hash(&self, sample: &[Array]) -> u64 {
        let others = sample.iter().zip(&self.inputs).filter(|(array, input)| array.shape != input.shape);
        let dims = others.flat_map(|(array, _)| array.shape.iter().map(|&n| n as u64));
        dims.fold(hash(sample), mixed)
    }

    /// Returns whether all samples can be loaded, from the data or from the saved statistics.
    pub(super) fn has_all(&self) -> bool {
        let keeps_all = |saved: &SavedStatistics| saved.kept.len() == saved.hashes.len();
        self.dataset.is_some() || self.saved.as_deref().is_some_and(keeps_all)
    }

    /// Returns whether later stages load samples again.
    pub fn used_again(&self) -> bool {
        self.used.loads_again
    }

    /// Returns the number of samples in the data, unreadable ones included.
    pub fn n_listed(&self) -> usize {
        let of_saved = || self.saved.as_ref().map_or(0, |saved| saved.about.n_listed);
        self.dataset.as_ref().map_or_else(of_saved, Dataset::len)
    }

    /// Returns the number of samples to load for a pass over all samples: all in the data, or all readable ones if the
    /// saved statistics keep them. Fails if there is no data, and the saved statistics do not keep all samples.
    pub(super) fn n_loaded(&self) -> Result<usize> {
        match (&self.dataset, &self.saved) {
            (Some(dataset), _) => Ok(dataset.len()),
            (None, Some(saved)) if self.has_all() => Ok(saved.kept.len()),
            _ => Err(self.record_lack("samples for another pass over all samples".to_string())),
        }
    }

    /// Returns the unreadable samples with the reason, from saved statistics; empty where the data is given.
    pub(super) fn left_out(&self) -> &[String] {
        let saved = self.saved.as_ref().filter(|_| self.dataset.is_none());
        saved.map_or(&[], |saved| &saved.about.skipped)
    }

    /// Returns the name of the sample at a position in the data.
    pub(super) fn name(&self, sample_idx: usize) -> String {
        self.dataset.as_ref().map_or_else(|| format!("kept sample {sample_idx}"), |dataset| dataset.name(sample_idx))
    }

    /// Returns one line about the preprocessing of images; `None` without images.
    pub fn preprocessing(&self) -> Option<String> {
        let of_saved = || self.saved.as_ref()?.about.preprocessing.clone();
        self.dataset.as_ref().map_or_else(of_saved, Dataset::describe)
    }

    /// Returns the options of the preprocessing of images, as JSON; `None` without images.
    pub fn preprocessing_options(&self) -> Option<serde_json::Value> {
        let of_saved = || self.saved.as_ref()?.about.preprocessing_options.clone();
        let of_dataset = |dataset: &Dataset| serde_json::to_value(dataset.preprocessing()?).ok();
        self.dataset.as_ref().map_or_else(of_saved, of_dataset)
    }

    /// Returns the height and width of the images that the network takes; `None` if its input does not look like an
    /// image.
    pub fn image_size(&self) -> Option<[usize; 2]> {
        let of_saved = || self.saved.as_ref()?.about.image_size;
        self.dataset.as_ref().map_or_else(of_saved, Dataset::image_size)
    }

    /// Records what the saved statistics lack, and returns the error about the first recorded lack. No caller may
    /// continue: the result would differ from that of a run with data.
    pub(super) fn record_lack(&self, lack: String) -> anyhow::Error {
        _ = self.lack.set(lack);
        self.first_lack().unwrap_or_else(|| anyhow!("internal error: nothing is lacking"))
    }

    /// Returns the error about the first lack that was recorded; `None` if the saved statistics sufficed so far.
    pub fn first_lack(&self) -> Option<anyhow::Error> {
        let of_lack = |lack: &String| {
            anyhow!("the statistics lack {lack}, so the result would differ from that of a run on the data")
                .hint("collect them with --for, more --keep-samples, and the same --exclude, --only, --outputs and --observer")
        };
        self.lack.get().map(of_lack)
    }

    /// Returns the positions of the readable samples in content order; empty before the order is known, or where no
    /// later stage loads samples again.
    pub fn by_content(&self) -> &[usize] {
        self.order.get().map_or(&[], |order| &order.by_content)
    }

    /// As [`SampleSet::by_content`], but loads the samples first if the order is not known.
    ///
    /// # Errors
    /// If a sample cannot be loaded, unless such samples are skipped.
    pub fn put_in_order(&self, progress: &Progress) -> Result<&[usize]> {
        Ok(&self.order(progress)?.by_content)
    }

    /// Loads the sample at a position in the data, or among the samples that the saved statistics keep.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn load(&self, sample_idx: usize) -> Result<Sample> {
        match (&self.dataset, &self.saved) {
            (None, Some(saved)) => match saved.kept.get(sample_idx) {
                Some(sample) => sample.inputs.iter().map(Array::from_kept_array).collect(),
                None => {
                    let (n, n_kept) = (saved.hashes.len(), saved.kept.len());
                    let number = sample_idx + 1;
                    Err(self.record_lack(format!(
                        "inputs of sample {number} (the inputs of {n_kept} of {n} samples are kept)"
                    )))
                }
            },
            _ => self.dataset()?.load(sample_idx),
        }
    }

    /// Returns the names of the inputs.
    pub fn names(&self) -> Vec<String> {
        self.inputs.iter().map(|input| input.name.clone()).collect()
    }

    /// Returns the values of the inputs, by sample, for the samples at `range` of the content order.
    ///
    /// # Errors
    /// If a sample cannot be loaded.
    pub fn values(&self, range: Range<usize>) -> Result<Vec<Vec<Value>>> {
        let load = |&sample_idx: &usize| -> Result<Vec<Value>> {
            let arrays = self.load(sample_idx)?;
            arrays.iter().zip(&self.inputs).map(|(a, input)| Value::of_array(a, input)).collect()
        };
        self.by_content()[range].par_iter().map(load).collect()
    }

    /// Returns hashes to fill in, one per sample, if the content order is needed and not yet known.
    pub(super) fn hashes(&self) -> Option<Hashes> {
        let dataset = self.dataset.as_ref().filter(|_| self.used.loads_again && self.order.get().is_none());
        dataset.map(Hashes::of)
    }

    /// Returns the order; loads the samples first if it is not known.
    pub(super) fn order(&self, progress: &Progress) -> Result<&Order> {
        if let Some(order) = self.order.get() {
            return Ok(order);
        }
        let dataset = self.dataset()?;
        let hashes = Hashes::of(dataset);
        let job = |skipped: &mut Vec<usize>, (): &mut (), sample_idx: usize, loaded| {
            match self.usable(loaded)? {
                Ok(sample) => hashes.set(sample_idx, self.hash(&sample)),
                Err(_) => skipped.push(sample_idx),
            }
            Ok(())
        };
        let tick = progress("reading samples", dataset.len());
        let start = || Ok((Vec::new(), ()));
        let skipped = each_sample(dataset, None, &*tick, start, job)?.concat();
        Ok(self.set_order(hashes, skipped))
    }

    /// Sets and returns the order, from the hashes of all samples except the `skipped` ones.
    pub(super) fn set_order(&self, hashes: Hashes, skipped: Vec<usize>) -> &Order {
        let Use { batch_size, loads_again } = self.used;
        let order = self.order.get_or_init(|| Order::new(hashes.into_inner(), skipped, batch_size, loads_again));
        give_free_memory_back();
        order
    }

    /// Returns the loaded sample. If it cannot be read and unreadable samples are skipped, returns the reason as
    /// `Ok(Err)`. Fails if the sample cannot be read and unreadable samples are not skipped.
    pub(super) fn usable(&self, loaded: Result<Sample>) -> Result<Result<Sample, String>> {
        match loaded {
            Ok(sample) => Ok(Ok(sample)),
            Err(error) if self.skip_bad_data => Ok(Err(text_of(&error))),
            Err(error) => Err(error.hint(SKIPPING)),
        }
    }
}

impl Order {
    /// Orders the samples by hash, without the `skipped` ones. A batch has `batch_size` different hashes. The order is
    /// kept only if later stages load samples again.
    pub fn new(mut hashes: Vec<u64>, mut skipped: Vec<usize>, batch_size: Option<usize>, loads_again: bool) -> Order {
        skipped.sort_unstable();
        let usable = || (0..hashes.len()).filter(|i| skipped.binary_search(i).is_err());
        let mut by_content: Vec<usize> = usable().filter(|_| loads_again).collect();
        by_content.sort_unstable_by_key(|&sample_idx| (hashes[sample_idx], sample_idx));
        let mut starts = Vec::new();
        if let Some(size) = batch_size {
            // Each hash counts once, so that copies of one sample do not fill a batch.
            skipped.iter().rev().for_each(|&sample_idx| _ = hashes.swap_remove(sample_idx));
            hashes.sort_unstable();
            hashes.dedup();
            starts.extend(hashes.into_iter().step_by(size.max(1)).skip(1));
        }
        Order { by_content, starts }
    }

    /// Returns the index of the batch that a sample with this hash belongs to.
    pub fn batch_of(&self, hash: u64) -> usize {
        self.starts.partition_point(|&start| start <= hash)
    }
}

/// The hashes of all samples, by position; threads fill them in.
pub struct Hashes(Vec<AtomicU64>);

impl Hashes {
    fn of(dataset: &Dataset) -> Hashes {
        Hashes((0..dataset.len()).map(|_| AtomicU64::new(0)).collect())
    }

    fn into_inner(self) -> Vec<u64> {
        self.0.into_iter().map(AtomicU64::into_inner).collect()
    }

    pub fn set(&self, sample_idx: usize, hash: u64) {
        self.0[sample_idx].store(hash, Ordering::Relaxed);
    }
}

/// Loads every sample of `dataset` on the threads of the current pool, and calls `job` with its position. `order` is
/// the order of the samples; `None` for the order of the data. `start` creates a thread's share of the result, and data
/// that stays in the thread. `tick` is called once per sample. Returns the shares.
///
/// # Errors
/// If `start` or `job` fails. No further sample is started then, and of several errors that of the first sample is
/// returned.
pub fn each_sample<S: Send, L>(
    dataset: &Dataset,
    order: Option<&[usize]>,
    tick: &(dyn Fn() + Sync),
    start: impl Fn() -> Result<(S, L)> + Sync,
    job: impl Fn(&mut S, &mut L, usize, Result<Sample>) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let position = |i: usize| order.map_or(i, |order| order[i]);
    each_of((dataset.len(), &position), &|i| dataset.load(i), tick, start, job)
}

/// As [`each_sample`], for `n` samples. `position` maps 0..n to positions in the data, and `load` loads a position.
/// Fails as [`each_sample`] does.
pub(super) fn each_of<S: Send, L>(
    (n, position): (usize, &(dyn Fn(usize) -> usize + Sync)),
    load: &(dyn Fn(usize) -> Result<Sample> + Sync),
    tick: &(dyn Fn() + Sync),
    start: impl Fn() -> Result<(S, L)> + Sync,
    job: impl Fn(&mut S, &mut L, usize, Result<Sample>) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<(usize, anyhow::Error)>> = Mutex::new(None);
    let fail = |position: usize, error: anyhow::Error| {
        stop.store(true, Ordering::Relaxed);
        if let Ok(mut failed) = failed.lock()
            && failed.as_ref().is_none_or(|(earlier, _)| position < *earlier)
        {
            *failed = Some((position, error));
        }
    };
    let work = || -> Option<S> {
        let (mut share, mut local) = start().map_err(|error| fail(0, error)).ok()?;
        while !stop.load(Ordering::Relaxed) {
            let next_idx = next.fetch_add(1, Ordering::Relaxed);
            if next_idx >= n {
                break;
            }
            let sample_idx = position(next_idx);
            if let Err(error) = job(&mut share, &mut local, sample_idx, load(sample_idx)) {
                fail(next_idx, error);
                break;
            }
            tick();
        }
        Some(share)
    };
    let is_needed = |thread: usize| thread < n.max(1);
    let shares = rayon::broadcast(|thread| is_needed(thread.index()).then(&work).flatten());
    match failed.into_inner().map_err(|error| anyhow!("{error}"))? {
        Some((_, error)) => Err(error),
        None => Ok(shares.into_iter().flatten().collect()),
    }
}

/// Returns `hash` with another word mixed in.
fn mixed(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns a hash of a sample's values.
pub fn hash(sample: &[Array]) -> u64 {
    let mut hash = 0u64;
    let mut add = |word: u64| hash = mixed(hash, word);
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
