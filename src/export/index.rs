//! The input of a format: the sidecar, indexed, and the model.

use super::Format;
use crate::diag::WithHint;
use crate::onnx::proto::ModelProto;
use crate::sidecar::{Encoding, NodeRecord, Sidecar};
use anyhow::{Result, anyhow, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// Operators whose input gets the quantization parameters of the next quantized tensor, as in MQBench's
/// `post_process_clip_ranges` (ModelTC/MQBench, mqbench/deploy/deploy_linear.py).
const PASSED_THROUGH: [&str; 3] = ["Flatten", "Resize", "Reshape"];

/// The sidecar with indices over its graph, and the prepared model if it is given.
pub struct SidecarIndex<'a> {
    /// The sidecar.
    pub sidecar: &'a Sidecar,
    model: Option<&'a ModelProto>,
    consumers: BTreeMap<&'a str, Vec<&'a NodeRecord>>,
    producers: BTreeMap<&'a str, &'a NodeRecord>,
    activations: BTreeMap<&'a str, &'a Encoding>,
    /// The quantized weights, by the name of the node that reads them.
    weights: BTreeMap<&'a str, Vec<&'a Encoding>>,
}

impl<'a> SidecarIndex<'a> {
    /// Indexes a sidecar. `model` is the prepared float model that it was made for.
    pub fn new(sidecar: &'a Sidecar, model: Option<&'a ModelProto>) -> SidecarIndex<'a> {
        let mut consumers: BTreeMap<&str, Vec<&NodeRecord>> = BTreeMap::new();
        let mut producers = BTreeMap::new();
        for node in &sidecar.graph.nodes {
            for input in node.inputs.iter().filter(|input| !input.is_empty()) {
                consumers.entry(input).or_default().push(node);
            }
            for output in node.outputs.iter().filter(|output| !output.is_empty()) {
                producers.insert(output.as_str(), node);
            }
        }
        let activations = sidecar.activation_encodings.iter().map(named).collect();
        let mut weights: BTreeMap<&str, Vec<&Encoding>> = BTreeMap::new();
        for encoding in sidecar.param_encodings.iter().filter(|encoding| !encoding.is_int32()) {
            encoding.consumers.iter().for_each(|node| weights.entry(node).or_default().push(encoding));
        }
        SidecarIndex { sidecar, model, consumers, producers, activations, weights }
    }

    /// Fails for grids that `format` cannot express: NNIE's codes, and scales per block.
    ///
    /// # Errors
    /// If there is such a grid; the message names the tensor.
    pub fn ensure_expressible_in(&self, format: &Format) -> Result<()> {
        for encoding in self.activations().chain(&self.sidecar.param_encodings) {
            ensure!(
                !encoding.is_nnie() || format.holds_nnie_codes,
                "tensor `{}`: is in NNIE's logarithmic codes, expected integers",
                encoding.name
            );
            ensure!(
                encoding.block_size.is_none() || format.holds_blocks,
                "tensor `{}`: has a scale per block of {} values, expected one for the tensor or per channel",
                encoding.name,
                encoding.block_size.unwrap_or(0)
            );
        }
        Ok(())
    }

    /// The prepared float model.
    ///
    /// # Errors
    /// If there is no model.
    pub fn model(&self) -> Result<&'a ModelProto> {
        self.model.ok_or_else(|| anyhow!("needs the float model too").hint("pass it with --model"))
    }

    /// Returns the quantized activations, in the order of the graph.
    pub fn activations(&self) -> impl Iterator<Item = &'a Encoding> {
        self.sidecar.activation_encodings.iter()
    }

    /// Returns the quantized weights and biases, except int32 biases.
    pub fn weights(&self) -> impl Iterator<Item = &'a Encoding> {
        self.sidecar.param_encodings.iter().filter(|encoding| !encoding.is_int32())
    }

    /// Returns the nodes in the order of the graph.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = &'a NodeRecord> {
        self.sidecar.graph.nodes.iter()
    }

    /// Returns the parameters of an activation; `None` if the tensor is float.
    pub fn activation(&self, tensor: &str) -> Option<&'a Encoding> {
        self.activations.get(tensor).copied()
    }

    /// Nodes that read `tensor`.
    pub fn consumers(&self, tensor: &str) -> &[&'a NodeRecord] {
        self.consumers.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// The node that produces `tensor`.
    pub fn producer(&self, tensor: &str) -> Option<&'a NodeRecord> {
        self.producers.get(tensor).copied()
    }

    /// The quantized weight that `node` reads.
    pub fn weight_of(&self, node: &NodeRecord) -> Option<&'a Encoding> {
        let mut weights = self.weights.get(node.name.as_str())?.iter().copied();
        weights.find(|encoding| node.inputs.iter().take(2).any(|input| *input == encoding.name))
    }

    /// Returns the parameters of a node's output. If that is float, they are those of the Relu or Clip that alone reads
    /// it.
    pub fn output_of(&self, node: &NodeRecord) -> Option<&'a Encoding> {
        let output = node.outputs.first()?;
        if let Some(encoding) = self.activation(output) {
            return Some(encoding);
        }
        match self.consumers(output) {
            [only] if matches!(only.op_type.as_str(), "Relu" | "Clip") => self.activation(only.outputs.first()?),
            _ => None,
        }
    }

    /// Returns the names of activations with their parameters. After the activations come float inputs of Flatten,
    /// Resize and Reshape, with the parameters of the nearest quantized tensor that follows.
    pub fn with_passed_through(&self) -> Vec<(&'a str, &'a Encoding)> {
        let mut all: Vec<(&str, &Encoding)> = self.activations().map(named).collect();
        let mut known: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
        for node in self.nodes().filter(|n| PASSED_THROUGH.contains(&n.op_type.as_str())) {
            let Some(input) = node.inputs.first() else { continue };
            if let Some(encoding) = self.nearest(node)
                && known.insert(input)
            {
                all.push((input, encoding));
            }
        }
        all
    }

    fn nearest(&self, node: &'a NodeRecord) -> Option<&'a Encoding> {
        let mut at = node;
        for _ in 0..self.sidecar.graph.nodes.len() {
            if let Some(encoding) = self.activation(at.inputs.first()?) {
                return Some(encoding);
            }
            if !PASSED_THROUGH.contains(&at.op_type.as_str()) {
                return None;
            }
            at = *self.consumers(at.outputs.first()?).first()?;
        }
        None
    }
}

