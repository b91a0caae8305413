//! Writes the plan into the graph.
//!
//! In: a prepared model and a [`QuantPlan`]. Out: a [`QuantizedModel`] with QuantizeLinear and DequantizeLinear nodes.
//! Where ONNX has no operator for a grid (NNIE's codes), weights are fake-quantized floats, and activations stay float.
//! Where the table asks for it, integer products replace MatMul and Gemm. This module uses no statistics and decides
//! nothing. Inserted names: `{tensor}_QuantizeLinear`, `{tensor}_DequantizeLinear`, `{tensor}_scale`,
//! `{tensor}_zero_point`, with `_1` appended where a name is taken.

mod product;

use crate::onnx::data_type::{DataType, type_number};
use crate::onnx::graph::{self, Edge};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use crate::onnx::tensor;
use crate::plan::{PlannedActivation, PlannedBias, PlannedWeight, QuantPlan};
use crate::quant::{Codes, QuantParams};
use crate::scheme::{QType, WeightStorage};
use anyhow::{Context, Result, bail};
use product::{CONTRIB, StoredProduct};
use std::collections::{BTreeMap, BTreeSet};

/// A model with a plan written into it. Only [`rewrite`] makes one.
pub struct QuantizedModel(ModelProto);

impl QuantizedModel {
    /// Returns the model.
    pub fn into_model(self) -> ModelProto {
        self.0
    }

    /// Returns the model after `change`, which must keep the values that the model computes.
    ///
    /// # Errors
    /// If the change fails.
    pub fn with_edit(mut self, change: impl FnOnce(&mut ModelProto) -> Result<()>) -> Result<QuantizedModel> {
        change(&mut self.0)?;
        Ok(self)
    }
}

/// Writes `plan` into the prepared `model` that the plan was made for, with all edits applied.
///
/// # Errors
/// If the model has no graph, or a type of the plan has no ONNX integer.
pub fn rewrite(mut model: ModelProto, plan: &QuantPlan, storage: WeightStorage) -> Result<QuantizedModel> {
    let graph = model.graph_mut()?;
    let mut writer = Writer { names: Names::of(graph), ..Writer::default() };
    for activation in &plan.activations {
        writer.activation(activation)?;
    }
    for weight in &plan.weights {
        writer.weight(graph, weight, storage)?;
    }
    for bias in &plan.biases {
        writer.bias(bias)?;
    }
    let clip_bounds = writer.write(graph);
    drop_unused(graph, plan, clip_bounds);
    let has_contrib = graph.node.iter().any(|node| node.domain() == CONTRIB);
    if has_contrib && !model.opset_import.iter().any(|set| set.domain() == CONTRIB) {
        model.opset_import.push(OperatorSetIdProto { domain: Some(CONTRIB.into()), version: Some(1) });
    }
    Ok(QuantizedModel(model))
}

/// Removes replaced float initializers and the bounds of removed Clips, unless a node still reads them.
fn drop_unused(graph: &mut GraphProto, plan: &QuantPlan, clip_bounds: Vec<String>) {
    let weights = plan.weights.iter().map(|weight| &weight.quantizer.tensor);
    let biases = plan.biases.iter().map(|bias| &bias.quantizer.tensor);
    let unused = graph::drop_unused(graph, weights.chain(biases).cloned().chain(clip_bounds));
    graph.value_info.retain(|value| !unused.contains(value.name()));
}

/// The nodes and initializers to write.
#[derive(Default)]
struct Writer {
    names: Names,
    initializers: Vec<TensorProto>,
    after_tensor: BTreeMap<String, Vec<NodeProto>>,
    before_node: BTreeMap<usize, Vec<NodeProto>>,
    replaced: BTreeMap<Edge, String>,
    /// New names of float tensors whose names go to quantized network outputs, by old name.
    renamed: BTreeMap<String, String>,
    /// Positions of removed nodes: the grid of the quantizer behind each saturates as the node does.
    removed: BTreeSet<usize>,
    /// Integer products, by the node that each replaces.
    products: BTreeMap<usize, StoredProduct>,
    /// Names of the integers, scale and zero point of each DynamicQuantizeLinear, by its input.
    dynamic_inputs: BTreeMap<String, [String; 3]>,
}

