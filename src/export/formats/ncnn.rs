//! ncnn's int8 table (Tencent/ncnn, tools/quantize, read by `ncnn2int8`; as OpenPPL/ppq,
//! ppq/parser/ncnn_exporter.py writes it).

use super::PLAIN;
use crate::export::index::word;
use crate::export::{Format, SidecarIndex};
use crate::onnx::node::columns;
use crate::sidecar::{Encoding, NodeRecord};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;

/// Operators that ncnn computes in int8.
const LAYERS: [&str; 3] = ["Conv", "Gemm", "MatMul"];

/// First one line `layer_param_0 s0 s1 …` per layer with the scales of its weight, one per output channel (per group in
/// a grouped convolution); then one line `layer s` with the scale of its input. Scales are the inverse of ONNX's: steps
/// per real unit. Layers have the names of their nodes.
pub(super) const FORMAT: Format = Format {
    name: "ncnn",
    description: "ncnn's int8 table: text, inverse scales of weights and inputs per layer",
    suffix: "ncnn.table",
    write,
    needs_int8: true,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut weights = String::new();
    let mut inputs = String::new();
    for node in index.nodes().filter(|node| LAYERS.contains(&node.op_type.as_str())) {
        let weight = index.weight_of(node).filter(|weight| is_layer(node, weight));
        let Some(weight) = weight else { continue };
        let input = node.inputs.iter().find_map(|input| index.activation(input));
        let input = input.with_context(|| {
            format!("node `{}`: only its weight `{}` is quantized, expected its input too", node.name, weight.name)
        })?;
        write!(weights, "{}_param_0", word(&node.name)?)?;
        for scale in weight_scales(node, weight)? {
            write!(weights, " {}", inverse(scale))?;
        }
        weights.push('\n');
        input.symmetric_int8()?;
        writeln!(inputs, "{} {}", node.name, inverse(input.per_tensor()?.0))?;
    }
    Ok((weights + &inputs).into_bytes())
}

/// Whether ncnn has a layer with weights for the node: the constant of a MatMul must be a matrix on the right.
fn is_layer(node: &NodeRecord, weight: &Encoding) -> bool {
    let slot = node.inputs.iter().position(|input| *input == weight.name).unwrap_or(0);
    let rank = weight.shape.as_ref().map_or(2, Vec::len);
    node.op_type != "MatMul" || columns(slot, rank).is_some()
}

fn inverse(scale: f64) -> f32 {
    (1.0 / scale) as f32
}

fn weight_scales(node: &NodeRecord, weight: &Encoding) -> Result<Vec<f64>> {
    let scales = weight.symmetric_int8()?;
    let scales = match weight.is_per_channel() {
        true => scales,
        false => {
            // The axis of a Gemm's outputs in its weight depends on `transB`.
            ensure!(
                node.op_type == "Conv",
                "tensor `{}`: has one scale, expected one per output channel of {}",
                weight.name,
                node.op_type
            );
            let n_outputs = weight.shape.as_deref().and_then(|shape| shape.first().copied());
            vec![scales.first().copied().unwrap_or(1.0); n_outputs.unwrap_or(1)]
        }
    };
    let n_groups = usize::try_from(node.group.unwrap_or(1)).unwrap_or(1).max(1);
    if n_groups == 1 || n_groups == scales.len() {
        return Ok(scales);
    }
    let per_group = scales.chunks(scales.len().div_ceil(n_groups).max(1));
    per_group
        .map(|group| {
            ensure!(
                group.iter().all(|scale| Some(scale) == group.first()),
                "tensor `{}`: scales differ within one of the {n_groups} groups of node `{}`, expected one per group",
                weight.name,
                node.name
            );
            group.first().copied().context("a group has no channel")
        })
        .collect()
}
