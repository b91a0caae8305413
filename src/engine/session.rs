//! A planned graph, run sample by sample.

use super::convert;
use super::error_node::{HINT_RUN, is_made_from, reason};
use super::guard::guarded;
use super::value::Value;
use crate::data::{Array, Values};
use crate::diag::{WithHint, hint_of};
use crate::onnx::inputs::InputSpec;
use anyhow::{Context, Result, anyhow, ensure};
use std::cell::Cell;
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::array::Gather;
use tract_onnx::tract_core::plan;

/// A model that is ready to run. Threads share it; each has its own [`Session`].
pub struct Engine(pub(super) Arc<Planned>);

/// A graph with its order of execution.
pub(super) struct Planned {
    pub plan: Arc<TypedRunnableModel>,
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<(String, usize)>,
    /// The observed outputs of each node in the plan: (slot, index into `observed`).
    pub taps: Vec<Vec<(usize, usize)>>,
    /// Observed tensors that do not depend on the inputs.
    pub constants: Vec<(usize, Arc<Tensor>)>,
    /// Whether values of an observed tensor do not depend on which others are observed.
    pub has_independent_values: bool,
    /// Name and operator of each node of the model.
    pub op_types: Vec<(String, String)>,
}

impl Engine {
    /// Whether values of an observed tensor do not depend on which others are observed.
    pub fn has_independent_values(&self) -> bool {
        self.0.has_independent_values
    }

    /// Returns the inputs, in the order of the graph.
    pub fn inputs(&self) -> &[InputSpec] {
        &self.0.inputs
    }

    /// Returns the names of the operators of the optimized graph.
    pub fn operators(&self) -> Vec<String> {
        self.0.plan.model().nodes.iter().map(|node| node.op.name().to_string()).collect()
    }

    /// Returns a session for one thread.
    ///
    /// # Errors
    /// If the engine cannot create its state.
    pub fn session(&self) -> Result<Session> {
        guarded(|| {
            let state = self.0.plan.spawn()?;
            let carries = state.op_states.iter().any(Option::is_some);
            Ok(Session { engine: self.0.clone(), state, carries })
        })
    }
}

impl Planned {
    /// Returns the beginning of an error about a node of the plan: the node of the model that it was made from, or its
    /// own name and operator.
    fn place_of(&self, name: &str, op: &str) -> String {
        let nodes = self.op_types.iter().filter(|(of, _)| is_made_from(name, of));
        match nodes.max_by_key(|(of, _)| of.len()) {
            Some((name, op_type)) => format!("node `{name}` ({op_type}): "),
            None => format!("node `{name}` ({}): ", op.trim_start_matches("mqq.")),
        }
    }
}

/// Called with an observed tensor's index, shape and values in row-major order.
pub type OutputVisitor<'v> = &'v mut dyn FnMut(usize, &[usize], &[f32]) -> Result<()>;

/// One thread's state for an [`Engine`].
pub struct Session {
    engine: Arc<Planned>,
    state: TypedSimpleState,
    /// Whether operators keep state between runs: the engine treats samples as parts of one stream, so that an LSTM
    /// would continue from the sample before.
    carries: bool,
}

impl Session {
    /// Runs one sample. `visit` gets the index of each observed float32 tensor, its shape and its values in row-major
    /// order, as soon as they exist; tensors of other types are skipped. Returns the outputs of the graph as float32.
    ///
    /// # Errors
    /// If the sample does not fit the inputs, or an operator or `visit` fails.
    pub fn run(&mut self, sample: &[Array], visit: OutputVisitor) -> Result<Vec<Array>> {
        let engine = self.engine.clone();
        ensure!(
            sample.len() == engine.inputs.len(),
            "sample has {} inputs, expected {}",
            sample.len(),
            engine.inputs.len()
        );
        let inputs: Result<TVec<TValue>> =
            sample.iter().zip(&engine.inputs).map(|(array, input)| convert::to_tract(array, input)).collect();
        let values = self.run_plan(inputs?, visit)?;
        let outputs = engine.outputs.iter().map(|(name, position)| {
            let value: &Tensor = &values[*position];
            let values = convert::to_f32(value).with_context(|| format!("output `{name}`"))?;
            Ok(Array { shape: value.shape().to_vec(), values: Values::F32(values) })
        });
        outputs.collect()
    }