impl Writer {
    /// Writes all nodes and initializers to `graph`. Returns the names of the removed Clips' bounds.
    fn write(mut self, graph: &mut GraphProto) -> Vec<String> {
        let inserted = graph.input.iter().filter_map(|value| self.after_tensor.remove(value.name()));
        let mut nodes: Vec<NodeProto> = inserted.flatten().collect();
        let mut clip_bounds = Vec::new();
        let copies = self.copies(graph);
        let named: BTreeSet<String> = graph.node.iter().map(|node| node.name().to_string()).collect();
        for (node_idx, mut node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
            for (input_idx, input) in node.input.iter_mut().enumerate() {
                let edge = (node_idx, input_idx);
                if let Some(name) = self.replaced.get(&edge).or(self.renamed.get(input)) {
                    input.clone_from(name);
                }
            }
            if copies.contains(&node_idx) {
                let of_copy = self.after_tensor.remove(&node.output[0]).into_iter().flatten();
                nodes.extend(of_copy.map(|mut quantizer| {
                    let reads_copy = quantizer.input.iter_mut().filter(|input| **input == node.output[0]);
                    reads_copy.for_each(|input| input.clone_from(&node.input[0]));
                    quantizer
                }));
                continue;
            }
            if self.removed.contains(&node_idx) {
                clip_bounds.extend(node.input.into_iter().skip(1));
                continue;
            }
            nodes.extend(self.before_node.remove(&node_idx).into_iter().flatten());
            let outputs = node.output.clone();
            let without_name = node.name().is_empty();
            for output in &mut node.output {
                if let Some(name) = self.renamed.get(output) {
                    // A node without a name is named by its first output, in the sidecar too.
                    if without_name && outputs[0] == *output && !named.contains(output) {
                        node.name = Some(output.clone());
                    }
                    output.clone_from(name);
                }
            }
            match self.products.remove(&node_idx) {
                Some(product) => nodes.extend(self.nodes_of(product, &node)),
                None => nodes.push(node),
            }
            nodes.extend(outputs.iter().filter_map(|output| self.after_tensor.remove(output)).flatten());
        }
        graph.node = nodes;
        graph.initializer.extend(self.initializers);
        clip_bounds
    }

    /// Returns the Identity nodes between two quantizers whose output only the second quantizer reads. The second
    /// quantizer then reads the dequantized tensor directly.
    fn copies(&self, graph: &GraphProto) -> BTreeSet<usize> {
        let nodes = || graph.node.iter().enumerate();
        let is_quantized = |node_idx, node: &NodeProto| {
            self.replaced.contains_key(&(node_idx, 0)) && self.after_tensor.contains_key(&node.output[0])
        };
        let copies = nodes().filter(|(node_idx, node)| node.op_type() == "Identity" && is_quantized(*node_idx, node));
        let mut copies: BTreeMap<&String, usize> = copies.map(|(node_idx, node)| (&node.output[0], node_idx)).collect();
        copies.retain(|output, _| !graph.output.iter().any(|value| value.name() == *output));
        if !copies.is_empty() {
            for (node_idx, node) in nodes() {
                let float = node.input.iter().enumerate().filter(|(i, _)| !self.replaced.contains_key(&(node_idx, *i)));
                float.for_each(|(_, input)| _ = copies.remove(input));
            }
        }
        copies.into_values().collect()
    }

