//! Messages for the user: the place of an error, hints, suggestions, exit codes.

mod serde_words;

pub use serde_words::{in_plain_words, in_yaml, key_and_words, suggesting};

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

/// An error with a hint. Its text does not include the hint.
#[derive(Debug)]
struct Hinted {
    message: String,
    /// The hints, one per line.
    hint: String,
    /// The error without the hint; its text is in `message`.
    error: anyhow::Error,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// Adds hints to errors. A hint is not part of the error's text; [`hint_of`] returns it.
pub trait WithHint {
    /// Adds a hint after the hints that the error already has. An empty hint changes nothing.
    #[must_use]
    fn hint(self, hint: impl Into<String>) -> Self;
}

impl WithHint for anyhow::Error {
    fn hint(self, hint: impl Into<String>) -> anyhow::Error {
        let hint = hint.into();
        if hint.is_empty() {
            return self;
        }
        let hint = match hint_of(&self) {
            "" => hint,
            before => format!("{before}\n{hint}"),
        };
        anyhow::Error::new(Hinted { message: format!("{self:#}"), hint, error: self })
    }
}

/// Returns the hint of an error, also if contexts wrap it; empty without a hint.
pub fn hint_of(error: &anyhow::Error) -> &str {
    error.downcast_ref::<Hinted>().map_or("", |hinted| &hinted.hint)
}

/// Hints for errors without their own hint: file extensions, and the hint for errors about such files.
const GENERAL_HINTS: [(&[&str], &str); 6] = [
    (
        &["yaml", "yml"],
        "docs/backends.md lists the keys of tables, docs/guide.md those of preprocessing, docs/tasks.md those of heads",
    ),
    (&["mqqs"], "`mqq stats show` shows statistics; `mqq calibrate --save-stats` saves them again"),
    (&["json"], "a sidecar is taken as mqq wrote it: quantize again to get a new one (docs/sidecar.md)"),
    (&["txt", "csv"], "a list has the path of one sample per line, in UTF-8 (docs/guide.md)"),
    (
        &["npy", "npz", "pb", "png", "jpg", "jpeg", "bmp", "gif", "webp", "tif", "tiff", "ppm"],
        "docs/guide.md explains how to pass data; --skip-bad-data skips samples that cannot be read",
    ),
    (
        &["onnx"],
        "onnx.checker.check_model in Python tells whether the model is valid; --outputs TENSOR quantizes only up to a tensor",
    ),
];

/// The command that runs, for the general hint.
static COMMAND: OnceLock<String> = OnceLock::new();

/// Sets the command that the general hint names; only the first call has an effect.
pub fn set_command(command: &str) {
    let _ = COMMAND.set(command.to_string());
}

/// Adds a hint to an error that has neither its own nor that of the operating system's error.
pub fn or_hint(error: anyhow::Error, hint: &str) -> anyhow::Error {
    let has_hint = !hint_of(&error).is_empty() || system_error(&format!("{error:#}")).is_some();
    if has_hint { error } else { error.hint(hint) }
}

/// Returns the hint of an error. Without one, the operating system's error or the extension of the last file at the
/// beginning of the error's text, as in "`m.onnx`: `d.npz`: …", selects a general hint.
pub fn hint_or_general(error: &anyhow::Error) -> String {
    if !hint_of(error).is_empty() {
        return hint_of(error).to_string();
    }
    let text = format!("{error:#}");
    if let Some((_, code)) = system_error(&text) {
        return system_words(code).map_or("check the path and the permissions", |(_, hint)| hint).to_string();
    }
    let (mut ending, mut rest) = (None, text.as_str());
    while let Some((place, behind)) = place_and_rest(rest) {
        let found = Path::new(file_of(place)).extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
        (ending, rest) = (found.or(ending), behind.split_once(": ").map_or("", |(_, rest)| rest));
    }
    let is_about = |(files, _): &&(&[&str], &str)| ending.as_deref().is_some_and(|ending| files.contains(&ending));
    // An error about an option is not one about the file before it.
    let of_file = GENERAL_HINTS.iter().find(is_about).filter(|_| !rest.starts_with("--")).map(|(_, hint)| *hint);
    of_file.map_or_else(
        || {
            let command = COMMAND.get().map(|command| format!(" {command}")).unwrap_or_default();
            format!("`mqq help{command}` lists the options; docs/guide.md and docs/troubleshooting.md explain them")
        },
        str::to_string,
    )
}

/// Returns a place without the index of a sample: `data.npy` of `data.npy[3]`.
fn file_of(place: &str) -> &str {
    let sample = place.strip_suffix(']').and_then(|place| place.rsplit_once('['));
    let is_sample = |index: &str| !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    sample.filter(|(_, index)| is_sample(index)).map_or(place, |(file, _)| file)
}

/// As [`explain`], with a general hint for an error without one.
pub fn explain_with_hint(error: &anyhow::Error) -> String {
    explain(&anyhow::anyhow!("{error:#}").hint(hint_or_general(error)))
}

/// Returns an error as one of type `E`, also if contexts or hints wrap it; `None` if it is of another type.
pub fn as_type<E: fmt::Display + fmt::Debug + Send + Sync + 'static>(error: &anyhow::Error) -> Option<&E> {
    error.downcast_ref().or_else(|| error.downcast_ref::<Hinted>().and_then(|hinted| as_type(&hinted.error)))
}

