//! The file of `--zoo`: options for all models, and for models whose names match a pattern.

use super::Cli;
use super::evaluation_args::read_labels;
use super::given_options::{Options, arguments};
use crate::data;
use crate::diag::{WithHint, file_name, in_yaml, none_of, or_hint};
use crate::foreign;
use crate::metrics::MetricBound;
use crate::scheme::line_of;
use anyhow::{Context, Result, anyhow, bail};
use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, ArgAction, CommandFactory, Parser};
use globset::{Glob, GlobMatcher};
use serde::Deserialize;
use serde_yaml::{Mapping, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Keys that are not options of `mqq calibrate`: gates, and the data and labels of the comparison with the float model.
const OF_COMPARISON: [&str; 3] = ["gates", "eval", "labels"];
/// Options that the file may not set: they concern the whole zoo, or files of single models.
const OPTIONS_NOT_IN_FILE: &[&str] = &[
    "zoo", "memory", "junit", "output", "report", "json", "quiet", "verbose", "threads", "keep-going", "save-stats",
    "for", "keep-samples", "shard", "resume", "help",
];
/// Options with paths of data, and options that may name a file. Paths are relative to the folder of the zoo's file.
const DATA: [&str; 3] = ["data", "eval", "labels"];
const FILES: [&str; 4] = ["backend", "preprocess", "head", "ranges-from"];

/// The hints of errors without their own.
const HINT_KEYS: &str =
    "options of all models are keys of `defaults`, those of single models keys of a pattern in `models`";
const HINT_VALUES: &str = "`mqq help calibrate` lists the options; docs/guide.md explains the file of --zoo";

/// The value of an option in the file.
#[derive(Clone)]
struct ZooOption {
    /// The values as text; `None` if the value is `false`.
    values: Option<Vec<String>>,
    /// The line of the option's key.
    line: Option<usize>,
}

/// Options of a part of the file, by long name.
type Settings = BTreeMap<String, ZooOption>;

/// The file's contents.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ZooFileContents {
    #[serde(default)]
    defaults: Mapping,
    #[serde(default)]
    models: Mapping,
}

/// A model with its options.
pub struct Entry {
    pub model: PathBuf,
    /// Options of `mqq calibrate`.
    pub options: Options,
    /// Options of `mqq compare`, for the gates.
    pub compare: Options,
    /// Bounds of metrics, such as `overlap=0.9`.
    pub gates: Vec<String>,
}

impl Entry {
    /// Returns the values of the options that name data or may name a file.
    pub fn named(&self) -> impl Iterator<Item = &String> {
        let options = self.options.iter().chain(&self.compare);
        let options = options.filter(|(name, _)| DATA.contains(&name.as_str()) || FILES.contains(&name.as_str()));
        options.flat_map(|(_, values)| values)
    }

    /// Checks the data and labels of the comparison, if there are gates. Fails if the data or labels do not exist, or
    /// the labels cannot be read; the message has the path.
    pub fn ensure_evaluable(&self) -> Result<()> {
        if self.gates.is_empty() {
            return Ok(());
        }
        let of = |key: &str| self.compare.get(key).map_or(&[][..], Vec::as_slice);
        data::ensure_found(of("data"), data::BadEntries::Refused)?;
        read_labels(of("labels").first().map(Path::new), of("data")).map(drop)
    }
}

/// The options of a zoo's models.
pub struct ZooFile {
    path: PathBuf,
    defaults: Settings,
    /// Options by pattern, in the order of the file: later ones replace earlier ones.
    models: Vec<(String, GlobMatcher, Settings)>,
}

