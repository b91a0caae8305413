//! The float model that MQBench's backends take with their file of ranges (`*_deploy_model.onnx`; ModelTC/MQBench,
//! mqbench/deploy/deploy_linear.py, `clip_weight`).

use crate::export::graph::initializer;
use crate::export::{Format, SidecarIndex};
use crate::onnx::graph::GraphIndex;
use crate::onnx::names::Names;
use crate::onnx::proto::{GraphProto, TensorProto};
use crate::onnx::tensor;
use crate::onnx::{check_topology, encode};
use crate::sidecar::Encoding;
use anyhow::{Context, Result};

/// The prepared model without Q/DQ: constants and batch normalization folded, every quantized weight clipped to the
/// ends of its grid, per channel or block. A weight that other nodes read in float keeps its values, and the quantized
/// uses read a clipped copy, `{weight}_clipped`.
pub(super) const FORMAT: Format = Format {
    name: "deploy",
    description: "float ONNX model with weights clipped to their ranges, for MQBench's files; needs the model",
    suffix: "deploy.onnx",
    needs_model: true,
    needs_int8: false,
    holds_nnie_codes: true,
    holds_blocks: true,
    write,
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut model = index.model()?.clone();
    let graph = model.graph_mut()?;
    let mut names = Names::of(graph);
    for encoding in index.weights() {
        clip_weight(graph, &mut names, encoding)?;
    }
    check_topology(&model)?;
    encode(&model)
}

/// Clips a weight to the ends of its grid for its quantized uses. Returns the name that these uses read: the weight's
/// own, or that of a copy if other nodes read the weight in float.
pub(super) fn clip_weight(graph: &mut GraphProto, names: &mut Names, encoding: &Encoding) -> Result<String> {
    let edges = encoding.uses(graph)?;
    let everywhere = GraphIndex::new(graph).has_only(&encoding.name, edges.len());
    let original = initializer(graph, &encoding.name)?;
    let mut clipped = clip(original, encoding).with_context(|| format!("initializer `{}`", encoding.name))?;
    if everywhere {
        graph
            .initializer
            .iter_mut()
            .filter(|tensor| tensor.name() == encoding.name)
            .for_each(|tensor| *tensor = clipped.clone());
        return Ok(encoding.name.clone());
    }
    let name = names.fresh(&format!("{}_clipped", encoding.name));
    clipped.name = Some(name.clone());
    graph.initializer.push(clipped);
    for (node_idx, slot) in edges {
        if let Some(input) = graph.node[node_idx].input.get_mut(slot) {
            input.clone_from(&name);
        }
    }
    Ok(name)
}

fn clip(original: &TensorProto, encoding: &Encoding) -> Result<TensorProto> {
    let shape = tensor::shape(original)?;
    let mut values = tensor::f32_values(original)?;
    let bounds: Vec<(f64, f64)> = encoding.bounds().collect();
    let slices = encoding.layout_of(&shape)?;
    for (position, value) in values.iter_mut().enumerate() {
        let (min, max) = bounds[slices.scale_of(position)];
        *value = value.max(min as f32).min(max as f32);
    }
    tensor::from_f32(original.name(), &shape, &values)
}
