//! Classes of samples, from a CSV file.

use super::{Dataset, table};
use crate::diag::WithHint;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The class of each file in a list.
#[derive(Debug, Clone)]
pub struct Labels {
    /// The list.
    list: PathBuf,
    /// By path as in the list, or an absolute path where that leads out of the list's folder.
    rows: BTreeMap<PathBuf, LabelRow>,
}

#[derive(Debug, Clone)]
struct LabelRow {
    line: u64,
    class: usize,
}

impl Labels {
    /// Reads a `.csv` with the columns `file` and `class_index`. A file is matched by its path relative to the list or
    /// to the data folder; of several matching rows the one with the longest path counts.
    ///
    /// # Errors
    /// If the list cannot be read, a row has no file or class, or a file has two classes. The message begins with the
    /// list.
    pub fn read(list: &Path) -> Result<Labels> {
        let read = || -> Result<Labels> {
            let folder = list.parent().unwrap_or(Path::new(""));
            let mut rows: BTreeMap<PathBuf, LabelRow> = BTreeMap::new();
            table::read(list, &["file", "class_index"], |table::Row { line, cells }| {
                let [file, class] = &cells[..] else { bail!("internal error: not two columns") };
                ensure!(!file.is_empty(), "line {line}: the column `file` is empty");
                let class = class.parse().ok().with_context(|| {
                    format!("line {line}: `{file}` has the class `{class}`, expected a number, 0 or more")
                })?;
                let path = Path::new(file);
                let leads_out = path.has_root() || path.components().any(|c| c == Component::ParentDir);
                let path = if leads_out { absolute(&folder.join(path))? } else { normal(path) };
                let earlier = rows.entry(path).or_insert(LabelRow { line, class });
                ensure!(
                    earlier.class == class,
                    "line {line}: `{file}` has the class {class}, expected {} as in line {}",
                    earlier.class,
                    earlier.line
                );
                Ok(())
            })?;
            Ok(Labels { list: list.to_path_buf(), rows })
        };
        read().with_context(|| format!("`{}`", list.display()))
    }

    /// The classes of every sample of `dataset`, one per entry of its batch.
    ///
    /// # Errors
    /// If a file has no class, or two files match the same row.
    pub fn of_dataset(&self, dataset: &Dataset) -> Result<Vec<Vec<usize>>> {
        // The file that each row was matched with.
        let mut taken: BTreeMap<&Path, PathBuf> = BTreeMap::new();
        let mut of_file = |file: String| -> Result<usize> {
            let path = absolute(Path::new(&file))?;
            let Some((row, LabelRow { line, class })) = by_end(&self.rows, &path) else {
                bail!(
                    "`{file}` has no class in `{}`, expected a row whose `file` is this path or its end",
                    self.list.display()
                );
            };
            let earlier = taken.entry(row).or_insert_with(|| path.clone());
            ensure!(
                *earlier == path,
                anyhow!(
                    "`{file}` and `{}` both match line {line} of `{}`, `{}`, expected a row for each",
                    earlier.display(),
                    self.list.display(),
                    row.display()
                )
                .hint("write more of the paths in the column `file`, so that they differ")
            );
            Ok(*class)
        };
        (0..dataset.len()).map(|i| dataset.parts(i).into_iter().map(&mut of_file).collect()).collect()
    }
}

/// The entry with the longest path that `path` ends with.
pub(super) fn by_end<'r, T>(entries: &'r BTreeMap<PathBuf, T>, path: &Path) -> Option<(&'r Path, &'r T)> {
    let parts: Vec<Component> = path.components().collect();
    let ends = (0..parts.len()).map(|start| parts[start..].iter().collect::<PathBuf>());
    let entry = ends.filter_map(|end| entries.get_key_value(&end)).next();
    entry.map(|(path, entry)| (path.as_path(), entry))
}

/// The absolute path, without `.` and `..`.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    Ok(normal(&std::path::absolute(path)?))
}

/// The path without `.`, and without `..` where a parent folder is known.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if normal.file_name().is_some() => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}
