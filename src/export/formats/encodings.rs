//! Qualcomm's encodings files, which AIMET writes and the QNN and SNPE converters read (`--quantization_overrides`).
//! Source: quic/aimet, `aimet_onnx/_encoding.py` and `quantsim.py` of aimet-onnx 2.42.
//!
//! In 0.6.1 and 1.0.0 a real value is `scale * (q + offset)` with unsigned `q` for every tensor: `offset` is
//! `-zero_point` of an unsigned grid and `-zero_point - 2^(bits - 1)` of a signed one. 2.0.0 has the sign and types of
//! ONNX. Scales per block are as in QuantizeLinear in 2.0.0. In 1.0.0 they are listed by output channel, and the kernel
//! of a convolution must have one position. Widths are those of the stored integers: a 7-bit grid in int8 is written as
//! 8 bits, with the same scale.

use super::PLAIN;
use crate::export::index::{UniqueMap, json, named};
use crate::export::{Format, SidecarIndex};
use crate::sidecar::{Encoding, OneOrMany};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::iter::empty;

/// Whether 0.6.1 and 1.0.0 call a grid symmetric: it is signed with the zero point in the middle.
fn is_symmetric(encoding: &Encoding) -> bool {
    encoding.storage().1 && encoding.slices().all(|(_, zero_point)| zero_point == 0)
}

/// Returns the offset for unsigned integers, as in the module's formula.
fn offset(encoding: &Encoding, zero_point: i32) -> i64 {
    let (bits, signed) = encoding.storage();
    -i64::from(zero_point) - if signed { 1 << (bits - 1) } else { 0 }
}

/// Returns AIMET's summary of the whole model.
fn quantizer_args(index: &SidecarIndex) -> Value {
    let bits = |encoding: Option<&Encoding>| encoding.map_or(8, |encoding| encoding.storage().0);
    let weight = index.weights().next();
    json!({
        "quant_scheme": "post_training_tf",
        "param_bitwidth": bits(weight),
        "activation_bitwidth": bits(index.activations().next()),
        "dtype": "int",
        "is_symmetric": weight.is_none_or(is_symmetric),
        "per_channel_quantization": index.weights().any(Encoding::is_per_channel),
    })
}

/// Returns a list with one entry per `name`, as readers require. Exporters share equal constants, so that two nodes may
/// read one with different scales. Such a constant has no entry, and the converter finds its range by itself.
fn listed(
    activations: impl Iterator<Item = Result<Value>>,
    constants: impl Iterator<Item = Result<Value>>,
) -> Result<Value> {
    let name = |entry: &Value| entry["name"].as_str().unwrap_or_default().to_string();
    let mut by_name = UniqueMap::default();
    for entry in activations {
        let entry = entry?;
        by_name.add(&name(&entry), entry)?;
    }
    for entry in constants {
        let entry = entry?;
        by_name.add_constant(&name(&entry), entry);
    }
    Ok(by_name.into_values().collect())
}

/// Returns the `slices` of a weight with scales per block, ordered by output channel. Fails if the last block is
/// shorter, or a kernel has several positions: in the plan each position has its own scales, in the format all share
/// them.
fn by_output_channel(encoding: &Encoding, slices: &[(f64, i32)]) -> Result<Vec<(f64, i32)>> {
    let (shape, axis) = (encoding.shape.as_deref().unwrap_or_default(), encoding.axis.unwrap_or(0));
    let block = encoding.block_size.unwrap_or(1).max(1);
    let whole = shape.get(axis).is_some_and(|dim| dim.is_multiple_of(block));
    let scales = encoding.scale_shape(shape);
    let [rows, columns, kernel @ ..] = &scales[..] else {
        bail!("tensor `{}`: shape is {shape:?}, expected two dimensions or more", encoding.name)
    };
    ensure!(
        whole && kernel.iter().all(|dim| *dim == 1) && slices.len() == rows * columns,
        "tensor `{}`: shape is {shape:?} with blocks of {block} along axis {axis}, expected whole blocks and a kernel of one position",
        encoding.name
    );
    // Blocks lie along the inputs.
    Ok(match axis {
        0 => (0..slices.len()).map(|i| slices[i % rows * columns + i / rows]).collect(),
        _ => slices.to_vec(),
    })
}

/// Returns `values` as nested lists of the shape `shape`.
fn nested(values: &[Value], shape: &[usize]) -> Value {
    match shape {
        [] | [_] => json!(values),
        [first, rest @ ..] => {
            let len = values.len() / (*first).max(1);
            values.chunks(len.max(1)).map(|part| nested(part, rest)).collect()
        }
    }
}

/// Tensor names are keys; each value is a list with one entry per channel.
pub(super) const V0_6_1: Format = Format {
    name: "encodings-0.6.1",
    description: "Qualcomm AIMET/QNN encodings 0.6.1: JSON, min, max, scale and offset per channel",
    suffix: "0.6.1.encodings",
    write: write_0_6_1,
    ..PLAIN
};

