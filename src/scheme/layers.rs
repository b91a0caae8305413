//! Merges tables that extend each other.

use super::locate::line_of;
use super::table_error::{TableError, table_error};
use crate::diag::{WithHint, did_you_mean, hint_of, in_plain_words, quoted};
use crate::foreign;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_yaml::{Mapping, Value};
use std::path::{Path, PathBuf};

/// Built-in tables: name and YAML.
type Tables = &'static [(&'static str, &'static str)];

/// One file of a chain.
struct TableLayer {
    /// The file's name in messages.
    label: String,
    /// The file's path; `None` for a built-in table.
    path: Option<PathBuf>,
    text: String,
    value: Mapping,
}

/// A table and the tables that it extends, most derived first.
pub(super) struct Layers(Vec<TableLayer>);

/// The place of a table.
#[derive(Clone, PartialEq)]
enum TablePlace {
    BuiltIn(&'static str, &'static str),
    File(PathBuf),
}

impl TablePlace {
    /// Finds `name`: a built-in table or a path relative to `folder`.
    fn of(name: &str, folder: Option<&Path>, tables: Tables) -> Result<TablePlace> {
        if is_path(name) {
            return Ok(TablePlace::File(folder.map_or_else(|| name.into(), |folder| folder.join(name))));
        }
        let lower = name.to_ascii_lowercase();
        let named = named(tables);
        let is_called = |table: &Named| table.name == lower || table.aliases.contains(&lower);
        if let Some(table) = named.iter().find(|table| is_called(table)) {
            return Ok(TablePlace::BuiltIn(table.name, table.yaml));
        }
        let file = [format!("{name}.yaml"), format!("{name}.yml")]
            .into_iter()
            .find(|file| !name.is_empty() && folder.unwrap_or(Path::new("")).join(file).is_file());
        let hint = file.map_or_else(|| similar(&named, &lower), |file| format!("did you mean the file `{file}`?"));
        Err(anyhow!("backend `{name}` is unknown, expected a built-in one or the path of a YAML file").hint(hint))
    }

    fn label(&self) -> String {
        match self {
            TablePlace::BuiltIn(name, _) => format!("backends/{name}.yaml"),
            TablePlace::File(path) => path.display().to_string(),
        }
    }

    fn same_as(&self, other: &TablePlace) -> bool {
        match (self, other) {
            (TablePlace::File(a), TablePlace::File(b)) => {
                a == b || a.canonicalize().ok().is_some_and(|a| b.canonicalize().ok() == Some(a))
            }
            _ => self == other,
        }
    }

    fn read(&self) -> Result<TableLayer> {
        let label = self.label();
        let in_file = || format!("`{label}`");
        let (text, path) = match self {
            TablePlace::BuiltIn(_, yaml) => ((*yaml).to_string(), None),
            TablePlace::File(path) => (foreign::read_yaml(path).with_context(in_file)?, Some(path.clone())),
        };
        let value: Value = serde_yaml::from_str(&text).map_err(explain_syntax).with_context(in_file)?;
        let Value::Mapping(value) = value else {
            bail!("`{label}`: line 1: is not a table, expected keys such as `name` and `types`")
        };
        Ok(TableLayer { label, path, text, value })
    }
}

/// Whether `backend` is the path of a table instead of a name.
pub fn is_path(backend: &str) -> bool {
    backend.ends_with(".yaml") || backend.ends_with(".yml") || backend.contains('/')
}

/// The names of a built-in table.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    #[serde(skip)]
    name: &'static str,
    #[serde(skip)]
    yaml: &'static str,
    aliases: Vec<String>,
    description: String,
}

fn named(tables: Tables) -> Vec<Named> {
    let of = |&(name, yaml): &(&'static str, &'static str)| {
        let named: Named = serde_yaml::from_str(yaml).unwrap_or_default();
        Named { name, yaml, ..named }
    };
    tables.iter().map(of).collect()
}

/// Names of types that other tools take where mqq takes a backend.
const TYPES: &[&str] = &["int4", "int8", "int16", "uint4", "uint8", "uint16", "fp8", "fp16", "float16", "bf16"];

/// Names of runtimes that no table is for, although a table of another runtime has a similar name.
const OTHER_RUNTIMES: &[&str] = &["coreml"];

/// The hint at all tables.
const LISTED: &str = "`mqq backends` lists them; docs/targets.md names the backend of each device";

/// Returns a hint at tables with a name similar to `unknown`, or with a word in the description that begins with
/// `unknown`.
fn similar(tables: &[Named], unknown: &str) -> String {
    let names = tables.iter().flat_map(|table| table.aliases.iter().map(String::as_str).chain([table.name]));
    let near = did_you_mean(unknown, names);
    if unknown.is_empty() || OTHER_RUNTIMES.contains(&unknown) {
        return LISTED.to_string();
    }
    if TYPES.contains(&unknown) {
        return format!("a backend is a runtime or a chip instead of a type: {LISTED}");
    }
    if !near.is_empty() {
        return near;
    }
    let describes = |table: &&Named| {
        let words = table.description.to_ascii_lowercase();
        words.split(|c: char| !c.is_alphanumeric()).any(|word| word.starts_with(unknown))
    };
    match quoted(tables.iter().filter(describes).map(|table| table.name), " or ") {
        names if names.is_empty() => LISTED.to_string(),
        names => format!("did you mean {names}? docs/targets.md names the backend of each device"),
    }
}

