//! PPQ and esp-ppq, target TensorRT (OpenPPL/ppq, ppq/parser/trt_exporter.py): the range of every
//! quantized activation.

use crate::emit::source::{Entries, json};
use crate::emit::{Emitter, Source};
use anyhow::Result;
use serde_json::json;

/// `{"act_quant_info": {tensor: 127 * scale}}`. PPQ itself writes half the grid's width times the scale,
/// which is the same for its grid [-127, 127].
pub(in crate::emit) struct Ppq;

impl Emitter for Ppq {
    fn name(&self) -> &'static str {
        "ppq"
    }

    fn description(&self) -> &'static str {
        "PPQ's ranges for TensorRT: JSON, amax per tensor"
    }

    fn suffix(&self) -> &'static str {
        "act_quant_info.json"
    }

    fn emit(&self, source: &Source) -> Result<Vec<u8>> {
        let mut ranges = Entries::default();
        for encoding in source.activations() {
            ranges.add(&encoding.name, json!(encoding.amax_int8()?))?;
        }
        json(&json!({ "act_quant_info": ranges.into_value() }))
    }
}