    fn activation(&mut self, planned: &PlannedActivation) -> Result<()> {
        if planned.params.codes != Codes::Affine {
            return Ok(());
        }
        let tensor = &planned.quantizer.tensor;
        let (scale, zero_point) =
            self.parameters(tensor, std::slice::from_ref(&planned.params), &[], &planned.qtype)?;
        let quantized = self.names.fresh(&format!("{tensor}_QuantizeLinear"));
        let mut source = tensor.clone();
        let mut after = tensor;
        if let Some(clip) = planned.removed_clip() {
            source.clone_from(&clip.input);
            after = &clip.input;
            self.removed.insert(clip.node);
        }
        // The output of the Q/DQ pair takes over the name of a network output.
        let dequantized = if planned.quantizer.network_output {
            if planned.removed_clip().is_none() {
                source = self.names.fresh(&format!("{tensor}_float"));
                self.renamed.insert(tensor.clone(), source.clone());
            }
            tensor.clone()
        } else {
            self.names.fresh(&format!("{tensor}_DequantizeLinear"))
        };
        let mut pair = [
            node("QuantizeLinear", [&source, &scale, &zero_point], &quantized, &[]),
            node("DequantizeLinear", [&quantized, &scale, &zero_point], &dequantized, &[]),
        ];
        if planned.quantizer.network_output {
            // A node of the model may have the output's name.
            pair[1].name = Some(self.names.fresh(&format!("{tensor}_DequantizeLinear")));
        }
        self.after_tensor.entry(after.clone()).or_default().extend(pair);
        self.replace(&planned.quantizer.edges, &dequantized);
        Ok(())
    }

    fn weight(&mut self, graph: &GraphProto, planned: &PlannedWeight, storage: WeightStorage) -> Result<()> {
        let others = self.products(graph, planned, storage)?;
        match others.is_empty() {
            true => Ok(()),
            false => self.dequantized_weight(planned, &others, storage),
        }
    }

    /// Adds a weight with a DequantizeLinear for the uses `edges`.
    fn dequantized_weight(&mut self, planned: &PlannedWeight, edges: &[Edge], storage: WeightStorage) -> Result<()> {
        let tensor = &planned.quantizer.tensor;
        if planned.params.iter().any(|params| params.codes != Codes::Affine) {
            return self.rounded_weight(planned);
        }
        let axis = planned.quantizer.axis.map(|axis| ("axis", axis));
        let block = planned.quantizer.block.filter(|_| axis.is_some()).map(|size| ("block_size", size));
        let attributes: Vec<(&str, usize)> = axis.into_iter().chain(block).collect();
        let shape = planned.scale_shape();
        let (scale, zero_point) = self.parameters(tensor, &planned.params, &shape, &planned.qtype)?;
        let quantized = self.names.fresh(&format!("{tensor}_QuantizeLinear"));
        let dequantized = self.names.fresh(&format!("{tensor}_DequantizeLinear"));
        let mut nodes = Vec::with_capacity(2);
        match storage {
            WeightStorage::Integer | WeightStorage::Dynamic | WeightStorage::Nbits { .. } => {
                let values: Vec<i32> = planned.integers.iter().collect();
                self.initializers.push(integers(&quantized, &planned.shape, &values, &planned.qtype)?);
            }
            WeightStorage::Float => {
                let mut stored = tensor.clone();
                if planned.learned {
                    // Rounding the original values would not give the learned integers.
                    stored = self.names.fresh(&format!("{tensor}_rounded"));
                    let values = planned.dequantized();
                    self.initializers.push(tensor::from_f32(&stored, &planned.shape, &values)?);
                }
                let inputs = [&stored, &scale, &zero_point];
                nodes.push(node("QuantizeLinear", inputs, &quantized, &attributes));
            }
        }
        let inputs = [&quantized, &scale, &zero_point];
        nodes.push(node("DequantizeLinear", inputs, &dequantized, &attributes));
        self.before_first(edges, nodes);
        self.replace(edges, &dequantized);
        Ok(())
    }