/// Returns an encoding with the name of its tensor.
pub(super) fn named(encoding: &Encoding) -> (&str, &Encoding) {
    (&encoding.name, encoding)
}

/// JSON with a final newline.
pub(super) fn json(value: &serde_json::Value) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(text)
}

/// Returns `name`, or fails if it would break a format of lines and words.
pub(super) fn word(name: &str) -> Result<&str> {
    ensure!(
        !name.is_empty() && !name.contains(|c: char| c.is_whitespace()),
        "tensor or node `{}`: its name has white space, but the format separates fields by white space",
        name.escape_debug()
    );
    Ok(name)
}

/// A map that refuses two values for one name.
#[derive(Default)]
pub(super) struct UniqueMap {
    map: serde_json::Map<String, serde_json::Value>,
    left_out: BTreeSet<String>,
}

impl UniqueMap {
    /// Returns a JSON object with a value for each encoding, by the name that it is given. Fails if `value` fails, or
    /// two values have one name.
    pub(super) fn object<'a>(
        named: impl IntoIterator<Item = (&'a str, &'a Encoding)>,
        value: impl Fn(&Encoding) -> Result<serde_json::Value>,
    ) -> Result<serde_json::Value> {
        let mut map = UniqueMap::default();
        named.into_iter().try_for_each(|(name, encoding)| map.add(name, value(encoding)?))?;
        Ok(map.into_value())
    }

    pub(super) fn add(&mut self, name: &str, value: serde_json::Value) -> Result<()> {
        match self.map.get(name) {
            Some(earlier) if *earlier != value => {
                let error =
                    anyhow!("tensor `{name}`: has two scales and zero points, but the format has one per tensor");
                return Err(error.hint("if the table names the format under `emit`, leave it out with --set emit=null"));
            }
            _ => self.map.insert(name.to_string(), value),
        };
        Ok(())
    }

    /// Adds a value of a constant. A constant whose readers give it different values is left out.
    pub(super) fn add_constant(&mut self, name: &str, value: serde_json::Value) {
        if self.map.get(name).is_some_and(|earlier| *earlier != value) {
            self.map.shift_remove(name);
            self.left_out.insert(name.to_string());
        } else if !self.left_out.contains(name) {
            self.map.insert(name.to_string(), value);
        }
    }

    /// Returns the values in the order of insertion.
    pub(super) fn into_values(self) -> impl Iterator<Item = serde_json::Value> {
        self.map.into_iter().map(|(_, value)| value)
    }

    pub(super) fn into_value(self) -> serde_json::Value {
        serde_json::Value::Object(self.map)
    }
}
