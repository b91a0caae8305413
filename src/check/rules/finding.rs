//! Findings of the rules.

use crate::onnx::node::node_name;
use crate::onnx::proto::NodeProto;
use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The target refuses the model or computes something else.
    #[default]
    Error,
    /// The target runs the model, but not as well as it could.
    Warning,
}

impl Severity {
    /// Returns the word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// A place where a model breaks a rule.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Finding {
    /// Severity: error or warning.
    pub severity: Severity,
    /// The rule's name.
    pub rule: &'static str,
    /// Name of the node; empty for a finding about the model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Operator type of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub op_type: String,
    /// Name of the tensor; empty if no tensor is involved.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tensor: String,
    /// The property that was checked.
    pub what: String,
    /// The value that was found.
    pub found: String,
    /// The value that was expected.
    pub expected: String,
    /// Advice for the user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Finding {
    /// Returns a finding that `what` is `found` instead of `expected`.
    pub fn new(what: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Finding {
        Finding { what: what.into(), found: found.into(), expected: expected.into(), ..Finding::default() }
    }

    /// Returns the finding with this node.
    pub fn at(self, node: &NodeProto) -> Finding {
        Finding { node: node_name(node).to_string(), op_type: node.op_type().to_string(), ..self }
    }

    /// Returns the finding with this tensor.
    pub fn on(self, tensor: &str) -> Finding {
        Finding { tensor: tensor.to_string(), ..self }
    }

    /// Returns the finding with advice for the user.
    pub fn hint(self, hint: &str) -> Finding {
        Finding { hint: hint.to_string(), ..self }
    }
}

/// Writes the node, the tensor, and the property with its found and expected value.
impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.op_type.is_empty() {
            write!(f, "node `{}` ({}): ", self.node, self.op_type)?;
        }
        if !self.tensor.is_empty() {
            write!(f, "`{}`: ", self.tensor)?;
        }
        write!(f, "{} is {}, expected {}", self.what, self.found, self.expected)
    }
}

/// The findings of one rule.
pub struct RuleReport {
    pub(super) rule: &'static str,
    pub(super) severity: Severity,
    pub(super) findings: Vec<Finding>,
}

impl RuleReport {
    /// Adds a finding, with the rule and the severity of this report.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(Finding { rule: self.rule, severity: self.severity, ..finding });
    }
}
