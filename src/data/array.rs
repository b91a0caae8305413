//! Arrays from `.npy`, `.npz` and ONNX's `.pb` files.

use super::{Array, InputSpec, Sample, Values, sources};
use crate::diag::did_you_mean;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor;
use anyhow::{Context, Result, anyhow, bail, ensure};
use npyz::{DType, NpyFile, npz::NpzArchive};
use prost::Message;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Whether the extension is that of an array file.
pub fn is_array_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    matches!(extension.to_ascii_lowercase().as_str(), "npy" | "npz" | "pb")
}

/// The data of one input in a file.
struct Column {
    /// Elements of one sample.
    n_values: usize,
    n_samples: usize,
    storage: Storage,
}

enum Storage {
    /// Plain `.npy`: read sample by sample. Start of the data, and bytes and kind of an element.
    OnDisk { start: u64, kind: Kind },
    /// Decoded whole: members of archives and protobuf messages.
    InMemory(Vec<f64>),
    /// As `InMemory`, for kinds that a float32 holds exactly.
    InMemory32(Vec<f32>),
}

/// Element kinds of arrays.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
}

/// An open file, or folder of `.pb` files, that holds a column per input.
pub struct ArrayFile {
    path: PathBuf,
    columns: Vec<Column>,
    n_samples: usize,
}

impl ArrayFile {
    /// Opens the file and matches its arrays with the inputs.
    ///
    /// # Errors
    /// If an input has no array, an array does not fit its input, or the inputs have different numbers of
    /// samples.
    pub fn open(path: &Path, inputs: &[InputSpec]) -> Result<ArrayFile> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        let columns = match extension.to_ascii_lowercase().as_str() {
            _ if path.is_dir() => from_folder(path, inputs)?,
            "npy" => vec![from_npy(path, only_input(inputs)?)?],
            "npz" => from_npz(path, inputs)?,
            _ => vec![from_pb(path, only_input(inputs)?)?],
        };
        let n_samples = columns.first().map_or(0, |column| column.n_samples);
        for (column, input) in columns.iter().zip(inputs) {
            ensure!(
                column.n_samples == n_samples,
                "input `{}` has {} samples, expected {n_samples} as input `{}`",
                input.name,
                column.n_samples,
                inputs[0].name
            );
        }
        Ok(ArrayFile { path: path.to_path_buf(), columns, n_samples })
    }

    pub fn n_samples(&self) -> usize {
        self.n_samples
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sample `sample`, an array per input.
    pub fn load(&self, sample: usize, inputs: &[InputSpec]) -> Result<Sample> {
        let load = |(column, input): (&Column, &InputSpec)| {
            let values = column.read(&self.path, sample)?;
            let values = convert(&values, input.data_type)
                .with_context(|| format!("input `{}`", input.name))?;
            Ok(Array { shape: input.shape.clone(), values })
        };
        self.columns.iter().zip(inputs).map(load).collect()
    }
}

fn only_input(inputs: &[InputSpec]) -> Result<&InputSpec> {
    let [input] = inputs else {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        bail!(
            "holds one array, but the model has the inputs {}\nhint: use .npz with a key per input",
            names.join(", ")
        );
    };
    Ok(input)
}

impl Column {
    fn read(&self, path: &Path, sample: usize) -> Result<Vec<f64>> {
        let first = sample * self.n_values;
        match &self.storage {
            Storage::InMemory(values) => Ok(values[first..first + self.n_values].to_vec()),
            Storage::InMemory32(values) => {
                let values = &values[first..first + self.n_values];
                Ok(values.iter().map(|&value| f64::from(value)).collect())
            }
            Storage::OnDisk { start, kind } => {
                let mut file = File::open(path)?;
                let size = kind.size();
                file.seek(SeekFrom::Start(start + (first * size) as u64))?;
                let mut bytes = vec![0; self.n_values * size];
                file.read_exact(&mut bytes).context("is shorter than its header says")?;
                Ok(bytes.chunks_exact(size).map(|bytes| kind.value(bytes)).collect())
            }
        }
    }
}

/// How many samples an array of `found` dimensions holds for an input.
fn n_samples(found: &[usize], input: &InputSpec) -> Result<usize> {
    let expected = &input.shape;
    let batch = expected.first().copied().unwrap_or(1).max(1);
    if found.len() == expected.len() + 1 && found[1..] == expected[..] {
        return Ok(found[0]);
    }
    if found.len() == expected.len() && !expected.is_empty() && found[1..] == expected[1..] {
        ensure!(
            found[0].is_multiple_of(batch),
            "input `{}`: {} entries along the first axis, expected a multiple of {batch}",
            input.name,
            found[0]
        );
        return Ok(found[0] / batch);
    }
    if batch == 1 && found.len() + 1 == expected.len() && found[..] == expected[1..] {
        return Ok(1);
    }
    bail!(
        "input `{}`: the array has the shape {found:?}, expected {expected:?}, or a batch of it along the first axis",
        input.name
    )
}

