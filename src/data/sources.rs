//! The files of data sources: folders, files, patterns and lists, expanded in a fixed order.

use super::paths::FileNames;
use super::table;
use crate::diag::{WithHint, count, file_name, hint_of};
use crate::foreign;
use anyhow::{Context, Result, anyhow, ensure};
use globset::GlobBuilder;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Extensions of image files. Files from `avif` on cannot be decoded: they are errors instead of being passed over.
const IMAGES: &[&str] = &[
    "jpg", "jpeg", "jpe", "jfif", "png", "bmp", "webp", "gif", "tif", "tiff", "pnm", "ppm", "pgm", "pbm", "avif",
    "heic", "heif", "jxl", "jp2", "tga", "psd", "dng", "cr2", "nef", "arw",
];
/// Extensions of array files.
const ARRAYS: &[&str] = &["npy", "npz", "pb"];
/// The kinds of data files, as messages name them.
const KINDS: &str = "images (JPEG, PNG, BMP, WebP, GIF, TIFF, PNM), .npy, .npz or .pb files";

/// A data file, or a folder of `.pb` files that form one sample or several.
#[derive(Debug)]
pub enum Found {
    Image(PathBuf),
    Arrays(PathBuf),
    /// The path of a list's entry that does not exist or is not data, and the reason.
    Bad(PathBuf, anyhow::Error),
}

/// A function that is called for each data file. Paths are not collected, because there may be too many for memory.
pub type SourceVisitor<'v> = dyn FnMut(Found) + 'v;

/// Visits the data files of `source`: in the order of names for folders and patterns, in the order of the list for
/// lists. Fails if the source does not exist, or holds no data. A bad entry of a list is [`Found::Bad`].
pub fn expand(source: &str, n_inputs: usize, visit: &mut SourceVisitor) -> Result<()> {
    let path = Path::new(source);
    let place = || format!("`{source}`");
    if path.is_dir() {
        let mut is_empty = true;
        let mut visit = |found| {
            is_empty = false;
            visit(found);
        };
        folder(path, n_inputs, &mut visit).with_context(place)?;
        ensure!(!is_empty, "`{source}`: holds no data, expected {KINDS}");
        return Ok(());
    }
    if path.is_file() {
        return match extension(path).as_str() {
            "txt" => list(path, n_inputs, ListKind::Lines, visit).with_context(place),
            "csv" => list(path, n_inputs, ListKind::Csv, visit).with_context(place),
            _ => {
                visit(file(path).with_context(place)?);
                Ok(())
            }
        };
    }
    ensure!(
        !path.exists(),
        "`{source}`: is not a regular file, expected a folder, a file, a list (.txt, .csv) or a pattern"
    );
    ensure!(
        source.contains(['*', '?', '[', '{']),
        "`{source}`: does not exist, expected a folder, a file, a list (.txt, .csv) or a pattern"
    );
    pattern(source, n_inputs, visit).with_context(place)
}

/// Visits the path of each source, and then its data files. Sources that do not exist or have no data are no error.
pub fn files(sources: &[String], visit: &mut dyn FnMut(&Path)) {
    for source in sources {
        visit(Path::new(source));
        // For a model with one input, every `.pb` file is data by itself.
        let mut found = |found: Found| match found {
            Found::Image(path) | Found::Arrays(path) => visit(&path),
            Found::Bad(..) => {}
        };
        _ = expand(source, 1, &mut found);
    }
}

/// Whether a file holds images or arrays, by its extension or its first bytes. A `.pb` file may be a model.
pub fn is_data(path: &Path) -> bool {
    let extension = extension(path);
    let named = |extensions: &[&str]| extensions.contains(&extension.as_str());
    match named(IMAGES) || named(ARRAYS) {
        true => extension != "pb",
        false => path.is_file() && matches!(recognized_file(path), Ok(Some(_))),
    }
}

/// Whether a file is an image by its extension.
pub fn is_image(path: &Path) -> bool {
    IMAGES.contains(&extension(path).as_str())
}

