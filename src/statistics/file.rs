//! The file of saved statistics: a safetensors container, which holds no code and which every language reads.
//!
//! Arrays: `sha256` (of the metadata's text and all other arrays), `samples`, and of each tensor `NAME@i/counts`
//! ([`TensorCounts::bytes`]), `NAME@i/extremes` and `NAME@i/channels`. If a tensor has the same statistics in several
//! prepared models, the models share them: `i` counts the different statistics. `batches/i` holds extremes by sample of
//! prepared model i, `kept` the hashes of the kept samples, and `kept/i/j` input j of kept sample i. All else is JSON
//! in the text `mqq_statistics` of the container's metadata.

use super::{
    AboutStatistics, ChannelExtremes, Extremes, KeptArray, KeptSample, SavedModel, SavedStatistics, SavedTensor,
    TensorCounts,
};
use crate::diag::{WithHint, in_plain_words};
use crate::onnx::data_type::{DataType, type_name};
use anyhow::{Context, Result, anyhow, bail, ensure};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};

/// Version of the format. It rises when readers of an earlier version would misread the file.
pub const FORMAT: u32 = 1;

/// Name of the text in the container's metadata.
const KEY: &str = "mqq_statistics";
/// Name of the array with the hash of the text and all other arrays.
const CHECKSUM: &str = "sha256";
/// Name of the array with the hashes of the samples.
const SAMPLES: &str = "samples";

/// Name of the array with the hashes of the kept samples.
const KEPT: &str = "kept";

/// Element types of inputs: in the file, and in ONNX.
const INPUT_TYPES: [(Dtype, DataType); 6] = [
    (Dtype::F32, DataType::Float),
    (Dtype::I64, DataType::Int64),
    (Dtype::I32, DataType::Int32),
    (Dtype::I8, DataType::Int8),
    (Dtype::U8, DataType::Uint8),
    (Dtype::BOOL, DataType::Bool),
];

/// The keys of the text that files of every version have.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
    mqq: String,
}

/// The text of the metadata.
#[derive(Serialize, Deserialize)]
struct StatisticsText {
    format: u32,
    #[serde(flatten)]
    about: AboutStatistics,
    models: Vec<HeaderModel>,
}

/// A prepared model.
#[derive(Serialize, Deserialize)]
struct HeaderModel {
    sha256: String,
    /// For each tensor `NAME`, the number `i` of its statistics `NAME@i`.
    tensors: BTreeMap<String, usize>,
    /// The tensors with extremes by sample.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    averaged: Vec<String>,
}

/// An array of the file.
struct FileArray {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl FileArray {
    fn of_bytes(bytes: Vec<u8>) -> FileArray {
        FileArray { dtype: Dtype::U8, shape: vec![bytes.len()], bytes }
    }

    /// Returns an array of pairs of lowest and highest value. Its shape is `shape`, followed by the axis of the pair.
    fn of_extremes<'a>(shape: &[usize], extremes: impl IntoIterator<Item = &'a Extremes>) -> FileArray {
        let ends = extremes.into_iter().flat_map(|Extremes { min, max }| [min.to_le_bytes(), max.to_le_bytes()]);
        FileArray { dtype: Dtype::F32, shape: [shape, &[2]].concat(), bytes: ends.flatten().collect() }
    }

    fn of_hashes(hashes: impl Iterator<Item = u64>) -> FileArray {
        let bytes: Vec<u8> = hashes.flat_map(u64::to_le_bytes).collect();
        FileArray { dtype: Dtype::U64, shape: vec![bytes.len() / 8], bytes }
    }

    fn view(&self) -> Result<TensorView<'_>> {
        Ok(TensorView::new(self.dtype, self.shape.clone(), &self.bytes)?)
    }
}

