//! Shell completion of option values, from the program's own lists.
//!
//! The script of `mqq completions` contains no values. It runs the program with [`VARIABLE`] for each completion.

use crate::backends::BUILT_IN;
use crate::data::PRESETS;
use crate::export::FORMATS;
use crate::heads::{self, TaskName};
use crate::metrics::METRICS;
use crate::observers::OBSERVERS;
use crate::report;
use crate::tune::methods::METHODS;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use std::ffi::OsStr;
use std::path::Path;

/// The environment variable that holds the shell's name when the shell asks for completions.
pub const VARIABLE: &str = "MQQ_COMPLETE";

/// Returns the names that begin with `current`, each with its description unless that is empty.
fn matching<'a>(current: &OsStr, names: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let found = names.filter(|(name, _)| name.starts_with(&*current));
    found
        .map(|(name, about)| CompletionCandidate::new(name).help((!about.is_empty()).then(|| about.to_string().into())))
        .collect()
}

/// Returns the names that begin with `current`, then matching YAML files and folders.
fn matching_or_yaml<'a>(current: &OsStr, names: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<CompletionCandidate> {
    let is_yaml = |path: &Path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    let mut found = matching(current, names);
    found.extend(PathCompleter::any().filter(is_yaml).complete(current));
    found
}

/// Completes names of backend tables, or a file.
pub fn backends() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| matching_or_yaml(current, BUILT_IN.iter().map(|(name, _)| (*name, ""))))
}

/// Completes names of presets, or a file.
pub fn presets() -> ArgValueCompleter {
    let names = || PRESETS.iter().map(|preset| (preset.name.as_str(), preset.description.as_str()));
    ArgValueCompleter::new(move |current: &OsStr| matching_or_yaml(current, names()))
}

/// Completes names of export formats.
pub fn formats() -> ArgValueCompleter {
    let names = || FORMATS.iter().map(|format| (format.name, format.description));
    ArgValueCompleter::new(move |current: &OsStr| matching(current, names()))
}

/// Completes names of report formats.
pub fn reports() -> ArgValueCompleter {
    let names = || report::FORMATS.iter().map(|format| (format.name, format.about));
    ArgValueCompleter::new(move |current: &OsStr| matching(current, names()))
}

/// Completes names of observers.
pub fn observers() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| matching(current, OBSERVERS.iter().map(|observer| (observer.name, ""))))
}

/// Completes names of tuning methods, or `none`.
pub fn methods() -> ArgValueCompleter {
    let names = || METHODS.iter().map(|method| (method.name, method.about)).chain([("none", "")]);
    ArgValueCompleter::new(move |current: &OsStr| matching(current, names()))
}

/// Completes names of metrics, each with the `=` in front of its bound.
pub fn metrics() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let names: Vec<_> = METRICS.iter().map(|metric| (format!("{}=", metric.name), metric.about)).collect();
        matching(current, names.iter().map(|(name, about)| (name.as_str(), *about)))
    })
}

/// Completes names of tasks.
pub fn tasks() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| matching(current, TaskName::ALL.iter().map(|(_, name)| (*name, ""))))
}

/// Completes names of heads, or a file.
pub fn heads() -> ArgValueCompleter {
    let names = || heads::BUILT_IN.iter().chain(heads::ALIASES).map(|(name, _)| (*name, ""));
    ArgValueCompleter::new(move |current: &OsStr| matching_or_yaml(current, names()))
}
