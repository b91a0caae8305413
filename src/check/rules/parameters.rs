//! Parameters of the rules in a table: names and values are checked when the table is loaded.

use super::super::linear::{Linear, Role};
use super::CHECKS;
use crate::diag::{WithHint, did_you_mean};
use crate::onnx::integers::{type_names, type_number};
use crate::scheme::{Parameter, RuleCall};
use anyhow::{Context, Result, anyhow, bail, ensure};

/// What a parameter may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A whole number.
    Number,
    /// Operator types.
    Ops,
    /// Roles: activation, weight, bias, constant.
    Roles,
    /// Element types by their ONNX names; empty for none.
    Dtypes,
    /// Pairs of element types, such as `int8/uint8`.
    DtypePairs,
    /// A number, or a fraction such as `1/256`.
    Fraction,
    /// An axis: a number, `output` for the output channels, `columns` for those of a matrix that is the second
    /// operand and else one scale, or `none` for one scale.
    Axis,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// Checks one entry of a table's `check:`.
///
/// # Errors
/// If there is no such rule or parameter, or a value is not what the parameter holds.
pub fn check_call(call: &RuleCall) -> Result<()> {
    let names = || CHECKS.iter().map(|check| check.name());
    let Some(check) = CHECKS.iter().find(|check| check.name() == call.rule) else {
        return Err(anyhow!(
            "rule `{}` is unknown, expected one of: {}",
            call.rule,
            names().collect::<Vec<_>>().join(", ")
        )
        .hint(did_you_mean(&call.rule, names())));
    };
    const SEVERITY: (&str, Wanted) = ("severity", Wanted::Word(&["error", "warning"]));
    let known = || check.parameters().iter().chain([&SEVERITY]);
    for (name, value) in &call.parameters {
        let exact = known().find(|(parameter, _)| parameter == name);
        let Some((_, wanted)) = exact.or_else(|| known().find(|(parameter, _)| *parameter == "*"))
        else {
            let names = || known().map(|(name, _)| *name);
            return Err(anyhow!(
                "{}: parameter `{name}` is unknown, expected one of: {}",
                call.rule,
                names().collect::<Vec<_>>().join(", ")
            )
            .hint(did_you_mean(name, names())));
        };
        check_value(value, *wanted).with_context(|| format!("{}.{name}", call.rule))?;
    }
    Ok(())
}

fn check_value(value: &Parameter, wanted: Wanted) -> Result<()> {
    let roles = || Role::NAMES.iter().map(|(name, _)| *name);
    let one_of = |found: &str, names: &[&str]| {
        ensure!(
            names.contains(&found),
            anyhow!("`{found}` is unknown, expected one of: {}", names.join(", "))
                .hint(did_you_mean(found, names.iter().copied()))
        );
        Ok(())
    };
    match (wanted, value) {
        (Wanted::Number, Parameter::Number(_)) | (Wanted::Ops, Parameter::Ops(_)) => Ok(()),
        (Wanted::Roles, Parameter::Ops(list)) => {
            list.iter().try_for_each(|name| one_of(name, &roles().collect::<Vec<_>>()))
        }
        (Wanted::Dtypes, Parameter::Ops(list)) => {
            list.iter().try_for_each(|name| one_of(name, &type_names().collect::<Vec<_>>()))
        }
        (Wanted::Dtypes, Parameter::Name(name)) => one_of(name, &type_names().collect::<Vec<_>>()),
        (Wanted::DtypePairs, Parameter::Ops(list)) => list.iter().try_for_each(|pair| {
            let both = pair.split_once('/').map(|(a, b)| [a, b].map(|t| type_number(t).is_some()));
            ensure!(both == Some([true; 2]), "`{pair}`, expected two types such as int8/uint8");
            Ok(())
        }),
        (Wanted::Fraction, Parameter::Number(_)) => Ok(()),
        (Wanted::Fraction, Parameter::Name(text)) => {
            ensure!(fraction(text).is_some(), "`{text}`, expected a number or a fraction");
            Ok(())
        }
        (Wanted::Axis, Parameter::Number(_)) => Ok(()),
        (Wanted::Axis, Parameter::Name(text)) => one_of(text, &["output", "columns", "none"]),
        (Wanted::Word(words), Parameter::Name(text)) => one_of(text, words),
        (wanted, value) => bail!("{value:?}, expected {wanted:?}"),
    }
}

fn fraction(text: &str) -> Option<f32> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let value = match text.split_once('/') {
        Some((a, b)) => number(a)? / number(b)?,
        None => number(text)?,
    };
    Some(value as f32).filter(|value| value.is_normal() && *value > 0.0)
}

impl RuleCall {
    /// A positive number that may be written as a fraction.
    pub(super) fn fraction(&self, name: &str) -> Option<f32> {
        match self.parameters.get(name)? {
            Parameter::Number(n) => Some(*n as f32),
            Parameter::Name(text) => fraction(text),
            Parameter::Ops(_) => None,
        }
    }

    /// Element types by number; `None` where the table does not give the parameter.
    pub(super) fn dtypes(&self, name: &str) -> Option<Vec<i32>> {
        match self.parameters.get(name)? {
            Parameter::Ops(names) => Some(names.iter().filter_map(|n| type_number(n)).collect()),
            Parameter::Name(name) => Some(type_number(name).into_iter().collect()),
            Parameter::Number(_) => None,
        }
    }

    /// Whether `linear` is among the roles of parameter `of`; every role where it is not given.
    pub(super) fn is_of(&self, linear: &Linear) -> bool {
        let roles = self.ops("of");
        roles.is_empty() || roles.iter().any(|name| name == linear.role.name())
    }

    /// Whether the list `name` holds `op_type`.
    pub(super) fn lists(&self, name: &str, op_type: &str) -> bool {
        self.ops(name).iter().any(|op| op == op_type)
    }
}