/// Returns the bytes of the file. The same statistics give the same bytes.
///
/// # Errors
/// If an input of a kept sample has a type that the file cannot hold, or the container cannot hold the arrays.
pub fn statistics_bytes(saved: &SavedStatistics) -> Result<Vec<u8>> {
    let mut arrays: BTreeMap<String, FileArray> = BTreeMap::new();
    arrays.insert(SAMPLES.into(), FileArray::of_hashes(saved.hashes.iter().copied()));
    if !saved.kept.is_empty() {
        arrays.insert(KEPT.into(), FileArray::of_hashes(saved.kept.iter().map(|sample| sample.hash)));
    }
    for (i, sample) in saved.kept.iter().enumerate() {
        for (j, KeptArray { data_type, shape, bytes }) in sample.inputs.iter().enumerate() {
            let known = INPUT_TYPES.iter().find(|(_, known)| *known as i32 == *data_type);
            let (dtype, _) =
                *known.with_context(|| format!("an input is {}, which the file cannot hold", type_name(*data_type)))?;
            let (shape, bytes) = (shape.clone(), bytes.clone());
            arrays.insert(format!("{KEPT}/{i}/{j}"), FileArray { dtype, shape, bytes });
        }
    }
    let different = saved.different_tensors();
    for (name, tensors) in &different {
        tensors.iter().enumerate().for_each(|(i, tensor)| add_tensor(&mut arrays, &format!("{name}@{i}"), tensor));
    }
    let mut models = Vec::with_capacity(saved.models.len());
    for (at, (sha256, model)) in saved.models.iter().enumerate() {
        let mut tensors = BTreeMap::new();
        for (name, tensor) in &model.tensors {
            let same = different.get(name).and_then(|all| all.iter().position(|other| *other == tensor));
            tensors.insert(name.clone(), same.context("internal error: a tensor that was not added")?);
        }
        if !model.averaged.is_empty() {
            let shape = [model.by_sample.len(), model.averaged.len()];
            let extremes = FileArray::of_extremes(&shape, model.by_sample.values().flatten());
            arrays.insert(format!("batches/{at}"), extremes);
        }
        models.push(HeaderModel { sha256: sha256.clone(), tensors, averaged: model.averaged.clone() });
    }
    let header = serde_json::to_string(&StatisticsText { format: FORMAT, about: saved.about.clone(), models })?;
    let views = arrays.iter().map(|(name, array)| Ok((name.clone(), array.view()?)));
    let mut views: BTreeMap<String, TensorView> = views.collect::<Result<_>>()?;
    let checksum = FileArray::of_bytes(checksum(&header, &views).to_vec());
    views.insert(CHECKSUM.into(), checksum.view()?);
    Ok(serialize(views, &Some(HashMap::from([(KEY.to_string(), header)])))?)
}

fn add_tensor(arrays: &mut BTreeMap<String, FileArray>, prefix: &str, tensor: &SavedTensor) {
    let SavedTensor { counts, channels } = tensor;
    arrays.insert(format!("{prefix}/counts"), FileArray::of_bytes(counts.bytes()));
    arrays.insert(format!("{prefix}/extremes"), FileArray::of_extremes(&[], [&counts.extremes()]));
    // The array has no channels if samples have different numbers of channels.
    if let Some(channels) = channels.as_ref().filter(|all| all.is_uneven() || !all.by_channel.is_empty()) {
        let array = FileArray::of_extremes(&[channels.by_channel.len()], &channels.by_channel);
        arrays.insert(format!("{prefix}/channels"), array);
    }
}

/// Returns the hash of the text and of all arrays, in the order of their names.
fn checksum(header: &str, arrays: &BTreeMap<String, TensorView>) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(header.as_bytes());
    for (name, array) in arrays {
        add(name.as_bytes());
        add(format!("{:?} {:?}", array.dtype(), array.shape()).as_bytes());
        add(array.data());
    }
    hasher.finalize().into()
}

/// Reads the bytes of a file.
///
/// # Errors
/// If the bytes have another format or version, or are truncated or changed.
pub fn read_statistics(bytes: &[u8]) -> Result<SavedStatistics> {
    let foreign = "is not a file of mqq's statistics, or is truncated";
    let (_, metadata) = SafeTensors::read_metadata(bytes).ok().context(foreign)?;
    let header = metadata.metadata().as_ref().and_then(|texts| texts.get(KEY)).context(foreign)?;
    let wrong = |error: serde_json::Error| anyhow!("{foreign}: {}", in_plain_words(&error.to_string()));
    let Versioned { format, mqq } = serde_json::from_str(header).map_err(wrong)?;
    if format != FORMAT {
        return Err(anyhow!("has version {format} of the format, written by mqq {mqq}, expected {FORMAT}").hint(
            if format > FORMAT { "use that version of mqq, or a later one" } else { "collect the statistics again" },
        ));
    }
    let container = SafeTensors::deserialize(bytes)?;
    let mut arrays: BTreeMap<String, TensorView> = container.tensors().into_iter().collect();
    let expected = arrays.remove(CHECKSUM).context("has no checksum")?;
    ensure!(
        expected.data() == checksum(header, &arrays),
        anyhow!("has been changed: its checksum does not match its contents").hint("copy or collect it again")
    );
    let header: StatisticsText = serde_json::from_str(header).map_err(wrong)?;
    let mut reader = Reader { arrays };
    let (hashes, kept) = (reader.hashes(SAMPLES)?, reader.kept()?);
    let n_kept = header.about.n_kept.min(hashes.len());
    let is_kept = |(sample, hash): (&KeptSample, &u64)| sample.hash == *hash;
    ensure!(
        kept.len() == n_kept && kept.iter().zip(&hashes).all(is_kept),
        "keeps other samples than the first {n_kept} in the order of their hashes"
    );
    let mut saved = SavedStatistics { about: header.about, hashes, models: BTreeMap::new(), kept };
    for (at, model) in header.models.into_iter().enumerate() {
        let read = reader.model(at, &model, &saved)?;
        ensure!(saved.models.insert(model.sha256, read).is_none(), "the same model is in the file twice");
    }
    Ok(saved)
}

