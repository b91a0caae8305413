//! Prepared nodes that several passes share.
//!
//! Most nodes of two passes are the same: those of the float network, operators without weights, and layers whose weights
//! both plans quantize alike.

use super::single_node::{NamedValue, NodeRunner};
use crate::onnx::proto::{ModelProto, NodeProto, TensorProto};
use anyhow::Result;
use prost::Message;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of nodes up to which they are kept.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of a node besides its constants.
const NODE_BYTES: usize = 16 << 10;

/// The hash of all that a prepared node depends on.
type ContentHash = [u8; 32];

/// Prepared nodes by their contents. Those of large constants are not kept.
#[derive(Default)]
pub struct PreparedNodes(Mutex<KeptNodes>);

#[derive(Default)]
struct KeptNodes {
    runners: HashMap<ContentHash, Arc<NodeRunner>>,
    /// Their bytes.
    n_bytes: usize,
}

/// Approximate bytes of a prepared node with these constants.
fn n_bytes(constants: &[TensorProto]) -> usize {
    NODE_BYTES + constants.iter().map(Message::encoded_len).sum::<usize>()
}

/// Hashes a node of `model` with its constants, for inputs like the given ones; `open` as in [`NodeRunner::new`].
fn content_hash(
    model: &ModelProto,
    node: &NodeProto,
    constants: &[TensorProto],
    inputs: &[NamedValue],
    open: &[Vec<Option<usize>>],
) -> ContentHash {
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(bytes.len().to_le_bytes());
        hasher.update(bytes);
    };
    model.opset_import.iter().for_each(|opset| add(&opset.encode_to_vec()));
    add(&node.encode_to_vec());
    for constant in constants {
        // The values of most constants are hashed where they are.
        let values = constant.raw_data.clone().unwrap_or_default();
        add(&TensorProto { raw_data: None, ..constant.clone() }.encode_to_vec());
        add(&values);
    }
    for input in inputs {
        add(format!("{} {:?} {:?}", input.name, input.value.data_type(), input.value.shape()).as_bytes());
    }
    add(format!("{:?} {open:?}", model.ir_version).as_bytes());
    hasher.finalize().into()
}

impl PreparedNodes {
    /// The node prepared earlier, or as `NodeRunner::new` prepares it.
    ///
    /// # Errors
    /// As [`NodeRunner::new`].
    pub(super) fn get(
        &self,
        model: &ModelProto,
        node: &NodeProto,
        constants: Vec<TensorProto>,
        inputs: &[NamedValue],
        open: &[Vec<Option<usize>>],
    ) -> Result<Arc<NodeRunner>> {
        let n_bytes = n_bytes(&constants);
        let prepare = |constants| Ok(Arc::new(NodeRunner::new(model, node, constants, inputs, open)?));
        if n_bytes > MAX_BYTES / 8 {
            return prepare(constants);
        }
        let key = content_hash(model, node, &constants, inputs, open);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runner) = kept.runners.get(&key) {
            return Ok(runner.clone());
        }
        let runner = prepare(constants)?;
        if kept.n_bytes + n_bytes <= MAX_BYTES {
            kept.n_bytes += n_bytes;
            kept.runners.insert(key, runner.clone());
        }
        Ok(runner)
    }
}
