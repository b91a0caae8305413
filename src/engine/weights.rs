//! Large weights, which the engine gets only when it builds a graph.
//!
//! No shape follows from the values of a large weight. Until a graph is built, the weight has a node with only its type
//! and shape, and its bytes stay in a memory map of the model's file.

use super::convert::datum_type;
use crate::onnx::graph::names_read;
use crate::onnx::proto::{ModelProto, TensorProto};
use crate::onnx::{mapped, tensor};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_hir::ops::source::Source;

/// Minimum bytes of a large weight. Smaller tensors stay in the model that the engine parses: they may be shapes.
const LARGE: usize = 1 << 20;

/// The large weights of a parsed model, by node. Copies of the model share them.
#[derive(Clone, Default)]
pub(super) struct LargeWeights(Arc<BTreeMap<usize, Weight>>);

struct Weight {
    data_type: DatumType,
    shape: Vec<usize>,
    bytes: Bytes,
    /// The engine's copy, while a graph holds it.
    loaded: Mutex<Weak<Tensor>>,
}

/// A model with a text in place of each large weight, and without the constants that nothing reads: the engine would
/// refuse those of types that it lacks. `weights` has the large weights by name.
pub(super) struct StrippedModel {
    pub model: ModelProto,
    weights: BTreeMap<String, Weight>,
}

impl StrippedModel {
    pub fn new(model: &ModelProto) -> StrippedModel {
        let mut stripped = StrippedModel { model: model.clone(), weights: BTreeMap::new() };
        if let Some(graph) = &mut stripped.model.graph {
            let named = graph.input.iter().chain(&graph.output).map(|value| value.name());
            let read = graph.node.iter().flat_map(names_read).chain(named);
            let read: BTreeSet<String> = read.map(str::to_string).collect();
            graph.initializer.retain(|stored| read.contains(stored.name()));
        }
        for stored in stripped.model.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            let Some(weight) = Weight::of(stored) else { continue };
            let name = stored.name().to_string();
            // The texts differ, because the engine would merge equal constants.
            let text = format!("values of {name}");
            *stored = TensorProto {
                name: Some(name.clone()),
                data_type: Some(8),
                dims: vec![1],
                string_data: vec![text.into()],
                ..TensorProto::default()
            };
            stripped.weights.insert(name, weight);
        }
        stripped
    }

    /// Replaces the texts in the parsed `model` by nodes with the types and shapes of the weights.
    pub fn into_large_weights(
        self,
        model: &mut InferenceModel,
        outlets: &HashMap<String, OutletId>,
    ) -> Result<LargeWeights> {
        let mut by_node = BTreeMap::new();
        for (name, weight) in self.weights {
            let outlet = outlets.get(&name).with_context(|| format!("the engine lost initializer `{name}`"))?;
            let node = model.node_mut(outlet.node);
            ensure!(node.op_is::<Const>(), "initializer `{name}`: is not a constant in the engine's graph");
            node.op = Source.into();
            node.outputs[0].fact = weight.data_type.fact(&weight.shape).into();
            by_node.insert(outlet.node, weight);
        }
        Ok(LargeWeights(Arc::new(by_node)))
    }
}

impl LargeWeights {
    /// Whether a node of the parsed model is a large weight.
    pub fn has(&self, node: usize) -> bool {
        self.0.contains_key(&node)
    }

    /// Adds the values to a copy of the parsed model.
    pub fn restore_into(&self, model: &mut InferenceModel) -> Result<()> {
        for (node, weight) in self.0.iter() {
            let tensor = weight.load()?;
            let node = model.node_mut(*node);
            node.outputs[0].fact = tensor.clone().try_into()?;
            node.op = Const::new(tensor)?.into();
        }
        Ok(())
    }
}

impl Weight {
    /// Returns an initializer as a weight; `None` where it is small or incomplete, or its type is not one of weights
    /// only.
    fn of(stored: &TensorProto) -> Option<Weight> {
        let bytes = stored.raw_data.as_ref().filter(|raw| raw.len() >= LARGE)?;
        let of_weights = [DatumType::F32, DatumType::U8, DatumType::I8, DatumType::F16, DatumType::F64];
        let data_type = datum_type(stored.data_type()).filter(|found| of_weights.contains(found))?;
        let shape = tensor::shape(stored).ok()?;
        let is_whole = bytes.len() == shape.iter().product::<usize>() * data_type.size_of();
        is_whole.then(|| Weight { data_type, shape, bytes: bytes.clone(), loaded: Mutex::default() })
    }

    fn load(&self) -> TractResult<Arc<Tensor>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = loaded.upgrade() {
            return Ok(tensor);
        }
        let mut tensor = Tensor::zero_dt(self.data_type, &self.shape)?;
        tensor.try_as_plain_ram_mut()?.as_bytes_mut().copy_from_slice(&self.bytes);
        mapped::release_pages(&self.bytes);
        let tensor = tensor.into_arc_tensor();
        *loaded = Arc::downgrade(&tensor);
        Ok(tensor)
    }
}
