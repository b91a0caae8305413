//! ONNX files in and out.
//!
//! In: a path. Out: a [`ModelProto`] and back, message for message. It does not
//! interpret operators. Tensors in external files are left as references.

pub mod facts;
pub mod graph;
pub mod proto;
pub mod tensor;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use prost::Message;
use proto::ModelProto;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Reads a model through a memory map; raw tensor data stay in the map until they are changed.
///
/// # Errors
/// If the file cannot be read, is empty, or is not an ONNX model. The message starts with the path.
pub fn load(path: &Path) -> Result<ModelProto> {
    parse(path).with_context(|| format!("`{}`", path.display()))
}

fn parse(path: &Path) -> Result<ModelProto> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    ensure!(!metadata.is_dir(), "is a directory, expected an ONNX file");
    ensure!(metadata.len() > 0, "is empty, expected an ONNX model");
    // SAFETY: the map is read-only and private to this process's view; as with every memory map, the
    // file must not be cut short by others while it is in use.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let model = ModelProto::decode(Bytes::from_owner(map))
        .context("not an ONNX model, or cut short: it does not parse as `ModelProto`")?;
    ensure!(model.graph.is_some(), "has no graph, expected an ONNX model");
    ensure!(
        model.ir_version.is_some_and(|version| version > 0),
        "has no IR version, expected an ONNX model"
    );
    Ok(model)
}

/// Largest message that protobuf's readers take.
const MAX_MESSAGE_BYTES: usize = (1 << 31) - 1;

/// Writes a model: to a temporary file in the same folder, synced, then renamed, so that `path` holds
/// the whole model or what it held before.
///
/// # Errors
/// If the folder cannot be written or the model is 2 GiB or more. The message starts with the path.
pub fn save(model: &ModelProto, path: &Path) -> Result<()> {
    write(model, path).with_context(|| format!("`{}`", path.display()))
}

fn write(model: &ModelProto, path: &Path) -> Result<()> {
    let n_bytes = model.encoded_len();
    if n_bytes > MAX_MESSAGE_BYTES {
        bail!("model takes {n_bytes} bytes, expected below 2 GiB: protobuf cannot hold more");
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&model.encode_to_vec())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
