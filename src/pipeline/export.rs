//! Formats of other tools from a sidecar.

use super::sha256_of;
use crate::emit::{Emitter, Sidecar, Source};
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, Loaded};
use crate::prepare::{self, prepare};
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The bytes of a format.
///
/// # Errors
/// If the format cannot express the plan; the message names the format and the tensor.
pub fn emit(
    emitter: &dyn Emitter,
    sidecar: &Sidecar,
    prepared: Option<&ModelProto>,
) -> Result<Vec<u8>> {
    let source = Source::new(sidecar, prepared);
    let bytes = source.ensure_held_by(emitter).and_then(|()| emitter.emit(&source));
    bytes.with_context(|| format!("format `{}`", emitter.name()))
}

/// The float model that `sidecar` was made for, prepared as it was then.
///
/// # Errors
/// If it is another model, or this version of the program prepares it in another way.
pub fn prepared_for(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    let load = || -> Result<ModelProto> {
        let found = sha256_of(path)?;
        ensure!(
            found == sidecar.model.sha256,
            "is not the float model of the sidecar, which was `{}`: SHA-256 is {found}, expected {}",
            sidecar.model.file,
            sidecar.model.sha256
        );
        let Loaded { mut model, .. } = onnx::load_whole(path)?;
        prepare::check_float(&model)?;
        let changes = prepare(&mut model, sidecar.model.opset[1])?;
        ensure!(
            changes == sidecar.model.prepared,
            "was prepared in another way by the version that wrote the sidecar\nhint: calibrate again with this version of mqq"
        );
        Ok(model)
    };
    load().with_context(|| format!("`{}`", path.display()))
}
