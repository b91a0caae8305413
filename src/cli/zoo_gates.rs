//! The gates of a zoo's models: `mqq compare` on each quantized model.

use super::given_options::arguments;
use super::zoo_file::Entry;
use super::zoo_process::{ProgramRan, exit_of, program};
use crate::diag::{Exit, text_of};
use crate::metrics::{MetricBound, MissedGate};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::atomic::AtomicU32;

/// Compares the quantized model of `result` with the float model, and adds the figures and missed gates to `result`.
pub(super) fn gates(
    entry: &Entry,
    result: &mut Value,
    threads: &str,
    process: &AtomicU32,
    messages: &mut String,
) -> Exit {
    let is_there = matches!(result["status"].as_str(), Some("ok" | "skipped"));
    let Some(output) = result["output"].as_str().filter(|_| is_there) else { return Exit::Done };
    let mut command: Vec<String> =
        ["compare", &entry.model.display().to_string(), output, threads].map(str::to_string).into();
    command.extend(arguments(&entry.compare));
    command.extend(entry.gates.iter().map(|gate| format!("--fail-under={gate}")));
    let (status, error, exit) = match program(&command, process) {
        Ok(ProgramRan { json: Some(mut compared), stderr, status, .. }) => {
            *messages += &stderr.replace("gate missed: ", &format!("gate missed: `{output}`: "));
            let missed = Vec::<MissedGate>::deserialize(&compared["missed"]).unwrap_or_default();
            let missed: Vec<String> = missed.iter().map(ToString::to_string).collect();
            let failed = compared["error"].as_str().map(str::to_string);
            if let Some(object) = compared.as_object_mut() {
                ["schema_version", "float", "quantized"].iter().for_each(|key| drop(object.remove(*key)));
            }
            if failed.is_none() {
                result["gates"] = Value::Array(gate_figures(entry, &compared));
            }
            result["compared"] = compared;
            match (exit_of(status), failed) {
                (Exit::Done, _) => return Exit::Done,
                (Exit::Quality, _) => ("missed", missed.join("; "), Exit::Quality),
                (exit, failed) => ("failed", failed.unwrap_or_default(), exit),
            }
        }
        Ok(ProgramRan { json: None, status, .. }) => {
            ("failed", format!("`{output}`: compare ended early: {status}"), Exit::Failed)
        }
        Err(error) => ("failed", text_of(&error), Exit::Failed),
    };
    (result["status"], result["error"]) = (json!(status), json!(error));
    if status == "missed" {
        result["hint"] = json!("`mqq compare --tensors` shows which tensors lose most; docs/troubleshooting.md");
    }
    exit
}

/// Returns the gates of a model, each with the worst figure of all outputs, if it was measured.
fn gate_figures(entry: &Entry, compared: &Value) -> Vec<Value> {
    let of_gate = |MetricBound { metric, bound }: MetricBound| {
        let outputs = compared["outputs"].as_array().into_iter().flatten();
        let figures = outputs.chain([&compared["task"]]).filter_map(|it| it["metrics"][metric.name].as_f64());
        let value = figures.reduce(|a, b| metric.worse(a, b));
        let mut gate = json!({ "metric": metric, "bound": bound });
        if let Some(value) = value {
            gate["value"] = json!(value);
        }
        gate
    };
    entry.gates.iter().filter_map(|gate| MetricBound::parse(gate).ok()).map(of_gate).collect()
}