/// Returns whether an error is of type `E`, also if contexts or hints wrap it.
pub fn is_of<E: fmt::Display + fmt::Debug + Send + Sync + 'static>(error: &anyhow::Error) -> bool {
    as_type::<E>(error).is_some()
}

/// Returns a copy of an error's text and hint, for an error that is reported several times.
pub fn copy_of(error: &anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}").hint(hint_of(error))
}

/// Returns an error's text, and each of its hints on its own line.
pub fn explain(error: &anyhow::Error) -> String {
    let hints = hint_of(error).lines().map(|hint| format!("\nhint: {}", printable(hint)));
    format!("{}{}", printable(&text_of(error)), hints.collect::<String>())
}

/// Returns an error's text, with errors of the operating system in plain words.
pub fn text_of(error: &anyhow::Error) -> String {
    let mut text = format!("{error:#}");
    while let Some((place, code)) = system_error(&text) {
        let words = match system_words(code) {
            Some((words, _)) => words.to_string(),
            None => text[place.clone()].split(" (os error ").next().unwrap_or_default().to_string(),
        };
        text.replace_range(place, &words);
    }
    text.replace("failed to fill whole buffer", "ends too early")
}

/// Returns the place of the operating system's error in a text, as in "`m.onnx`: Permission denied (os error 13)", and
/// its code.
fn system_error(text: &str) -> Option<(Range<usize>, i32)> {
    const BEFORE_CODE: &str = " (os error ";
    let (before, rest) = text.split_once(BEFORE_CODE)?;
    let (code, _) = rest.split_once(')')?;
    let start = before.rfind(": ").map_or(0, |at| at + ": ".len());
    let end = before.len() + BEFORE_CODE.len() + code.len() + ")".len();
    // Quoted text is a name.
    let is_named = before[start..].contains('`');
    Some((start..end, code.parse::<i32>().ok().filter(|_| !is_named)?))
}

/// Returns plain words for an error of the operating system, and a hint.
fn system_words(code: i32) -> Option<(&'static str, &'static str)> {
    Some(match io::Error::from_raw_os_error(code).kind() {
        ErrorKind::NotFound => ("does not exist", "check the path"),
        ErrorKind::PermissionDenied => ("permission denied", "check the permissions of the file and of its folder"),
        ErrorKind::InvalidFilename => ("the name is too long", "use a shorter name"),
        ErrorKind::NotADirectory => ("a part of the path is a file, expected a folder", "check the path"),
        ErrorKind::IsADirectory => ("is a directory, expected a file", "check the path"),
        ErrorKind::StorageFull => ("the disk is full", "free space, or write to another disk"),
        ErrorKind::ReadOnlyFilesystem => ("the disk cannot be written", "write to another folder"),
        _ => return None,
    })
}

/// Returns the file, node or tensor at the beginning of an error's text: `x` of "`x`: …" and of "node `x` (Conv): …".
pub fn place_of(text: &str) -> Option<&str> {
    place_and_rest(text).map(|(place, _)| place)
}

fn place_and_rest(text: &str) -> Option<(&str, &str)> {
    let (what, rest) = text.split_once('`')?;
    let is_word = |word: &str| word.is_empty() || word.ends_with(' ') && !word.trim().contains(' ');
    let (place, rest) = rest.split_once('`')?;
    let rest = match rest.strip_prefix(" (") {
        Some(rest) => rest.split_once(')')?.1,
        None => rest,
    };
    (is_word(what) && rest.starts_with(':')).then_some((place, rest))
}

/// Maximum characters of a word in a printed line, and of the line.
const MAX_WORD: usize = 500;
const MAX_LINE: usize = 10_000;

/// Returns a line that is safe to print even with names from untrusted files. Characters that control the terminal or
/// the writing direction are escaped (`\u{1b}`, `\n`). Long words and lines get an ellipsis in their middle.
pub fn printable(line: &str) -> Cow<'_, str> {
    let line = brief(line);
    if !line.chars().any(is_unprintable) {
        return line;
    }
    let spelled = |c: char| match is_unprintable(c) {
        true => c.escape_debug().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(line.chars().map(spelled).collect())
}

