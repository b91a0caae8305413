//! ONNX files in and out.
//!
//! In: a path. Out: a [`ModelProto`] and back, message for message. It does not
//! interpret operators. [`load`] leaves tensors in external files as references; [`load_whole`] brings
//! them in.

mod external;
pub mod facts;
pub mod graph;
pub mod integers;
pub mod names;
pub mod node;
pub mod proto;
pub mod tensor;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use prost::Message;
use proto::ModelProto;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Reads a model through a memory map; raw tensor data stay in the map until they are changed.
///
/// # Errors
/// If the file cannot be read, is empty, or is not an ONNX model. The message starts with the path.
pub fn load(path: &Path) -> Result<ModelProto> {
    parse(path).with_context(|| format!("`{}`", path.display()))
}

fn parse(path: &Path) -> Result<ModelProto> {
    // Before opening: a pipe would wait for a writer.
    let metadata = std::fs::metadata(path)?;
    ensure!(!metadata.is_dir(), "is a directory, expected an ONNX file");
    ensure!(metadata.is_file(), "is not a plain file, expected an ONNX file");
    let file = File::open(path)?;
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

/// A model with all its tensors.
pub struct Loaded {
    /// The model; no tensor is external.
    pub model: ModelProto,
    /// Whether one was.
    pub has_external_data: bool,
}

/// Reads a model and the tensors that it keeps in other files, all through memory maps.
///
/// # Errors
/// As [`load`], and if one of the other files is missing, too short or outside the model's folder.
pub fn load_whole(path: &Path) -> Result<Loaded> {
    let mut model = load(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let has_external_data =
        external::resolve(&mut model, folder).with_context(|| format!("`{}`", path.display()))?;
    Ok(Loaded { model, has_external_data })
}

/// Largest message that protobuf's readers take.
const MAX_MESSAGE_BYTES: usize = (1 << 31) - 1;

/// Writes a model: to a temporary file in the same folder, synced, then renamed, so that `path` holds
/// the whole model or what it held before.
///
/// # Errors
/// If the folder cannot be written or the model is 2 GiB or more. The message starts with the path.
pub fn save(model: &ModelProto, path: &Path) -> Result<()> {
    Staged::model(model.clone(), path, false)?.commit()
}

/// Files that are written but do not have their names yet.
#[derive(Default)]
pub struct Staged {
    files: Vec<(tempfile::NamedTempFile, PathBuf)>,
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Staged {
    /// Writes `model` for `path`; large tensors go to `<file name>.data` beside it where
    /// `external_data` asks for it or the message would be too large for protobuf.
    ///
    /// # Errors
    /// If the folder cannot be written. The message starts with the path.
    pub fn model(mut model: ModelProto, path: &Path, external_data: bool) -> Result<Staged> {
        let mut staged = Staged::default();
        let mut stage = || -> Result<()> {
            if external_data || model.encoded_len() > MAX_MESSAGE_BYTES {
                let name = path.file_name().context("is no file name")?.to_string_lossy();
                let location = format!("{name}.data");
                let mut file = tempfile::NamedTempFile::new_in(folder_of(path))?;
                external::write(&mut model, &mut file, &location)?;
                staged.files.push((file, path.with_file_name(&location)));
            }
            let n_bytes = model.encoded_len();
            if n_bytes > MAX_MESSAGE_BYTES {
                bail!(
                    "model takes {n_bytes} bytes, expected below 2 GiB: protobuf cannot hold more"
                );
            }
            let mut file = tempfile::NamedTempFile::new_in(folder_of(path))?;
            file.write_all(&model.encode_to_vec())?;
            staged.files.push((file, path.to_path_buf()));
            Ok(())
        };
        stage().with_context(|| format!("`{}`", path.display()))?;
        Ok(staged)
    }

    /// Writes `contents` for `path`.
    ///
    /// # Errors
    /// If the folder cannot be written. The message starts with the path.
    pub fn add(&mut self, contents: &[u8], path: &Path) -> Result<()> {
        let mut stage = || -> Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(folder_of(path))?;
            file.write_all(contents)?;
            self.files.push((file, path.to_path_buf()));
            Ok(())
        };
        stage().with_context(|| format!("`{}`", path.display()))
    }

    /// Gives the files their names, once all are synced. A file that is dropped before leaves nothing.
    ///
    /// # Errors
    /// If a file cannot be synced or renamed. The message starts with its path.
    pub fn commit(self) -> Result<()> {
        for (file, path) in &self.files {
            file.as_file().sync_all().with_context(|| format!("`{}`", path.display()))?;
        }
        for (file, path) in self.files {
            let permissions = std::fs::metadata(&path).map(|metadata| metadata.permissions());
            let file = file.persist(&path).with_context(|| format!("`{}`", path.display()))?;
            // Temporary files are private; the result is as readable as what it replaces, or as others.
            match permissions {
                Ok(permissions) => file.set_permissions(permissions)?,
                Err(_) => set_default_mode(&file)?,
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
fn set_default_mode(file: &File) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(file.set_permissions(std::fs::Permissions::from_mode(0o644))?)
}

#[cfg(not(unix))]
fn set_default_mode(_file: &File) -> Result<()> {
    Ok(())
}
