//! Named preprocessings for families of models, and YAML files that extend them.

use super::preprocess::Preprocessing;
use crate::diag::{in_yaml, none_of};
use crate::foreign;
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_yaml::{Mapping, Value};
use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

/// A named preprocessing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The name on the command line.
    pub name: String,
    /// One-line description.
    pub description: String,
    /// Options of the preset.
    steps: Preprocessing,
}

/// The list of presets.
const YAML: &str = include_str!("presets.yaml");

/// Every preset in `presets.yaml`.
pub static PRESETS: LazyLock<Vec<Preset>> =
    LazyLock::new(|| serde_yaml::from_str(YAML).expect("a test reads presets.yaml"));

impl Preset {
    /// Returns the preset with that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<&'static Preset> {
        find(name).ok_or_else(|| unknown(format_args!("preset `{name}` is unknown"), name))
    }

    /// Returns the options of the preset as the text of a YAML file for `--preprocess`.
    ///
    /// # Errors
    /// If the YAML cannot be written.
    pub fn yaml(&self) -> Result<String> {
        let presets: Vec<Mapping> = serde_yaml::from_str(YAML)?;
        let is_it = |preset: &&Mapping| preset.get("name").and_then(Value::as_str) == Some(self.name.as_str());
        let steps = presets.iter().find(is_it).and_then(|preset| preset.get("steps"));
        Ok(serde_yaml::to_string(&steps)?)
    }

    /// Returns the options of the preset.
    pub fn preprocessing(&self) -> Preprocessing {
        Preprocessing { preset: Some(self.name.clone()), ..self.steps.clone() }
    }
}

impl Preprocessing {
    /// Returns the preset with that name, in any case, or the options in the YAML file at that path.
    ///
    /// # Errors
    /// If there is neither, or the file has an unknown key or a wrong value. The message says file, line and key.
    pub fn named(name: &str) -> Result<Preprocessing> {
        if let Some(preset) = find(name) {
            return Ok(preset.preprocessing());
        }
        if !Path::new(name).exists() {
            return Err(match name.ends_with(".yaml") || name.ends_with(".yml") {
                true => unknown(format_args!("`{name}`: is neither a file nor a preset"), name),
                false => unknown(format_args!("preprocessing `{name}` is neither a file nor a preset"), name),
            });
        }
        let yaml = foreign::read_yaml(Path::new(name)).with_context(|| format!("`{name}`"))?;
        Preprocessing::from_yaml(&yaml, name)
    }

    /// Parses a YAML text. Its options override those of the preset that it names. `file` is for messages.
    ///
    /// # Errors
    /// If the text has an unknown key or a wrong value. The message says file, line and key.
    pub fn from_yaml(yaml: &str, file: &str) -> Result<Preprocessing> {
        let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if yaml.lines().all(is_blank) {
            return Ok(Preprocessing::default());
        }
        let parsed: Preprocessing = serde_yaml::from_str(yaml).map_err(|error| in_yaml(file, &error))?;
        parsed.check_numbers().with_context(|| format!("`{file}`"))?;
        parsed.resolved().with_context(|| format!("`{file}`: `preset`"))
    }

    /// Returns the options, completed by those of the preset that they name.
    ///
    /// # Errors
    /// If the preset does not exist.
    pub fn resolved(self) -> Result<Preprocessing> {
        let Some(name) = &self.preset else { return Ok(self) };
        Ok(Preset::named(name)?.preprocessing().overlaid(self))
    }
}

fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name))
}

fn unknown(what: fmt::Arguments, found: &str) -> anyhow::Error {
    none_of(what, found, PRESETS.iter().map(|preset| preset.name.as_str()))
}
