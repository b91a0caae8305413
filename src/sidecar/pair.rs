//! Whether a model and the sidecar beside it are of the same run. A run that is killed between two renames leaves its
//! own model beside the sidecar of another run, or the reverse.

use super::schema::Sidecar;
use crate::onnx::sha256;
use std::path::Path;

impl Sidecar {
    /// Reads the sidecar beside a quantized model; `None` if no sidecar can be read there.
    pub fn beside(model: &Path) -> Option<Sidecar> {
        Sidecar::read(&model.with_extension("json")).ok()
    }

    /// Whether this is the sidecar of the model at `model`. True if an earlier version of mqq wrote it without a hash.
    pub fn is_sidecar_of(&self, model: &Path) -> bool {
        let Some(record) = &self.quantized else { return true };
        sha256(model).is_ok_and(|found| found == record.sha256)
    }
}