    /// Adds a weight as fake-quantized floats, where ONNX has no operator for its codes.
    fn rounded_weight(&mut self, planned: &PlannedWeight) -> Result<()> {
        let rounded = self.names.fresh(&format!("{}_rounded", planned.quantizer.tensor));
        let [_] = planned.params[..] else {
            bail!("tensor `{}`: has several scales, expected one", planned.quantizer.tensor)
        };
        let values = planned.dequantized();
        self.initializers.push(tensor::from_f32(&rounded, &planned.shape, &values)?);
        self.replace(&planned.quantizer.edges, &rounded);
        Ok(())
    }

    fn bias(&mut self, planned: &PlannedBias) -> Result<()> {
        let tensor = &planned.quantizer.tensor;
        let quantized = self.names.fresh(&format!("{tensor}_QuantizeLinear"));
        let dequantized = self.names.fresh(&format!("{tensor}_DequantizeLinear"));
        let scale = self.names.fresh(&format!("{tensor}_scale"));
        let per_element = planned.scales.len() > 1;
        let shape = if per_element { vec![planned.scales.len()] } else { vec![] };
        self.initializers.push(tensor::from_f32(&scale, &shape, &planned.scales)?);
        let nodes = match &planned.qtype {
            None => {
                let stored = tensor::from_integers(&quantized, DataType::Int32, &planned.shape, &planned.integers)?;
                self.initializers.push(stored);
                let axis: &[_] = if per_element { &[("axis", 0)] } else { &[] };
                vec![node("DequantizeLinear", [&quantized, &scale], &dequantized, axis)]
            }
            Some(qtype) => {
                let zero_point = self.names.fresh(&format!("{tensor}_zero_point"));
                self.initializers.push(integers(&zero_point, &[], &[planned.zero_point], qtype)?);
                self.initializers.push(integers(&quantized, &planned.shape, &planned.integers, qtype)?);
                let inputs = [&quantized, &scale, &zero_point];
                vec![node("DequantizeLinear", inputs, &dequantized, &[])]
            }
        };
        self.before_first(&[planned.quantizer.edge], nodes);
        self.replace(&[planned.quantizer.edge], &dequantized);
        Ok(())
    }

    /// Adds the initializers of scale and zero point. Returns their names.
    fn parameters(
        &mut self,
        tensor: &str,
        params: &[QuantParams],
        shape: &[usize],
        qtype: &QType,
    ) -> Result<(String, String)> {
        let scale = self.names.fresh(&format!("{tensor}_scale"));
        let zero_point = self.names.fresh(&format!("{tensor}_zero_point"));
        let scales: Vec<f32> = params.iter().map(|params| params.scale).collect();
        let zero_points: Vec<i32> = params.iter().map(|params| params.zero_point).collect();
        self.initializers.push(tensor::from_f32(&scale, shape, &scales)?);
        self.initializers.push(integers(&zero_point, shape, &zero_points, qtype)?);
        Ok((scale, zero_point))
    }

    fn before_first(&mut self, edges: &[Edge], nodes: Vec<NodeProto>) {
        if let Some(first) = edges.iter().map(|edge| edge.0).min() {
            self.before_node.entry(first).or_default().extend(nodes);
        }
    }

    fn replace(&mut self, edges: &[Edge], by: &str) {
        for edge in edges {
            self.replaced.insert(*edge, by.to_string());
        }
    }
}

fn node<const N: usize>(op_type: &str, inputs: [&String; N], output: &str, attributes: &[(&str, usize)]) -> NodeProto {
    let mut node = node::make(op_type, output, &inputs.map(String::as_str), output);
    attributes.iter().for_each(|&(name, value)| node::set_int(&mut node, name, value as i64));
    node
}

fn integers(name: &str, shape: &[usize], values: &[i32], qtype: &QType) -> Result<TensorProto> {
    let dtype = qtype.dtype();
    let data_type = type_number(&dtype).and_then(DataType::of);
    let data_type = data_type.with_context(|| format!("tensor `{name}`: type is {dtype}, expected an integer type"))?;
    // Only the low bits are stored: they hold every value of the grid.
    tensor::from_integers(name, data_type, shape, values)
}
