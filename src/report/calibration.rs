//! The report of `mqq calibrate` on one model.

use super::{by_operator, channels, count, percent_of_multiply_adds};
use crate::metrics::{self, Measurement, OVERLAP, SQNR};
use crate::mixed::{CurvePoint, LayerSensitivity, Mixed, RESCUE};
use crate::onnx::node::node_name;
use crate::onnx::proto::NodeProto;
use crate::pipeline::{Improved, Outcome};
use crate::place::{FloatCause, FloatNode, SELECTION};
use crate::sidecar::Encoding;
use crate::tune::methods::KEEP_FIRST;
use crate::tune::{Judged, METHODS, MethodOutcome, Tuned};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Counts and results of a run; `summary` in the JSON report.
#[skip_serializing_none]
#[derive(Serialize)]
pub struct Summary {
    /// The table of wider types that replaced the backend's own.
    pub table: Option<String>,
    /// Number of observed samples.
    pub n_samples: usize,
    /// Number of activations with quantization parameters.
    pub n_activations: usize,
    /// Number of quantized weights.
    pub n_weights: usize,
    /// Number of nodes that compute on quantized inputs.
    pub n_quantized_nodes: usize,
    /// Number of nodes with float outputs that are not quantized, fused nodes included.
    pub n_float_nodes: usize,
    /// Number of float nodes that are fused to a quantized node.
    pub n_fused_nodes: usize,
    /// Number of float nodes that are not fused, by operator.
    pub float_operators: BTreeMap<String, usize>,
    /// Share of the multiply-adds that run on integers, 0 to 1.
    pub integer_share: Option<f64>,
    /// Description of the preprocessing of images.
    pub preprocessing: Option<String>,
    /// One line per input whose open dimensions were fixed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub static_shapes: Vec<String>,
    /// Results of tuning methods.
    #[serde(flatten)]
    pub improved: Improved,
    /// The printed warnings.
    pub warnings: Vec<String>,
    /// Wall time, in seconds.
    pub seconds: f64,
}

impl Summary {
    /// Returns the summary of a run that took `seconds`. `backend` is the backend that the user named.
    pub fn new(outcome: &Outcome, backend: &str, seconds: f64) -> Summary {
        Summary {
            table: other_table(outcome, backend).map(str::to_string),
            n_samples: outcome.sidecar.calibration.n_samples,
            n_activations: outcome.plan.activations.len(),
            n_weights: outcome.plan.weights.len(),
            n_quantized_nodes: outcome.placement.quantized_nodes.len(),
            n_float_nodes: outcome.placement.float_nodes.len(),
            n_fused_nodes: outcome.placement.float_nodes.iter().filter(|f| is_fused(f)).count(),
            float_operators: float_operators(outcome),
            integer_share: outcome.integer_share,
            preprocessing: outcome.sidecar.calibration.preprocessing.clone(),
            static_shapes: outcome.fixed.clone(),
            improved: outcome.improved.clone(),
            warnings: outcome.warnings.clone(),
            seconds,
        }
    }
}

/// Returns the number of float nodes that are not fused, by operator.
fn float_operators(outcome: &Outcome) -> BTreeMap<String, usize> {
    let nodes = outcome.prepared.graph.as_ref().map_or(&[][..], |graph| &graph.node);
    let mut counts = BTreeMap::new();
    for float in outcome.placement.float_nodes.iter().filter(|float| !is_fused(float)) {
        *counts.entry(nodes[float.node].op_type().to_string()).or_default() += 1;
    }
    counts
}

/// Returns a line with a subject column and text.
pub fn line(subject: &str, text: impl Display) -> String {
    format!("{subject:<17} {text}")
}

/// Lines that each have a subject.
struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, subject: &str, text: impl Display) {
        self.0.push(line(subject, text));
    }
}

