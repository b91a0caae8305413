//! Folds BatchNormalization and arithmetic with constants into the Conv, ConvTranspose or Gemm before it.
//!
//! BatchNormalization, Add, Sub, Mul and Div with a constant per output channel make `y = gain * x + shift` of an
//! output `x = w * input + b`. A chain of such nodes becomes `w' = w * gain`, `b' = b * gain + shift`, in f64, stored
//! as f32. A node is folded only where that is exact:
//!
//! 1. a normalization is in inference mode, and its parameters are initializers; the constant of an Add, Sub, Mul or
//!    Div is a float initializer with one value, or one value per channel;
//! 2. the layer before it is a Conv, ConvTranspose or Gemm with a constant float weight (and bias), and the layer's
//!    output has no other use and is no output of the graph; nothing is folded across a Relu;
//! 3. a Gemm has `alpha = beta = 1` and a constant bias of one entry per column, or none.
//!
//! Transposes may stand between the layer and the folded nodes, as in exports of networks with channels last. A weight
//! with other readers is copied first.

use super::Change;
use super::renamed_tensors::RenamedTensors;
use crate::onnx::graph::{GraphIndex, drop_unused};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::tensor;
use crate::onnx::weight_channels::WeightChannels;
use anyhow::Result;
use std::collections::{BTreeSet, HashMap};

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let index = GraphIndex::new(graph);
    let folds: Vec<Fold> = (0..graph.node.len()).filter_map(|layer| Fold::of(graph, &index, layer)).collect();
    let is_norm = |&&(node_idx, _): &&(usize, usize)| graph.node[node_idx].op_type() == "BatchNormalization";
    let n_norms = folds.iter().flat_map(|fold| &fold.folded).filter(is_norm).count();
    let n_others = folds.iter().map(|fold| fold.folded.len()).sum::<usize>() - n_norms;
    apply(graph, folds)?;
    Ok(Change::counted([(n_norms, Change::FoldedBatchNorms), (n_others, Change::FoldedArithmetic)]))
}

/// A layer with the nodes that are folded into it.
struct Fold {
    /// Position of the layer.
    layer: usize,
    /// Positions of the folded nodes, each with the index of the input that depends on the layer.
    folded: Vec<(usize, usize)>,
    /// Tensors between the layer and the last folded node that Transposes read.
    transposed: Vec<String>,
    affine: Affine,
    channels: WeightChannels,
    /// Shape of the weight.
    shape: Vec<usize>,
}

impl Fold {
    /// Returns the fold of the layer at this position; `None` if nothing can be folded into it.
    fn of(graph: &GraphProto, index: &GraphIndex, layer: usize) -> Option<Fold> {
        let node = &graph.node[layer];
        let [output] = node.output.as_slice() else { return None };
        if !matches!(node.op_type(), "Conv" | "ConvTranspose" | "Gemm") {
            return None;
        }
        let behind = index.only_value_reader(output)?;
        let weight = index.float_initializer(node.input.get(1)?)?;
        let shape = tensor::shape(weight).ok()?;
        let channels = WeightChannels::of(node, &shape)?;
        if node.op_type() == "Gemm" && node::is_scaled(node) {
            return None;
        }
        let n_channels = channels.n_out;
        let bias = match node.input.get(2).filter(|name| !name.is_empty()) {
            None => vec![0.0; n_channels],
            // A column `[n, 1]` as the bias of a Gemm has as many values, but adds one value per row.
            Some(name) => {
                let along_last = index.initializer(name)?.dims.last() == Some(&(n_channels as i64));
                index.floats(name).filter(|bias| along_last && bias.len() == n_channels)?
            }
        };
        let shift = bias.iter().map(|&value| f64::from(value)).collect();
        let mut affine = Affine { gain: vec![1.0; n_channels], shift, axis: 1, rank: shape.len() };
        let mut last = None;
        let (mut folded, mut transposed, mut reader) = (Vec::new(), Vec::new(), Some(behind));
        while let Some((node_idx, input_idx)) = reader {
            let node = &graph.node[node_idx];
            let [output, others @ ..] = node.output.as_slice() else { break };
            if others.iter().any(|output| !output.is_empty()) || !node::is_standard(node) {
                break;
            }
            if node.op_type() == "Transpose" {
                let Some(()) = affine.transpose(node) else { break };
                transposed.push(node.input[0].clone());
            } else {
                let Some(next) = affine.followed_by(index, node, input_idx) else { break };
                folded.push((node_idx, input_idx));
                last = Some((next.clone(), transposed.len()));
                affine = next;
            }
            reader = index.only_value_reader(output);
        }
        let (affine, n_transposed) = last?;
        transposed.truncate(n_transposed);
        Some(Fold { layer, folded, transposed, affine, channels, shape })
    }
}

/// The output of a chain of nodes by channel: `gain * x + shift`, where `x` is the layer's output without bias.
#[derive(Clone)]
struct Affine {
    gain: Vec<f64>,
    shift: Vec<f64>,
    /// Axis of the channels in the output of the chain.
    axis: usize,
    /// Number of dimensions of the output.
    rank: usize,
}

