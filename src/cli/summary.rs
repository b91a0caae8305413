//! What `mqq calibrate` says of one model, as JSON and as text.

use super::calibrate::Paths;
use super::mixed;
use super::print::out;
use crate::mixed::Mixed;
use crate::pipeline::Request;
use crate::sidecar::Sidecar;
use crate::tune::{Equalized, ObserverChoice, Step, TriedObserver, Tuned};
use serde::Serialize;

/// What was done with a model; `summary` of its report.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub n_samples: usize,
    pub n_activations: usize,
    pub n_weights: usize,
    pub n_quantized_nodes: usize,
    pub n_float_nodes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preprocessing: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub static_shapes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equalized: Option<Equalized>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observer: Option<ObserverChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixed_precision: Option<Mixed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuned: Option<Tuned>,
    pub warnings: Vec<String>,
    pub seconds: f64,
}

/// Prints it, as far as `--verbose` asks for.
pub fn print_summary(
    request: &Request,
    paths: &Paths,
    summary: &Summary,
    sidecar: &Sidecar,
    verbose: bool,
) {
    out!("{} -> {}", paths.model.display(), paths.output.display());
    out!("  backend    {}", request.scheme.name);
    out!(
        "  quantized  {} nodes, {} activations ({}), {} weights ({}); {} nodes stay float",
        summary.n_quantized_nodes,
        summary.n_activations,
        sidecar.calibration.activation_observer,
        summary.n_weights,
        request.observers.weight.spelling,
        summary.n_float_nodes
    );
    out!("  data       {} samples", summary.n_samples);
    if let Some(preprocessing) = &summary.preprocessing {
        out!("  input      {preprocessing}");
    }
    summary.static_shapes.iter().for_each(|fixed| out!("  shapes     {fixed}"));
    if let Some(equalized) = &summary.equalized {
        out!("  equalized  {}", describe_equalized(equalized));
    }
    if let Some(observer) = &summary.observer {
        out!("  observer   {}", describe_observer(observer));
    }
    if let Some(mixed) = &summary.mixed_precision {
        let lines = mixed::describe(mixed);
        for (i, line) in lines.iter().enumerate() {
            out!("  {:<10} {line}", if i == 0 { "mixed" } else { "" });
        }
    }
    if let Some(tuned) = &summary.tuned {
        out!("  tuned      {}", describe(tuned));
        tuned.steps.iter().for_each(|step| out!("    {}", describe_step(step)));
    }
    out!("  sidecar    {}", paths.sidecar.display());
    for (format, path) in &paths.emitted {
        out!("  {:<10} {}", format.name, path.display());
    }
    out!("  time       {:.2} s", summary.seconds);
    if verbose {
        sidecar.details().iter().for_each(|line| out!("  {line}"));
    }
}

fn describe_equalized(equalized: &Equalized) -> String {
    let Equalized {
        n_samples, n_judges, n_spaces, n_declined, gain_db, chance_db, seconds, ..
    } = equalized;
    if *n_spaces == 0 {
        return format!("nothing; {n_declined} layers' inputs were left alone ({seconds:.2} s)");
    }
    let [before, after] = equalized.sqnr_db;
    let outcome = if equalized.kept { "kept" } else { "undone" };
    format!(
        "{n_spaces} groups of tensors on {n_samples} samples, {n_declined} left alone; on {n_judges} {before:.2} -> {after:.2} dB, gain {gain_db:+.2} ± {chance_db:.2} dB: {outcome} ({seconds:.2} s)"
    )
}

fn describe_observer(choice: &ObserverChoice) -> String {
    let ObserverChoice { table, n_judges, tried, seconds, .. } = choice;
    let tried = tried.iter().map(|tried| {
        let TriedObserver { observer, gain_db, chance_db } = tried;
        let outcome = choice.outcome(tried);
        format!("{observer} instead of {table}, gain {gain_db:+.2} ± {chance_db:.2} dB: {outcome}")
    });
    let tried: Vec<String> = tried.collect();
    format!("on {n_judges} samples {} ({seconds:.2} s)", tried.join("; "))
}

fn describe(tuned: &Tuned) -> String {
    let [before, after] = tuned.sqnr_db;
    let of = |n: usize, what: &str| (n > 0).then(|| format!("{n} {what}"));
    let changed = [
        of(tuned.n_weights, "weights"),
        of(tuned.n_biases, "biases"),
        of(tuned.n_ranges, "ranges"),
    ];
    let changed: Vec<String> = changed.into_iter().flatten().collect();
    format!(
        "{} on {} samples; on {} others {before:.2} -> {after:.2} dB, gain {:+.2} dB ({:.2} s)",
        if changed.is_empty() { "nothing".to_string() } else { changed.join(", ") },
        tuned.n_samples,
        tuned.n_held_back,
        tuned.gain_db,
        tuned.seconds
    )
}

fn describe_step(step: &Step) -> String {
    let outcome = if step.kept { "kept" } else { "undone" };
    let name = step.method.name;
    format!("{name:<8} {:+.2} dB, {outcome} ({:.2} s)", step.gain_db, step.seconds)
}