/// Returns a line in which long words, and the line if it is long, have an ellipsis in their middle.
pub fn brief(line: &str) -> Cow<'_, str> {
    if line.len() <= MAX_WORD {
        return Cow::Borrowed(line);
    }
    let words = line.split(' ').map(|word| shortened(word, MAX_WORD));
    Cow::Owned(shortened(&words.collect::<Vec<_>>().join(" "), MAX_LINE).into_owned())
}

/// Whether a character controls the terminal or the writing direction, or is invisible.
pub fn is_unprintable(c: char) -> bool {
    let directs = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || directs
}

/// Returns JSON text with characters that control a terminal escaped; serde escapes only some of them.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c == '\n' || c == '\t' || !is_unprintable(c);
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if is_plain(c) { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Returns a text of at most `max` characters: the middle of a longer text becomes an ellipsis.
fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max || text.chars().nth(max).is_none() {
        return Cow::Borrowed(text);
    }
    let end: Vec<char> = text.chars().rev().take(max / 5).collect();
    let begin = text.chars().take(max - max / 5 - 1);
    Cow::Owned(begin.chain(['…']).chain(end.into_iter().rev()).collect())
}

/// Returns text such as `1 node` or `2 nodes`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Returns a number with its digits in groups of three, such as `7,095,296`.
pub fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let separator = |place: usize| if place > 0 && (digits.len() - place).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(place, digit)| format!("{}{digit}", separator(place))).collect()
}

/// Returns the names in backquotes, with `separator` between them.
pub fn quoted(names: impl IntoIterator<Item = impl fmt::Display>, separator: &str) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(separator)
}

/// Returns the end of a list from which `n` names are left out, such as `, and 3 more`; an empty text if `n` is 0.
pub fn and_more(n: usize) -> String {
    if n == 0 { String::new() } else { format!(", and {n} more") }
}

/// Returns text such as `7 Conv, 2 Add`, most frequent first.
pub fn by_operator<'a>(op_types: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    op_types.for_each(|op_type| *counts.entry(op_type).or_default() += 1);
    by_count(counts.into_iter().collect())
}

/// Returns text such as `7 Conv, 2 Add`, most frequent first.
pub fn by_count(mut counts: Vec<(&str, usize)>) -> String {
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let counts = counts.iter().map(|(op_type, n)| format!("{n} {op_type}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// Returns the last component of a path; empty if it ends in `..`.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns `did you mean …?` with the candidate nearest to `found` by edit distance, in any case. Empty if none is near.
pub fn did_you_mean<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let near = candidates
        .into_iter()
        .filter(|candidate| is_near(found, candidate))
        .map(|candidate| (distance(found, candidate), strsim::damerau_levenshtein(found, candidate), candidate))
        .min();
    near.map_or(String::new(), |(_, _, candidate)| format!("did you mean `{}`?", printable(candidate)))
}

/// Returns the edit distance of two words in any case.
fn distance(found: &str, candidate: &str) -> usize {
    strsim::damerau_levenshtein(&found.to_lowercase(), &candidate.to_lowercase())
}

/// Whether the edit distance of two words in any case is at most a third of the longer word's length.
pub fn is_near(found: &str, candidate: &str) -> bool {
    let n_letters = found.chars().count().max(candidate.chars().count());
    3 * distance(found, candidate) <= n_letters
}

/// Returns an error with `text`, about something that has `names`, the list of these names, and a hint with the name nearest to `found`, or with the
/// names that have `found` before a hyphen.
pub fn none_of<'a>(text: impl fmt::Display, found: &str, names: impl IntoIterator<Item = &'a str>) -> anyhow::Error {
    let names: Vec<&str> = names.into_iter().collect();
    let error = match names.is_empty() {
        true => anyhow::anyhow!("{text}, which has none"),
        false => anyhow::anyhow!("{text}, expected one of: {}", names.join(", ")),
    };
    let of_family = |name: &&str| name.strip_prefix(found).is_some_and(|rest| rest.starts_with('-'));
    let family = quoted(names.iter().copied().filter(of_family), " or ");
    match did_you_mean(found, names) {
        near if near.is_empty() && !family.is_empty() => error.hint(format!("did you mean {family}?")),
        near => error.hint(near),
    }
}

/// The exit codes. Scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// Something failed, or a named file cannot be read or written; a message says which.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A quality gate was not met.
    Quality = 3,
    /// The model breaks a rule of the backend.
    BackendRule = 4,
}
