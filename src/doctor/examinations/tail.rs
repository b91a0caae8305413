//! The examination of detector tails that join values of different units.

use super::{Examined, Facts, NO_DATA};
use crate::check::{Finding, Severity};
use crate::onnx::node::node_name;
use crate::statistics::Extremes;
use std::collections::BTreeMap;

/// Limit on the ratio of two joined ranges: the narrow one then has 16 of 256 levels.
const LEAST_RATIO: f64 = 16.0;

/// Nodes of a detector's tail that join tensors of very different ranges, such as boxes in pixels and scores.
pub(super) fn mixed_units(facts: &Facts) -> Examined {
    let Some(data) = facts.data else { return Examined::Unknown(NO_DATA.to_string()) };
    let ranges: BTreeMap<&str, Extremes> =
        data.tensors.iter().map(|tensor| (tensor.tensor.as_str(), tensor.extremes())).collect();
    let mut found = Vec::new();
    for tail in &facts.placement.tails {
        let is_float = !tail.nodes.iter().any(|node| facts.placement.quantized_nodes.contains(node));
        if facts.scheme.is_some() && is_float {
            continue;
        }
        found.extend(tail.nodes.iter().filter_map(|&node_idx| joined(facts, node_idx, &ranges)));
    }
    Examined::Found(found)
}

fn joined(facts: &Facts, node_idx: usize, ranges: &BTreeMap<&str, Extremes>) -> Option<Finding> {
    let graph = facts.model.graph.as_ref()?;
    let node = graph.node.get(node_idx).filter(|node| node.op_type() == "Concat")?;
    let known = node.input.iter().filter_map(|name| Some((name.as_str(), *ranges.get(name.as_str())?)));
    let known: Vec<(&str, Extremes)> = known.filter(|(_, extremes)| extremes.get().is_some()).collect();
    let width = |(_, extremes): &(&str, Extremes)| extremes.width_with_zero();
    let narrow = known.iter().min_by(|a, b| width(a).total_cmp(&width(b)))?;
    let wide = known.iter().max_by(|a, b| width(a).total_cmp(&width(b)))?;
    if width(wide) < LEAST_RATIO * width(narrow) {
        return None;
    }
    let spelled = |(name, Extremes { min, max }): &(&str, Extremes)| format!("`{name}` ({min:.3} to {max:.3})");
    let found = format!("{} and {}", spelled(wide), spelled(narrow));
    let hint = match facts.scheme {
        Some(scheme) => format!(
            "backend `{}` quantizes `{}`: cut the model with --outputs {}, and run the tail in float",
            scheme.name,
            node_name(node),
            facts.placement.cut_of_tails().join(",")
        ),
        None => {
            "name the backend with --backend: most tables keep the tail float; without such a rule, cut it off with \
                 --outputs"
                .to_string()
        }
    };
    let finding = Finding::new("what it joins", found, "tensors of similar ranges").at(node).hint(&hint);
    Some(Finding { severity: Severity::Warning, ..finding })
}
