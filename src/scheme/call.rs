//! Calls of rules in a table (of placement and of a target's checks), and the kinds of their parameters.

use crate::diag::none_of;
use crate::onnx::data_type::{DataType, type_number};
use anyhow::{Result, bail, ensure};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The kind of a rule's parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A whole number.
    Number,
    /// A whole number that is not negative.
    Count,
    /// 1 for on, 0 for off.
    Switch,
    /// A number, or a fraction such as `1/256`.
    Fraction,
    /// A list of operator types.
    Ops,
    /// A name from the table's `types`.
    Type,
    /// Element types by their names; empty for none.
    Dtypes,
    /// Pairs of element types, such as `int8/uint8`.
    DtypePairs,
    /// An axis: a number, `output` for the output channels, `columns` for the columns of a matrix at the second operand
    /// (one scale for other operands), or `none` for one scale.
    Axis,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list with some of these words.
    Words(&'static [&'static str]),
}

/// A rule with its parameters: `name`, or `name: { parameter: value }`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "RuleForm")]
pub struct RuleCall {
    /// Name of the rule, as in `place::RULES` or `check::CHECKS`.
    pub rule: String,
    /// Parameters by name.
    pub parameters: BTreeMap<String, Parameter>,
}

/// A parameter of a rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number, a name or a list of names")]
pub enum Parameter {
    /// A number.
    Number(i64),
    /// A name.
    Name(String),
    /// A list of operator types.
    Ops(Vec<String>),
}

#[derive(Clone, Serialize)]
#[serde(untagged)]
enum RuleForm {
    Name(String),
    Call(BTreeMap<String, BTreeMap<String, Parameter>>),
}

/// Reads both forms of a call. A derived reader would lose the key of an error.
struct RuleVisitor;

