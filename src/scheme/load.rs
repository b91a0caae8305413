//! From YAML to a checked [`Scheme`].

use super::{Granularity, Scheme};
use crate::diag::did_you_mean;
use crate::place::RULES;
use crate::range::FINDERS;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::path::Path;

/// The tables that come with mqq: name and YAML.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("onnxruntime", include_str!("../../backends/onnxruntime.yaml")),
    ("tensorrt", include_str!("../../backends/tensorrt.yaml")),
];

/// The table of a built-in backend, or of a YAML file where `backend` is the path of one.
///
/// # Errors
/// If there is no such backend or file, or the table is wrong: file, line, key, what was expected.
pub fn resolve(backend: &str) -> Result<Scheme> {
    if let Some((name, yaml)) = BUILT_IN.iter().find(|(name, _)| *name == backend) {
        return parse(yaml).with_context(|| format!("`backends/{name}.yaml`"));
    }
    let is_path = backend.ends_with(".yaml") || backend.ends_with(".yml") || backend.contains('/');
    if is_path {
        let yaml =
            std::fs::read_to_string(Path::new(backend)).with_context(|| format!("`{backend}`"))?;
        return parse(&yaml).with_context(|| format!("`{backend}`"));
    }
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    bail!(
        "backend `{backend}` is unknown, expected one of: {}, or the path of a YAML file{}",
        names.join(", "),
        did_you_mean(backend, names.iter().copied())
    )
}

fn parse(yaml: &str) -> Result<Scheme> {
    let scheme: Scheme = serde_yaml::from_str(yaml).map_err(explain)?;
    check(&scheme)?;
    for name in scheme.switches.keys() {
        let mut variant = scheme.clone();
        variant.switch_on(name)?;
        check(&variant).with_context(|| format!("switches.{name}"))?;
    }
    Ok(scheme)
}

/// The parser's message, with a suggestion where it lists what it expected.
fn explain(error: serde_yaml::Error) -> anyhow::Error {
    let message = error.to_string();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let hint = match quoted.split_first() {
        Some((found, expected)) if message.contains("unknown") => {
            did_you_mean(found, expected.iter().copied())
        }
        _ => String::new(),
    };
    let line = error.location().map(|at| format!("line {}: ", at.line())).unwrap_or_default();
    let message = message.split(" at line ").next().unwrap_or(&message).to_string();
    anyhow!("{line}{message}{hint}")
}

fn check(scheme: &Scheme) -> Result<()> {
    let types = || scheme.types.keys().map(String::as_str);
    let check_type = |name: &str, at: &str| {
        ensure!(
            scheme.types.contains_key(name),
            "{at}: type `{name}` is unknown, expected one of: {}{}",
            types().collect::<Vec<_>>().join(", "),
            did_you_mean(name, types())
        );
        Ok(())
    };
    for (name, qtype) in &scheme.types {
        ensure!(
            matches!(qtype.bits, 2..=16),
            "types.{name}.bits is {}, expected 2 to 16",
            qtype.bits
        );
        let storage = qtype.storage_bits.unwrap_or(qtype.bits);
        ensure!(
            matches!(storage, 8 | 16) && storage >= qtype.bits,
            "types.{name} is stored in {storage} bits, expected 8 or 16 and not below `bits`"
        );
        ensure!(
            storage == 8 || scheme.min_opset >= 21,
            "types.{name} has 16 bits and min_opset is {}, expected 21 or later",
            scheme.min_opset
        );
    }
    for (op, row) in &scheme.ops {
        for (key, name) in [("input", &row.input), ("output", &row.output)] {
            if let Some(name) = name {
                check_type(name, &format!("ops.{op}.{key}"))?;
                ensure!(
                    scheme.types[name].granularity == Granularity::PerTensor,
                    "ops.{op}.{key}: type `{name}` is per channel, expected a type per tensor"
                );
            }
        }
        if let Some(weight) = &row.weight {
            check_type(&weight.qtype, &format!("ops.{op}.weight.type"))?;
        }
    }
    for call in &scheme.placement {
        let names = || RULES.iter().map(|rule| rule.name());
        ensure!(
            names().any(|name| name == call.rule),
            "placement: rule `{}` is unknown, expected one of: {}{}",
            call.rule,
            names().collect::<Vec<_>>().join(", "),
            did_you_mean(&call.rule, names())
        );
    }
    crate::emit::by_names(scheme.emit.iter().map(String::as_str)).context("emit")?;
    for (key, observer) in
        [("activation", &scheme.observers.activation), ("weight", &scheme.observers.weight)]
    {
        let names = || FINDERS.iter().map(|finder| finder.name());
        ensure!(
            names().any(|name| name == observer),
            "observers.{key}: `{observer}` is unknown, expected one of: {}{}",
            names().collect::<Vec<_>>().join(", "),
            did_you_mean(observer, names())
        );
    }
    Ok(())
}
