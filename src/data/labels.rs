//! Classes of samples, from a CSV file or the names of folders.

use super::{Dataset, sources, table};
use crate::diag::{WithHint, file_name};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The class of each file.
#[derive(Debug, Clone)]
pub struct Labels(Source);

#[derive(Debug, Clone)]
enum Source {
    /// A list.
    List {
        list: PathBuf,
        /// Rows by their path as in the list; by absolute path where a row's path leads out of the list's folder.
        rows: BTreeMap<PathBuf, LabelRow>,
    },
    /// Class folders by absolute path.
    Folders {
        classes: BTreeMap<PathBuf, usize>,
        /// Number of classes, where the folders' names are not numbers.
        n_classes: Option<usize>,
    },
}

#[derive(Debug, Clone)]
struct LabelRow {
    line: u64,
    class: usize,
}

impl Labels {
    /// Reads a `.csv` with the columns `file` and `class_index`. A row matches a file whose absolute path ends with the
    /// row's path. Of several matching rows, the one with the longest path counts.
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
            Ok(Labels(Source::List { list: list.to_path_buf(), rows }))
        };
        read().with_context(|| format!("`{}`", list.display()))
    }

    /// Takes the subfolders of `folders` as classes. Their names are the class numbers if all are numbers. Otherwise
    /// classes are numbered in the order of the names, as in torchvision's ImageFolder.
    ///
    /// # Errors
    /// If one of `folders` is not a folder, or has no subfolder.
    pub fn of_folders(folders: &[String]) -> Result<Labels> {
        let mut found = Vec::new();
        for folder in folders {
            let place = || format!("`{folder}`");
            let path = Path::new(folder);
            let subfolders = if path.is_dir() { sources::subfolders(path).with_context(place)? } else { Vec::new() };
            ensure!(
                !subfolders.is_empty(),
                anyhow!("`{folder}`: has no subfolders, expected one for each class")
                    .hint("pass the folder that holds the folders of the classes, or a .csv with labels")
            );
            found.extend(subfolders);
        }
        let names: BTreeSet<String> = found.iter().map(|path| file_name(path).to_string()).collect();
        let numbers: Option<Vec<usize>> = names.iter().map(|name| name.parse().ok()).collect();
        let n_classes = numbers.is_none().then_some(names.len());
        let of_name: BTreeMap<String, usize> =
            names.into_iter().zip(numbers.unwrap_or((0..found.len()).collect())).collect();
        let class = |path: PathBuf| Ok((absolute(&path)?, of_name[&*file_name(&path)]));
        let classes = found.into_iter().map(class).collect::<Result<_>>()?;
        Ok(Labels(Source::Folders { classes, n_classes }))
    }

    /// Returns the number of classes, where labels are positions in a sorted list of folder names.
    pub fn n_classes(&self) -> Option<usize> {
        match &self.0 {
            Source::List { .. } => None,
            Source::Folders { n_classes, .. } => *n_classes,
        }
    }

    /// Returns the classes of every sample of `dataset`, one per entry of the batch.
    ///
    /// # Errors
    /// If a file has no class, or two files match the same row.
    pub fn of_dataset(&self, dataset: &Dataset) -> Result<Vec<Vec<usize>>> {
        let (list, rows) = match &self.0 {
            Source::List { list, rows } => (list, rows),
            Source::Folders { classes, .. } => return of_folders(classes, dataset),
        };
        let mut matched = MatchedEntries::default();
        let mut of_file = |file: String| -> Result<usize> {
            let path = absolute(Path::new(&file))?;
            let Some((row, LabelRow { line, class })) = by_end(rows, &path) else {
                bail!(
                    "`{file}` has no class in `{}`, expected a row whose `file` is this path or its end",
                    list.display()
                );
            };
            if let Some(earlier) = matched.earlier(row, &path) {
                return Err(anyhow!(
                    "`{file}` and `{}` both match line {line} of `{}`, `{}`, expected a row for each",
                    earlier.display(),
                    list.display(),
                    row.display()
                )
                .hint("write longer paths in the column `file`, so that they differ"));
            }
            Ok(*class)
        };
        (0..dataset.len()).map(|i| dataset.entry_names(i).into_iter().map(&mut of_file).collect()).collect()
    }
}

fn of_folders(classes: &BTreeMap<PathBuf, usize>, dataset: &Dataset) -> Result<Vec<Vec<usize>>> {
    let of_file = |file: String| -> Result<usize> {
        let path = absolute(Path::new(&file))?;
        let class = path.ancestors().find_map(|folder| classes.get(folder));
        class
            .copied()
            .with_context(|| format!("`{file}` is not in the folder of a class, expected every file in such a folder"))
    };
    (0..dataset.len()).map(|i| dataset.entry_names(i).into_iter().map(of_file).collect()).collect()
}

/// The file that each entry of a list was matched with.
#[derive(Default)]
pub(super) struct MatchedEntries<'r>(BTreeMap<&'r Path, PathBuf>);

impl<'r> MatchedEntries<'r> {
    /// Matches `entry` with `path`. Returns the file that it was matched with earlier, if that is another one.
    pub(super) fn earlier(&mut self, entry: &'r Path, path: &Path) -> Option<&Path> {
        let first = self.0.entry(entry).or_insert_with(|| path.to_path_buf());
        (first != path).then_some(first.as_path())
    }
}

/// Returns the entry with the longest path that `path` ends with.
pub(super) fn by_end<'r, T>(entries: &'r BTreeMap<PathBuf, T>, path: &Path) -> Option<(&'r Path, &'r T)> {
    let parts: Vec<Component> = path.components().collect();
    let ends = (0..parts.len()).map(|start| parts[start..].iter().collect::<PathBuf>());
    let entry = ends.filter_map(|end| entries.get_key_value(&end)).next();
    entry.map(|(path, entry)| (path.as_path(), entry))
}

/// Returns the absolute path, without `.` and `..`.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    Ok(normal(&std::path::absolute(path)?))
}

/// Returns the path without `.`, and without `..` where the parent folder is known.
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