/// The arrays of a file.
struct Reader<'a> {
    arrays: BTreeMap<String, TensorView<'a>>,
}

impl<'a> Reader<'a> {
    /// Returns the array of this name, type and shape; `None` stands for any length.
    fn array(&self, name: &str, dtype: Dtype, shape: &[Option<usize>]) -> Result<&TensorView<'a>> {
        let array = self.arrays.get(name).with_context(|| format!("has no array `{name}`"))?;
        let fits = array.shape().len() == shape.len()
            && array.shape().iter().zip(shape).all(|(found, expected)| expected.is_none_or(|n| n == *found));
        ensure!(
            array.dtype() == dtype && fits,
            "array `{name}` is {:?} {:?}, expected {dtype:?} {shape:?}",
            array.dtype(),
            array.shape()
        );
        Ok(array)
    }

    fn hashes(&self, name: &str) -> Result<Vec<u64>> {
        let hashes = self.array(name, Dtype::U64, &[None])?.data().as_chunks().0.iter();
        let hashes: Vec<u64> = hashes.map(|bytes| u64::from_le_bytes(*bytes)).collect();
        ensure!(hashes.is_sorted(), "array `{name}` is not in order");
        Ok(hashes)
    }

    /// Reads the kept samples.
    fn kept(&self) -> Result<Vec<KeptSample>> {
        if !self.arrays.contains_key(KEPT) {
            return Ok(Vec::new());
        }
        let sample = |(i, hash): (usize, u64)| -> Result<KeptSample> {
            let inputs = (0..).map_while(|j| self.arrays.get(&format!("{KEPT}/{i}/{j}"))).map(|array| {
                let known = INPUT_TYPES.iter().find(|(dtype, _)| *dtype == array.dtype());
                let (_, data_type) = *known.with_context(|| format!("an input is {:?}", array.dtype()))?;
                Ok(KeptArray {
                    data_type: data_type as i32,
                    shape: array.shape().to_vec(),
                    bytes: array.data().to_vec(),
                })
            });
            Ok(KeptSample { hash, inputs: inputs.collect::<Result<_>>()? })
        };
        self.hashes(KEPT)?.into_iter().enumerate().map(sample).collect()
    }

    fn extremes(&self, name: &str, shape: &[Option<usize>]) -> Result<Vec<Extremes>> {
        let array = self.array(name, Dtype::F32, &[shape, &[Some(2)]].concat())?;
        let (pairs, _) = array.data().as_chunks::<8>();
        let pair = |bytes: &[u8; 8]| {
            let [a, b, c, d, e, f, g, h] = *bytes;
            Extremes { min: f32::from_le_bytes([a, b, c, d]), max: f32::from_le_bytes([e, f, g, h]) }
        };
        Ok(pairs.iter().map(pair).collect())
    }

    fn tensor(&self, prefix: &str) -> Result<SavedTensor> {
        let counts = self.array(&format!("{prefix}/counts"), Dtype::U8, &[None])?;
        let extremes = self.extremes(&format!("{prefix}/extremes"), &[])?;
        let extremes = extremes.first().copied().unwrap_or_default();
        let counts = TensorCounts::from_bytes(counts.data(), extremes);
        let counts = counts.with_context(|| format!("array `{prefix}/counts`"))?;
        let name = format!("{prefix}/channels");
        let channels = match self.arrays.contains_key(&name) {
            true => Some(self.extremes(&name, &[None])?),
            false => None,
        };
        let channels = channels.map(|all| ChannelExtremes::of(Some(all).filter(|all| !all.is_empty())));
        Ok(SavedTensor { counts, channels })
    }

    fn model(&mut self, at: usize, header: &HeaderModel, saved: &SavedStatistics) -> Result<SavedModel> {
        let mut model = SavedModel { averaged: header.averaged.clone(), ..SavedModel::default() };
        for (name, i) in &header.tensors {
            model.tensors.insert(name.clone(), self.tensor(&format!("{name}@{i}"))?);
        }
        if model.averaged.is_empty() {
            return Ok(model);
        }
        let is_known = |name: &String| model.tensors.contains_key(name);
        if !model.averaged.is_sorted() || !model.averaged.iter().all(is_known) {
            bail!("`averaged` is not sorted, or names tensors without statistics");
        }
        let (n_rows, n) = (saved.n_different(), model.averaged.len());
        let rows = self.extremes(&format!("batches/{at}"), &[Some(n_rows), Some(n)])?;
        let hashes = saved.hashes.chunk_by(|a, b| a == b).filter_map(|same| same.first().copied());
        model.by_sample = hashes.zip(rows.chunks(n).map(<[Extremes]>::to_vec)).collect();
        Ok(model)
    }
}