    /// Runs one sample of engine tensors, in the order of the inputs. Values that nothing else owns may be changed in
    /// place. Returns the outputs of the graph.
    ///
    /// # Errors
    /// If an operator fails, or does not accept the inputs.
    pub fn run_values(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        let inputs = inputs.into_iter().map(|value| value.0.into_tvalue()).collect();
        let values = self.run_plan(inputs, &mut |_, _, _| Ok(()))?;
        // A value without other owners becomes an `Arc` without a copy.
        let values: Vec<Arc<Tensor>> = values.into_iter().map(TValue::into_arc_tensor).collect();
        let outputs = self.engine.outputs.iter();
        outputs.map(|(_, at)| convert::without_symbols(values[*at].clone()).map(Value)).collect()
    }

    fn run_plan(&mut self, inputs: TVec<TValue>, visit: OutputVisitor) -> Result<TVec<TValue>> {
        let engine = self.engine.clone();
        for (observed_idx, tensor) in &engine.constants {
            if let Some(values) = convert::as_f32(tensor) {
                visit(*observed_idx, tensor.shape(), values)?;
            }
        }
        let at = Cell::new(None);
        let ran = guarded(|| {
            let outcome = self.state.run_plan_with_eval(inputs, |context, op_state, node, inputs| {
                at.set(Some(node.id));
                if let Some(gather) = node.op_as::<Gather>() {
                    ensure_inside(gather, &inputs)?;
                }
                let values = plan::eval(context, op_state, node, inputs)?;
                for &(slot, observed_idx) in &engine.taps[node.id] {
                    let value: &Tensor = &values[slot];
                    if let Some(values) = convert::as_f32(value) {
                        visit(observed_idx, value.shape(), values)?;
                    }
                }
                TractResult::Ok(values)
            });
            // State that carries over, or is left from a failed run, is not used again.
            if self.carries || outcome.is_err() {
                self.state = engine.plan.spawn()?;
            }
            outcome
        });
        ran.map_err(|error| {
            let nodes = &engine.plan.model().nodes;
            let node = at.get().and_then(|id| nodes.get(id)).filter(|_| !error.to_string().contains('`'));
            let place = node.map(|node| engine.place_of(&node.name, &node.op.name())).unwrap_or_default();
            let hint = if place.is_empty() || !hint_of(&error).is_empty() { hint_of(&error) } else { HINT_RUN };
            let found = match error.to_string().starts_with("Evaluating #") {
                true => error.root_cause().to_string(),
                false => format!("{error:#}"),
            };
            anyhow!("{place}{}", reason(&found)).hint(hint)
        })
    }
}

/// Refuses indices outside the axis of a Gather, such as the ids of another vocabulary.
fn ensure_inside(gather: &Gather, inputs: &[TValue]) -> TractResult<()> {
    let (Some(data), Some(indices)) = (inputs.first(), inputs.get(1)) else { return Ok(()) };
    let Some(&size) = data.shape().get(gather.axis) else { return Ok(()) };
    let Some(indices) = indices.as_plain_ram().and_then(|it| it.as_slice::<i64>().ok()) else { return Ok(()) };
    let size = size as i64;
    match indices.iter().find(|&&index| index < -size || index >= size) {
        None => Ok(()),
        Some(index) => Err(anyhow!(
            "index is {index}, expected {} to {} for the size {size} of axis {}",
            -size,
            size - 1,
            gather.axis
        )
        .hint("ids in the data must come from the model's vocabulary: check the tokenizer and the data file")),
    }
}
