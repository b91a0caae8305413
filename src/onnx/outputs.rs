//! Checks that a run writes no file that it reads, no file twice, and nothing but regular files.

use super::external;
use super::staged::{data_path, folder_of, target_of, temporary_in};
use crate::diag::WithHint;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A file that a run reads or writes.
#[derive(Debug, Clone)]
pub struct RunFile {
    /// Role of the file, as messages show it after "the", such as "sidecar of `a.onnx`".
    pub role: String,
    /// Path of the file.
    pub path: PathBuf,
}

impl RunFile {
    /// Returns the file at `path`.
    pub fn new(role: impl Into<String>, path: &Path) -> RunFile {
        RunFile { role: role.into(), path: path.to_path_buf() }
    }

    /// Returns an output model and the external data file that may be written beside it.
    pub fn written_model(role: &str, path: &Path) -> [RunFile; 2] {
        let data = RunFile::new(format!("external data of the {role}"), &data_path(path));
        [RunFile::new(role, path), data]
    }

    /// Returns an input model and its external data files. If the model cannot be read, it returns the model alone.
    pub fn read_model(role: &str, path: &Path) -> Vec<RunFile> {
        let external = super::load(path).map(|mut model| external::files(&mut model));
        let folder = path.parent().unwrap_or(Path::new(""));
        let of_model = format!("external data of `{}`", path.display());
        let external = external.unwrap_or_default().into_iter();
        let external = external.map(|file| RunFile::new(&of_model, &folder.join(file)));
        [RunFile::new(role, path)].into_iter().chain(external).collect()
    }
}

/// Returns the identity of an existing file, the same for every path that leads to it.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns the identity of an existing file, the same for every path that leads to it except hard links.
#[cfg(not(unix))]
fn identity(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

/// Refuses outputs that a run must not write: a file that it reads, under any name; the same file twice; a path that is
/// not a file or cannot be written. Then creates the outputs' folders and checks that they can be written. `read` lists
/// the files that the run reads. It is called only if an output exists already.
///
/// # Errors
/// If an output is refused. The message starts with the path of the output or of its folder.
pub fn check_outputs(written: &[RunFile], read: impl FnOnce(&mut dyn FnMut(RunFile))) -> Result<MadeFolders> {
    ensure_apart(written, read)?;
    let mut made = MadeFolders(Vec::new());
    for output in written {
        let folder = folder_of(&output.path);
        made.make(folder).with_context(|| format!("`{}`", folder.display()))?;
    }
    let mut folders = BTreeSet::new();
    for output in written {
        let folder = folder_of(&target_of(&output.path)?).to_path_buf();
        ensure!(
            folder.exists(),
            anyhow!("`{}`: is a link into `{}`, which does not exist", output.path.display(), folder.display())
                .hint(HINT_LINK)
        );
        folders.insert(folder);
    }
    for folder in folders {
        temporary_in(&folder, None).with_context(|| format!("`{}`: the folder cannot be written", folder.display()))?;
    }
    Ok(made)
}

/// The hint for a link that leads nowhere.
const HINT_LINK: &str = "make the folder that the link names, or remove the link";

/// Folders that a run has created. On drop, folders that are still empty are removed.
#[must_use]
pub struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    fn make(&mut self, folder: &Path) -> Result<()> {
        let is_broken = |ancestor: &&Path| ancestor.is_symlink() && !ancestor.exists();
        if let Some(link) = folder.ancestors().find(is_broken) {
            return Err(anyhow!("`{}` is a link to a folder that does not exist", link.display()).hint(HINT_LINK));
        }
        let missing: Vec<&Path> = folder.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
        self.0.extend(missing.into_iter().rev().filter(|ancestor| !ancestor.as_os_str().is_empty()).map(PathBuf::from));
        Ok(std::fs::create_dir_all(folder)?)
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // A folder that holds something stays.
        self.0.iter().rev().for_each(|folder| _ = std::fs::remove_dir(folder));
    }
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
                "`{}` would be written twice, as the {} and as the {}, expected two different files",
                output.path.display(),
                earlier.role,
                output.role
            )
            .hint("use different names, or run them separately"));
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
                "`{}` would be written as the {}, but the run reads it as the {}{link}, expected two different files",
                output.path.display(),
                output.role,
                input.role
            )
            .hint("use another name for the output"));
        }
    });
    apart
}

/// Refuses `-`, a folder, a device, a pipe, a socket, the file that stdout or stderr goes to, and a file that cannot be
/// written.
fn ensure_file(path: &Path) -> Result<()> {
    ensure!(
        path != Path::new("-"),
        anyhow!("is not a file name: mqq writes no results to stdout").hint("for a file of that name, use `./-`")
    );
    let ends_in_separator = path.to_string_lossy().ends_with(std::path::is_separator);
    ensure!(
        !ends_in_separator && path.file_name().is_some() && !path.is_dir(),
        "is a folder, expected a file to write"
    );
    match std::fs::metadata(path) {
        Ok(metadata) => {
            ensure!(metadata.is_file(), "is a device, pipe or socket, expected a file to write");
            let is_stream = |stream: &&str| identity(Path::new(stream)).is_some_and(|it| identity(path) == Some(it));
            if let Some(stream) = ["/dev/stdout", "/dev/stderr"].into_iter().find(is_stream) {
                bail!("is the file that `{stream}` leads to, expected another one: it holds the text of the run");
            }
            File::options().write(true).open(path).context("cannot be written")?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("cannot be written"),
    }
    Ok(())
}
