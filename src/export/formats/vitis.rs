//! MQBench's file for Vitis AI (ModelTC/MQBench, mqbench/deploy/deploy_linear.py, backend `vitis`).

use super::PLAIN;
use crate::export::index::{UniqueMap, json, named};
use crate::export::{Format, SidecarIndex};
use crate::sidecar::Encoding;
use anyhow::{Result, ensure};
use serde_json::json;

/// `{"vitis": {tensor: {"scale"}}}`: activations, weights and biases on grids of 8 bits whose scales are powers of two.
pub(super) const FORMAT: Format = Format {
    name: "vitis",
    description: "MQBench's scales for Vitis AI: JSON, a power of two per tensor",
    suffix: "vitis.json",
    write,
    needs_int8: true,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let all = index.with_passed_through().into_iter().chain(index.sidecar.param_encodings.iter().map(named));
    let entries = UniqueMap::object(all, |encoding| Ok(json!({ "scale": power_of_two(encoding)? })))?;
    json(&json!({ "vitis": entries }))
}

fn power_of_two(encoding: &Encoding) -> Result<f64> {
    encoding.symmetric_int8()?;
    let (scale, _) = encoding.per_tensor()?;
    const MANTISSA: u64 = (1 << 52) - 1;
    ensure!(
        scale > 0.0 && scale.to_bits() & MANTISSA == 0,
        "tensor `{}`: scale is {scale}, expected a power of two",
        encoding.name
    );
    Ok(scale)
}
