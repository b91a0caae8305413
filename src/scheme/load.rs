//! Loads YAML into a checked [`Scheme`].

use super::layers::Layers;
use super::table_error::{TableError, table_error};
use super::{Catalog, Scheme, check};
use crate::diag::{WithHint, in_plain_words, key_and_words, none_of, suggesting};
use anyhow::{Context, Result, anyhow, bail};
use serde_yaml::Value;
use std::path::PathBuf;

/// Returns the table of a built-in backend, or of the YAML file at the path `backend`.
///
/// # Errors
/// If there is no such backend or file, or the table is invalid: file, line, key, expected value.
pub fn resolve(backend: &str, catalog: &Catalog) -> Result<Scheme> {
    let layers = Layers::read(backend, catalog.tables)?;
    let scheme = from_value(layers.merged()?).and_then(|scheme| {
        check::check(&scheme, catalog)?;
        Ok(scheme)
    });
    scheme.map_err(|wrong| layers.explain(&wrong.at, &wrong.error))
}

/// Returns the paths of `backend`'s table and of the tables that it extends, without built-in tables; no paths if a
/// table cannot be read.
pub fn files(backend: &str, catalog: &Catalog) -> Vec<PathBuf> {
    Layers::read(backend, catalog.tables).map(Layers::files).unwrap_or_default()
}

/// Returns the table of [`resolve`] with `switches` turned on and then `sets` applied. A set such as
/// `types.act8.bits=4` is a dotted path of keys and a YAML value; `null` removes the key.
///
/// # Errors
/// As [`resolve`]; also for an unknown switch, a path through a key that does not exist, or an invalid value.
pub fn resolve_with(backend: &str, switches: &[String], sets: &[String], catalog: &Catalog) -> Result<Scheme> {
    changed(backend, (switches, sets), RemovalOfMissingKey::IsError, catalog)
}

/// Returns the table of wider types that may replace `scheme`, with the same `switches` and `sets`; `None` if `scheme`
/// names none. A key that a set removes may be missing in the wider table.
///
/// # Errors
/// As [`resolve_with`].
pub fn resolve_wider(
    scheme: &Scheme,
    switches: &[String],
    sets: &[String],
    catalog: &Catalog,
) -> Result<Option<Scheme>> {
    let Some(name) = &scheme.wider else { return Ok(None) };
    let wider = changed(name, (switches, sets), RemovalOfMissingKey::IsRemoved, catalog).map_err(|error| {
        let place = format!("`{name}`, the table of wider types that may replace `{}`", scheme.name);
        error.context(place).hint("turn it off with --set wider=null")
    });
    wider.map(Some)
}

/// The treatment of a set that removes a key which the table does not have.
#[derive(Clone, Copy, PartialEq)]
enum RemovalOfMissingKey {
    IsError,
    IsRemoved,
}

fn changed(
    backend: &str,
    (switches, sets): (&[String], &[String]),
    absent: RemovalOfMissingKey,
    catalog: &Catalog,
) -> Result<Scheme> {
    let mut scheme = resolve(backend, catalog)?;
    for switch in switches {
        scheme.switch_on(switch)?;
    }
    if sets.is_empty() {
        // Each switch was checked alone.
        if switches.len() > 1 {
            let at_switches =
                |wrong: TableError| wrong.error.context(format!("--switch {}", switches.join(" --switch ")));
            check::check(&scheme, catalog).map_err(at_switches)?;
        }
        return Ok(scheme);
    }
    let mut value = serde_yaml::to_value(&scheme)?;
    for set in sets {
        apply_set(&mut value, set, absent).with_context(|| format!("--set {set}"))?;
    }
    let scheme = from_value(value).and_then(|scheme| {
        check::check(&scheme, catalog)?;
        Ok(scheme)
    });
    scheme.map_err(|wrong| {
        let at = if wrong.at.is_empty() { String::new() } else { format!(": {}", wrong.at) };
        wrong.error.context(format!("--set {}{at}", sets.join(" --set ")))
    })
}

fn apply_set(table: &mut Value, set: &str, absent: RemovalOfMissingKey) -> Result<()> {
    let (path, value) = set.split_once('=').context("expected KEY=VALUE, for instance types.act8.bits=4")?;
    let value: Value = serde_yaml::from_str(value).map_err(|error| {
        let text = error.to_string();
        anyhow!("`{value}` is not valid YAML: {}", in_plain_words(text.split(" at line ").next().unwrap_or_default()))
    })?;
    let steps: Vec<&str> = path.split('.').collect();
    let Some((last, through)) = steps.split_last() else { return Ok(()) };
    let mut here = table;
    for step in through {
        let Value::Mapping(map) = here else {
            bail!("`{step}` is inside a value that has no keys");
        };
        let unknown = none_of(format_args!("`{step}` is unknown"), step, map.keys().filter_map(Value::as_str));
        here = map.get_mut(*step).ok_or(unknown)?;
    }
    let Value::Mapping(map) = here else {
        bail!("`{last}` is inside a value that has no keys");
    };
    match value {
        Value::Null if absent == RemovalOfMissingKey::IsError && !map.contains_key(*last) => {
            bail!("null removes `{last}`, but the table has no such key");
        }
        Value::Null => drop(map.remove(*last)),
        value => drop(map.insert(Value::from(*last), value)),
    }
    Ok(())
}

fn from_value(value: Value) -> Result<Scheme, TableError> {
    serde_path_to_error::deserialize(&value).map_err(|error| {
        let (at, mut message) = key_and_words(error);
        let found = at.iter().try_fold(&value, |here, step| match here {
            Value::Sequence(list) => list.get(step.parse::<usize>().ok()?),
            _ => here.get(step.as_str()),
        });
        if let Some(found) = found.filter(|_| message.starts_with("expected")) {
            message = format!("found {}, {message}", spelled(found));
        }
        table_error(at.join("."), suggesting(&message, &message))
    })
}

fn spelled(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(text) => format!("`{text}`"),
        Value::Sequence(_) => "a list".to_string(),
        Value::Mapping(_) | Value::Tagged(_) => "keys with values".to_string(),
    }
}
