//! The nodes of a run's network, from its sidecar: the computation and error of each, and the layers that cost most.

use crate::metrics::{self, SQNR};
use crate::mixed::LayerSensitivity;
use crate::sidecar::{FloatNodeRecord, Sidecar};
use crate::tune::TensorError;
use std::collections::BTreeMap;

/// Maximum number of layers that advice names.
const MAX_NAMED: usize = 3;

/// The sidecar, with the computation and error of each node.
pub(super) struct NodeFacts<'a> {
    /// The sidecar.
    pub(super) sidecar: &'a Sidecar,
    /// By node: `integer`, `float` or `fused`, and the type or reason.
    pub(super) computed: Vec<(&'static str, &'a str)>,
    /// Errors by tensor.
    errors: BTreeMap<&'a str, &'a TensorError>,
}

impl<'a> NodeFacts<'a> {
    /// Reads the facts of all nodes of the prepared model.
    pub(super) fn new(sidecar: &'a Sidecar) -> NodeFacts<'a> {
        let how = |float: &FloatNodeRecord| if float.fused_into.is_some() { "fused" } else { "float" };
        let of_float = sidecar.float_nodes.iter();
        let float: BTreeMap<&str, (&str, &str)> =
            of_float.map(|float| (float.node.as_str(), (how(float), float.reason.as_str()))).collect();
        let encodings = sidecar.activation_encodings.iter().chain(&sidecar.param_encodings);
        let mut integer: BTreeMap<&str, &str> = BTreeMap::new();
        for encoding in encodings {
            encoding.consumers.iter().for_each(|node| {
                integer.entry(node).or_insert(&encoding.output_dtype);
            });
        }
        let of_node = |name: &str| match (float.get(name), integer.get(name)) {
            (Some(&float), _) => float,
            (None, Some(&dtype)) => ("integer", dtype),
            (None, None) => ("fused", "removed or constant"),
        };
        let errors = sidecar.tensor_errors.iter().flat_map(|errors| &errors.tensors);
        NodeFacts {
            sidecar,
            computed: sidecar.graph.nodes.iter().map(|node| of_node(&node.name)).collect(),
            errors: errors.map(|error| (error.tensor.as_str(), error)).collect(),
        }
    }

    /// Returns the SQNR in dB of a node's first output with one.
    pub(super) fn error(&self, node_idx: usize) -> Option<f64> {
        self.first_error(node_idx).map(|error| error.sqnr_db)
    }

    /// Returns the SQNR in dB of the same output for the node alone: it reads the float network's tensors, quantized.
    pub(super) fn added_error(&self, node_idx: usize) -> Option<f64> {
        self.first_error(node_idx)?.added_sqnr_db
    }

    fn first_error(&self, node_idx: usize) -> Option<&'a TensorError> {
        let outputs = &self.sidecar.graph.nodes[node_idx].outputs;
        outputs.iter().find_map(|output| self.errors.get(output.as_str()).copied())
    }

    /// Returns the integer nodes that cost most in words, from the sensitivity of layers if it was measured, else from
    /// the errors that nodes add.
    pub(super) fn worst_layers(&self) -> Option<String> {
        let nodes = self.sidecar.graph.nodes.iter().enumerate();
        let integer = nodes.filter(|(node_idx, _)| self.computed[*node_idx].0 == "integer");
        let integer: BTreeMap<&str, usize> = integer.map(|(node_idx, node)| (node.name.as_str(), node_idx)).collect();
        let layers = alone_quantized(self.sidecar).iter().map(|layer| (layer.layer.as_str(), layer.sqnr_db));
        let mut worst: Vec<(&str, f64)> = layers.filter(|(name, _)| integer.contains_key(name)).collect();
        let mut figure = "with only one layer quantized, the SQNR of the outputs";
        if worst.is_empty() {
            let added = integer.iter().filter_map(|(name, node_idx)| Some((*name, self.added_error(*node_idx)?)));
            worst = added.collect();
            figure = "the SQNR of a node alone";
        }
        worst.retain(|(_, sqnr_db)| *sqnr_db < metrics::MAX_DB);
        worst.sort_by(|a, b| a.1.total_cmp(&b.1));
        let named = worst.iter().take(MAX_NAMED).map(|(name, db)| format!("`{name}` ({})", SQNR.with_unit(*db)));
        let named = named.collect::<Vec<_>>().join(", ");
        (!named.is_empty()).then(|| format!("{figure} is lowest for {named}"))
    }

    /// Returns the number of nodes of a computation: `integer`, `float` or `fused`.
    pub(super) fn n_computed(&self, how: &str) -> usize {
        self.computed.iter().filter(|(computed, _)| *computed == how).count()
    }
}

/// Returns the layers with the SQNR of the outputs where each alone is quantized; empty if it was not measured.
pub(super) fn alone_quantized(sidecar: &Sidecar) -> &[LayerSensitivity] {
    let of_goal = sidecar.mixed_precision.as_ref().map(|mixed| &mixed.sensitivity);
    of_goal.unwrap_or(&sidecar.sensitivity)
}
