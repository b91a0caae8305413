//! Folds BatchNormalization into the Conv, ConvTranspose or Gemm before it.
//!
//! `w' = w * g`, `b' = (b - mean) * g + beta` with `g = scale / sqrt(var + epsilon)` per output channel,
//! in f64, stored as f32. It folds only where that is exact:
//!
//! 1. the normalization is in inference mode and its parameters are initializers;
//! 2. the node before it is one of the three, with a constant float weight (and bias), and its output is
//!    used by nothing else and is no output of the graph; so never across a Relu;
//! 3. a Gemm has `alpha = beta = 1` and a constant bias of one entry per column, or none.
//!
//! A weight with other readers is copied first.

use super::{Change, Pass, is_float_initializer};
use crate::onnx::graph::{GraphIndex, drop_unused, replace_uses};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use anyhow::Result;
use std::collections::BTreeSet;

/// The pass; see the module's documentation.
pub const FOLD_BATCH_NORM: Pass = Pass { name: "fold_batch_norm", run };

fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let mut names = Names::of(graph);
    let mut folded = 0;
    let mut declined = BTreeSet::new();
    loop {
        let next = graph.node.iter().position(|node| {
            node.op_type() == "BatchNormalization"
                && node.output.first().is_some_and(|output| !declined.contains(output))
        });
        let Some(position) = next else { break };
        let output = graph.node[position].output[0].clone();
        match plan(graph, position) {
            Some(fold) => {
                apply(graph, position, fold, &mut names)?;
                folded += 1;
            }
            None => {
                declined.insert(output);
            }
        }
    }
    if folded == 0 {
        return Ok(Vec::new());
    }
    Ok(vec![Change::FoldedBatchNorms(folded)])
}

/// The replacement of a pair of nodes.
struct Fold {
    producer: usize,
    weight: TensorProto,
    bias: Vec<f32>,
}

fn plan(graph: &GraphProto, position: usize) -> Option<Fold> {
    let index = GraphIndex::new(graph);
    let norm = &graph.node[position];
    let [x, parameters @ ..] = norm.input.as_slice() else { return None };
    let [scale, beta, mean, var] = parameters else { return None };
    let training = node::int(norm, "training_mode", 0) != 0 || node::int(norm, "spatial", 1) == 0;
    let extra = norm.output.iter().skip(1).any(|output| !output.is_empty());
    let producer = index.producer_idx(x)?;
    let node = &graph.node[producer];
    if training || extra || index.only_value_reader(x) != Some((position, 0)) || node.output.len() != 1 {
        return None;
    }
    let w_name = node.input.get(1).filter(|name| is_float_initializer(graph, name))?;
    let weight = index.initializer(w_name)?;
    let shape = tensor::shape(weight).ok()?;
    let channel_axis = match node.op_type() {
        "Conv" if shape.len() >= 3 => 0,
        "ConvTranspose" if shape.len() >= 3 => 1,
        "Gemm" if shape.len() == 2 => usize::from(node::int(node, "transB", 0) == 0),
        _ => return None,
    };
    if node.op_type() == "Gemm"
        && (node::float(node, "alpha").unwrap_or(1.0) != 1.0 || node::float(node, "beta").unwrap_or(1.0) != 1.0)
    {
        return None;
    }
    let (scale, beta) = (index.floats(scale)?, index.floats(beta)?);
    let (mean, var) = (index.floats(mean)?, index.floats(var)?);
    let channels = scale.len();
    let group = node::int(node, "group", 1).max(1) as usize;
    let per_group = *shape.get(channel_axis)?;
    let expected = if node.op_type() == "ConvTranspose" { per_group * group } else { per_group };
    if expected != channels || [beta.len(), mean.len(), var.len()] != [channels; 3] {
        return None;
    }
    let bias = match node.input.get(2).filter(|name| !name.is_empty()) {
        None => vec![0.0; channels],
        // A column `[n, 1]` of a Gemm has as many values but another meaning.
        Some(name) => {
            let along_last = index.initializer(name)?.dims.last() == Some(&(channels as i64));
            index.floats(name).filter(|bias| along_last && bias.len() == channels)?
        }
    };
    let epsilon = f64::from(node::float(norm, "epsilon").unwrap_or(1e-5));
    let gain: Vec<f64> = (0..channels).map(|c| f64::from(scale[c]) / (f64::from(var[c]) + epsilon).sqrt()).collect();
    let shift = |c: usize| (f64::from(bias[c]) - f64::from(mean[c])) * gain[c] + f64::from(beta[c]);
    let values = tensor::f32_values(weight).ok()?;
    let inner: usize = shape[channel_axis + 1..].iter().product();
    let outer_per_group = (shape[0] / group).max(1);
    let channel_of = |i: usize| {
        let along = i / inner.max(1) % per_group.max(1);
        if node.op_type() == "ConvTranspose" {
            let input_channel = i / (inner * per_group).max(1);
            input_channel / outer_per_group * per_group + along
        } else {
            along
        }
    };
    let scaled: Vec<f32> =
        values.iter().enumerate().map(|(i, &value)| (f64::from(value) * gain[channel_of(i)]) as f32).collect();
    Some(Fold {
        producer,
        weight: tensor::from_f32(w_name, &shape, &scaled).ok()?,
        bias: (0..channels).map(|c| shift(c) as f32).collect(),
    })
}

fn apply(graph: &mut GraphProto, position: usize, fold: Fold, names: &mut Names) -> Result<()> {
    let norm: NodeProto = graph.node[position].clone();
    let output = norm.output[0].clone();
    let (old_weight, old_bias) = {
        let node = &graph.node[fold.producer];
        (node.input[1].clone(), node.input.get(2).cloned().unwrap_or_default())
    };
    let index = GraphIndex::new(graph);
    let weight_is_free = index.has_only(&old_weight, 1);
    let weight_name = if weight_is_free { old_weight.clone() } else { names.fresh(&format!("{old_weight}_folded")) };
    let bias_is_free = !old_bias.is_empty() && index.has_only(&old_bias, 1);
    let bias_name = match (bias_is_free, old_bias.is_empty()) {
        (true, _) => old_bias.clone(),
        (false, true) => names.fresh(&format!("{old_weight}_bias")),
        (false, false) => names.fresh(&format!("{old_bias}_folded")),
    };
    let mut weight = fold.weight;
    weight.name = Some(weight_name.clone());
    let bias = tensor::from_f32(&bias_name, &[fold.bias.len()], &fold.bias)?;
    for tensor in [weight, bias] {
        match graph.initializer.iter_mut().find(|old| old.name == tensor.name) {
            Some(old) => *old = tensor,
            None => graph.initializer.push(tensor),
        }
    }
    let hidden = norm.input[0].clone();
    let node = &mut graph.node[fold.producer];
    node.input.truncate(2);
    node.input[1] = weight_name;
    node.input.push(bias_name);
    node.output[0] = output;
    graph.node.remove(position);
    // A Shape may read it.
    replace_uses(graph, &hidden, &norm.output[0]);
    graph.value_info.retain(|value| value.name() != hidden);
    // Parameters of the normalization that have no use left.
    drop_unused(graph, norm.input[1..].iter().cloned());
    Ok(())
}
