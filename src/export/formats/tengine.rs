//! MQBench's scale file for Tengine (ModelTC/MQBench, mqbench/deploy/deploy_tengine.py).

use super::PLAIN;
use crate::export::index::word;
use crate::export::{Format, SidecarIndex};
use crate::sidecar::Encoding;
use anyhow::Result;
use std::collections::BTreeSet;
use std::fmt::Write;

/// One line `tensor scale zero_point` per activation. Tengine's converter fuses a Conv with the Relu or Clip after it,
/// so that the Conv's output has a line with the parameters of that activation.
pub(super) const FORMAT: Format = Format {
    name: "tengine",
    description: "MQBench's scales for Tengine: text, scale and zero point per activation",
    suffix: "tengine.scale",
    write,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut text = String::new();
    let mut written = BTreeSet::new();
    let mut line = |name: &str, encoding: &Encoding| -> Result<()> {
        let (scale, zero_point) = encoding.per_tensor()?;
        if written.insert(name.to_string()) {
            writeln!(text, "{} {scale} {zero_point}", word(name)?)?;
        }
        Ok(())
    };
    for (name, encoding) in index.with_passed_through() {
        line(name, encoding)?;
        let fused = index
            .producer(name)
            .filter(|node| matches!(node.op_type.as_str(), "Relu" | "Clip"))
            .and_then(|node| index.producer(node.inputs.first()?))
            .filter(|node| node.op_type == "Conv");
        if let Some(output) = fused.and_then(|conv| conv.outputs.first())
            && index.activation(output).is_none()
        {
            line(output, encoding)?;
        }
    }
    Ok(text.into_bytes())
}
