//! OpenVINO's form of a quantized ONNX model: `FakeQuantize` of the domain `org.openvinotoolkit` around float tensors
//! (openvinotoolkit/openvino, docs, operation FakeQuantize-1; as ModelTC/MQBench, mqbench/deploy/deploy_openvino.py).
//!
//! ```text
//! x <= low:  low;   x > high:  high;   else
//! round((x - low) / (high - low) * (levels - 1)) / (levels - 1) * (high - low) + low
//! ```

use super::PLAIN;
use super::deploy::clip_weight;
use crate::export::graph::{Inserted, initializer};
use crate::export::{Format, SidecarIndex};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, OperatorSetIdProto, TensorProto};
use crate::onnx::tensor;
use crate::onnx::{check_topology, encode};
use crate::sidecar::Encoding;
use anyhow::Result;

const DOMAIN: &str = "org.openvinotoolkit";

/// The prepared model with `FakeQuantize(x, low, high, low, high)` at every quantized tensor; biases stay float.
/// OpenVINO's integer kernels need 255 or 256 levels: a grid with fewer bits than its integers gets the levels of the
/// integers, with the same scale, and a weight on it is clipped to the grid's ends.
pub(super) const FORMAT: Format = Format {
    name: "openvino-fq",
    description: "OpenVINO: ONNX model with FakeQuantize nodes; needs the model",
    suffix: "openvino.onnx",
    needs_model: true,
    holds_blocks: true,
    write,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut model = index.model()?.clone();
    let graph = model.graph_mut()?;
    let mut names = Names::of(graph);
    let mut inserted = Inserted::default();
    let mut ends = Vec::new();
    let mut rewired = Vec::new();
    for encoding in index.activations().chain(index.weights()) {
        let shape = match encoding.axis {
            Some(_) => tensor::shape(initializer(graph, &encoding.name)?)?,
            None => Vec::new(),
        };
        let edges = encoding.uses(graph)?;
        // The integers' levels reach beyond the ends of a grid with fewer bits.
        let read = match is_widened(encoding) && initializer(graph, &encoding.name).is_ok() {
            true => clip_weight(graph, &mut names, encoding)?,
            false => encoding.name.clone(),
        };
        let renamed = encoding.network_output.then(|| {
            let float = names.fresh(&format!("{}_float", encoding.name));
            rename(graph, &encoding.name, &float);
            float
        });
        let (input, output) = match renamed {
            Some(float) => (float, encoding.name.clone()),
            None => {
                let output = names.fresh(&format!("{}_FakeQuantize", encoding.name));
                (read, output)
            }
        };
        let (levels, low, high) = ends_of(encoding, &shape, &mut names)?;
        let inputs = [&input, low.name(), high.name(), low.name(), high.name()];
        let mut node = node::make("FakeQuantize", &output, &inputs, &output);
        node.domain = Some(DOMAIN.into());
        node::set_int(&mut node, "levels", levels);
        ends.extend([low, high]);
        rewired.extend(edges.into_iter().map(|edge| (edge, output.clone())));
        inserted.after(&input, node);
    }
    for ((node_idx, slot), by) in rewired {
        if let Some(input) = graph.node[node_idx].input.get_mut(slot) {
            *input = by;
        }
    }
    inserted.apply(graph);
    graph.initializer.extend(ends);
    if !model.opset_import.iter().any(|set| set.domain() == DOMAIN) {
        let set = OperatorSetIdProto { domain: Some(DOMAIN.into()), version: Some(1) };
        model.opset_import.push(set);
    }
    check_topology(&model)?;
    encode(&model)
}

fn is_widened(encoding: &Encoding) -> bool {
    u32::from(encoding.bits) < encoding.storage().0
}

/// Renames the tensor `from` in all nodes. A graph output with the old name stays, and another node must produce it.
fn rename(graph: &mut GraphProto, from: &str, to: &str) {
    for node in &mut graph.node {
        let names = node.input.iter_mut().chain(&mut node.output);
        names.filter(|name| *name == from).for_each(|name| *name = to.to_string());
    }
}

/// Returns the number of levels and the two ends of the range. An end has one value, or one per channel along the axis
/// of a tensor of `shape`. With scales per block it has one per value, because blocks of an axis cannot be broadcast.
fn ends_of(encoding: &Encoding, shape: &[usize], names: &mut Names) -> Result<(i64, TensorProto, TensorProto)> {
    let (storage_bits, signed) = encoding.storage();
    let [q_min, q_max] = match (is_widened(encoding), signed) {
        (false, _) => encoding.q_range.map(i64::from),
        (true, true) => [-(1 << (storage_bits - 1)), (1 << (storage_bits - 1)) - 1],
        (true, false) => [0, (1 << storage_bits) - 1],
    };
    let per_slice = |q: i64| -> Vec<f32> {
        let real = |(scale, zero_point): (f64, i32)| scale * (q - i64::from(zero_point)) as f64;
        encoding.slices().map(|slice| real(slice) as f32).collect()
    };
    let (low, high) = (per_slice(q_min), per_slice(q_max));
    let (dims, low, high) = match encoding.axis {
        Some(_) if encoding.block_size.is_some() => {
            let slices = encoding.layout_of(shape)?;
            let spread = |ends: Vec<f32>| -> Vec<f32> {
                (0..shape.iter().product()).map(|value| ends[slices.scale_of(value)]).collect()
            };
            (shape.to_vec(), spread(low), spread(high))
        }
        Some(axis) if encoding.is_per_channel() => {
            let n_along = |dim| if dim == axis { encoding.n_scales() } else { 1 };
            ((0..shape.len()).map(n_along).collect(), low, high)
        }
        _ => (Vec::new(), low, high),
    };
    let [low_name, high_name] = ["low", "high"].map(|end| names.fresh(&format!("{}_{end}", encoding.name)));
    Ok((q_max - q_min + 1, tensor::from_f32(&low_name, &dims, &low)?, tensor::from_f32(&high_name, &dims, &high)?))
}
