//! Array files whose arrays are matched with the inputs: one column of samples per input.

use super::array::{Raw, samples};
use super::npy::{Archive, Stored};
use super::{Array, Sample, pb, sources};
use crate::diag::{WithHint, did_you_mean, file_name, quoted};
use crate::onnx::data_type::DataType;
use crate::onnx::inputs::{InputShapes, InputSpec};
use crate::onnx::tensor;
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Storage of a column.
enum Storage {
    /// A `.npy` file, or an array of an archive.
    Array(Stored),
    /// A `TensorProto`.
    Message(PathBuf),
}

/// The samples of one input.
struct Column {
    storage: Storage,
    n_samples: usize,
    /// The shape of each sample.
    shape: Vec<usize>,
}

impl Column {
    fn new(storage: Storage, found: &[usize], input: &InputSpec) -> Result<Column> {
        let (n_samples, shape) = samples(found, input)?;
        Ok(Column { storage, n_samples, shape })
    }
}

/// An array file, or a folder of `.pb` files, with samples of every input.
pub struct ArrayFile {
    path: PathBuf,
    columns: Vec<Column>,
    n_samples: usize,
}

/// Unpacked arrays of the files that were used last, so that an archive of many samples is unpacked once. Two files are
/// enough: workers that go through samples in order use at most two at a time.
#[derive(Default)]
pub struct Cache(Mutex<VecDeque<(CacheKey, Arc<Vec<u8>>)>>);

/// Position of the file and of the column.
type CacheKey = (usize, usize);

impl Cache {
    const N_FILES: usize = 2;

    fn get(&self, key: CacheKey, n_columns: usize, unpack: impl FnOnce() -> Result<Vec<u8>>) -> Result<Arc<Vec<u8>>> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, data)) = entries.iter().find(|(found, _)| *found == key) {
            return Ok(Arc::clone(data));
        }
        while entries.len() >= Cache::N_FILES * n_columns {
            entries.pop_front();
        }
        let data = Arc::new(unpack()?);
        entries.push_back((key, Arc::clone(&data)));
        Ok(data)
    }
}

impl ArrayFile {
    /// Reads the headers and matches the arrays with the inputs. Fails if an input has no array, an array does not fit
    /// its input, or the numbers of samples differ.
    pub fn open(path: &Path, inputs: &[InputSpec]) -> Result<ArrayFile> {
        let columns = match sources::extension(path).as_str() {
            _ if path.is_dir() => from_folder(path, inputs)?,
            "npz" => from_npz(path, inputs)?,
            "pb" => vec![from_pb(path, only_input(inputs)?)?],
            _ => {
                let array = Stored::open(path)?;
                let found = array.header.shape.clone();
                vec![Column::new(Storage::Array(array), &found, only_input(inputs)?)?]
            }
        };
        let longest = columns.iter().enumerate().max_by_key(|(_, column)| column.n_samples);
        let (longest_idx, n_samples) = longest.map_or((0, 0), |(i, column)| (i, column.n_samples));
        for (column, input) in columns.iter().zip(inputs) {
            ensure!(
                column.n_samples == n_samples || column.n_samples == 1,
                "input `{}` has {} samples, expected {n_samples} as for input `{}`, or 1",
                input.name,
                column.n_samples,
                inputs[longest_idx].name
            );
        }
        ensure_one_number(&columns, inputs)?;
        Ok(ArrayFile { path: path.to_path_buf(), columns, n_samples })
    }

