//! Collects statistics of the data for a file: of all tensors that the given tables quantize. Nothing is quantized.

use super::data_warnings::{better_preprocessing, preprocessing_warning};
use super::prepared::PreparedModels;
use super::stable::{WatchedRanges, WatchedTable};
use super::{linear_tensors, on_threads, shapes_with_data};
use crate::calibrate::{
    CalibrationOptions, NotSavable, ObservedModel, SampleSet, Use, WantedTensors, collect as collect_part,
    observed_tensors,
};
use crate::data::{Dataset, no_readable_sample, spread};
use crate::diag::{WithHint, copy_of, count, file_name};
use crate::engine::Parsed;
use crate::observers::{Observer, by_spelling};
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::onnx::{sha256, texts_sha256};
use crate::place::{Selection, place};
use crate::prepare::PreparedGraph;
use crate::progress::{Progress, Tick};
use crate::scheme::Scheme;
use crate::statistics::{AboutStatistics, FloatModel, PartOfList, SavedStatistics, Shard, UntilStable, mismatch};
use anyhow::{Context, Error, Result, anyhow, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Minimum samples from one intermediate result to the next; more where there would be more results than `MAX_RESULTS`.
const SAMPLES_AT_A_TIME: usize = 64;
/// Approximate maximum of intermediate results.
const MAX_RESULTS: usize = 100;

/// Options of collecting.
pub struct CollectRequest<'a> {
    /// The tables, each with the table of wider types that replaces it for transformers.
    pub tables: Vec<(Scheme, Option<Scheme>)>,
    /// Whether a table for which the model cannot be prepared is an error; otherwise it is one if there is no other
    /// table.
    pub needs_all: bool,
    /// Whether a later run may run samples again, as above effort 0.
    pub runs_again: bool,
    /// The range observer of activations; `None` for the tables' own observers.
    pub observer: Option<Observer>,
    /// Shapes for inputs with open dimensions.
    pub shapes: &'a Shapes,
    /// Tensors to cut the model at; none for the whole model.
    pub outputs: &'a [String],
    /// Nodes to exclude or select.
    pub selection: &'a Selection,
    /// The calibration data.
    pub calibration: &'a CalibrationOptions,
    /// The minimum number of samples, for a run that stops once more samples change no range by a step; `None` to take
    /// all samples. Not together with a shard or an interrupted run.
    pub until_stable: Option<usize>,
    /// The part of the list of samples.
    pub shard: Shard,
    /// Maximum number of samples that are kept: the first in the order by content.
    pub n_kept: usize,
    /// The result of an interrupted run with the same options.
    pub resumed: Option<SavedStatistics>,
    /// Samples that run at the same time.
    pub threads: usize,
}

/// A prepared model, with the tensors that its tables quantize.
struct Prepared {
    parsed: Parsed,
    wanted: WantedTensors,
}

/// Collects the statistics of a model. Calls `keep` with each intermediate result and with the final one. With
/// `until_stable` there are no intermediate results, and the statistics are those of a run on the samples that were
/// taken.
///
/// # Errors
/// If the model cannot be prepared for a table, the data cannot be read or run, the statistics cannot be saved
/// ([`NotSavable`]), `keep` fails, or `resumed` is of another model, data or options.
pub fn collect(
    path: &Path,
    request: CollectRequest,
    keep: &mut (dyn FnMut(&SavedStatistics) -> Result<()> + Send),
    progress: &Progress,
) -> Result<(SavedStatistics, Option<UntilStable>)> {
    let collected = on_threads(request.threads, || run(path, request, keep, progress));
    let name = format!("`{}`", path.display());
    collected.map_err(|error| if error.to_string().starts_with(&name) { error } else { error.context(name) })
}