fn write_0_6_1(index: &SidecarIndex) -> Result<Vec<u8>> {
    let entry = |encoding: &Encoding| -> Value {
        let (bits, _) = encoding.storage();
        let slice = |(scale, zero_point): (f64, i32)| {
            let offset = offset(encoding, zero_point);
            let q_max = (1i64 << bits) - 1;
            json!({
                "bitwidth": bits,
                "dtype": "int",
                "is_symmetric": if is_symmetric(encoding) { "True" } else { "False" },
                "min": scale * offset as f64,
                "max": scale * (q_max + offset) as f64,
                "offset": offset,
                "scale": scale,
            })
        };
        encoding.slices().map(slice).collect()
    };
    let activations = UniqueMap::object(index.activations().map(named), |encoding| Ok(entry(encoding)))?;
    let mut params = UniqueMap::default();
    for encoding in index.weights() {
        params.add_constant(&encoding.name, entry(encoding));
    }
    json(&json!({
        "version": "0.6.1",
        "activation_encodings": activations,
        "param_encodings": params.into_value(),
        "quantizer_args": quantizer_args(index),
        "excluded_layers": [],
    }))
}

/// Lists of entries with a `name`. The channel axis of a weight must be the operator's output axis.
pub(super) const V1_0_0: Format = Format {
    name: "encodings-1.0.0",
    description: "Qualcomm AIMET/QNN encodings 1.0.0: JSON, scales and offsets per tensor",
    suffix: "1.0.0.encodings",
    holds_blocks: true,
    write: write_1_0_0,
    ..PLAIN
};

fn write_1_0_0(index: &SidecarIndex) -> Result<Vec<u8>> {
    let entry = |encoding: &Encoding| -> Result<Value> {
        let enc_type = match (encoding.is_per_channel(), encoding.block_size) {
            (_, Some(_)) => "PER_BLOCK",
            (true, None) => "PER_CHANNEL",
            (false, None) => "PER_TENSOR",
        };
        let mut slices: Vec<(f64, i32)> = encoding.slices().collect();
        if encoding.block_size.is_some() {
            slices = by_output_channel(encoding, &slices)?;
        }
        let offsets = slices.iter().map(|(_, zero_point)| offset(encoding, *zero_point));
        let mut entry = json!({
            "name": encoding.name,
            "enc_type": enc_type,
            "dtype": "INT",
            "bw": encoding.storage().0,
            "is_sym": is_symmetric(encoding),
            "scale": slices.iter().map(|(scale, _)| *scale).collect::<Vec<f64>>(),
            "offset": offsets.collect::<Vec<i64>>(),
        });
        if let Some(block_size) = encoding.block_size {
            entry["block_size"] = json!(block_size);
        }
        Ok(entry)
    };
    json(&json!({
        "version": "1.0.0",
        "activation_encodings": listed(index.activations().map(entry), empty())?,
        "param_encodings": listed(empty(), index.weights().map(entry))?,
        "quantizer_args": quantizer_args(index),
        "excluded_layers": [],
    }))
}

/// One list of entries with the attributes of ONNX QuantizeLinear, int32 biases included.
pub(super) const V2_0_0: Format = Format {
    name: "encodings-2.0.0",
    description: "Qualcomm AIMET/QNN encodings 2.0.0: JSON, the parameters of QuantizeLinear per tensor",
    suffix: "2.0.0.encodings",
    holds_blocks: true,
    write: write_2_0_0,
    ..PLAIN
};

fn write_2_0_0(index: &SidecarIndex) -> Result<Vec<u8>> {
    let shaped = |encoding: &Encoding, values: Vec<Value>| -> Result<Value> {
        if !encoding.is_per_channel() {
            return Ok(values.into_iter().next().unwrap_or_default());
        }
        let shape = encoding.shape.as_deref().unwrap_or_default();
        encoding.layout_of(shape).with_context(|| format!("tensor `{}`", encoding.name))?;
        Ok(nested(&values, &encoding.scale_shape(shape)))
    };
    let scale = |encoding: &Encoding| shaped(encoding, encoding.slices().map(|(scale, _)| json!(scale)).collect());
    let zero_point = |encoding: &Encoding| shaped(encoding, encoding.slices().map(|(_, zero)| json!(zero)).collect());
    let entry = |encoding: &Encoding| -> Result<Value> {
        let mut entry = json!({
            "name": encoding.name,
            "output_dtype": encoding.output_dtype,
            "y_scale": scale(encoding)?,
        });
        // Zero points that are all 0 are omitted, as in AIMET.
        if encoding.slices().any(|(_, zero)| zero != 0) {
            entry["y_zero_point"] = zero_point(encoding)?;
        }
        if let (OneOrMany::Many(_), Some(axis)) = (&encoding.y_scale, encoding.axis) {
            entry["axis"] = json!(axis);
        }
        if let Some(block_size) = encoding.block_size {
            entry["block_size"] = json!(block_size);
        }
        Ok(entry)
    };
    json(&json!({
        "version": "2.0.0",
        "encodings": listed(index.activations().map(entry), index.sidecar.param_encodings.iter().map(entry))?,
    }))
}