/// Returns the printed lines of a run: its data, quantized nodes and tensors, float nodes, methods and expected
/// figures. `backend` is the backend that the user named, and `effort` the effort in words.
pub fn calibration(outcome: &Outcome, backend: &str, effort: &str) -> Vec<String> {
    let Outcome { prepared, sidecar, placement, plan, .. } = outcome;
    let nodes = prepared.graph.as_ref().map_or(&[][..], |graph| &graph.node);
    let mut lines = Lines(Vec::new());
    lines.add("backend", backend);
    if let (Some(table), Some(reason)) = (other_table(outcome, backend), &outcome.replaced) {
        lines.add("table", format!("{table}, because {reason}"));
    }
    match outcome.sidecar.calibration.n_samples {
        0 => lines.add("calibration data", "none"),
        n_samples => {
            lines.add("effort", effort);
            let n_skipped = outcome.sidecar.calibration.n_skipped;
            let skipped = if n_skipped == 0 { String::new() } else { format!(", {n_skipped} skipped") };
            lines.add("calibration data", format!("{}{skipped}", count(n_samples, "sample")));
        }
    }
    if let Some(from) = &outcome.sidecar.calibration.ranges_from {
        let n = plan.activations.iter().filter(|activation| activation.observer == "imported").count();
        lines.add("given ranges", format!("{} from `{}` ({})", count(n, "tensor"), from.file, from.format));
    }
    if let Some(preprocessing) = &outcome.sidecar.calibration.preprocessing {
        lines.add("preprocessing", preprocessing);
    }
    outcome.fixed.iter().for_each(|fixed| lines.add("static shapes", fixed));
    let quantized_nodes = &placement.quantized_nodes;
    let ops = by_operator(quantized_nodes.iter().map(|&node| nodes[node].op_type()));
    let share =
        outcome.integer_share.map(|share| format!("; {} of the multiply-adds", percent_of_multiply_adds(share)));
    let quantized = with_colon(count(quantized_nodes.len(), "node"), &ops);
    lines.add("quantized", format!("{quantized}{}", share.unwrap_or_default()));
    let (fused, float): (Vec<&FloatNode>, Vec<&FloatNode>) =
        placement.float_nodes.iter().partition(|float| is_fused(float));
    if !fused.is_empty() {
        let ops = by_operator(fused.iter().map(|node| nodes[node.node].op_type()));
        lines.add("fused", with_colon(count(fused.len(), "node"), &ops));
    }
    if !float.is_empty() {
        let head = count(float.len(), "node");
        lines.add("float", with_colon(head, &float_by_cause(&float, nodes, &moves(outcome))));
    }
    let (activations, calibration) = (&sidecar.activation_encodings, &sidecar.calibration);
    let (weights, biases) = sidecar.param_encodings.split_at(plan.weights.len());
    if !activations.is_empty() {
        let observer = &calibration.activation_observer;
        lines.add("activations", format!("{}; observer {observer}", types(activations, false)));
    }
    if !weights.is_empty() {
        let observer = &calibration.weight_observer;
        lines.add("weights", format!("{}; observer {observer}", types(weights, true)));
    }
    if !biases.is_empty() {
        lines.add("biases", types(biases, true));
    }
    if let Some(task) = &outcome.improved.task {
        lines.add("task", task.describe());
    }
    let n_held_out = outcome.improved.tuning.as_ref().map(|tuned| tuned.judged.n_samples);
    for tried in &outcome.improved.methods {
        lines.add(title(&tried.method), describe_outcome(tried, n_held_out));
    }
    if let Some(mixed) = &outcome.improved.mixed_precision {
        lines.add("mixed precision", describe_mixed(mixed));
    }
    if let Some(tuned) = &outcome.improved.tuning {
        let expected = describe_tuned(tuned);
        let has_overlap = expected.contains(OVERLAP.title);
        lines.add("expected", expected);
        if has_overlap {
            lines.add("overlap", "the share of the float result that is kept: 1 is best, 0.9 or more is good");
        }
    } else if activations.iter().any(|encoding| encoding.is_nnie()) {
        lines.add("expected", "not measured: logarithmic codes are not simulated, so no method can be judged");
    } else if calibration.n_samples > 0 && outcome.improved.methods.iter().all(|tried| tried.judged.is_none()) {
        lines.add("expected", "not measured: mqq compare measures the quantized model");
    } else if calibration.n_samples == 0 && activations.is_empty() && !weights.is_empty() {
        lines.add("expected", "not measured: with --data, methods correct what the types of the weights change");
    }
    lines.0
}

/// Returns the table of the run, if it is not `backend`'s own.
fn other_table<'a>(outcome: &'a Outcome, backend: &str) -> Option<&'a str> {
    let table = outcome.sidecar.scheme.backend.as_str();
    (table != backend).then_some(table)
}

fn is_fused(float: &FloatNode) -> bool {
    matches!(float.cause, FloatCause::Fused(_))
}

/// Returns `head: text`, or only `head` if the text is empty.
fn with_colon(head: String, text: &str) -> String {
    if text.is_empty() { head } else { format!("{head}: {text}") }
}

/// Returns the operators of float nodes, grouped by cause.
fn float_by_cause(float: &[&FloatNode], nodes: &[NodeProto], moves: &str) -> String {
    let mut causes: BTreeMap<(u8, String), Vec<&str>> = BTreeMap::new();
    for node in float {
        let cause = match node.cause {
            FloatCause::Rule | FloatCause::Fused(_) => (0, by_rule(node, moves)),
            FloatCause::NotListed => (1, "no row in the backend's table".to_string()),
            FloatCause::Alone => (2, "no rule quantizes its inputs".to_string()),
        };
        causes.entry(cause).or_default().push(nodes[node.node].op_type());
    }
    let causes = causes.into_iter();
    let text = causes.map(|((_, cause), ops)| format!("{} ({cause})", by_operator(ops.into_iter())));
    text.collect::<Vec<_>>().join("; ")
}

