//! Whether a model and the sidecar beside it are of one run: a run that is killed between two renames leaves one of each.

use super::schema::Sidecar;
use crate::onnx::sha256;
use std::path::Path;

impl Sidecar {
    /// The sidecar beside a quantized model; `None` where there is none that can be read.
    pub fn beside(model: &Path) -> Option<Sidecar> {
        Sidecar::read(&model.with_extension("json")).ok()
    }

    /// Whether it is the sidecar of the model at `model`; true where an earlier version wrote it.
    pub fn is_of(&self, model: &Path) -> bool {
        let Some(record) = &self.quantized else { return true };
        sha256(model).is_ok_and(|found| found == record.sha256)
    }
}