/// The treatment of list entries that do not exist or are not data.
#[derive(Debug, Clone, Copy)]
pub enum BadEntries {
    /// Bad entries are left out.
    Skipped,
    /// Bad entries are errors.
    Refused,
    /// Bad entries are errors with this hint.
    RefusedWith(&'static str),
}

/// Fails if a source does not exist or has no data.
///
/// # Errors
/// If a source does not exist or has no data, or if a list has a bad entry and `bad_entries` refuses it.
pub fn ensure_found(sources: &[String], bad_entries: BadEntries) -> Result<()> {
    for source in sources {
        let mut bad = None;
        expand(source, 1, &mut |found| match found {
            Found::Bad(_, error) if bad.is_none() => bad = Some(error),
            _ => {}
        })?;
        match (bad, bad_entries) {
            (None, _) | (_, BadEntries::Skipped) => {}
            (Some(error), BadEntries::Refused) => return Err(error),
            (Some(error), BadEntries::RefusedWith(hint)) => return Err(error.hint(hint)),
        }
    }
    Ok(())
}

/// Returns the extension in lower case.
pub fn extension(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

/// Returns the number in `input_0.pb`, the naming of ONNX's own test data.
pub fn test_input_idx(path: &Path) -> Option<usize> {
    file_name(path).strip_prefix("input_")?.strip_suffix(".pb")?.parse().ok()
}

/// Returns the `.pb` files of a folder by name, without `output_<i>.pb` if there is an `input_<i>.pb`.
pub fn pb_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_pb = |file: &PathBuf| extension(file) == "pb" && file.is_file();
    let mut files: Vec<PathBuf> = entries(folder)?.filter(is_pb).collect();
    if files.iter().any(|file| test_input_idx(file).is_some()) {
        files.retain(|file| !file_name(file).starts_with("output_"));
    }
    Ok(files)
}

/// Returns the files and folders in a folder by name, without hidden ones.
fn entries(folder: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let mut names = FileNames::default();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !name.to_string_lossy().starts_with('.') {
            names.push(&name);
        }
    }
    Ok(names.sorted().map(|name| folder.join(name)))
}

/// Returns the subfolders of a folder by name, without hidden ones.
pub fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(folder)?.filter(|entry| entry.is_dir()).collect())
}

fn folder(path: &Path, n_inputs: usize, visit: &mut SourceVisitor) -> Result<()> {
    let pb_files = pb_files(path)?;
    if n_inputs > 1 && !pb_files.is_empty() {
        visit(Found::Arrays(path.to_path_buf()));
    }
    for entry in entries(path)? {
        if entry.is_dir() {
            let test_data = test_data_set(&entry, n_inputs)?;
            if test_data.is_empty() && !entry.is_symlink() {
                folder(&entry, n_inputs, visit)?;
            }
            test_data.into_iter().for_each(&mut *visit);
        } else if extension(&entry) == "pb" {
            if n_inputs == 1 && pb_files.contains(&entry) {
                visit(Found::Arrays(entry));
            }
        } else if let Some(found) = recognized_file(&entry)? {
            visit(found);
        }
    }
    Ok(())
}

/// Returns the data of an ONNX test data set, which is a folder with `input_0.pb` and so on; empty for other folders.
fn test_data_set(path: &Path, n_inputs: usize) -> Result<Vec<Found>> {
    let pb_files = pb_files(path)?;
    Ok(match pb_files.iter().any(|file| test_input_idx(file).is_some()) {
        false => Vec::new(),
        true if n_inputs > 1 => vec![Found::Arrays(path.to_path_buf())],
        true => pb_files.into_iter().map(Found::Arrays).collect(),
    })
}

/// Returns the data file at a path, by its extension, or by its first bytes if the extension is unknown.
fn recognized_file(path: &Path) -> Result<Option<Found>> {
    let extension = extension(path);
    if IMAGES.contains(&extension.as_str()) {
        return Ok(Some(Found::Image(path.to_path_buf())));
    }
    if ARRAYS.contains(&extension.as_str()) {
        return Ok(Some(Found::Arrays(path.to_path_buf())));
    }
    let mut start = Vec::new();
    foreign::open(path)?.take(16).read_to_end(&mut start)?;
    if start.starts_with(b"\x93NUMPY") {
        return Ok(Some(Found::Arrays(path.to_path_buf())));
    }
    use image::ImageFormat::{Gif, Jpeg, Png, Tiff, WebP};
    // BMP and PNM are left out, because a text may begin with their two bytes, too.
    let is_image = matches!(image::guess_format(&start), Ok(Jpeg | Png | Gif | WebP | Tiff));
    Ok(is_image.then(|| Found::Image(path.to_path_buf())))
}

/// Returns a file that the user named. An unknown kind is an error.
fn file(path: &Path) -> Result<Found> {
    recognized_file(path)?.with_context(|| format!("is not supported data, expected {KINDS}"))
}

#[derive(Clone, Copy, PartialEq)]
enum ListKind {
    /// One path per line.
    Lines,
    /// A header with the column `file`.
    Csv,
}

