//! Findings of `mqq check` as SARIF 2.1.0, which GitHub and other tools show beside a code change.

use crate::check::{CHECKS, Finding};
use crate::onnx;
use serde_json::{Value, json};

/// Maximum number of findings in a file. GitHub refuses files with more.
const MAX_RESULTS: usize = 25_000;

/// A model with its findings, or the error that kept it from being checked.
pub struct CheckedFile<'a> {
    /// Its path.
    pub path: &'a str,
    /// Its findings.
    pub findings: &'a [Finding],
    /// The error, if it could not be checked.
    pub error: Option<&'a str>,
}

/// Returns the JSON of the SARIF file.
pub fn sarif(models: &[CheckedFile]) -> Value {
    let rules = CHECKS.iter().map(|check| (check.name, check.about));
    let rules = rules.chain([("sidecar", "the sidecar beside a model is its own")]);
    let rules: Vec<Value> =
        rules.map(|(name, about)| json!({ "id": name, "shortDescription": { "text": about } })).collect();
    let found = models.iter().flat_map(|model| model.findings.iter().map(|finding| result(model.path, finding)));
    let errors = models.iter().filter_map(|model| Some((model.path, model.error?)));
    let notifications: Vec<Value> = errors
        .map(|(path, error)| {
            json!({ "level": "error", "message": { "text": error }, "locations": [{ "physicalLocation": location(path) }] })
        })
        .collect();
    let is_done = notifications.is_empty();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "mqq", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "invocations": [{ "executionSuccessful": is_done, "toolExecutionNotifications": notifications }],
            "results": found.take(MAX_RESULTS).collect::<Vec<Value>>(),
        }],
    })
}

fn result(path: &str, finding: &Finding) -> Value {
    let Finding { rule, node, tensor, what, hint, .. } = finding;
    let mut text = finding.to_string();
    if !hint.is_empty() {
        text += &format!(" (hint: {hint})");
    }
    let places = [(node, "node"), (tensor, "tensor")].into_iter().filter(|(name, _)| !name.is_empty());
    let logical: Vec<Value> = places.map(|(name, kind)| json!({ "fullyQualifiedName": name, "kind": kind })).collect();
    let mut place = json!({ "physicalLocation": location(path) });
    if !logical.is_empty() {
        place["logicalLocations"] = json!(logical);
    }
    let fingerprint = onnx::texts_sha256([path, rule, node, tensor, what].map(str::to_string));
    json!({
        "ruleId": rule,
        "level": finding.severity.name(),
        "message": { "text": text },
        "locations": [place],
        "partialFingerprints": { "mqqFinding/v1": fingerprint },
    })
}

/// Returns the location of a file. A model has no lines, so the region is line 1.
fn location(path: &str) -> Value {
    json!({ "artifactLocation": { "uri": uri(path) }, "region": { "startLine": 1 } })
}

/// Returns a path as a URI reference: bytes other than letters, digits and `-._~/` are percent-encoded.
fn uri(path: &str) -> String {
    let encoded: String = path
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    if path.starts_with('/') { format!("file://{encoded}") } else { encoded }
}
