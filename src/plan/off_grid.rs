//! Tensors with values that no grid holds.

use super::{PlannedActivation, PlannedWeight, QuantPlan};
use crate::diag::count;
use crate::onnx::graph::{Edge, GraphIndex};
use crate::onnx::proto::GraphProto;
use crate::onnx::tensor;
use crate::place::{OffGrid, uses_at_poles};
use crate::scheme::Scheme;
use crate::statistics::TensorStatistics;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the tensors of a plan with values that their grids do not hold. `statistics` has one entry per activation.
pub fn off_grid(graph: &GraphProto, plan: &QuantPlan, statistics: &[impl Borrow<TensorStatistics>]) -> OffGrid {
    let at_poles = uses_at_poles(&GraphIndex::new(graph), graph);
    // The lowest epsilon of the uses at poles.
    let pole = |edges: &[Edge]| edges.iter().filter_map(|edge| at_poles.get(edge).copied()).reduce(f64::min);
    let mut found = OffGrid::default();
    for (planned, statistic) in plan.activations.iter().zip(statistics) {
        let (tensor, statistic) = (&planned.quantizer.tensor, statistic.borrow());
        // The values of the mask of a Softmax are raised to the grid.
        if planned.n_masked == 0 && statistic.histogram.n_minus_infinity() > 0 {
            found.infinite.insert(tensor.clone());
        }
        if pole(&planned.quantizer.edges).is_some_and(|epsilon| loses_values_near_zero(planned, statistic, epsilon)) {
            found.near_zero.insert(tensor.clone());
        }
    }
    let mut weights = plan.weights.iter().filter(|weight| pole(&weight.quantizer.edges).is_some()).peekable();
    if weights.peek().is_some() {
        let initializers: BTreeMap<&str, _> = graph.initializer.iter().map(|tensor| (tensor.name(), tensor)).collect();
        let is_lost = |weight: &&PlannedWeight| {
            let values = initializers.get(weight.quantizer.tensor.as_str()).and_then(|it| tensor::f32_values(it).ok());
            let values = values.unwrap_or_default();
            values.iter().zip(weight.dequantized()).any(|(value, on_grid)| *value != 0.0 && on_grid == 0.0)
        };
        found.near_zero.extend(weights.filter(is_lost).map(|weight| weight.quantizer.tensor.clone()));
    }
    found
}

/// Returns a warning about the first tensor with values that its grid does not hold, for a target without float
/// operators.
pub fn warning(found: &OffGrid, scheme: &Scheme) -> Option<String> {
    let others = |n: usize| if n > 1 { format!(" (and {})", count(n - 1, "more tensor")) } else { String::new() };
    let of = |tensors: &BTreeSet<String>, why: &str, way_out: &str| {
        Some(format!("tensor `{}`{}: {why}; {way_out}", tensors.first()?, others(tensors.len())))
    };
    let infinite = "has minus infinity, which no grid holds";
    of(&found.infinite, infinite, "export the float model with a finite number in its place").or_else(|| {
        let why =
            "has values within a step of 0, which its grid may round to 0, where a result is infinite or too large";
        let way_out = match &scheme.wider {
            Some(wider) => format!("--backend {wider} has 16 bits, so a smaller step"),
            None => "export the float model with a larger epsilon".to_string(),
        };
        of(&found.near_zero, why, &way_out)
    })
}

/// Whether values above `epsilon` and within a step of 0 were observed. Without a histogram, whether the range has such
/// values.
fn loses_values_near_zero(planned: &PlannedActivation, statistic: &TensorStatistics, epsilon: f64) -> bool {
    // A grid rounds values within half a step to 0. A whole step is tested, because other samples may have lower
    // values.
    let is_near = |value: f64| planned.params.fake_quantize((value / 2.0) as f32) == 0.0;
    let mut bins = statistic.histogram.bins().peekable();
    match bins.peek() {
        Some(_) => bins.any(|bin| bin.inner.abs() > epsilon && is_near(bin.inner)),
        None => is_near(planned.range.min.max(0.0)) || is_near(planned.range.max.min(0.0)),
    }
}
