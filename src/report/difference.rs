//! Lines of `mqq diff`.

use super::count;
use crate::difference::{ByOperator, Differences, MovedScale, OneSided, OtherType};

/// Returns the lines: a summary, then at most `limit` names of each kind of difference.
pub fn difference_lines(differences: &Differences, limit: usize) -> Vec<String> {
    let Differences { n_same, quantized_only, types, scales, values, has_values, tensors_only, nodes_only, operators } =
        differences;
    let same = count(*n_same, "tensor");
    if differences.is_empty() {
        let values = match *has_values {
            true => "",
            false => "; the values of weights and biases are not compared, because a sidecar has none",
        };
        return vec![format!("no difference: {same} with the same parameters{values}")];
    }
    let mut lines = vec![format!("{same} with the same parameters")];
    let mut add = |title: String, names: Vec<String>| {
        if names.is_empty() {
            return;
        }
        lines.push(title);
        let n_more = names.len().saturating_sub(limit);
        lines.extend(names.into_iter().take(limit).map(|name| format!("  {name}")));
        if n_more > 0 {
            lines.push(format!("  … {n_more} more"));
        }
    };
    let other = |other: &OtherType| format!("{}: {} -> {}", other.tensor, other.types[0], other.types[1]);
    add(format!("other type: {}", count(types.len(), "tensor")), types.iter().map(other).collect());
    add(format!("moved: {}", count(scales.len(), "tensor")), scales.iter().map(moved).collect());
    add(format!("other values: {}", count(values.len(), "tensor")), values.clone());
    let mut both = |what: &str, names: &OneSided<String>, noun: &str| {
        for (model, names) in [("the first", &names.a), ("the second", &names.b)] {
            add(format!("{what} {model} only: {}", count(names.len(), noun)), names.clone());
        }
    };
    both("quantized in", quantized_only, "node");
    both("quantized in", tensors_only, "tensor");
    both("in", nodes_only, "node");
    let differs = |of: &&ByOperator| of.n_nodes[0] != of.n_nodes[1] || of.n_quantized[0] != of.n_quantized[1];
    let spelled = |of: &ByOperator| {
        let [a, b] = [0, 1].map(|i| format!("{} of {}", of.n_quantized[i], of.n_nodes[i]));
        format!("{}: {a} -> {b}", of.op_type)
    };
    let operators: Vec<String> = operators.iter().filter(differs).map(spelled).collect();
    add("quantized nodes by operator".to_string(), operators);
    lines
}

fn moved(moved: &MovedScale) -> String {
    let [scale_a, scale_b] = moved.scales;
    let [zero_a, zero_b] = moved.zero_points;
    let zero = if zero_a == zero_b { String::new() } else { format!(", zero point {zero_a} -> {zero_b}") };
    let [n_moved, n] = moved.n_channels;
    let channels = if n > 1 { format!(", {n_moved} of {n} channels") } else { String::new() };
    format!("{:.3} x  {}  scale {scale_a:.4e} -> {scale_b:.4e}{zero}{channels}", moved.factor, moved.tensor)
}