    pub fn n_samples(&self) -> usize {
        self.n_samples
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the shape of a sample for each input.
    pub fn shapes(&self) -> InputShapes {
        self.columns.iter().map(|column| column.shape.clone()).collect()
    }

    /// Reads sample `sample`, one array per input. `file_idx` is the key of this file in the cache.
    pub fn load(&self, sample: usize, inputs: &[InputSpec], file_idx: usize, cache: &Cache) -> Result<Sample> {
        let load = |(column_idx, (column, input)): (usize, (&Column, &InputSpec))| {
            let sample = if column.n_samples == 1 { 0 } else { sample };
            let unpacked = |array: &Stored| {
                if column.n_samples == 1 {
                    return Ok(Arc::new(array.unpack(&self.path)?));
                }
                let unpack = || array.unpack(&self.path);
                cache.get((file_idx, column_idx), self.columns.len(), unpack)
            };
            let (element, is_big_endian, bytes) = match &column.storage {
                Storage::Array(array) => {
                    let bytes = array.read(&self.path, sample, column.n_samples, || unpacked(array))?;
                    (array.header.element, array.header.is_big_endian, Bytes::from(bytes))
                }
                Storage::Message(path) => {
                    let (element, bytes) = read_message(path, sample, column.n_samples)?;
                    (element, false, bytes)
                }
            };
            let raw = Raw { element, is_big_endian, bytes: &bytes };
            let values = raw.convert(input.data_type).with_context(|| format!("array for input `{}`", input.name))?;
            Ok(Array { shape: column.shape.clone(), values })
        };
        self.columns.iter().zip(inputs).enumerate().map(load).collect()
    }
}

/// Fails if a named dimension has two different lengths in a sample.
fn ensure_one_number(columns: &[Column], inputs: &[InputSpec]) -> Result<()> {
    let mut known: Vec<(&str, usize, &str)> = Vec::new();
    for (column, input) in columns.iter().zip(inputs) {
        let named = column.shape.iter().zip(&input.open).filter_map(|(&n, open)| Some((open.as_deref()?, n)));
        for (symbol, n) in named.filter(|(symbol, _)| !symbol.is_empty()) {
            match known.iter().find(|(other, ..)| *other == symbol) {
                Some((_, other, of)) => ensure!(
                    *other == n,
                    "input `{}`: dimension `{symbol}` is {n}, expected {other} as for input `{of}`",
                    input.name
                ),
                None => known.push((symbol, n, &input.name)),
            }
        }
    }
    Ok(())
}

fn read_message(path: &Path, sample: usize, n_samples: usize) -> Result<(DataType, Bytes)> {
    let (message, element) = pb::read(path)?;
    let bytes = tensor::raw_bytes(&message)?;
    let n_bytes = bytes.len() / n_samples;
    Ok((element, bytes.slice(sample * n_bytes..(sample + 1) * n_bytes)))
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names = quoted(names, ", ");
    if names.is_empty() { "nothing".to_owned() } else { names }
}

fn input_names(inputs: &[InputSpec]) -> String {
    names(inputs.iter().map(|input| input.name.as_str()))
}

fn only_input(inputs: &[InputSpec]) -> Result<&InputSpec> {
    let [input] = inputs else {
        return Err(anyhow!("holds one array, expected one for each input: {}", input_names(inputs))
            .hint("use .npz files with one key per input"));
    };
    Ok(input)
}

fn from_npz(path: &Path, inputs: &[InputSpec]) -> Result<Vec<Column>> {
    let mut archive = Archive::open(path)?;
    let mut columns = Vec::with_capacity(inputs.len());
    for input in inputs {
        let array = archive.array_for(&input.name, inputs.len() == 1)?;
        let found = array.header.shape.clone();
        columns.push(Column::new(Storage::Array(array), &found, input)?);
    }
    Ok(columns)
}

fn from_pb(path: &Path, input: &InputSpec) -> Result<Column> {
    let (message, _) = pb::read(path)?;
    Column::new(Storage::Message(path.to_path_buf()), &tensor::shape(&message)?, input)
}

/// Reads the `.pb` files of a folder. They are matched by the tensors' names, otherwise by the position in
/// `input_<i>.pb`.
fn from_folder(path: &Path, inputs: &[InputSpec]) -> Result<Vec<Column>> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for file in sources::pb_files(path)? {
        let place = || format!("`{}`", file_name(&file));
        let (message, _) = pb::read(&file).with_context(place)?;
        let by_position = sources::test_input_idx(&file).and_then(|i| inputs.get(i));
        let stem = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = match (message.name.as_deref(), by_position) {
            (Some(name), _) if inputs.iter().any(|input| input.name == name) => name.to_owned(),
            (None | Some(""), Some(input)) => input.name.clone(),
            (None | Some(""), None) => stem(),
            (Some(name), _) => name.to_owned(),
        };
        found.push((name, file));
    }
    let column = |input: &InputSpec| {
        let Some((_, file)) = found.iter().find(|(name, _)| *name == input.name) else {
            let found = || found.iter().map(|(name, _)| name.as_str());
            return Err(anyhow!("has no tensor for input `{}`, found {}", input.name, names(found()))
                .hint(did_you_mean(&input.name, found())));
        };
        from_pb(file, input).with_context(|| format!("`{}`", file_name(file)))
    };
    inputs.iter().map(column).collect()
}