/// Returns the names of the methods that gave layers other types.
fn moves(outcome: &Outcome) -> String {
    let moving = outcome
        .improved
        .methods
        .iter()
        .filter(|tried| tried.accepted && [RESCUE, KEEP_FIRST.name].contains(&tried.method.as_str()));
    let titles: Vec<&str> = moving.map(|tried| title(&tried.method)).collect();
    if titles.is_empty() { "mixed precision".to_string() } else { titles.join(" and ") }
}

/// Returns words for the rule that left a node float. `moves` names the methods that gave layers other types.
fn by_rule(node: &FloatNode, moves: &str) -> String {
    match node.rule {
        SELECTION => "by --exclude or --only".to_string(),
        "mixed_precision" => format!("by {moves}"),
        "channel_scales" => "inserted to scale channels".to_string(),
        // Their reasons have the numbers of each node.
        "skip_small_convs" | "skip_small_matmuls" => "too small to gain from integers".to_string(),
        _ => node.reason.clone(),
    }
}

/// Returns the number of tensors by type; with `granularity`, types differ by per-tensor, per-channel and block scales.
fn types(encodings: &[Encoding], granularity: bool) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for encoding in encodings {
        let name = type_name(encoding, granularity);
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, n)) => *n += 1,
            None => counts.push((name, 1)),
        }
    }
    let head = count(encodings.len(), "tensor");
    match counts.as_slice() {
        [(name, _)] => format!("{head}, {name}"),
        counts => {
            let counts = counts.iter().map(|(name, n)| format!("{n} {name}"));
            format!("{head}: {}", counts.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns text such as `int8 symmetric per channel`.
fn type_name(encoding: &Encoding, granularity: bool) -> String {
    let Encoding { output_dtype, bits, symmetric, axis, block_size, .. } = encoding;
    let width = output_dtype.trim_start_matches(|c: char| !c.is_ascii_digit());
    let narrower = if width == bits.to_string() { String::new() } else { format!(" ({bits} bits)") };
    let symmetry = if *symmetric { "symmetric" } else { "asymmetric" };
    let per = match (granularity, block_size, axis) {
        (false, ..) => String::new(),
        (true, Some(n), _) => format!(" per block of {n}"),
        (true, None, Some(_)) => " per channel".to_string(),
        (true, None, None) => " per tensor".to_string(),
    };
    format!("{output_dtype}{narrower} {symmetry}{per}")
}

/// Returns the title of a method.
pub(super) fn title(name: &str) -> &'static str {
    let other = if name == RESCUE { RESCUE } else { "all methods" };
    METHODS.iter().find(|method| method.name == name).map_or(other, |method| method.title)
}

/// Returns text such as `percentile:99.99 rejected: no gain; overlap 0.918 -> 0.911 (± 0.004), SQNR 23.00 -> 22.41 dB
/// on 16 held-out samples (1.20 s)`. The samples are called held-out if there are `n_held_out` of them: changes before
/// tuning are evaluated on more samples, some of which tuning learns from.
fn describe_outcome(outcome: &MethodOutcome, n_held_out: Option<usize>) -> String {
    let MethodOutcome { variant, reason, judged, details, seconds, .. } = outcome;
    let variant = variant.as_ref().map(|variant| format!("{variant} ")).unwrap_or_default();
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let mut parts = vec![format!("{variant}{}{reason}", outcome.verdict())];
    parts.extend(judged.as_ref().map(|judged| describe_figures(judged, n_held_out)));
    parts.extend(details.iter().cloned());
    format!("{} ({seconds:.2} s)", parts.join("; "))
}

/// Returns text such as `overlap 0.818 -> 0.918 (± 0.004), SQNR 15.40 -> 23.00 dB on 16 held-out samples`.
fn describe_figures(judged: &Judged, n_held_out: Option<usize>) -> String {
    let Judged { metric, figures, deviation, task, sqnr_db: [db_before, db_after], n_samples } = judged;
    let mut parts: Vec<String> = task.iter().map(|of| describe_change(&of.metric, of.figures, of.deviation)).collect();
    parts.push(describe_change(metric, *figures, *deviation));
    if *metric != SQNR.name {
        parts.push(format!("SQNR {db_before:.2} -> {db_after:.2} dB"));
    }
    let unit = if Some(*n_samples) == n_held_out { "held-out sample" } else { "sample" };
    format!("{} on {}", parts.join(", "), count(*n_samples, unit))
}

/// Returns text such as `overlap 0.818 -> 0.918 (± 0.004)`.
fn describe_change(metric: &str, [before, after]: [f64; 2], deviation: f64) -> String {
    let metric = metrics::by_name(metric).unwrap_or(SQNR);
    let decimals = metric.scale.decimals;
    format!("{} {before:.decimals$} -> {} (± {deviation:.decimals$})", metric.title, metric.with_unit(after))
}

fn describe_mixed(mixed: &Mixed) -> String {
    let goal = mixed.goal.spelled();
    format!("{goal}: {} on {} ({:.2} s)", mixed.reached(), count(mixed.n_held_out, "sample"), mixed.seconds)
}

fn describe_tuned(tuned: &Tuned) -> String {
    let of = |n: usize, what: &str| (n > 0).then(|| count(n, what));
    let biases = match tuned.n_biases {
        0 => None,
        1 => Some("1 bias".to_string()),
        n => Some(format!("{n} biases")),
    };
    let changed = [of(tuned.n_weights, "weight"), of(tuned.n_ranges, "range"), biases];
    let changed: Vec<String> = changed.into_iter().flatten().collect();
    let changed = match changed.is_empty() {
        true => String::new(),
        false => format!("; {} learned from {}", changed.join(" and "), count(tuned.n_samples, "sample")),
    };
    let Judged { metric, figures, task, sqnr_db, n_samples, .. } = &tuned.judged;
    let figure = |metric: &str, figure: f64| describe_figure(metric, figure, &tuned.measured);
    let lowest = lowest_output(metric, figures[1], &tuned.measured);
    let mut parts: Vec<String> = task.iter().map(|of| figure(&of.metric, of.figures[1])).collect();
    parts.push(format!("{}{}", figure(metric, figures[1]), lowest.unwrap_or_default()));
    if *metric != SQNR.name {
        parts.push(figure(SQNR.name, sqnr_db[1]));
    }
    format!("{} on {}{changed}", parts.join(", "), count(*n_samples, "held-out sample"))
}

/// Returns text such as `, lowest 0.086 at output `logits``, where the lowest output is far below the mean of several, or
/// loses much more than the mean, as logits beside the many cache tensors of a decoder do.
fn lowest_output(metric: &str, mean: f64, measured: &Measurement) -> Option<String> {
    const FAR: f64 = 0.05;
    const MUCH: f64 = 0.01;
    const TIMES: f64 = 3.0;
    let metric = metrics::by_name(metric).ok().filter(|metric| metric.scale.best == OVERLAP.scale.best)?;
    let (lowest, output) = measured.lowest_output(metric)?;
    let is_far = lowest < mean - FAR || lowest < mean - MUCH && 1.0 - lowest > TIMES * (1.0 - mean);
    is_far.then(|| format!(", lowest {} at output `{output}`", metric.with_unit(lowest)))
}

/// Returns text such as `overlap 0.918 (± 0.004)`, with the standard deviation over the measured samples.
fn describe_figure(metric: &str, figure: f64, measured: &Measurement) -> String {
    let metric = metrics::by_name(metric).unwrap_or(SQNR);
    let deviation = measured.deviation(metric).map(|deviation| format!(" (± {deviation:.*})", metric.scale.decimals));
    format!("{} {}{}", metric.title, metric.with_unit(figure), deviation.unwrap_or_default())
}

/// Returns the additional lines of `--verbose`: changes of the float model, float nodes with the reason, notes of
/// methods, channel groups of outputs, and the sensitivities and steps of mixed precision.
pub fn details(outcome: &Outcome) -> Vec<String> {
    let sidecar = &outcome.sidecar;
    let prepared = sidecar.model.prepared.iter().map(|change| format!("prepared: {change}"));
    let nodes = outcome.prepared.graph.as_ref().map_or(&[][..], |graph| &graph.node);
    let floats = outcome.placement.float_nodes.iter().map(|float| {
        let (node, what) = (&nodes[float.node], if is_fused(float) { "fused" } else { "float" });
        format!("{what}: {} `{}`: {}", node.op_type(), node_name(node), float.reason)
    });
    let notes = outcome
        .improved
        .methods
        .iter()
        .flat_map(|tried| tried.notes.iter().map(|note| format!("{}: {note}", title(&tried.method))));
    let mixed = outcome.improved.mixed_precision.as_ref();
    let curve = mixed.iter().flat_map(|mixed| &mixed.curve);
    let curve = curve.map(|point| format!("mixed precision: {}", CurvePoint::describe(point)));
    let sensitivity = mixed.iter().flat_map(|mixed| &mixed.sensitivity);
    let sensitivity = sensitivity.map(|layer| format!("sensitivity: {}", LayerSensitivity::describe(layer)));
    let outputs = outcome.improved.outputs.iter().map(|groups| format!("output {}", channels(groups)));
    prepared.chain(floats).chain(notes).chain(outputs).chain(sensitivity).chain(curve).collect()
}
