//! What a run may write: no file that it reads, no file twice, nothing but files.

use super::external;
use super::staged::{data_path, folder_of, target_of, temporary_in};
use crate::diag::WithHint;
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A file that a run reads or writes.
#[derive(Debug, Clone)]
pub struct RunFile {
    /// What it is to the run, as messages name it behind "the": "sidecar of `a.onnx`".
    pub role: String,
    /// Where it is.
    pub path: PathBuf,
}

impl RunFile {
    /// The file at `path`.
    pub fn new(role: impl Into<String>, path: &Path) -> RunFile {
        RunFile { role: role.into(), path: path.to_path_buf() }
    }

    /// A model that is written, and the file beside it that its large tensors may go to.
    pub fn written_model(role: &str, path: &Path) -> [RunFile; 2] {
        let data = RunFile::new(format!("external data of the {role}"), &data_path(path));
        [RunFile::new(role, path), data]
    }

    /// A model that is read, and the files that it keeps tensors in. Those of a model that cannot be read are unknown.
    pub fn read_model(role: &str, path: &Path) -> Vec<RunFile> {
        let external = super::load(path).map(|mut model| external::files(&mut model));
        let folder = path.parent().unwrap_or(Path::new(""));
        let of_model = format!("external data of `{}`", path.display());
        let external = external.unwrap_or_default().into_iter();
        let external = external.map(|file| RunFile::new(&of_model, &folder.join(file)));
        [RunFile::new(role, path)].into_iter().chain(external).collect()
    }
}

/// What tells an existing file from others, whatever the names that lead to it.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// What tells an existing file from others, whatever the names that lead to it, hard links excepted.
#[cfg(not(unix))]
fn identity(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

/// Refuses, before anything is done, what a run must not write: a file that it reads, under whatever name; a file twice;
/// what is there and is no file, or cannot be written. `read` is asked only where an output exists already. Then makes
/// `out_dir`, where one is given, and sees that files can be made in the outputs' folders.
///
/// # Errors
/// As said. The message starts with the output's path, or its folder's.
pub fn check_outputs(
    written: &[RunFile],
    read: impl FnOnce(&mut dyn FnMut(RunFile)),
    out_dir: Option<&Path>,
) -> Result<()> {
    ensure_apart(written, read)?;
    if let Some(folder) = out_dir {
        std::fs::create_dir_all(folder).with_context(|| format!("`{}`", folder.display()))?;
    }
    let target = |output: &RunFile| target_of(&output.path);
    let targets: Vec<PathBuf> = written.iter().map(target).collect::<Result<_>>()?;
    let folders: BTreeSet<&Path> = targets.iter().map(|target| folder_of(target)).collect();
    for folder in folders {
        temporary_in(folder, None).with_context(|| format!("`{}`: the folder cannot be written", folder.display()))?;
    }
    Ok(())
}

fn ensure_apart(written: &[RunFile], read: impl FnOnce(&mut dyn FnMut(RunFile))) -> Result<()> {
    let mut targets = BTreeMap::new();
    let mut existing = BTreeMap::new();
    for output in written {
        let target = || -> Result<PathBuf> {
            ensure_file(&output.path)?;
            target_of(&output.path)
        };
        let target = target().with_context(|| format!("`{}`", output.path.display()))?;
        if let Some(earlier) = targets.insert(target, output) {
            return Err(anyhow!(
                "`{}` would be written twice, as the {} and as the {}, expected a file for each",
                output.path.display(),
                earlier.role,
                output.role
            )
            .hint("give them different names or run them apart"));
        }
        existing.extend(identity(&output.path).map(|identity| (identity, output)));
    }
    if existing.is_empty() {
        return Ok(());
    }
    let mut apart = Ok(());
    read(&mut |input| {
        let output = identity(&input.path).and_then(|found| existing.get(&found));
        if let (Ok(()), Some(output)) = (&apart, output) {
            let link = match input.path == output.path {
                true => String::new(),
                false => format!(", there `{}`", input.path.display()),
            };
            apart = Err(anyhow!(
                "`{}` would be written as the {}, but the run reads it as the {}{link}: expected two files",
                output.path.display(),
                output.role,
                input.role
            )
            .hint("give the output another name"));
        }
    });
    apart
}

/// Refuses a path under which no file can be written, or none without harm.
fn ensure_file(path: &Path) -> Result<()> {
    ensure!(
        path != Path::new("-"),
        anyhow!("is not a file's name, expected one: nothing is written to stdout")
            .hint("a file of that name is `./-`")
    );
    let ends_in_separator = path.to_string_lossy().ends_with(std::path::is_separator);
    ensure!(
        !ends_in_separator && path.file_name().is_some() && !path.is_dir(),
        "is a folder, expected a file to write"
    );
    match std::fs::metadata(path) {
        Ok(metadata) => {
            ensure!(metadata.is_file(), "is a device, pipe or socket, expected a file to write");
            File::options().write(true).open(path).context("cannot be written")?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("cannot be written"),
    }
    Ok(())
}
