//! Which files a `--data` argument means.

use anyhow::{Context, Result, bail};
use globset::GlobBuilder;
use std::path::{Path, PathBuf};

/// File extensions of images that are read.
const IMAGES: &[&str] = &[
    "jpg", "jpeg", "png", "bmp", "webp", "gif", "tif", "tiff", "pnm", "ppm", "pgm", "pbm",
];

fn extension(path: &Path) -> String {
    path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase()
}

fn is_data(path: &Path) -> bool {
    let extension = extension(path);
    IMAGES.contains(&extension.as_str()) || matches!(extension.as_str(), "npy" | "npz" | "pb")
}

/// The data files behind `source`, in a stated order: as listed, or by name. A folder whose `.pb` files
/// are the inputs of one sample (`input_0.pb`, …) stands for itself.
pub fn expand(source: &str) -> Result<Vec<PathBuf>> {
    let path = Path::new(source);
    if path.is_dir() {
        return folder(path).with_context(|| format!("`{source}`"));
    }
    if path.is_file() {
        return match extension(path).as_str() {
            "txt" => list(path, false),
            "csv" => list(path, true),
            _ => Ok(vec![path.to_path_buf()]),
        };
    }
    if source.contains(['*', '?', '[', '{']) {
        return glob(source);
    }
    bail!("`{source}`: does not exist, expected a folder, a file, a list or a pattern")
}

fn entries(path: &Path) -> Result<Vec<PathBuf>> {
    let entries: Result<Vec<PathBuf>, _> =
        std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut entries = entries?;
    entries.sort();
    Ok(entries)
}

fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = entries(path)?;
    if entries.iter().any(|entry| is_test_input(entry)) {
        return Ok(vec![path.to_path_buf()]);
    }
    let holds_test_input = |folder: &PathBuf| -> bool {
        folder.is_dir()
            && self::entries(folder).is_ok_and(|inner| inner.iter().any(|entry| is_test_input(entry)))
    };
    Ok(entries
        .into_iter()
        .filter(|entry| (entry.is_file() && is_data(entry)) || holds_test_input(entry))
        .collect())
}

/// `input_0.pb`, as in ONNX's own test data.
pub fn is_test_input(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    name.strip_prefix("input_")
        .and_then(|rest| rest.strip_suffix(".pb"))
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn list(path: &Path, is_csv: bool) -> Result<Vec<PathBuf>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("`{}`", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut lines = text.lines().map(str::trim).enumerate();
    let column = match is_csv {
        false => 0,
        true => {
            let header = lines.next().map_or("", |(_, line)| line);
            header.split(',').position(|name| name.trim() == "file").with_context(|| {
                format!("`{}`: the header is `{header}`, expected a column `file`", path.display())
            })?
        }
    };
    let mut paths = Vec::new();
    for (line_idx, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let entry = if is_csv { line.split(',').nth(column).unwrap_or("").trim() } else { line };
        let mut file = folder.join(entry);
        // Lists often stand beside the folder that they are named after.
        if !file.exists() {
            file = path.with_extension("").join(entry);
        }
        if !file.exists() {
            bail!(
                "`{}`: line {}: `{}` does not exist, expected a path relative to the list",
                path.display(),
                line_idx + 1,
                entry
            );
        }
        paths.push(file);
    }
    Ok(paths)
}

fn glob(pattern: &str) -> Result<Vec<PathBuf>> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob.with_context(|| format!("`{pattern}` is no valid pattern"))?.compile_matcher();
    let fixed: PathBuf = Path::new(pattern)
        .components()
        .take_while(|part| !part.as_os_str().to_string_lossy().contains(['*', '?', '[', '{']))
        .collect();
    let root = if fixed.as_os_str().is_empty() { PathBuf::from(".") } else { fixed.clone() };
    let mut found = Vec::new();
    let mut pending = vec![root];
    while let Some(folder) = pending.pop() {
        for entry in entries(&folder).with_context(|| format!("`{}`", folder.display()))? {
            let seen = if fixed.as_os_str().is_empty() {
                entry.strip_prefix(".").unwrap_or(&entry).to_path_buf()
            } else {
                entry.clone()
            };
            if entry.is_dir() {
                pending.push(entry);
            } else if glob.is_match(&seen) {
                found.push(seen);
            }
        }
    }
    found.sort();
    Ok(found)
}
