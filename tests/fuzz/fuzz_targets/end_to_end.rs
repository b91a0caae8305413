//! Small graphs of any operators through a whole run; the result keeps the rules of ONNX and of the target.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqq::check::{Severity, findings};
use mqq::onnx::{check_topology, check_valid};
use mqq::tune::Effort;
use mqq_fuzz::graphs::Graph;
use mqq_fuzz::quantize::{input_len, quantize_with};
use mqq_fuzz::{holds, table};

fuzz_target!(|graph: Graph| holds(|| {
    let scheme = table(graph.table.into());
    let model = graph.model();
    let n = input_len(&model);
    let samples = graph.samples.map(|fill| fill.values(n, 1, 3));
    let outcome = quantize_with(&model, scheme.clone(), &samples, |request| {
        let effort = if graph.effort.is_multiple_of(4) { "1" } else { "0" };
        request.tune.effort = Effort::of(effort).expect("an effort");
    })?;
    let json = outcome.sidecar.to_json();
    assert_eq!(mqq::sidecar::Sidecar::from_json(&json)?.to_json(), json, "the sidecar is read back");
    let quantized = outcome.model.into_model();
    check_topology(&quantized).expect("a sound graph");
    check_valid(&quantized).expect("a valid model");
    // A model of which nothing is quantized, and rules about the float model, are warnings of the run.
    let about_float = |rule: &str| {
        rule == "quantized"
            || mqq::check::CHECKS.iter().any(|check| check.name == rule && check.is_about_the_float_model)
    };
    let broken = findings(&quantized, scheme);
    let broken = broken.iter().find(|finding| finding.severity == Severity::Error && !about_float(finding.rule));
    assert!(broken.is_none(), "{}", broken.map(ToString::to_string).unwrap_or_default());
    Ok(())
}));
