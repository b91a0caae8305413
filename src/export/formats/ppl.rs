//! MQBench's files for OpenPPL (ModelTC/MQBench, mqbench/deploy/deploy_linear.py, backends `ppl` and `ppl-cuda`).

use super::PLAIN;
use crate::export::index::{UniqueMap, json, named, word};
use crate::export::{Format, SidecarIndex};
use crate::sidecar::Encoding;
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write;

/// `{"ppl": {tensor: {"step", "zero_point", "min", "max", "bit", "type": "biased"}}}`; the first four are lists for
/// per-channel weights. MQBench computes `bit` from the number of integers, rounded down. Here it is the number of bits
/// of the grid, so that a narrow range keeps its bits.
pub(super) const PPL: Format = Format {
    name: "ppl",
    description: "MQBench's parameters for OpenPPL (W8A16): JSON, step and zero point per tensor",
    suffix: "ppl.json",
    write: write_ppl,
    ..PLAIN
};

fn write_ppl(index: &SidecarIndex) -> Result<Vec<u8>> {
    let all = index.with_passed_through().into_iter().chain(index.weights().map(named));
    json(&json!({ "ppl": UniqueMap::object(all, |encoding| Ok(entry(encoding)))? }))
}

fn entry(encoding: &Encoding) -> Value {
    let values = |all: Vec<Value>| match encoding.is_per_channel() {
        true => Value::Array(all),
        false => all.into_iter().next().unwrap_or_default(),
    };
    json!({
        "step": values(encoding.slices().map(|(scale, _)| json!(scale)).collect()),
        "zero_point": values(encoding.slices().map(|(_, zero_point)| json!(zero_point)).collect()),
        "min": values(encoding.bounds().map(|(min, _)| json!(min)).collect()),
        "max": values(encoding.bounds().map(|(_, max)| json!(max)).collect()),
        "bit": encoding.bits,
        "type": "biased",
    })
}

/// One line `tensor: amax` per tensor with one scale, where amax is the larger absolute end of the grid. MQBench names
/// the file `.json`; it is text.
pub(super) const PPLCUDA: Format = Format {
    name: "pplcuda",
    description: "MQBench's ranges for OpenPPL on CUDA: text, amax per tensor",
    suffix: "pplcuda.txt",
    write: write_pplcuda,
    ..PLAIN
};

fn write_pplcuda(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut text = String::new();
    let weights = index.weights().filter(|encoding| !encoding.is_per_channel()).map(named);
    for (name, encoding) in index.with_passed_through().into_iter().chain(weights) {
        let (min, max) = encoding.per_tensor_bounds()?;
        writeln!(text, "{}: {}", word(name)?, max.max(-min))?;
    }
    Ok(text.into_bytes())
}
