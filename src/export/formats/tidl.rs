//! Settings for importing the quantized model with Texas Instruments' TIDL (TexasInstruments/
//! edgeai-tidl-tools, docs/tidl_fsg_quantization.md and examples/osrt_python/README.md).

use super::PLAIN;
use crate::export::index::json;
use crate::export::{Format, SidecarIndex};
use anyhow::{Result, ensure};
use serde_json::json;

/// Compilation options that make TIDL take scales and zero points from the Q/DQ model instead of calibrating.
/// `quantization_scale_type` is 4 for per-channel weights, 1 for powers of two, 3 for asymmetric grids, else 0.
pub(super) const FORMAT: Format = Format {
    name: "tidl",
    description: "TIDL's options for importing the Q/DQ model as prequantized: JSON",
    suffix: "tidl.json",
    write,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let all = || index.activations().chain(index.weights());
    for encoding in all() {
        let (bits, _) = encoding.storage();
        ensure!(
            bits == 8,
            "tensor `{}`: is {}, expected 8 bits: TIDL imports no other Q/DQ models",
            encoding.name,
            encoding.output_dtype
        );
    }
    const MANTISSA: u32 = (1 << 23) - 1;
    let scales = || all().flat_map(|encoding| encoding.y_scale.as_slice());
    let scale_type = if index.weights().any(|weight| weight.is_per_channel()) {
        4
    } else if scales().all(|scale| scale.to_bits() & MANTISSA == 0) {
        1
    } else if all().any(|encoding| !encoding.storage().1) {
        3
    } else {
        0
    };
    json(&json!({
        "tensor_bits": 8,
        "advanced_options:prequantized_model": 1,
        "advanced_options:quantization_scale_type": scale_type,
    }))
}