impl Kind {
    fn of(dtype: &DType) -> Result<Kind> {
        let DType::Plain(plain) = dtype else { bail!("holds records, expected plain numbers") };
        let text = plain.to_string();
        ensure!(!text.starts_with('>'), "is big-endian (`{text}`), expected little-endian");
        Ok(match text.trim_start_matches(['<', '|', '=']) {
            "f2" => Kind::F16,
            "f4" => Kind::F32,
            "f8" => Kind::F64,
            "i1" => Kind::I8,
            "i2" => Kind::I16,
            "i4" => Kind::I32,
            "i8" => Kind::I64,
            "u1" => Kind::U8,
            "u2" => Kind::U16,
            "u4" => Kind::U32,
            "u8" => Kind::U64,
            "b1" => Kind::Bool,
            _ => bail!("has the element type `{text}`, expected numbers"),
        })
    }

    fn size(self) -> usize {
        match self {
            Kind::I8 | Kind::U8 | Kind::Bool => 1,
            Kind::F16 | Kind::I16 | Kind::U16 => 2,
            Kind::F32 | Kind::I32 | Kind::U32 => 4,
            Kind::F64 | Kind::I64 | Kind::U64 => 8,
        }
    }

    /// `bytes` holds exactly one element.
    fn value(self, bytes: &[u8]) -> f64 {
        let mut wide = [0u8; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(wide);
        match self {
            Kind::F16 => half::f16::from_bits(word as u16).to_f64(),
            Kind::F32 => f64::from(f32::from_bits(word as u32)),
            Kind::F64 => f64::from_bits(word),
            Kind::I8 => f64::from(word as i8),
            Kind::I16 => f64::from(word as i16),
            Kind::I32 => f64::from(word as i32),
            Kind::I64 => word as i64 as f64,
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 | Kind::Bool => word as f64,
        }
    }
}

/// Header of a `.npy` file: shape, element kind, and where the data begin.
fn npy_header<R: Read>(npy: &NpyFile<R>) -> Result<(Vec<usize>, Kind)> {
    let kind = Kind::of(&npy.dtype())?;
    let shape: Vec<usize> = npy.shape().iter().map(|&n| n as usize).collect();
    ensure!(
        npy.order() == npyz::Order::C || shape.len() < 2,
        "is stored in Fortran order, expected C order\nhint: numpy.ascontiguousarray"
    );
    Ok((shape, kind))
}

fn from_npy(path: &Path, input: &InputSpec) -> Result<Column> {
    let file = File::open(path)?;
    let n_bytes = file.metadata()?.len();
    let npy = NpyFile::new(BufReader::new(file)).context("is no .npy file")?;
    let (shape, kind) = npy_header(&npy)?;
    let n_samples = n_samples(&shape, input)?;
    let n_total: usize = shape.iter().product();
    let start = n_bytes.checked_sub((n_total * kind.size()) as u64);
    let start = start.context("is shorter than its header says")?;
    Ok(Column {
        n_values: n_total / n_samples.max(1),
        n_samples,
        storage: Storage::OnDisk { start, kind },
    })
}

fn from_npz(path: &Path, inputs: &[InputSpec]) -> Result<Vec<Column>> {
    let mut archive = NpzArchive::open(path).context("is no .npz file")?;
    let names: Vec<String> = archive.array_names().map(str::to_string).collect();
    let mut columns = Vec::with_capacity(inputs.len());
    for input in inputs {
        let name = match (names.iter().find(|name| **name == input.name), names.as_slice()) {
            (Some(name), _) => name,
            (None, [only]) if inputs.len() == 1 => only,
            _ => bail!(
                "has no array `{}`, expected one per input; it has: {}{}",
                input.name,
                names.join(", "),
                did_you_mean(&input.name, names.iter().map(String::as_str))
            ),
        };
        let member = archive.by_name(name)?.with_context(|| format!("array `{name}` is missing"))?;
        let (shape, kind) = npy_header(&member).with_context(|| format!("array `{name}`"))?;
        let n_samples = n_samples(&shape, input)?;
        let n_total: usize = shape.iter().product();
        let storage = decode(member, kind).with_context(|| format!("array `{name}`"))?;
        columns.push(Column { n_values: n_total / n_samples.max(1), n_samples, storage });
    }
    Ok(columns)
}

fn decode<R: Read>(npy: NpyFile<R>, kind: Kind) -> Result<Storage> {
    fn all<R: Read, T: npyz::Deserialize, U>(npy: NpyFile<R>, f: fn(T) -> U) -> Result<Vec<U>> {
        let values = npy.data::<T>().map_err(|error| anyhow!("{error}"))?;
        Ok(values.map(|value| value.map(f)).collect::<Result<Vec<U>, _>>()?)
    }
    Ok(match kind {
        Kind::F16 => Storage::InMemory32(all(npy, half::f16::to_f32)?),
        Kind::F32 => Storage::InMemory32(all(npy, |x: f32| x)?),
        Kind::I8 => Storage::InMemory32(all(npy, f32::from as fn(i8) -> f32)?),
        Kind::U8 => Storage::InMemory32(all(npy, f32::from as fn(u8) -> f32)?),
        Kind::I16 => Storage::InMemory32(all(npy, f32::from as fn(i16) -> f32)?),
        Kind::U16 => Storage::InMemory32(all(npy, f32::from as fn(u16) -> f32)?),
        Kind::Bool => Storage::InMemory32(all(npy, |x: bool| f32::from(u8::from(x)))?),
        Kind::F64 => Storage::InMemory(all(npy, |x: f64| x)?),
        Kind::I32 => Storage::InMemory(all(npy, f64::from as fn(i32) -> f64)?),
        Kind::U32 => Storage::InMemory(all(npy, f64::from as fn(u32) -> f64)?),
        Kind::I64 => Storage::InMemory(all(npy, |x: i64| x as f64)?),
        Kind::U64 => Storage::InMemory(all(npy, |x: u64| x as f64)?),
    })
}

fn read_tensor(path: &Path) -> Result<(TensorProto, Vec<usize>, Vec<f64>)> {
    let bytes = std::fs::read(path)?;
    let proto = TensorProto::decode(bytes::Bytes::from(bytes))
        .context("is no ONNX tensor: it does not parse as `TensorProto`")?;
    let shape = tensor::shape(&proto)?;
    let values = tensor::f64_values(&proto)?;
    Ok((proto, shape, values))
}

fn from_pb(path: &Path, input: &InputSpec) -> Result<Column> {
    let (_, shape, values) = read_tensor(path)?;
    let n_samples = n_samples(&shape, input)?;
    let n_values = values.len() / n_samples.max(1);
    Ok(Column { n_values, n_samples, storage: Storage::InMemory(values) })
}

/// A folder of `input_0.pb`, `input_1.pb`, …: matched by the tensors' names, else by position.
fn from_folder(path: &Path, inputs: &[InputSpec]) -> Result<Vec<Column>> {
    let mut by_position = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        if sources::is_test_input(&file) {
            let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or("").to_string();
            let position: usize = stem.trim_start_matches("input_").parse()?;
            by_position.insert(position, file);
        }
    }
    let files: Vec<(usize, PathBuf)> = by_position.into_iter().collect();
    let mut columns = Vec::new();
    for (input_idx, input) in inputs.iter().enumerate() {
        let mut chosen = None;
        for (position, file) in &files {
            let (proto, shape, values) =
                read_tensor(file).with_context(|| format!("`{}`", file.display()))?;
            if proto.name() == input.name || (proto.name().is_empty() && *position == input_idx) {
                chosen = Some((shape, values));
                break;
            }
        }
        let (shape, values) = chosen.with_context(|| {
            format!("has no tensor for the input `{}`, expected one per input", input.name)
        })?;
        let n_samples = n_samples(&shape, input)?;
        let n_values = values.len() / n_samples.max(1);
        columns.push(Column { n_values, n_samples, storage: Storage::InMemory(values) });
    }
    Ok(columns)
}

