//! MQBench's `clip_ranges.json` for SNPE (ModelTC/MQBench, mqbench/deploy/deploy_linear.py): overrides of
//! activations for `snpe-onnx-to-dlc --quantization_overrides`.

use crate::emit::source::{Entries, json};
use crate::emit::{Emitter, Source};
use anyhow::Result;
use serde_json::json;

/// `{"activation_encodings": {tensor: [{"bitwidth", "min", "max"}]}, "param_encodings": {}}`; parameters are
/// left to the reader, as MQBench leaves them.
pub(in crate::emit) struct Snpe;

impl Emitter for Snpe {
    fn name(&self) -> &'static str {
        "snpe"
    }

    fn description(&self) -> &'static str {
        "MQBench's overrides for SNPE: JSON, range per activation"
    }

    fn suffix(&self) -> &'static str {
        "snpe.json"
    }

    fn emit(&self, source: &Source) -> Result<Vec<u8>> {
        let mut activations = Entries::default();
        for (name, encoding) in source.with_passed_through() {
            let (min, max) = encoding.per_tensor_bounds()?;
            let entry = json!([{ "bitwidth": encoding.bits, "min": min, "max": max }]);
            activations.add(name, entry)?;
        }
        json(&json!({ "activation_encodings": activations.into_value(), "param_encodings": {} }))
    }
}
