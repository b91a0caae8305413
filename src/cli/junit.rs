//! Results as JUnit XML: a suite for each backend, a case for each model.

use crate::report;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the text of the JUnit file.
pub fn text(results: &[Value]) -> String {
    let mut suites: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for result in results {
        suites.entry(result["backend"].as_str().unwrap_or("calibrate")).or_default().push(result);
    }
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_string();
    text += &format!("<testsuites name=\"mqq calibrate\"{}>\n", counts(results.iter()));
    for (backend, results) in &suites {
        text += &format!("  <testsuite name=\"{}\"{}>\n", escaped(backend), counts(results.iter().copied()));
        results.iter().for_each(|result| text += &case(backend, result));
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

/// Returns the time of the quantization and of the gates, in seconds.
fn seconds(result: &Value) -> f64 {
    [&result["summary"]["seconds"], &result["gates_seconds"]].into_iter().filter_map(Value::as_f64).sum()
}

/// Returns the attributes with the numbers of cases and the time in seconds.
fn counts<'a>(results: impl Iterator<Item = &'a Value> + Clone) -> String {
    let of = |status: &str| results.clone().filter(|result| result["status"] == status).count();
    let (n, time) = (results.clone().count(), results.clone().map(seconds).sum::<f64>());
    let [missed, failed, skipped] = ["missed", "failed", "skipped"].map(of);
    format!(" tests=\"{n}\" failures=\"{missed}\" errors=\"{failed}\" skipped=\"{skipped}\" time=\"{time:.3}\"")
}

fn case(backend: &str, result: &Value) -> String {
    let [backend, model] = [backend, result["model"].as_str().unwrap_or_default()].map(escaped);
    let message = escaped(result["error"].as_str().unwrap_or_default());
    let hint = escaped(result["hint"].as_str().unwrap_or_default());
    let inner = match result["status"].as_str() {
        Some("missed") => format!("<failure message=\"{message}\">{hint}</failure>"),
        Some("failed") => format!("<error message=\"{message}\">{hint}</error>"),
        Some("skipped") => "<skipped message=\"results are up to date\"/>".to_string(),
        _ => {
            let of_gate = |(figure, bound): (String, String)| format!("{figure}, gate {bound}\n");
            let gates: String = report::gates(result).into_iter().map(of_gate).collect();
            if gates.is_empty() { gates } else { format!("<system-out>{}</system-out>", escaped(gates.trim_end())) }
        }
    };
    let time = seconds(result);
    format!("    <testcase classname=\"{backend}\" name=\"{model}\" time=\"{time:.3}\">{inner}</testcase>\n")
}

/// Escapes text for XML. Control characters that XML does not allow are removed.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped += &format!("&#{};", u32::from(c)),
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}