fn list(path: &Path, n_inputs: usize, kind: ListKind, visit: &mut SourceVisitor) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut is_empty = true;
    let mut visit_entry = |line: u64, entry: &str| {
        is_empty = false;
        match listed(folder, path, entry, n_inputs) {
            Ok(found) => found.into_iter().for_each(&mut *visit),
            Err(error) => {
                let (list, hint) = (path.display(), hint_of(&error).to_string());
                let error = anyhow!("`{list}`: line {line}: `{entry}`: {error:#}").hint(hint);
                visit(Found::Bad(folder.join(entry), error));
            }
        }
    };
    match kind {
        ListKind::Lines => {
            for (line_number, line) in (1..).zip(BufReader::new(foreign::open(path)?).lines()) {
                let line = line.map_err(|error| match error.kind() {
                    std::io::ErrorKind::InvalidData => anyhow!("line {line_number}: is not UTF-8 text"),
                    _ => error.into(),
                })?;
                // The first line may begin with a byte order mark.
                let entry = line.trim_start_matches('\u{feff}').trim();
                if !entry.is_empty() && !entry.starts_with('#') {
                    visit_entry(line_number, entry);
                }
            }
        }
        ListKind::Csv => {
            table::read(path, &["file"], |row| {
                visit_entry(row.line, &row.cells.concat());
                Ok(())
            })?;
        }
    }
    ensure!(!is_empty, "lists no files, expected one path per line");
    Ok(())
}

/// Returns the data of an entry of the list `path` in `folder`.
fn listed(folder: &Path, path: &Path, entry: &str, n_inputs: usize) -> Result<Vec<Found>> {
    // A list is often stored beside a folder of the same name.
    let mut candidates = [folder.join(entry), path.with_extension("").join(entry)].into_iter();
    let Some(path) = candidates.find(|candidate| !entry.is_empty() && candidate.exists()) else {
        let error = anyhow!("does not exist, expected a path relative to the list");
        // Lists of other tools have a path, a space and a class.
        let is_labelled =
            entry.rsplit_once(char::is_whitespace).is_some_and(|(path, _)| folder.join(path.trim()).exists());
        return Err(error.hint(match is_labelled {
            true => "a .txt has one path per line; paths with classes are a .csv with the columns `file,class_index`",
            false => "",
        }));
    };
    if !path.is_dir() {
        return Ok(vec![file(&path)?]);
    }
    let files = test_data_set(&path, n_inputs)?;
    ensure!(!files.is_empty(), "is a folder, expected a file");
    Ok(files)
}

fn pattern(pattern: &str, n_inputs: usize, visit: &mut SourceVisitor) -> Result<()> {
    let parts: Vec<_> = Path::new(pattern).components().collect();
    // The pattern is normalized like the paths below: without doubled or trailing separators.
    let normal: PathBuf = parts.iter().collect();
    let glob = GlobBuilder::new(&normal.to_string_lossy()).literal_separator(true).build();
    let matcher = glob.context("is not a valid pattern")?.compile_matcher();
    let is_literal = |part: &std::path::Component| !part.as_os_str().to_string_lossy().contains(['*', '?', '[', '{']);
    let n_literal = parts.iter().take_while(|part| is_literal(part)).count();
    let root: PathBuf = parts[..n_literal].iter().collect();
    // Braces may hold separators, so only a pattern without braces and without `**` limits the depth.
    let depth = match pattern.contains("**") || pattern.contains('{') {
        true => usize::MAX,
        false => parts.len() - n_literal,
    };
    let (mut n_matched, mut n_found) = (0, 0);
    walk(&root, depth, &mut |path| {
        if !matcher.is_match(path) {
            return Ok(());
        }
        n_matched += 1;
        let found = match path.is_dir() {
            true => test_data_set(path, n_inputs)?,
            false => recognized_file(path)?.into_iter().collect(),
        };
        n_found += found.len();
        found.into_iter().for_each(&mut *visit);
        Ok(())
    })?;
    let is_named = |path: &&Path| path.to_string_lossy().contains(['[', '{', '?', '*']) && path.exists();
    let hint = normal.ancestors().find(is_named).map_or(String::new(), |path| {
        format!("`{}` exists: in a pattern, `[[]` stands for `[`, `[{{]` for `{{`", path.display())
    });
    ensure!(n_matched > 0, anyhow!("matches no file").hint(hint));
    ensure!(n_found > 0, "matches {}, but none is supported data, expected {KINDS}", count(n_matched, "file"));
    Ok(())
}

/// Calls `visit` with every path below `folder`, down to `depth` levels, in the order of names.
fn walk(folder: &Path, depth: usize, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    let here = folder.as_os_str().is_empty();
    for entry in entries(if here { Path::new(".") } else { folder })? {
        let entry = if here { PathBuf::from(file_name(&entry)) } else { entry };
        visit(&entry)?;
        if depth > 1 && entry.is_dir() && !entry.is_symlink() {
            walk(&entry, depth - 1, visit)?;
        }
    }
    Ok(())
}