impl ZooFile {
    /// Reads the file. Fails if it cannot be read, is not YAML, or has an unknown key. The message has the file and the
    /// key.
    pub fn read(path: &Path) -> Result<ZooFile> {
        let file = path.display().to_string();
        let text = foreign::read_yaml(path).with_context(|| format!("`{file}`"))?;
        let contents: ZooFileContents =
            serde_yaml::from_str(&text).map_err(|error| or_hint(in_yaml(&file, &error), HINT_KEYS))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let of = |part: &[&str], settings: &Mapping| {
            let part_name = part.last().unwrap_or(&"");
            let line = |key: &str| line_of(&text, &[part, &[key]].concat());
            options(settings, folder, line).map_err(|(line, error)| {
                or_hint(error, HINT_VALUES).context(format!("{}: `{part_name}`", place(path, line)))
            })
        };
        let defaults = of(&["defaults"], &contents.defaults)?;
        let mut models = Vec::new();
        for (pattern, settings) in &contents.models {
            let pattern = pattern
                .as_str()
                .with_context(|| format!("`{file}`: `models` has a key that is not text, expected a pattern"))?;
            let matcher = Glob::new(pattern).with_context(|| format!("`{file}`: `{pattern}`"))?.compile_matcher();
            let settings = match settings {
                Value::Null => &Mapping::new(),
                Value::Mapping(settings) => settings,
                _ => bail!("`{file}`: `{pattern}` has no options, expected `key: value` lines"),
            };
            models.push((pattern.to_string(), matcher, of(&["models", pattern], settings)?));
        }
        Ok(ZooFile { path: path.to_path_buf(), defaults, models })
    }

    /// Returns the patterns that match none of the models.
    pub fn unmatched(&self, models: &[PathBuf]) -> Vec<&str> {
        let patterns = self.models.iter();
        let unmatched = patterns.filter(|(_, matcher, _)| !models.iter().any(|model| matches(matcher, model)));
        unmatched.map(|(pattern, ..)| pattern.as_str()).collect()
    }

    /// Returns the options of a model. Options that are `given` on the command line replace those of the file. Fails if
    /// `mqq calibrate` does not take the options, or a gate is invalid. The message has the file and the model.
    pub fn entry(&self, model: &Path, given: &Options) -> Result<Entry> {
        let mut settings = self.defaults.clone();
        for (_, _, of_pattern) in self.models.iter().filter(|(_, matcher, _)| matches(matcher, model)) {
            settings.extend(of_pattern.clone());
        }
        let line_of_key = |key: &str| settings.get(key).filter(|_| !given.contains_key(key))?.line;
        let at = |key: &str| format!("{}: model `{}`", place(&self.path, line_of_key(key)), file_name(model));
        let given_in_file = settings.iter().filter_map(|(name, it)| Some((name.clone(), it.values.clone()?)));
        let mut options: Options = given_in_file.collect();
        options.extend(given.clone());
        let [gates, eval, labels] = OF_COMPARISON.map(|key| options.remove(key));
        let gates = gates.unwrap_or_default();
        gates.iter().try_for_each(|gate| MetricBound::parse(gate).map(drop)).with_context(|| at("gates"))?;
        let mut compare = taken_by_compare(&options);
        if eval.is_some() {
            // It counts samples of the calibration.
            compare.remove("limit");
        }
        let data = eval.or_else(|| options.get("data").cloned());
        compare.extend(data.map(|data| ("data".to_string(), data)));
        compare.extend(labels.map(|labels| ("labels".to_string(), labels)));
        let program = ["mqq", "calibrate"].map(str::to_string);
        let line = program.into_iter().chain([model.display().to_string()]).chain(arguments(&options));
        if let Err(error) = Cli::try_parse_from(line) {
            if error.kind() == ErrorKind::MissingRequiredArgument && !options.contains_key("backend") {
                let text = format!("{}: has no `backend`, expected one", at("backend"));
                return Err(anyhow!(text).hint("set it under `defaults`"));
            }
            let named = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
            let key = named.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default();
            let text = error.to_string();
            let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").replace('\n', " ");
            return Err(anyhow!("{}: {text}", at(key)).hint(HINT_VALUES));
        }
        Ok(Entry { model: model.to_path_buf(), options, compare, gates })
    }
}