fn explain_syntax(error: serde_yaml::Error) -> anyhow::Error {
    let message = error.to_string();
    let line = error.location().map(|at| format!("line {}: ", at.line())).unwrap_or_default();
    anyhow!("{line}{}", in_plain_words(message.split(" at line ").next().unwrap_or(&message)))
}

impl Layers {
    /// Reads the table of `backend` and the tables that it extends. Fails if a table does not exist or is not YAML, or
    /// tables extend each other in a circle.
    pub fn read(backend: &str, tables: Tables) -> Result<Layers> {
        let mut place = TablePlace::of(backend, None, tables)?;
        let mut places = Vec::new();
        let mut layers = Layers(Vec::new());
        loop {
            let mut layer = place.read()?;
            let base = layer.value.remove("extends");
            if !layers.0.is_empty() {
                ["aliases", "wider"].iter().for_each(|key| drop(layer.value.remove(*key)));
            }
            let is_named = layer.value.contains_key("name");
            let label = layer.label.clone();
            layers.0.push(layer);
            places.push(place.clone());
            let Some(base) = base else { return Ok(layers) };
            let at = || {
                let line = layers.0.last().and_then(|layer| line_of(&layer.text, &["extends"]));
                format!("`{label}`: line {}: extends", line.unwrap_or(1))
            };
            let name = base.as_str().context("expected the name of a backend or the path of a table");
            let name = name.with_context(at)?;
            ensure!(is_named, "{}: `name` is missing, expected the table's own name", at());
            let folder = match &place {
                TablePlace::File(path) => path.parent(),
                TablePlace::BuiltIn(..) => None,
            };
            let next = TablePlace::of(name, folder, tables).with_context(at)?;
            if let Some(start) = places.iter().position(|earlier| earlier.same_as(&next)) {
                let chain = places[start..].iter().chain([&next]);
                let chain: Vec<String> = chain.map(TablePlace::label).collect();
                bail!("{}: tables extend each other: {}", at(), chain.join(" -> "));
            }
            if let TablePlace::File(path) = &next {
                ensure!(path.exists(), "{}: `{}` does not exist", at(), path.display());
            }
            place = next;
        }
    }

    /// The paths of the tables that are files.
    pub fn files(self) -> Vec<PathBuf> {
        self.0.into_iter().filter_map(|layer| layer.path).collect()
    }

    /// Merges the tables: maps key by key, everything else is replaced; `null` removes a key. Fails if a table gives
    /// `null` for a key that the extended table does not have.
    pub fn merged(&self) -> Result<Value> {
        let mut merged = Mapping::new();
        for (position, layer) in self.0.iter().enumerate().rev() {
            let is_base = position + 1 == self.0.len();
            if is_base {
                merged = layer.value.clone();
                continue;
            }
            merge(&mut merged, &layer.value, "").map_err(|wrong| self.explain(&wrong.at, &wrong.error))?;
        }
        Ok(Value::Mapping(merged))
    }

    /// Adds file and line to an error about the dotted key path `at`. They are those of the key in the most derived
    /// table that has it, or of the nearest key above it if no table has it.
    pub fn explain(&self, at: &str, error: &anyhow::Error) -> anyhow::Error {
        let steps: Vec<&str> = at.split('.').filter(|step| !step.is_empty()).collect();
        let found = (1..=steps.len()).rev().find_map(|depth| {
            let line = |layer: &TableLayer| line_of(&layer.text, &steps[..depth]);
            self.0.iter().find_map(|layer| Some((&layer.label, line(layer)?)))
        });
        let at = if at.is_empty() { String::new() } else { format!("{at}: ") };
        let explained = match (found, self.0.first()) {
            (Some((label, line)), _) => anyhow!("`{label}`: line {line}: {at}{error:#}"),
            (None, Some(layer)) => anyhow!("`{}`: {at}{error:#}", layer.label),
            (None, None) => anyhow!("{at}{error:#}"),
        };
        explained.hint(hint_of(error))
    }
}

/// Merges `over` into `base`; `at` is the dotted path of both.
fn merge(base: &mut Mapping, over: &Mapping, at: &str) -> Result<(), TableError> {
    for (key, value) in over {
        let at = match (at, key.as_str()) {
            (_, None) => at.to_string(),
            ("", Some(key)) => key.to_string(),
            (at, Some(key)) => format!("{at}.{key}"),
        };
        match (base.get_mut(key), value) {
            (Some(_), Value::Null) => drop(base.remove(key)),
            (None, Value::Null) => {
                let hint = did_you_mean(key.as_str().unwrap_or_default(), base.keys().filter_map(Value::as_str));
                let error = anyhow!("null removes a key of the extended table, but the extended table has no such key");
                return Err(table_error(at, error.hint(hint)));
            }
            (Some(Value::Mapping(below)), Value::Mapping(value)) => merge(below, value, &at)?,
            _ => drop(base.insert(key.clone(), value.clone())),
        }
    }
    Ok(())
}
