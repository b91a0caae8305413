//! Reads and writes ONNX files.
//!
//! In: a path. Out: a [`ModelProto`], and back without loss. It does not interpret operators. [`load`] keeps external
//! tensors as references. [`load_whole`] loads them, and inlines functions. A run writes all its files through
//! [`Staged`].

pub mod cut;
pub mod data_type;
pub mod edit;
mod external;
mod functions;
pub mod graph;
pub mod inputs;
pub mod integers;
pub mod mapped;
mod metadata;
pub mod names;
pub mod node;
mod other_kinds;
mod outputs;
mod pieces;
pub mod proto;
mod sparse;
mod staged;
pub mod tensor;
mod topology;
mod valid;
pub mod value_info;
pub mod weight_channels;

pub use metadata::set_metadata;
pub use outputs::{RunFile, check_outputs};
pub use prost::encoding::{decode_varint, encode_varint};
pub use staged::{Staged, save};
pub use topology::{check_outputs_made, check_topology};
pub use valid::{LAST_OPSET, check_valid};

use crate::diag::WithHint;
use crate::{foreign, guard};
use anyhow::{Context, Result, anyhow, ensure};
use prost::Message;
use proto::ModelProto;
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a model through a memory map; raw tensor data stays in the map until it is changed.
///
/// # Errors
/// If the file cannot be read, is empty, or is not an ONNX model. The message starts with the path.
pub fn load(path: &Path) -> Result<ModelProto> {
    parse(path).with_context(|| format!("`{}`", path.display()))
}

/// The hint at a file without a model.
const AGAIN: &str = "check the path; copy the file again, or export the model again";

fn parse(path: &Path) -> Result<ModelProto> {
    guard::set_current_file(path);
    let file = foreign::open(path)?;
    ensure!(file.metadata()?.len() > 0, anyhow!("is empty, expected an ONNX model").hint(AGAIN));
    let bytes = mapped::map(&file)?;
    let Ok(model) = ModelProto::decode(bytes.clone()) else {
        return Err(match other_kinds::of(&bytes) {
            Some(kind) => anyhow!("is {}, expected an ONNX model", kind.name).hint(kind.hint),
            None => anyhow!("is not an ONNX model, or is truncated: it does not parse as `ModelProto`").hint(AGAIN),
        });
    };
    ensure!(model.graph.is_some(), "has no graph, expected an ONNX model");
    ensure!(model.ir_version.is_some_and(|version| version > 0), "has no IR version, expected an ONNX model");
    Ok(model)
}

/// A model with all its tensors and without functions.
pub struct Loaded {
    /// The model; no tensor is external or sparse, and functions are inlined.
    pub model: ModelProto,
    /// Whether a tensor was external.
    pub has_external_data: bool,
}

/// Reads a model and its external tensors through memory maps, inlines its functions and makes its sparse tensors
/// dense.
///
/// # Errors
/// As for [`load`], and if an external file is missing, too short or outside the model's folder, if a function cannot
/// be inlined, and if a sparse tensor is wrong.
pub fn load_whole(path: &Path) -> Result<Loaded> {
    let mut model = load(path)?;
    functions::inline(&mut model).with_context(|| format!("`{}`", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let has_external_data = external::resolve(&mut model, folder).with_context(|| format!("`{}`", path.display()))?;
    sparse::fill_in(&mut model).with_context(|| format!("`{}`", path.display()))?;
    Ok(Loaded { model, has_external_data })
}

/// As [`load_whole`], for a model that is run as it is.
///
/// # Errors
/// As [`load_whole`] and [`check_valid`], and if no node gives an output.
pub fn load_valid(path: &Path) -> Result<ModelProto> {
    let Loaded { model, .. } = load_whole(path)?;
    check_valid(&model).and_then(|()| check_outputs_made(&model)).with_context(|| format!("`{}`", path.display()))?;
    Ok(model)
}

/// Returns the size of the model's file in bytes, without external data.
pub fn n_bytes(model: &ModelProto) -> usize {
    model.encoded_len()
}

/// Whether the message is small enough for protobuf's readers.
fn fits(model: &ModelProto) -> bool {
    model.encoded_len() < 1 << 31
}

fn ensure_fits(model: &ModelProto) -> Result<()> {
    ensure!(fits(model), "model takes {} bytes, expected below 2 GiB: protobuf cannot hold more", model.encoded_len());
    Ok(())
}

/// Returns the bytes of a model's file.
///
/// # Errors
/// If the model is too large for protobuf.
pub fn encode(model: &ModelProto) -> Result<Vec<u8>> {
    ensure_fits(model)?;
    Ok(encode_any(model))
}

/// Returns the bytes of a model of any size, for readers without protobuf's limit.
pub fn encode_any(model: &ModelProto) -> Vec<u8> {
    model.encode_to_vec()
}

/// Returns the SHA-256 of a file, in hexadecimal. It does not load the file as a whole.
///
/// # Errors
/// If the file cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut part = vec![0; 1 << 16];
    loop {
        match file.read(&mut part)? {
            0 => break,
            n => hasher.update(&part[..n]),
        }
    }
    Ok(hexadecimal(hasher))
}

/// Returns the SHA-256 of the bytes of a model, in hexadecimal.
pub fn model_sha256(model: &ModelProto) -> String {
    let mut hasher = Sha256::new();
    let Ok(()) = pieces::encode_into(model, &mut |piece| {
        hasher.update(piece);
        Ok::<(), Infallible>(())
    });
    hexadecimal(hasher)
}

/// Returns the SHA-256 of texts and their lengths, in order, in hexadecimal.
pub fn texts_sha256(texts: impl IntoIterator<Item = String>) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    hexadecimal(hasher)
}

fn hexadecimal(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