fn run(
    path: &Path,
    request: CollectRequest,
    keep: &mut (dyn FnMut(&SavedStatistics) -> Result<()> + Send),
    progress: &Progress,
) -> Result<(SavedStatistics, Option<UntilStable>)> {
    let calibration = request.calibration;
    let (shapes, differing) =
        shapes_with_data(path, request.shapes, &calibration.data, calibration.limit, &calibration.preprocessing)?;
    if let Some(differing) = differing {
        let text =
            format!("{differing}: expected samples of one shape, because statistics are saved for one shape only");
        return Err(Error::new(NotSavable(text)).hint(
            "pad the samples to one length, or use only the samples of one shape with --shape and --skip-bad-data",
        ));
    }
    let PreparedTables { tables, prepared, watched, models: graphs } = prepare_all(path, &request, &shapes)?;
    let parsed = prepared.values().next().context("no table is given")?;
    let used = Use { batch_size: None, loads_again: false };
    let mut samples = SampleSet::open(&parsed.parsed, request.calibration, &shapes, used)?;
    let dataset = samples.dataset()?;
    let n_listed = dataset.len();
    let models = prepared.into_iter().map(|(sha256, Prepared { parsed, wanted })| {
        ObservedModel::new(sha256, parsed, &wanted).context("the engine cannot observe all quantized tensors")
    });
    let models = models.collect::<Result<Vec<ObservedModel>>>()?;
    let CollectRequest { shard, n_kept, resumed, calibration, runs_again, until_stable, .. } = request;
    let about = AboutStatistics {
        mqq: env!("CARGO_PKG_VERSION").to_string(),
        model: FloatModel { file: file_name(path), sha256: sha256(path)? },
        shapes: shapes.clone(),
        preprocessing: samples.preprocessing(),
        preprocessing_options: samples.preprocessing_options(),
        image_size: samples.image_size(),
        n_listed,
        part: Some(PartOfList { shard, list_sha256: list_sha256(dataset), n_done: Some(0) }),
        skipped: Vec::new(),
        warnings: Vec::new(),
        pixel_values: None,
        n_kept,
        tables,
    };
    let empty = models.iter().map(|model| (model.sha256.clone(), model.empty())).collect();
    let mut saved = SavedStatistics { about, hashes: Vec::new(), models: empty, kept: Vec::new() };
    let mut n_done = 0;
    if let Some(resumed) = resumed {
        n_done = done_by(&resumed, &saved)?;
        saved = resumed;
    } else if shard.index == 0 && until_stable.is_none() {
        look_at_pixels(path, &shapes, &samples, calibration, runs_again, &mut saved, progress)?;
    }
    let n = shard.len(n_listed);
    let tick = progress("calibration", n);
    (0..n_done).for_each(|_| tick());
    let rounds = match until_stable {
        Some(least) => {
            let rounds = collect_rounds(&models, &samples, (&watched, &graphs), (n, least), &mut saved, &tick)?;
            samples = samples.take_spread(rounds.n_samples);
            look_at_pixels(path, &shapes, &samples, calibration, runs_again, &mut saved, progress)?;
            Some(rounds)
        }
        None => {
            collect_rest(&models, &samples, (shard, n_done, n), &mut saved, keep, &tick)?;
            None
        }
    };
    let of_all = shard == Shard::WHOLE;
    saved.about.part = saved.about.part.take().filter(|_| !of_all).map(|part| PartOfList { n_done: None, ..part });
    let first = saved.about.skipped.first().map_or("", String::as_str);
    ensure!(!of_all || !saved.hashes.is_empty(), no_readable_sample(first));
    keep(&saved)?;
    Ok((saved, rounds))
}

/// Runs rounds of the `n` samples, spread over the list, until the ranges of the watched tables are stable.
fn collect_rounds(
    models: &[ObservedModel],
    samples: &SampleSet,
    (watched, graphs): (&[WatchedTable], &BTreeMap<String, ModelProto>),
    (n, least): (usize, usize),
    saved: &mut SavedStatistics,
    tick: &Tick,
) -> Result<UntilStable> {
    let (order, mut ranges) = (spread(n), WatchedRanges::default());
    let mut rounds = UntilStable::new(n, least);
    while let Some(next) = rounds.next() {
        let n_done = rounds.n_samples;
        let position = |i: usize| order[n_done + i];
        collect_part(models, samples, (next - n_done, &position), saved, tick)?;
        rounds.add(ranges.update(watched, graphs, saved, next));
    }
    saved.about.n_listed = rounds.n_samples;
    Ok(rounds)
}

/// Runs the samples of a shard from `n_done` to `n`. Calls `keep` with each intermediate result.
fn collect_rest(
    models: &[ObservedModel],
    samples: &SampleSet,
    (shard, mut n_done, n): (Shard, usize, usize),
    saved: &mut SavedStatistics,
    keep: &mut (dyn FnMut(&SavedStatistics) -> Result<()> + Send),
    tick: &Tick,
) -> Result<()> {
    while n_done < n {
        let next = (n_done + SAMPLES_AT_A_TIME.max(n / MAX_RESULTS)).min(n);
        let position = |i: usize| shard.index + (n_done + i) * shard.of;
        collect_part(models, samples, (next - n_done, &position), saved, tick)?;
        n_done = next;
        if let Some(part) = saved.about.part.as_mut().filter(|_| n_done < n) {
            part.n_done = Some(n_done);
            keep(saved)?;
        }
    }
    Ok(())
}

/// Adds the findings about the preprocessing of the samples to the statistics.
fn look_at_pixels(
    path: &Path,
    shapes: &Shapes,
    samples: &SampleSet,
    calibration: &CalibrationOptions,
    runs_again: bool,
    saved: &mut SavedStatistics,
    progress: &Progress,
) -> Result<()> {
    saved.about.warnings.extend(preprocessing_warning(samples, &calibration.preprocessing));
    if calibration.checks_preprocessing {
        let max_runs = if runs_again { usize::MAX } else { samples.dataset()?.len() };
        saved.about.pixel_values = better_preprocessing(path, shapes, samples, max_runs, progress);
    }
    Ok(())
}

