//! Makes the quantized model with each layer on its own. Every layer reads tensors of the float model, so that the
//! error of its result is the error that the layer adds.

use super::roots::{TensorRoots, is_pass_through};
use super::tensors::TensorMatch;
use crate::check::QdqOperator;
use crate::onnx::names::Names;
use crate::onnx::node::{int, make, set_int};
use crate::onnx::proto::{ModelProto, NodeProto, ValueInfoProto};
use crate::onnx::tensor::DataType;
use std::collections::{BTreeMap, BTreeSet};

/// A model with each layer on its own, and the sources of the model's inputs.
pub struct IsolatedLayers {
    /// The model. Results of nodes have the names of the quantized model.
    pub model: ModelProto,
    /// Inputs that are tensors of the float model: the name of each, and its position among the given pairs.
    pub inputs: Vec<(String, usize)>,
    /// Positions of the quantized model's own inputs that are still read. They follow `inputs`.
    pub own_inputs: Vec<usize>,
}

/// Returns the model for the pairs in `tensors` that are not `None`; `None` if there are no such pairs.
pub fn isolate_layers(quantized: &ModelProto, tensors: &[Option<&TensorMatch>]) -> Option<IsolatedLayers> {
    let tensor_roots = TensorRoots::new(quantized)?;
    let graph = tensor_roots.qdq.graph;
    let mut names = Names::of(graph);
    let known = tensors.iter().enumerate().filter_map(|(position, tensor)| Some((tensor.as_ref()?, position)));
    let roots: BTreeMap<&str, usize> = known.map(|(tensor, position)| (tensor.root.as_str(), position)).collect();
    let mut float: BTreeMap<usize, String> = BTreeMap::new();
    let mut integers: BTreeMap<&str, String> = BTreeMap::new();
    let mut nodes: Vec<NodeProto> = Vec::new();
    for node in &graph.node {
        let mut own = node.clone();
        let replaced = own.input.iter_mut().zip(&node.input).filter(|(_, value)| tensor_roots.is_activation(value));
        for (input, value) in replaced.filter(|_| !is_pass_through(node)) {
            let root = tensor_roots.root(value);
            let Some(&position) = roots.get(root) else { continue };
            let quantizer = tensor_roots.qdq.qdq_of(value).or_else(|| tensor_roots.quantizer(root));
            let is_integer = tensor_roots.is_integer(value);
            if is_integer && quantizer.is_none() {
                continue;
            }
            let name = float.entry(position).or_insert_with(|| names.fresh(&format!("{root}_float"))).clone();
            *input = match quantizer.filter(|_| is_integer) {
                Some(qdq) => integers
                    .entry(value)
                    .or_insert_with(|| {
                        let result = names.fresh(&format!("{value}_float"));
                        let scales = qdq.node.input.iter().skip(1).map(String::as_str);
                        let inputs: Vec<&str> = [name.as_str()].into_iter().chain(scales).collect();
                        let mut quantize = make("QuantizeLinear", &result, &inputs, &result);
                        set_int(&mut quantize, "axis", qdq.axis);
                        let output_dtype = int(qdq.node, "output_dtype", 0);
                        if qdq.operator == QdqOperator::Quantize && output_dtype != 0 {
                            set_int(&mut quantize, "output_dtype", output_dtype);
                        }
                        if qdq.block_size != 0 {
                            set_int(&mut quantize, "block_size", qdq.block_size);
                        }
                        nodes.push(quantize);
                        result
                    })
                    .clone(),
                None => name,
            };
        }
        nodes.push(own);
    }
    let read: BTreeSet<&str> = nodes.iter().flat_map(|node| node.input.iter().map(String::as_str)).collect();
    let activations = graph.input.iter().filter(|input| tensor_roots.is_activation(input.name())).enumerate();
    let own_inputs = activations.filter(|(_, input)| read.contains(input.name()));
    let own_inputs: Vec<(usize, ValueInfoProto)> = own_inputs.map(|(i, input)| (i, input.clone())).collect();
    let last = tensors.iter().flatten().next_back()?;
    const FLOAT: i32 = DataType::Float as i32;
    let mut model = quantized.clone();
    let own = model.graph.as_mut()?;
    let of_float = float.values().map(|name| ValueInfoProto::without_shape(name, FLOAT));
    own.input = of_float.chain(own_inputs.iter().map(|(_, input)| input.clone())).collect();
    own.output = vec![ValueInfoProto::without_shape(&last.read, FLOAT)];
    own.node = nodes;
    let inputs = float.into_iter().map(|(position, name)| (name, position)).collect();
    Some(IsolatedLayers { model, inputs, own_inputs: own_inputs.into_iter().map(|(i, _)| i).collect() })
}