impl<'de> Visitor<'de> for RuleVisitor {
    type Value = RuleCall;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the name of a rule, or { NAME: { parameter: value } }")
    }

    fn visit_str<E>(self, rule: &str) -> Result<RuleCall, E> {
        Ok(RuleCall { rule: rule.to_string(), parameters: BTreeMap::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RuleCall, A::Error> {
        let mut calls: BTreeMap<String, BTreeMap<String, Parameter>> = BTreeMap::new();
        while let Some((rule, parameters)) = map.next_entry()? {
            calls.insert(rule, parameters);
        }
        let names: Vec<&str> = calls.keys().map(String::as_str).collect();
        let rule = names.join(", ");
        Ok(RuleCall { rule, parameters: calls.into_values().next().unwrap_or_default() })
    }
}

impl<'de> Deserialize<'de> for RuleCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RuleCall, D::Error> {
        deserializer.deserialize_any(RuleVisitor)
    }
}

impl From<RuleCall> for RuleForm {
    fn from(call: RuleCall) -> RuleForm {
        match call.parameters.is_empty() {
            true => RuleForm::Name(call.rule),
            false => RuleForm::Call(BTreeMap::from([(call.rule, call.parameters)])),
        }
    }
}

impl RuleCall {
    /// Returns the number of the parameter `name`; `default` if the table has none.
    pub fn number(&self, name: &str, default: i64) -> i64 {
        match self.parameters.get(name) {
            Some(Parameter::Number(value)) => *value,
            _ => default,
        }
    }

    /// Returns the name that the parameter `name` has; `None` if the table has none.
    pub fn name(&self, name: &str) -> Option<&str> {
        match self.parameters.get(name) {
            Some(Parameter::Name(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns the list of operator types of the parameter `name`; empty if the table has none.
    pub fn ops(&self, name: &str) -> &[String] {
        match self.parameters.get(name) {
            Some(Parameter::Ops(ops)) => ops,
            _ => &[],
        }
    }

    /// Whether the list `name` contains `op_type`.
    pub fn lists(&self, name: &str, op_type: &str) -> bool {
        self.ops(name).iter().any(|op| op == op_type)
    }

    /// Returns the number of the parameter `name`, which may be written as a fraction.
    pub fn fraction(&self, name: &str) -> Option<f32> {
        match self.parameters.get(name)? {
            Parameter::Number(n) => Some(*n as f32),
            Parameter::Name(text) => fraction(text),
            Parameter::Ops(_) => None,
        }
    }

    /// Returns the element types of the parameter `name`, by number; `None` if the table has none.
    pub fn dtypes(&self, name: &str) -> Option<Vec<i32>> {
        match self.parameters.get(name)? {
            Parameter::Ops(names) => Some(names.iter().filter_map(|n| type_number(n)).collect()),
            Parameter::Name(name) => Some(type_number(name).into_iter().collect()),
            Parameter::Number(_) => None,
        }
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

impl ParameterKind {
    /// Fails if `value` is of another kind. `types` are the names of the table's types.
    pub(super) fn check(self, value: &Parameter, types: &[&str]) -> Result<()> {
        let one_of = |found: &str, names: &[&str]| match names.contains(&found) {
            true => Ok(()),
            false => Err(none_of(format_args!("`{found}` is unknown"), found, names.iter().copied())),
        };
        let dtypes: Vec<&str> = DataType::all().map(DataType::name).collect();
        match (self, value) {
            (ParameterKind::Number | ParameterKind::Axis, Parameter::Number(_))
            | (ParameterKind::Ops, Parameter::Ops(_))
            | (ParameterKind::Count, Parameter::Number(0..))
            | (ParameterKind::Fraction, Parameter::Number(1..))
            | (ParameterKind::Switch, Parameter::Number(0 | 1)) => Ok(()),
            (ParameterKind::Type, Parameter::Name(name)) => one_of(name, types),
            (ParameterKind::Words(words), Parameter::Ops(list)) => list.iter().try_for_each(|name| one_of(name, words)),
            (ParameterKind::Word(words), Parameter::Name(text)) => one_of(text, words),
            (ParameterKind::Dtypes, Parameter::Ops(list)) => list.iter().try_for_each(|name| one_of(name, &dtypes)),
            (ParameterKind::Dtypes, Parameter::Name(name)) => one_of(name, &dtypes),
            (ParameterKind::DtypePairs, Parameter::Ops(list)) => list.iter().try_for_each(|pair| {
                let both = pair.split_once('/').map(|(a, b)| [a, b].map(|t| type_number(t).is_some()));
                ensure!(both == Some([true; 2]), "`{pair}`, expected two types such as int8/uint8");
                Ok(())
            }),
            (ParameterKind::Fraction, Parameter::Name(text)) => {
                ensure!(fraction(text).is_some(), "`{text}`, expected a number or a fraction above 0");
                Ok(())
            }
            (ParameterKind::Axis, Parameter::Name(text)) => one_of(text, &["output", "columns", "none"]),
            (ParameterKind::Number, _) => bail!("expected a whole number"),
            (ParameterKind::Count, _) => bail!("expected a whole number, 0 or more"),
            (ParameterKind::Switch, _) => bail!("expected 0 or 1"),
            (ParameterKind::Ops, _) => bail!("expected a list of operator types"),
            (ParameterKind::Type, _) => bail!("expected one of: {}", types.join(", ")),
            (ParameterKind::Words(words), _) => bail!("expected a list of: {}", words.join(", ")),
            (ParameterKind::Word(words), _) => bail!("expected one of: {}", words.join(", ")),
            (ParameterKind::Dtypes, _) => bail!("expected element types"),
            (ParameterKind::DtypePairs, _) => bail!("expected a list of pairs of element types"),
            (ParameterKind::Fraction, _) => bail!("expected a number or a fraction above 0"),
            (ParameterKind::Axis, _) => bail!("expected a number, `output`, `columns` or `none`"),
        }
    }
}

/// The parameters of a rule by name; the name `*` stands for all others.
pub type Takes = &'static [(&'static str, ParameterKind)];

/// The names that other modules provide for tables.
pub struct Catalog {
    /// Tables that come with mqq: name and YAML.
    pub tables: &'static [(&'static str, &'static str)],
    /// Placement rules.
    pub rules: Vec<(&'static str, Takes)>,
    /// Rules of targets; each also accepts `severity`.
    pub checks: Vec<(&'static str, Takes)>,
    /// Returns the key of a table that a rule of the table's own `check` refuses, and the reason.
    pub contradiction: fn(&super::Scheme) -> Option<(String, String)>,
    /// Fails for an invalid spelling of an observer.
    pub check_observer: fn(&str) -> Result<()>,
    /// Fails for an unknown output format.
    pub check_format: fn(&str) -> Result<()>,
}
