//! Files that are written under temporary names and renamed when all are complete.

use super::proto::ModelProto;
use super::{ensure_fits, external, fits, pieces, sha256};
use crate::guard;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes a model to a temporary file in the same folder, synced and then renamed, so that `path` holds either the
/// whole model or its old content.
///
/// # Errors
/// If the folder cannot be written or the model is 2 GiB or more. The message starts with the path.
pub fn save(model: &ModelProto, path: &Path) -> Result<()> {
    Staged::model(model.clone(), path, false)?.commit()
}

/// Files that are written but not renamed yet.
///
/// An existing file keeps its mode; a new one gets 0666 without the umask. Symbolic links stay: their target is
/// replaced or created.
#[derive(Default)]
pub struct Staged {
    files: Vec<StagedFile>,
}

struct StagedFile {
    file: NamedTempFile,
    /// The path that the caller gave.
    path: PathBuf,
    /// The file that `path` leads to, through symbolic links.
    target: PathBuf,
}

impl Staged {
    /// Writes `model` to a temporary file for `path`. Large tensors go to `<file name>.data` beside it if
    /// `external_data` is set or the message would be too large for protobuf.
    ///
    /// # Errors
    /// If the folder cannot be written. The message starts with the path.
    pub fn model(mut model: ModelProto, path: &Path, external_data: bool) -> Result<Staged> {
        let mut staged = Staged::default();
        let mut stage = || -> Result<()> {
            if external_data || !fits(&model) {
                let data = data_path(path);
                let location = data.file_name().context("is not a file name")?.to_string_lossy();
                external::write(&mut model, staged.create(&data)?, &location)?;
            }
            ensure_fits(&model)?;
            let file = staged.create(path)?;
            Ok(pieces::encode_into(&model, &mut |piece| file.write_all(piece))?)
        };
        stage().with_context(|| format!("`{}`", path.display()))?;
        Ok(staged)
    }

    /// Writes a single file: the whole of `contents`, or nothing.
    ///
    /// # Errors
    /// As [`Staged::add`] and [`Staged::commit`].
    pub fn write(contents: &[u8], path: &Path) -> Result<()> {
        let mut staged = Staged::default();
        staged.add(contents, path)?;
        staged.commit()
    }

    /// Writes `contents` to a temporary file for `path`.
    ///
    /// # Errors
    /// If the folder cannot be written. The message starts with the path.
    pub fn add(&mut self, contents: &[u8], path: &Path) -> Result<()> {
        let mut stage = || -> Result<()> { Ok(self.create(path)?.write_all(contents)?) };
        stage().with_context(|| format!("`{}`", path.display()))
    }

    /// Returns the SHA-256 of the contents that were written for `path`, in hexadecimal.
    ///
    /// # Errors
    /// If nothing was written for `path`, or the file cannot be read. The message starts with the path.
    pub fn sha256(&self, path: &Path) -> Result<String> {
        let staged = self.files.iter().find(|staged| staged.path == path);
        let staged = staged.context("internal error: nothing was staged")?;
        sha256(staged.file.path()).with_context(|| format!("`{}`", path.display()))
    }

    /// Creates a temporary file that will be renamed to `path`.
    fn create(&mut self, path: &Path) -> Result<&mut File> {
        let target = target_of(path)?;
        let folder = folder_of(&target);
        // Another run that made the folder and wrote nothing may have removed it.
        std::fs::create_dir_all(folder)?;
        if !self.files.iter().any(|earlier| folder_of(&earlier.target) == folder) {
            remove_abandoned(folder);
        }
        let file = temporary_in(folder, std::fs::metadata(&target).ok().as_ref())?;
        self.files.push(StagedFile { file, path: path.to_path_buf(), target });
        let staged = self.files.last_mut().context("internal error: nothing was staged")?;
        Ok(staged.file.as_file_mut())
    }

