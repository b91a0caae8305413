//! Tensors in external data files.

use super::data_type::element_bytes;
use super::mapped;
use super::proto::{GraphProto, ModelProto, StringStringEntryProto, TensorProto};
use super::tensor::{self, is_external};
use crate::foreign;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Component, Path};

/// Initializers with at least this many bytes are written to the external file.
const MIN_EXTERNAL_BYTES: usize = 1024;
/// Alignment of each tensor in the external file, in bytes, so that the file can be mapped. ONNX recommends 4096.
const ALIGNMENT: u64 = 4096;

/// Loads every external tensor of `model` through memory maps of the files, which must lie in `folder` or below.
/// Returns whether any tensor was external.
///
/// # Errors
/// If a file is missing or too short, or lies outside `folder`; the message names the tensor.
pub fn resolve(model: &mut ModelProto, folder: &Path) -> Result<bool> {
    let mut files = BTreeMap::new();
    let mut found = false;
    if let Some(graph) = model.graph.as_mut() {
        for_each_tensor(graph, &mut |tensor| {
            if is_external(tensor) {
                found = true;
                let name = tensor.name().to_string();
                read(tensor, folder, &mut files).with_context(|| format!("tensor `{name}`"))?;
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// Returns the paths of the external data files of `model`, relative to the model's folder.
pub fn files(model: &mut ModelProto) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    if let Some(graph) = model.graph.as_mut() {
        // The closure never fails.
        let _ = for_each_tensor(graph, &mut |tensor| {
            files.extend(entry(tensor, "location").filter(|_| is_external(tensor)));
            Ok(())
        });
    }
    files
}

fn for_each_tensor(graph: &mut GraphProto, visit: &mut dyn FnMut(&mut TensorProto) -> Result<()>) -> Result<()> {
    for tensor in &mut graph.initializer {
        visit(tensor)?;
    }
    for node in &mut graph.node {
        for attribute in &mut node.attribute {
            for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors) {
                visit(tensor)?;
            }
            for nested in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                for_each_tensor(nested, visit)?;
            }
        }
    }
    Ok(())
}

/// Returns the value of `key` in a tensor's `external_data`.
fn entry(tensor: &TensorProto, key: &str) -> Option<String> {
    let entry = tensor.external_data.iter().find(|entry| entry.key() == key);
    entry.map(|entry| entry.value().to_string())
}

fn read(tensor: &mut TensorProto, folder: &Path, files: &mut BTreeMap<String, Bytes>) -> Result<()> {
    let location = entry(tensor, "location").context("external data have no location, expected a file")?;
    let inside = Path::new(&location).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    ensure!(inside, "external data are in `{location}`, expected a file in the model's folder or a folder below it");
    let number = |key: &str| -> Result<Option<usize>> {
        let parse = |text: String| {
            text.parse().with_context(|| format!("{key} of external data is `{text}`, expected a number"))
        };
        entry(tensor, key).map(parse).transpose()
    };
    let offset = number("offset")?.unwrap_or(0);
    let length = number("length")?;
    if !files.contains_key(&location) {
        let path = folder.join(&location);
        let open = || -> Result<Bytes> {
            let file = foreign::open(&path)?;
            ensure_inside(folder, &path)?;
            mapped::map(&file)
        };
        let bytes = open().with_context(|| format!("`{}`", path.display()))?;
        files.insert(location.clone(), bytes);
    }
    let bytes = &files[&location];
    let n_values: usize = tensor::shape(tensor)?.iter().product();
    let needed = element_bytes(tensor.data_type()).map(|size| n_values * size);
    if let (Some(needed), Some(length)) = (needed, length) {
        ensure!(
            needed == length,
            "external data have {length} bytes, expected {needed} for the shape {:?}",
            tensor.dims
        );
    }
    let rest = bytes.len().saturating_sub(offset);
    let end = offset.saturating_add(length.or(needed).unwrap_or(rest));
    ensure!(
        end <= bytes.len() && offset <= end,
        "external data end at byte {end}, expected at most {}, the size of `{location}`",
        bytes.len()
    );
    tensor.raw_data = Some(bytes.slice(offset..end));
    tensor.external_data.clear();
    tensor.data_location = None;
    Ok(())
}

/// Refuses a symbolic link that leads out of the model's folder. Links of the Hugging Face cache, from
/// `NAME/snapshots/…` to `NAME/blobs`, are accepted.
fn ensure_inside(folder: &Path, path: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let (folder, found) = (folder.canonicalize()?, path.canonicalize()?);
    let snapshots = folder.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|cache| cache.join("blobs"));
    ensure!(
        found.starts_with(&folder) || blobs.is_some_and(|blobs| found.parent() == Some(&*blobs)),
        "leads to `{}`, expected a file in the model's folder or below it",
        found.display()
    );
    Ok(())
}

/// Moves the large initializers of `model` into `file`, which the model refers to as `location`. Fails if `file` cannot
/// be written.
pub fn write(model: &mut ModelProto, file: &mut dyn Write, location: &str) -> Result<()> {
    let Some(graph) = model.graph.as_mut() else { return Ok(()) };
    let mut position = 0u64;
    for tensor in &mut graph.initializer {
        let Some(raw) = tensor.raw_data.take_if(|raw| raw.len() >= MIN_EXTERNAL_BYTES) else {
            continue;
        };
        let start = position.next_multiple_of(ALIGNMENT);
        file.write_all(&vec![0; (start - position) as usize])?;
        file.write_all(&raw)?;
        mapped::release_pages(&raw);
        position = start + raw.len() as u64;
        let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.into()), value: Some(value) };
        tensor.external_data = vec![
            entry("location", location.to_string()),
            entry("offset", start.to_string()),
            entry("length", raw.len().to_string()),
        ];
        tensor.data_location = Some(1);
    }
    Ok(())
}
