//! Reads a checked [`Head`] from YAML.

use super::task::TaskName;
use super::{ALIASES, BUILT_IN, Decoding, Head};
use crate::diag::{in_yaml, none_of};
use crate::foreign;
use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use std::path::Path;

/// The key that decides which other keys a head has.
#[derive(Deserialize)]
struct TaskKey {
    task: TaskName,
}

/// Returns the built-in head of this name, or the head in the YAML file at this path.
///
/// # Errors
/// If there is no such head or file, or the file is wrong. The message says file, line, key, and what was expected.
pub fn resolve(head: &str) -> Result<Head> {
    if is_path(head) {
        let yaml = foreign::read_yaml(Path::new(head)).with_context(|| format!("`{head}`"))?;
        return parse(&yaml, head);
    }
    let name = ALIASES.iter().find(|(other, _)| *other == head).map_or(head, |(_, name)| name);
    let names = || BUILT_IN.iter().chain(ALIASES).map(|(name, _)| *name);
    let found = BUILT_IN.iter().find(|(known, _)| *known == name);
    let unknown = || none_of(format_args!("head `{head}` is unknown"), head, names());
    let (name, yaml) = found.ok_or_else(unknown)?;
    Ok(Head { alias: (head != *name).then(|| head.to_string()), ..parse(yaml, name)? })
}

/// Whether the text for a head is the path of a file.
pub fn is_path(head: &str) -> bool {
    head.contains(['/', '\\']) || head.ends_with(".yaml") || head.ends_with(".yml")
}

/// Returns every built-in head. Fails if a built-in head is wrong, which a test excludes.
pub(super) fn built_in() -> Result<Vec<Head>> {
    BUILT_IN.iter().map(|(name, yaml)| parse(yaml, name)).collect()
}

fn parse(yaml: &str, file: &str) -> Result<Head> {
    let in_file = |error| in_yaml(file, &error);
    let wrong = |(key, message): (&str, String)| anyhow!("`{file}`: `{key}`: {message}");
    let TaskKey { task } = serde_yaml::from_str(yaml).map_err(in_file)?;
    let decoding = match task {
        TaskName::Classify => serde_yaml::from_str(yaml).map(Decoding::Classify),
        TaskName::Detect => serde_yaml::from_str(yaml).map(Decoding::Detect),
        TaskName::Segment => serde_yaml::from_str(yaml).map(Decoding::Segment),
        TaskName::Embed => serde_yaml::from_str(yaml).map(Decoding::Embed),
        TaskName::Map => serde_yaml::from_str(yaml).map(Decoding::Map),
        TaskName::Keypoints => serde_yaml::from_str(yaml).map(Decoding::Keypoints),
        TaskName::Text => serde_yaml::from_str(yaml).map(Decoding::Text),
    };
    let decoding = decoding.map_err(in_file)?;
    decoding.kind().check().map_err(wrong)?;
    Ok(Head { name: file.to_string(), alias: None, decoding })
}
