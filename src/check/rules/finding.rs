//! What a rule found.

use crate::onnx::node::node_name;
use crate::onnx::proto::NodeProto;
use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The target refuses the model or computes something else.
    #[default]
    Error,
    /// The target runs it, but not as well as it could.
    Warning,
}

/// One place where a model breaks a rule.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Finding {
    /// Error or warning.
    pub severity: Severity,
    /// The rule's name.
    pub rule: &'static str,
    /// Name of the node; empty where the finding is about the model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Its operator type.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub op_type: String,
    /// Name of the tensor; empty where there is none to name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tensor: String,
    /// What was looked at.
    pub what: String,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub expected: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Finding {
    /// `what` is `found`, but should be `expected`.
    pub fn new(what: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Finding {
        Finding { what: what.into(), found: found.into(), expected: expected.into(), ..Finding::default() }
    }

    /// At this node.
    pub fn at(self, node: &NodeProto) -> Finding {
        Finding { node: node_name(node).to_string(), op_type: node.op_type().to_string(), ..self }
    }

    /// At this tensor.
    pub fn on(self, tensor: &str) -> Finding {
        Finding { tensor: tensor.to_string(), ..self }
    }

    /// With advice.
    pub fn hint(self, hint: &str) -> Finding {
        Finding { hint: hint.to_string(), ..self }
    }
}

/// node → tensor: what is found, expected what.
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

/// Findings of one rule.
pub struct RuleReport {
    pub(super) rule: &'static str,
    pub(super) severity: Severity,
    pub(super) findings: Vec<Finding>,
}

impl RuleReport {
    /// Adds a finding; rule and severity are those of the call.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(Finding { rule: self.rule, severity: self.severity, ..finding });
    }
}
