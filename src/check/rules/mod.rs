//! Rules of targets for models with Q/DQ.
//!
//! In: any model and the calls of a table's `check:`. Out: [`Finding`]s. [`CHECKS`] lists all rules. A table names the
//! rules that its target enforces, with parameters. Universal rules, such as the rules of ONNX itself, apply to every
//! table.

mod bias;
mod channels;
mod dtypes;
mod finding;
mod finite;
mod fixed;
mod form;
mod fusing;
mod grids;
mod ints;
mod model;
mod pairing;
mod products;
mod scales;

pub use finding::{Finding, RuleReport, Severity};
pub use finite::non_finite_constants;
pub use model::is_quantized;

use super::qdq_graph::QdqGraph;
use crate::diag::WithHint;
use crate::onnx::proto::ModelProto;
use crate::rewrite::QuantizedModel;
use crate::scheme::{RuleCall, Scheme, Takes};
use anyhow::{Result, anyhow};
use std::collections::BTreeMap;

/// A rule that a model may break.
pub struct Check {
    /// Name of the rule in a backend table.
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Parameters by name; the name `*` stands for every operator type. Every rule accepts `severity`.
    pub takes: Takes,
    /// Severity of a finding if the table sets none.
    pub severity: Severity,
    /// Whether the rule applies to every table, named or not.
    pub is_universal: bool,
    /// Whether the rule is about a property that quantization does not change, such as fixed input shapes.
    pub is_about_the_float_model: bool,
    /// Function that returns a key of the table which contradicts the rule, and the reason.
    pub contradiction: fn(&Scheme, &RuleCall) -> Option<(String, String)>,
    /// Function that adds findings to the report.
    pub run: fn(&QdqGraph, &RuleCall, &mut RuleReport),
}

impl Check {
    /// Defaults: severity error, only for tables that name the rule.
    const DEFAULT: Check = Check {
        name: "",
        about: "",
        takes: &[],
        severity: Severity::Error,
        is_universal: false,
        is_about_the_float_model: false,
        contradiction: |_, _| None,
        run: |_, _, _| (),
    };
}

/// All rules.
pub const CHECKS: &[Check] = &[
    model::SOUND_GRAPH,
    model::QUANTIZED,
    model::SCOPE,
    model::OPERATOR_SET,
    model::QDQ_ONLY,
    model::STATIC_INPUTS,
    form::LINEAR_FORM,
    form::LAYER_FORM,
    products::NBITS_FORM,
    scales::POSITIVE_SCALES,
    finite::FINITE_VALUES,
    scales::CONSTANT_PARAMETERS,
    scales::POWER_OF_TWO,
    scales::SYMMETRIC,
    dtypes::DTYPES,
    dtypes::DTYPE_PAIRS,
    ints::INTEGER_RANGE,
    channels::PER_TENSOR,
    channels::PER_CHANNEL_AXIS,
    pairing::PAIRED,
    products::DYNAMIC_PRODUCTS,
    bias::BIAS,
    grids::SHARED_GRIDS,
    fixed::FIXED_OUTPUT,
    fusing::QUANTIZED_INPUTS,
    fusing::QUANTIZED_OUTPUT,
    fusing::INTEGER_OPERATORS,
    fusing::LEFT_CONSTANT,
    fusing::REFUSED_OPERATORS,
    fusing::MAX_RANK,
    fusing::NO_FLOAT_NODES,
];

/// Returns every finding for `model`: first by universal rules in the order of [`CHECKS`], then by the table's rules.
/// The findings of a rule are in the order of the graph.
pub fn findings(model: &ModelProto, scheme: &Scheme) -> Vec<Finding> {
    let Some(graph) = QdqGraph::new(model) else {
        return vec![Finding { rule: model::SOUND_GRAPH.name, ..Finding::new("model", "no graph", "a graph") }];
    };
    let mut found = Vec::new();
    let by_name: BTreeMap<&str, &Check> = CHECKS.iter().map(|c| (c.name, c)).collect();
    // The model stays float if ONNX has no operator for the codes of a type.
    let stays_float = !scheme.has_affine_codes();
    let quantized = model::QUANTIZED.name;
    let universal = CHECKS.iter().filter(|check| check.is_universal);
    for check in universal.filter(|check| !(stays_float && check.name == quantized)) {
        let call = RuleCall { rule: check.name.to_string(), parameters: BTreeMap::new() };
        run(check, &graph, &call, &mut found);
    }
    for call in &scheme.check {
        match by_name.get(call.rule.as_str()) {
            Some(check) if !check.is_universal => run(check, &graph, call, &mut found),
            _ => {}
        }
    }
    found
}

/// Returns a key of the table which contradicts a rule of the table's own `check`, so that every model would break the
/// rule, and the reason.
pub fn contradiction(scheme: &Scheme) -> Option<(String, String)> {
    scheme.check.iter().find_map(|call| {
        let check = CHECKS.iter().find(|check| check.name == call.rule)?;
        let (at, reason) = (check.contradiction)(scheme, call).filter(|_| severity(check, call) == Severity::Error)?;
        Some((at, format!("{reason} by rule `{}` of the table's `check`", check.name)))
    })
}

fn severity(check: &Check, call: &RuleCall) -> Severity {
    match call.name("severity") {
        Some("warning") => Severity::Warning,
        Some("error") => Severity::Error,
        _ => check.severity,
    }
}

fn run(check: &Check, graph: &QdqGraph, call: &RuleCall, found: &mut Vec<Finding>) {
    let severity = severity(check, call);
    let mut report = RuleReport { rule: check.name, severity, findings: Vec::new() };
    (check.run)(graph, call, &mut report);
    found.extend(report.findings);
}

/// A quantized model that keeps the rules of its target. Only [`ensure_kept`] makes one.
pub struct Checked {
    model: ModelProto,
    /// Findings that the float model already had.
    pub warnings: Vec<String>,
}

impl Checked {
    /// Returns the model.
    pub fn into_model(self) -> ModelProto {
        self.model
    }
}

/// Checks a model from [`rewrite`](crate::rewrite::rewrite) before it is written.
///
/// # Errors
/// If the model breaks a rule that quantization must keep. That is a defect of mqq, or of the table.
pub fn ensure_kept(quantized: QuantizedModel, scheme: &Scheme) -> Result<Checked> {
    let model = quantized.into_model();
    let is_about_the_float_model =
        |rule: &str| CHECKS.iter().any(|check| check.name == rule && check.is_about_the_float_model);
    let mut warnings = Vec::new();
    for finding in findings(&model, scheme) {
        match finding.severity {
            // Placement already warns if nothing is quantized.
            _ if finding.rule == model::QUANTIZED.name => {}
            Severity::Error if is_about_the_float_model(finding.rule) => {
                warnings.push(format!("breaks rule [{}] of {}: {finding}", finding.rule, scheme.name));
            }
            Severity::Error => {
                return Err(anyhow!(
                    "internal error: the quantized model breaks rule [{}] of {}: {finding}",
                    finding.rule,
                    scheme.name
                )
                .hint("if you wrote the table or changed it by --set, its `types` may contradict its `check`; otherwise please report this error with the model"));
            }
            Severity::Warning => {}
        }
    }
    Ok(Checked { model, warnings })
}
