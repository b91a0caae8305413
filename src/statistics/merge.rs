//! Merging of the statistics of shards.

use super::saved::{AboutStatistics, KeptSample, SavedModel, SavedStatistics, SavedTensor, Shard};
use crate::diag::{WithHint, and_more, count};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum number of missing shards that a message names.
const MAX_NAMED: usize = 10;

/// Merges the statistics of all shards of a list, in any order. The result is the same as that of one run over the
/// whole list. `read` is called for one file at a time.
///
/// # Errors
/// If a file is not of the same model, data and options as the first one, a shard is missing or given twice, or a shard
/// was interrupted.
pub fn merge_shards(paths: &[PathBuf], read: impl Fn(&Path) -> Result<SavedStatistics>) -> Result<SavedStatistics> {
    let (mut merged, mut found) = (None::<SavedStatistics>, BTreeMap::<usize, String>::new());
    for path in paths {
        let mut next = read(path)?;
        let name = path.display().to_string();
        let shard = shard_of(&next.about).with_context(|| format!("`{name}`"))?;
        if let Some(difference) = merged.as_ref().and_then(|merged| mismatch(merged, &next)) {
            return Err(anyhow!("`{name}`: {difference} as in `{}`", paths[0].display()));
        }
        if let Some(other) = found.insert(shard.index, name.clone()) {
            return Err(anyhow!("`{name}`: is shard {shard}, as `{other}` is, expected each shard once"));
        }
        let Some(merged) = &mut merged else {
            merged = Some(next);
            continue;
        };
        if shard.index == 0 {
            merged.about.warnings = std::mem::take(&mut next.about.warnings);
            merged.about.pixel_values = next.about.pixel_values.take();
        }
        let SavedStatistics { about, hashes, models, kept } = next;
        merged.keep(kept);
        merged.add(hashes, about.skipped, models).with_context(|| format!("`{name}`"))?;
    }
    let mut merged = merged.context("no statistics are given, expected the files of all shards")?;
    let of = shard_of(&merged.about)?.of;
    let missing: Vec<String> =
        (0..of).filter(|index| !found.contains_key(index)).map(|index| Shard { index, of }.to_string()).collect();
    if !missing.is_empty() {
        let n_more = missing.len().saturating_sub(MAX_NAMED);
        let named = missing[..missing.len() - n_more].join(", ");
        return Err(anyhow!("{} missing: {named}{}", count(missing.len(), "shard"), and_more(n_more))
            .hint("collect them with `mqq calibrate --shard` and the same options"));
    }
    let n_observed = merged.hashes.len() + merged.about.skipped.len();
    ensure!(n_observed == merged.about.n_listed, "{n_observed} samples in all, expected {}", merged.about.n_listed);
    merged.about.part = None;
    Ok(merged)
}

/// Returns the shard of finished statistics; fails for an interrupted shard.
fn shard_of(about: &AboutStatistics) -> Result<Shard> {
    let Some(part) = &about.part else { return Ok(Shard::WHOLE) };
    if let Some(n_done) = part.n_done {
        let n = part.shard.len(about.n_listed);
        return Err(anyhow!("shard {} was interrupted after {n_done} of {n} samples", part.shard)
            .hint("run the same command with --resume"));
    }
    Ok(part.shard)
}

/// Returns the first difference that shows that two statistics are not of parts of one list, as "found, expected": `b`
/// is found, `a` expected. `None` if there is no such difference.
pub fn mismatch(a: &SavedStatistics, b: &SavedStatistics) -> Option<String> {
    let (x, y) = (&a.about, &b.about);
    let none = || "none (arrays)".to_string();
    let part = |about: &AboutStatistics| about.part.as_ref().map(|part| (part.shard.of, part.list_sha256.clone()));
    let keys = |saved: &SavedStatistics| saved.models.keys().cloned().collect::<Vec<_>>();
    let tensors = |saved: &SavedStatistics| -> Vec<Vec<String>> {
        saved.models.values().map(|model| model.tensors.keys().cloned().collect()).collect()
    };
    let averaged = |saved: &SavedStatistics| -> Vec<Vec<String>> {
        saved.models.values().map(|model| model.averaged.clone()).collect()
    };
    let of = |about: &AboutStatistics| about.part.as_ref().map_or(1, |part| part.shard.of);
    let pairs: [(bool, String); 9] = [
        (
            x.model.sha256 == y.model.sha256,
            format!("model with SHA-256 {}, expected {}", y.model.sha256, x.model.sha256),
        ),
        (x.shapes == y.shapes, format!("input shapes {:?}, expected {:?}", y.shapes, x.shapes)),
        (x.preprocessing == y.preprocessing, {
            let [x, y] = [x, y].map(|about| about.preprocessing.clone().unwrap_or_else(none));
            format!("preprocessing: {y}, expected: {x}")
        }),
        (of(x) == of(y), format!("one of {}, expected one of {}", count(of(y), "shard"), of(x))),
        (x.n_kept == y.n_kept, format!("{}, expected {}", count(y.n_kept, "kept sample"), x.n_kept)),
        (x.n_listed == y.n_listed, format!("a list of {}, expected {}", count(y.n_listed, "sample"), x.n_listed)),
        (
            part(x) == part(y) || part(x).is_none() || part(y).is_none(),
            "a list of other files or in another order, expected the same list".to_string(),
        ),
        (keys(a) == keys(b) && x.tables == y.tables, {
            let [x, y] = [x, y].map(|about| about.tables.keys().cloned().collect::<Vec<_>>().join(", "));
            format!("statistics for {y} of mqq {}, expected those for {x} of mqq {}", b.about.mqq, a.about.mqq)
        }),
        (
            tensors(a) == tensors(b) && averaged(a) == averaged(b),
            "statistics of other tensors, expected the same --exclude, --only, --outputs and --observer".to_string(),
        ),
    ];
    pairs.into_iter().find(|(is_same, _)| !is_same).map(|(_, text)| text)
}

impl SavedStatistics {
    /// Adds the statistics of other samples of the same model, data and options: the samples' hashes, the skipped
    /// samples, and statistics by the hash of the prepared model.
    ///
    /// # Errors
    /// If there are too many values to count.
    pub fn add(
        &mut self,
        hashes: Vec<u64>,
        skipped: Vec<String>,
        models: impl IntoIterator<Item = (String, SavedModel)>,
    ) -> Result<()> {
        self.hashes.extend(hashes);
        // Both parts are ascending, and a stable sort merges such runs.
        self.hashes.sort();
        self.about.skipped.extend(skipped);
        self.about.skipped.sort();
        models.into_iter().try_for_each(|(sha256, model)| self.models.entry(sha256).or_default().add(model))
    }

    /// Adds samples to the kept ones. Of all, the first [`AboutStatistics::n_kept`] by their hashes stay.
    pub fn keep(&mut self, samples: Vec<KeptSample>) {
        self.kept.extend(samples);
        self.kept.sort_by_key(|sample| sample.hash);
        self.kept.truncate(self.about.n_kept);
    }
}

impl SavedModel {
    fn add(&mut self, other: SavedModel) -> Result<()> {
        for (tensor, SavedTensor { counts, channels }) in other.tensors {
            let mine = self.tensors.entry(tensor.clone()).or_default();
            mine.counts.merge(&counts).with_context(|| format!("tensor `{tensor}`"))?;
            if let Some(channels) = channels {
                mine.channels.get_or_insert_default().merge(&channels);
            }
        }
        self.averaged = other.averaged;
        self.by_sample.extend(other.by_sample);
        Ok(())
    }
}
