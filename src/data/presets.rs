//! Named preprocessings, what families of models were trained with; and those of a file, over a named one.

use super::preprocess::Preprocessing;
use crate::diag::{WithHint, did_you_mean, in_yaml};
use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use std::path::Path;
use std::sync::LazyLock;

/// A named preprocessing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The name on the command line.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Its options.
    steps: Preprocessing,
}

/// Every preset, as `presets.yaml` has them.
pub static PRESETS: LazyLock<Vec<Preset>> =
    LazyLock::new(|| serde_yaml::from_str(include_str!("presets.yaml")).expect("a test reads presets.yaml"));

impl Preset {
    /// Its options.
    pub fn preprocessing(&self) -> Preprocessing {
        Preprocessing { preset: Some(self.name.clone()), ..self.steps.clone() }
    }
}

impl Preprocessing {
    /// The preset of that name, or what the YAML file at that path says.
    ///
    /// # Errors
    /// If there is neither, or the file has an unknown key or a wrong value: file, line and key.
    pub fn named(name: &str) -> Result<Preprocessing> {
        if let Some(preset) = find(name) {
            return Ok(preset.preprocessing());
        }
        if !Path::new(name).is_file() {
            let what = if name.ends_with(".yaml") || name.ends_with(".yml") {
                format!("`{name}`: does not exist, expected a YAML file or one of the presets")
            } else {
                format!("preprocessing `{name}` is unknown, expected a YAML file or one of")
            };
            return Err(unknown(&what, name));
        }
        let yaml = std::fs::read_to_string(name).with_context(|| format!("`{name}`"))?;
        Preprocessing::from_yaml(&yaml, name)
    }

    /// What a YAML text says, over the preset that it names. `file` is for messages.
    ///
    /// # Errors
    /// If it has an unknown key or a wrong value: file, line and key.
    pub fn from_yaml(yaml: &str, file: &str) -> Result<Preprocessing> {
        let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if yaml.lines().all(is_blank) {
            return Ok(Preprocessing::default());
        }
        let parsed: Preprocessing = serde_yaml::from_str(yaml).map_err(|error| in_yaml(file, &error))?;
        parsed.resolved().with_context(|| format!("`{file}`: `preset`"))
    }

    /// With the options of the preset that it names.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn resolved(self) -> Result<Preprocessing> {
        let Some(name) = &self.preset else { return Ok(self) };
        let preset =
            find(name).ok_or_else(|| unknown(&format!("preset `{name}` is unknown, expected one of"), name))?;
        Ok(preset.preprocessing().overlaid(self))
    }
}

fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// The error `what`, with the names of all presets behind it, and the one nearest to `found` as a hint.
fn unknown(what: &str, found: &str) -> anyhow::Error {
    let names = || PRESETS.iter().map(|preset| preset.name.as_str());
    let list = names().collect::<Vec<_>>().join(", ");
    anyhow!("{what} {list}").hint(did_you_mean(found, names()))
}