/// Values in the element type of an input.
fn convert(values: &[f64], data_type: i32) -> Result<Values> {
    fn whole<T>(values: &[f64], min: f64, max: f64, cast: impl Fn(f64) -> T) -> Result<Vec<T>> {
        let convert = |&value: &f64| {
            let fits = value.fract() == 0.0 && value >= min && value <= max;
            fits.then(|| cast(value))
                .with_context(|| format!("value {value}, expected a whole number from {min} to {max}"))
        };
        values.iter().map(convert).collect()
    }
    Ok(match data_type {
        1 => Values::F32(values.iter().map(|&value| value as f32).collect()),
        2 => Values::U8(whole(values, 0.0, 255.0, |x| x as u8)?),
        3 => Values::I8(whole(values, -128.0, 127.0, |x| x as i8)?),
        6 => Values::I32(whole(values, f64::from(i32::MIN), f64::from(i32::MAX), |x| x as i32)?),
        7 => Values::I64(whole(values, i64::MIN as f64, i64::MAX as f64, |x| x as i64)?),
        9 => Values::Bool(whole(values, 0.0, 1.0, |x| x != 0.0)?),
        other => bail!(
            "element type {other}, expected float32 (1), uint8 (2), int8 (3), int32 (6), int64 (7) or bool (9)"
        ),
    })
}
