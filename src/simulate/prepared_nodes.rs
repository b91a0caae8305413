//! Prepared nodes that several passes share.
//!
//! Most nodes of two passes are the same: nodes of the float network, operators without weights, and layers whose
//! weights both plans quantize alike.

use super::single_node::{NodeRunner, OneNodeModel, OpenDims};
use crate::onnx::model_sha256;
use anyhow::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum bytes of all kept nodes.
const MAX_BYTES: usize = 64 << 20;
/// Maximum bytes of the constants of a kept node.
const MAX_CONSTANTS: usize = 4 << 20;
/// Assumed bytes of a node besides its constants.
const NODE_BYTES: usize = 16 << 10;

/// Prepared nodes by their contents.
#[derive(Default)]
pub struct PreparedNodes(Mutex<KeptNodes>);

#[derive(Default)]
struct KeptNodes {
    /// Nodes by the hash of their model, which has their constants and the shapes of their inputs, and by their open
    /// dimensions.
    runners: HashMap<(String, OpenDims), Arc<NodeRunner>>,
    /// Approximate bytes of the nodes.
    n_bytes: usize,
}

impl PreparedNodes {
    /// Returns the node if it was prepared earlier, else prepares it as [`NodeRunner::of`] does, and fails as it does.
    pub(super) fn get(&self, model: &OneNodeModel, open: &[Vec<Option<usize>>]) -> Result<Arc<NodeRunner>> {
        let n_bytes = model.bytes_of_constants();
        let prepare = || Ok(Arc::new(NodeRunner::of(model, open)?));
        if n_bytes > MAX_CONSTANTS {
            return prepare();
        }
        let key = (model_sha256(&model.0), open.to_vec());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runner) = kept.runners.get(&key) {
            return Ok(runner.clone());
        }
        let runner = prepare()?;
        if kept.n_bytes + NODE_BYTES + n_bytes <= MAX_BYTES {
            kept.n_bytes += NODE_BYTES + n_bytes;
            kept.runners.insert(key, runner.clone());
        }
        Ok(runner)
    }
}