    /// Renames the files once all are synced. Without a commit, the temporary files are deleted on drop.
    ///
    /// # Errors
    /// If a file cannot be synced or renamed. The message starts with its path.
    pub fn commit(self) -> Result<()> {
        for StagedFile { file, path, target } in &self.files {
            let finish = || -> Result<()> {
                if let Ok(replaced) = std::fs::metadata(target) {
                    file.as_file().set_permissions(replaced.permissions())?;
                }
                Ok(file.as_file().sync_all()?)
            };
            finish().with_context(|| format!("`{}`", path.display()))?;
        }
        let folders: BTreeSet<PathBuf> =
            self.files.iter().map(|staged| folder_of(&staged.target).to_path_buf()).collect();
        // The locks keep concurrent runs to the same paths from mixing their files, where folders can be locked.
        let locked: Vec<File> = folders.iter().filter_map(|folder| File::open(folder).ok()).collect();
        locked.iter().for_each(|folder| drop(folder.lock()));
        for StagedFile { file, path, target } in self.files {
            let renamed = file.persist(&target).map_err(|error| error.error);
            renamed.with_context(|| format!("`{}`: cannot be replaced", path.display()))?;
        }
        Ok(())
    }
}

/// Returns the path of the external data file of the model at `path`.
pub(super) fn data_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.data"))
}

/// Returns the folder of a file.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Maximum links to follow from one path, as in Linux.
const MAX_LINKS: usize = 40;

/// Returns the file that is written for `path`: the target of symbolic links, whether or not it exists. Fails if links
/// form a circle, or one cannot be read.
pub(super) fn target_of(path: &Path) -> Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        if !target.is_symlink() {
            let folder = folder_of(&target);
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
            return Ok(folder.join(target.file_name().unwrap_or_default()));
        }
        target = folder_of(&target).join(std::fs::read_link(&target)?);
    }
    bail!("is a symbolic link that leads in a circle, expected a file")
}

/// Prefix of temporary file names, before the process id and random characters. The dot hides them when the folder is
/// read as data.
const TEMPORARY_PREFIX: &str = ".mqq-";
/// Suffix of temporary file names.
const TEMPORARY_SUFFIX: &str = ".tmp";

/// Maximum attempts to create a temporary file while other runs delete it.
const MAX_ATTEMPTS: usize = 100;

/// Creates a file in `folder` that is deleted on drop and locked while this process lives. It gets the permissions of
/// the file that it replaces, or the permissions that the umask allows.
pub(super) fn temporary_in(folder: &Path, replaced: Option<&Metadata>) -> Result<NamedTempFile> {
    let prefix = format!("{TEMPORARY_PREFIX}{}-", std::process::id());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(TEMPORARY_SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = replaced.map_or(0o666, |replaced| replaced.permissions().mode() & 0o666 | 0o600);
        builder.permissions(PermissionsExt::from_mode(mode));
    }
    #[cfg(not(unix))]
    let _ = replaced;
    for _ in 0..MAX_ATTEMPTS {
        let file = guard::temporary(|| builder.tempfile_in(folder)).map_err(|error| {
            // The message leaves out the name of the temporary file.
            let text = error.to_string();
            anyhow!("{}", text.split_once(" at path \"").map_or(text.as_str(), |(text, _)| text))
        })?;
        // Before the lock, another run may have deleted the file as abandoned. Where files cannot be locked, none are
        // deleted.
        let is_taken = matches!(file.as_file().try_lock(), Err(TryLockError::WouldBlock));
        if !is_taken && file.path().exists() {
            return Ok(file);
        }
    }
    bail!("another program deletes the temporary files")
}

/// Deletes the temporary files of killed runs: those that no process has locked.
fn remove_abandoned(folder: &Path) {
    let is_temporary = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with(TEMPORARY_PREFIX) && name.ends_with(TEMPORARY_SUFFIX)
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_temporary(&entry.file_name()) {
            continue;
        }
        let Ok(file) = File::options().write(true).open(entry.path()) else { continue };
        if file.try_lock().is_ok() {
            // A file that cannot be deleted does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