impl Affine {
    /// Returns the chain extended by a node that reads the output as its input `input_idx`; `None` if the node cannot
    /// be folded.
    fn followed_by(&self, index: &GraphIndex, node: &NodeProto, input_idx: usize) -> Option<Affine> {
        let mut next = self.clone();
        let channels = next.gain.iter_mut().zip(&mut next.shift);
        if node.op_type() == "BatchNormalization" {
            let training = node::int(node, "training_mode", 0) != 0 || node::int(node, "spatial", 1) == 0;
            let [_, scale, beta, mean, var] = node.input.as_slice() else { return None };
            let [scale, beta, mean, var] = [scale, beta, mean, var].map(|name| index.floats(name));
            let (scale, beta, mean, var) = (scale?, beta?, mean?, var?);
            let fits = [&scale, &beta, &mean, &var].iter().all(|values| values.len() == self.gain.len());
            if training || input_idx != 0 || self.axis != 1 || !fits {
                return None;
            }
            let epsilon = f64::from(node::float(node, "epsilon").unwrap_or(1e-5));
            for (c, (gain, shift)) in channels.enumerate() {
                let of_norm = f64::from(scale[c]) / (f64::from(var[c]) + epsilon).sqrt();
                *gain *= of_norm;
                *shift = (*shift - f64::from(mean[c])) * of_norm + f64::from(beta[c]);
            }
            return Some(next);
        }
        if node.input.len() != 2 {
            return None;
        }
        let constant = self.per_channel(index, &node.input[1 - input_idx.min(1)])?;
        for ((gain, shift), &by) in channels.zip(&constant) {
            match (node.op_type(), input_idx) {
                ("Add", _) => *shift += by,
                ("Sub", 0) => *shift -= by,
                ("Sub", _) => (*gain, *shift) = (-*gain, by - *shift),
                ("Mul", _) => (*gain, *shift) = (*gain * by, *shift * by),
                ("Div", 0) => (*gain, *shift) = (*gain / by, *shift / by),
                _ => return None,
            }
        }
        let is_float32 = |value: &f64| (*value as f32).is_finite();
        next.gain.iter().chain(&next.shift).all(is_float32).then_some(next)
    }

    /// Returns the values of a constant operand by channel; `None` if it is not constant, or varies along another axis.
    fn per_channel(&self, index: &GraphIndex, name: &str) -> Option<Vec<f64>> {
        let stored = index.initializer(name)?;
        let shape = tensor::shape(stored).ok()?;
        let missing = self.rank.checked_sub(shape.len())?;
        let n_channels = self.gain.len();
        let fits = |(axis, &dim): (usize, &usize)| dim == 1 || (axis + missing == self.axis && dim == n_channels);
        if !shape.iter().enumerate().all(fits) {
            return None;
        }
        match index.floats(name)?.as_slice() {
            [one] => Some(vec![f64::from(*one); n_channels]),
            several => Some(several.iter().map(|&value| f64::from(value)).collect()),
        }
    }

    /// Moves the channel axis as a Transpose does; `None` if the Transpose does not give the order of all axes.
    fn transpose(&mut self, node: &NodeProto) -> Option<()> {
        let perm = &node::attribute(node, "perm")?.ints;
        self.axis = perm.iter().position(|&axis| axis == self.axis as i64).filter(|_| perm.len() == self.rank)?;
        Some(())
    }
}

fn apply(graph: &mut GraphProto, folds: Vec<Fold>) -> Result<()> {
    let mut names = Names::of(graph);
    let index = GraphIndex::new(graph);
    let is_own: Vec<[bool; 2]> = folds
        .iter()
        .map(|fold| [1, 2].map(|i| graph.node[fold.layer].input.get(i).is_some_and(|name| index.has_only(name, 1))))
        .collect();
    let stored = graph.initializer.iter().enumerate();
    let mut position: HashMap<String, usize> = stored.map(|(i, tensor)| (tensor.name().to_string(), i)).collect();
    let mut renamed = RenamedTensors::default();
    let (mut gone, mut parameters) = (BTreeSet::new(), Vec::new());
    for (fold, [own_weight, own_bias]) in folds.into_iter().zip(is_own) {
        let node = &mut graph.node[fold.layer];
        let (old_weight, old_bias) = (node.input[1].clone(), node.input.get(2).cloned().unwrap_or_default());
        let weight_name = if own_weight { old_weight.clone() } else { names.fresh(&format!("{old_weight}_folded")) };
        let bias_name = match (own_bias, old_bias.is_empty()) {
            (true, _) => old_bias,
            (false, true) => names.fresh(&format!("{old_weight}_bias")),
            (false, false) => names.fresh(&format!("{old_bias}_folded")),
        };
        let old = node.input.split_off(1);
        node.input.extend([weight_name.clone(), bias_name.clone()]);

        let Affine { gain, shift, .. } = fold.affine;
        let values = tensor::f32_values(&graph.initializer[position[&old_weight]])?;
        let scaled = values.iter().enumerate();
        let scaled = scaled.map(|(i, &value)| (f64::from(value) * gain[fold.channels.ends(i).0]) as f32);
        let weight = tensor::from_f32(&weight_name, &fold.shape, &scaled.collect::<Vec<f32>>())?;
        let bias: Vec<f32> = shift.iter().map(|&value| value as f32).collect();
        let bias = tensor::from_f32(&bias_name, &[bias.len()], &bias)?;
        for tensor in [weight, bias] {
            match position.get(tensor.name()) {
                Some(&i) => graph.initializer[i] = tensor,
                None => {
                    position.insert(tensor.name().to_string(), graph.initializer.len());
                    graph.initializer.push(tensor);
                }
            }
        }
        parameters.extend(old);
        for (node_idx, input_idx) in fold.folded {
            let node = &graph.node[node_idx];
            renamed.insert(node.input[input_idx].clone(), node.output[0].clone());
            parameters.extend(node.input.iter().cloned());
            gone.insert(node_idx);
        }
        for tensor in fold.transposed {
            let last = renamed.name(&tensor).to_string();
            let fresh = names.fresh(&format!("{last}_folded"));
            renamed.insert(last, fresh);
        }
    }
    renamed.apply(graph, &gone);
    drop_unused(graph, parameters);
    Ok(())
}