/// Returns the file, with a line if it is known: "`zoo.yaml`:3".
fn place(path: &Path, line: Option<usize>) -> String {
    let line = line.map_or(String::new(), |line| format!(":{line}"));
    format!("`{}`{line}", path.display())
}

/// Returns whether a pattern matches a model's file name, with or without the extension.
fn matches(matcher: &GlobMatcher, model: &Path) -> bool {
    let stem = model.file_stem().unwrap_or_default();
    matcher.is_match(file_name(model)) || matcher.is_match(Path::new(stem))
}

/// Returns the options of `settings` as text. Paths relative to `folder` become paths from the current folder. `line`
/// returns the line of a key. An error comes with its line.
fn options(
    settings: &Mapping,
    folder: &Path,
    line: impl Fn(&str) -> Option<usize>,
) -> Result<Settings, (Option<usize>, anyhow::Error)> {
    let program = Cli::command();
    let of_calibrate = program.find_subcommand("calibrate").into_iter().flat_map(clap::Command::get_arguments);
    let of_calibrate = of_calibrate.filter_map(|argument| Some((argument.get_long()?, takes_several(argument))));
    let of_comparison = OF_COMPARISON.map(|key| (key, key != "labels"));
    let mut known: BTreeMap<&str, bool> = of_calibrate.chain(of_comparison).collect();
    known.retain(|name, _| !OPTIONS_NOT_IN_FILE.contains(name));
    let mut options = Settings::new();
    for (key, value) in settings {
        let key = key.as_str().ok_or_else(|| (None, anyhow!("has a key that is not text, expected an option")))?;
        let line = line(key);
        let values = match known.get(key) {
            Some(&takes_several) => values(key, value, takes_several),
            None => Err(none_of(format!("unknown option `{key}`"), key, known.keys().copied())),
        };
        let values = values.map_err(|error| (line, error))?;
        let at = |value: String| in_folder(key, value, folder);
        let values = values.map(|values| values.into_iter().map(at).collect());
        options.insert(key.to_string(), ZooOption { values, line });
    }
    Ok(options)
}

fn takes_several(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

/// Returns the values of an option as text: none for `true`, and `None` for `false`.
fn values(key: &str, value: &Value, takes_several: bool) -> Result<Option<Vec<String>>> {
    Ok(match value {
        Value::Bool(true) | Value::Null => Some(Vec::new()),
        Value::Bool(false) => None,
        Value::Sequence(values) if values.is_empty() => bail!("`{key}`: found an empty list, expected a value"),
        Value::Sequence(values) if !takes_several && values.len() > 1 => {
            bail!("`{key}`: found a list of {} values, expected one value", values.len())
        }
        Value::Sequence(values) => Some(values.iter().map(|value| text(key, value)).collect::<Result<_>>()?),
        value => Some(vec![text(key, value)?]),
    })
}

fn text(key: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(anyhow!("`{key}`: found a value of another type, expected text, a number, or a list of them")
            .hint("write the value as on the command line")),
    }
}

/// Returns the value as a path in `folder` if the option takes a path, else the value.
fn in_folder(key: &str, value: String, folder: &Path) -> String {
    let path = folder.join(&value);
    let is_path = DATA.contains(&key) && value != "folders" || FILES.contains(&key) && path.is_file();
    if is_path { path.display().to_string() } else { value }
}

/// Returns the options that `mqq compare` takes as well.
fn taken_by_compare(options: &Options) -> Options {
    let program = Cli::command();
    let Some(compare) = program.find_subcommand("compare") else { return Options::new() };
    let takes = |name: &str| compare.get_arguments().any(|argument| argument.get_long() == Some(name));
    let taken = options.iter().filter(|(name, _)| takes(name));
    taken.map(|(name, values)| (name.clone(), values.clone())).collect()
}