/// The tables, and the models prepared for them.
struct PreparedTables {
    /// Hash of the prepared model by table.
    tables: BTreeMap<String, String>,
    /// The different prepared models by hash.
    prepared: BTreeMap<String, Prepared>,
    /// The tables whose ranges are watched; empty without `until_stable`.
    watched: Vec<WatchedTable>,
    /// Models of the watched tables, by hash.
    models: BTreeMap<String, ModelProto>,
}

fn prepare_all(path: &Path, request: &CollectRequest, shapes: &Shapes) -> Result<PreparedTables> {
    let mut models = PreparedModels::load(path, shapes)?;
    let (mut tables, mut wanted) = (BTreeMap::new(), BTreeMap::<String, WantedTensors>::new());
    let (mut watched, mut refused) = (Vec::new(), None);
    for (scheme, wider) in &request.tables {
        match wanted_by(&mut models, scheme, wider.as_ref(), request) {
            Ok((table, of_table)) => {
                tables.insert(table.scheme.name.clone(), table.sha256.clone());
                wanted.entry(table.sha256.clone()).or_default().extend(of_table);
                watched.extend(Some(table).filter(|_| request.until_stable.is_some()));
            }
            Err(error) if request.needs_all => return Err(error.context(format!("backend `{}`", scheme.name))),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    if let Some(error) = refused.filter(|_| tables.is_empty()) {
        return Err(error);
    }
    if let (Some(table), true) = (watched.first(), watched.iter().all(|table| table.placement.activations.is_empty())) {
        let found = format!("backend `{}` observes no tensor of this model", table.scheme.name);
        return Err(anyhow!("--until-stable: {found}, expected ranges to watch").hint("run without --until-stable"));
    }
    let (mut prepared, mut of_watched) = (BTreeMap::new(), BTreeMap::new());
    for (sha256, PreparedGraph { model, parsed, .. }) in models.into_hashed() {
        if let Some(wanted) = wanted.remove(&sha256) {
            if !watched.is_empty() {
                of_watched.insert(sha256.clone(), model);
            }
            prepared.insert(sha256, Prepared { parsed: parsed?, wanted });
        }
    }
    Ok(PreparedTables { tables, prepared, watched, models: of_watched })
}

/// Places quantizers on the model prepared for a table, or for the table of wider types that replaces it for
/// transformers. Returns the table with its placement, and the tensors that it quantizes.
fn wanted_by(
    models: &mut PreparedModels,
    scheme: &Scheme,
    wider: Option<&Scheme>,
    request: &CollectRequest,
) -> Result<(WatchedTable, WantedTensors)> {
    let (at, is_wider) = models.for_tables(scheme, wider, request.outputs)?;
    let table = wider.filter(|_| is_wider).unwrap_or(scheme);
    let sha256 = models.sha256(at);
    let PreparedGraph { model, value_info, parsed, .. } = models.at(at);
    if let Err(error) = parsed {
        return Err(copy_of(error));
    }
    let placement = place(model.graph()?, value_info, table, request.selection);
    let tensors: BTreeSet<String> = observed_tensors(&placement, None).into_iter().collect();
    let observer = match request.observer {
        Some(observer) => observer,
        None => by_spelling(&table.observers.activation)?,
    };
    let averaged = if observer.batch_size.is_some() { BTreeSet::clone(&tensors) } else { BTreeSet::new() };
    let wanted = WantedTensors { tensors, by_channel: linear_tensors(&placement), averaged };
    Ok((WatchedTable { scheme: table.clone(), sha256, placement, observer }, wanted))
}

/// Returns the hash of the file names of a list, in order. Folders do not count, because they may be mounted elsewhere.
fn list_sha256(dataset: &Dataset) -> String {
    texts_sha256((0..dataset.len()).map(|i| file_name(Path::new(&dataset.name(i)))))
}

/// Returns the number of samples that an interrupted run has done; fails where it had another model, data or options.
fn done_by(resumed: &SavedStatistics, fresh: &SavedStatistics) -> Result<usize> {
    let other = |difference: String| {
        anyhow!("the interrupted statistics do not fit this run: found {difference}")
            .hint("start again without --resume")
    };
    if let Some(difference) = mismatch(fresh, resumed) {
        return Err(other(difference));
    }
    let (part, expected) = match (&resumed.about.part, &fresh.about.part) {
        (Some(part), Some(expected)) => (part, expected),
        _ => return Ok(fresh.about.n_listed),
    };
    if part.shard != expected.shard {
        return Err(other(format!("shard {}, expected {}", part.shard, expected.shard)));
    }
    let n = expected.shard.len(fresh.about.n_listed);
    let n_done = part.n_done.unwrap_or(n);
    let n_observed = resumed.hashes.len() + resumed.about.skipped.len();
    ensure!(
        n_observed == n_done.min(n),
        "the interrupted statistics hold {}, expected {n_done}",
        count(n_observed, "sample")
    );
    Ok(n_done)
}
