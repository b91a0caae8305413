//! Runs the float model and returns its tensors. The only module that uses tract.
//!
//! In: a [`ModelProto`], a shape per input, the names of the tensors to watch. Out: type and shape of each tensor
//! ([`ValueInfos`]), and its values as soon as they exist. It does not collect statistics and does not change the
//! model.
//!
//! Observed tensors become outputs of the graph before it is optimized, so that none is optimized away. All other
//! tensors become outputs, too, so that no value depends on the choice of observed tensors. Before planning, all but
//! the model's own outputs, and observed tensors that nothing else reads, stop being outputs. The engine then frees
//! them after their last use.

mod attention_mask;
mod axis;
mod batch_norm;
mod branches;
mod conv_transpose;
mod convert;
mod cum_sum;
mod dialect;
mod error_node;
mod guard;
pub mod kernels;
mod linear;
mod nd_indices;
mod pad;
mod pieces;
mod recurrent;
mod refused;
mod session;
mod shaped;
mod sizes;
mod trilu;
mod value;
mod vectors;
mod weights;

pub use session::{Engine, OutputVisitor, Session};
pub use shaped::{ShapedEngines, ShapedSession};
pub use value::Value;
pub use vectors::{ValueLoop, vectorized};

use crate::diag::copy_of;
use crate::onnx::encode_any;
use crate::onnx::inputs::{InputSpec, Shapes, resolve_inputs};
use crate::onnx::node::node_name;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::{ValueInfo, ValueInfos};
use anyhow::{Context, Result, ensure};
use error_node::with_node;
use guard::guarded;
use kernels::{KERNELS, OpKernel};
use session::Planned;
use std::collections::HashMap;
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::DimLike;
use tract_onnx::tract_core::ops::dummy::Dummy;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_hir::infer::{Factoid, InferenceModelExt};
use weights::{LargeWeights, StrippedModel};

/// A model that the engine understands, with fixed input shapes.
#[derive(Clone)]
pub struct Parsed {
    /// The parsed graph, without the values of large weights.
    model: InferenceModel,
    /// The graph before shape inference, where samples may have other shapes.
    before_inference: Option<InferenceModel>,
    weights: LargeWeights,
    outlets: HashMap<String, OutletId>,
    inputs: Vec<InputSpec>,
    outputs: Vec<String>,
    /// Whether the graph has [`RANK_ONLY_OPS`]: some shapes are known only after the conversion to a typed graph.
    has_rank_only_ops: bool,
    /// The model and the shapes that it was parsed with, to locate errors. Copies of tensors share their bytes.
    source: Arc<(ModelProto, Shapes)>,
    /// Kernels in place of the engine's operators.
    kernels: &'static [OpKernel],
}

/// Operators for whose outputs the engine infers only the rank.
const RANK_ONLY_OPS: &[&str] = &["Attention", "MultiHeadAttention", "GroupQueryAttention"];

impl Parsed {
    /// Parses `model`. External data must have been resolved.
    ///
    /// # Errors
    /// If the engine lacks operators (all are listed), an operator is in training mode, a shape is missing, or the
    /// engine does not accept the graph.
    pub fn new(model: &ModelProto, shapes: &Shapes) -> Result<Parsed> {
        sizes::check_declared(model).map_err(|error| copy_of(&error))?;
        Parsed::parse(model, shapes).map_err(|error| with_node(error, model, shapes))
    }

    fn parse(model: &ModelProto, shapes: &Shapes) -> Result<Parsed> {
        refused::check_inference(model)?;
        let source = Arc::new((model.clone(), shapes.clone()));
        // Operators that the engine lacks are reported before a missing shape is.
        let inputs = resolve_inputs(model, shapes);
        let graph = model.graph()?;
        let outputs: Vec<String> = graph.output.iter().map(|v| v.name().to_string()).collect();
        let has_rank_only_ops = graph.node.iter().any(|node| RANK_ONLY_OPS.contains(&node.op_type()));
        guarded(|| {
            let mut onnx = tract_onnx::onnx().with_ignore_value_info(true);
            attention_mask::register(&mut onnx.op_register);
            axis::register(&mut onnx.op_register);
            batch_norm::register(&mut onnx.op_register);
            conv_transpose::register(&mut onnx.op_register);
            cum_sum::register(&mut onnx.op_register);
            trilu::register(&mut onnx.op_register);
            nd_indices::register(&mut onnx.op_register);
            pad::register(&mut onnx.op_register);
            linear::register(&mut onnx.op_register);
            recurrent::register(&mut onnx.op_register);
            let widened = linear::widened(model)?;
            let stripped = StrippedModel::new(widened.as_ref().unwrap_or(model));
            let mut proto = onnx.proto_model_for_read(&mut encode_any(&stripped.model).as_slice())?;
            proto.graph.iter_mut().for_each(dialect::rewrite_dialect);
            let parsed = onnx.parse(&proto, None)?;
            drop(proto);
            let mut model = parsed.model;
            let weights = stripped.into_large_weights(&mut model, &parsed.outlets_by_name)?;
            ensure!(
                parsed.unresolved_inputs.is_empty(),
                "no node produces the tensors: {}",
                parsed.unresolved_inputs.join(", ")
            );
            refused::check_implemented(&model)?;
            branches::keep_names(&mut model);
            let inputs = inputs?;
            for input in &inputs {
                let outlet = *parsed
                    .outlets_by_name
                    .get(&input.name)
                    .with_context(|| format!("input `{}` is unknown to the engine", input.name))?;
                let position = model.inputs.iter().position(|&o| o == outlet);
                let position = position.with_context(|| format!("input `{}` is unknown to the engine", input.name))?;
                // An input that is also an output has lost its type.
                let dt = model.outlet_fact(outlet)?.datum_type.concretize();
                let dt = dt.or_else(|| convert::datum_type(input.data_type));
                let dt = dt.with_context(|| format!("input `{}` has no type", input.name))?;
                model.set_input_fact(position, dt.fact(&input.shape).into())?;
            }
            // From here on, the inputs have mqq's order.
            let outlets = inputs.iter().map(|input| parsed.outlets_by_name[&input.name]);
            let outlets: Vec<OutletId> = outlets.collect();
            ensure!(
                outlets.len() == model.inputs.len(),
                "the engine found {} inputs, expected {}",
                model.inputs.len(),
                outlets.len()
            );
            model.inputs = outlets;
            let before_inference = inputs.iter().any(InputSpec::has_open).then(|| model.clone());
            Ok(Parsed {
                model,
                before_inference,
                weights,
                outlets: parsed.outlets_by_name,
                inputs,
                outputs,
                has_rank_only_ops,
                source,
                kernels: KERNELS,
            })
        })
    }

    /// Sets the kernels in place of the engine's operators; without any, all nodes stay with the engine.
    #[must_use]
    pub fn with_kernels(self, kernels: &'static [OpKernel]) -> Parsed {
        Parsed { kernels, ..self }
    }

    /// Returns the model for samples of other shapes, in the order of the inputs. Fails if no input has open
    /// dimensions.
    fn with_shapes(&self, shapes: &[Vec<usize>]) -> Result<Parsed> {
        let mut model = self.before_inference.clone().context("internal error: another shape for fixed inputs")?;
        let mut inputs = self.inputs.clone();
        for (position, (input, shape)) in inputs.iter_mut().zip(shapes).enumerate() {
            let fact = model.input_fact(position)?;
            let dt = fact.datum_type.concretize().with_context(|| format!("input `{}` has no type", input.name))?;
            model.set_input_fact(position, dt.fact(shape).into())?;
            input.shape.clone_from(shape);
        }
        Ok(Parsed { model, before_inference: None, inputs, ..self.clone() })
    }

    /// Opens the dimensions of each input that have a number in `open`. Dimensions with equal numbers have equal sizes
    /// in every run. Only [`Session::run_values`] then takes other shapes.
    ///
    /// # Errors
    /// If an input has no type.
    pub fn open_dims(&mut self, open: &[Vec<Option<usize>>]) -> Result<()> {
        for (position, (input, open)) in self.inputs.iter().zip(open).enumerate() {
            let symbol = |number: usize| self.model.symbols.sym(&format!("dim{number}")).to_dim();
            let dims = input.shape.iter().zip(open).map(|(n, open)| open.map_or_else(|| n.to_dim(), symbol));
            let dims: TVec<TDim> = dims.collect();
            let fact = self.model.input_fact(position)?;
            let dt = fact.datum_type.concretize().with_context(|| format!("input `{}` has no type", input.name))?;
            self.model.set_input_fact(position, dt.fact(dims).into())?;
        }
        Ok(())
    }

    /// Returns the inputs, in the order of the graph.
    pub fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    /// Whether the graph has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.outlets.contains_key(name)
    }

    /// Returns the element types and shapes of the tensors, as far as they follow from the input shapes.
    ///
    /// # Errors
    /// If the graph contradicts itself for these shapes, or a tensor is too large; the message names the node or tensor.
    pub fn value_info(&mut self) -> Result<ValueInfos> {
        self.inferred().map_err(|error| self.with_node(error))
    }

    fn with_node(&self, error: anyhow::Error) -> anyhow::Error {
        let (model, shapes) = &*self.source;
        with_node(error, model, shapes)
    }

    fn inferred(&mut self) -> Result<ValueInfos> {
        guarded(|| {
            self.model.analyse(false)?;
            let mut value_info = ValueInfos::default();
            // In the order of the graph, so that an error is about the first tensor.
            let mut outlets: Vec<(&String, OutletId)> =
                self.outlets.iter().map(|(name, outlet)| (name, *outlet)).collect();
            outlets.sort_unstable_by_key(|(_, outlet)| *outlet);
            for (name, outlet) in outlets {
                let fact = self.model.outlet_fact(outlet)?;
                let dims = fact.shape.concretize();
                let shape: Option<Vec<usize>> = dims.and_then(|dims| dims.iter().map(|d| d.to_usize().ok()).collect());
                shape.as_ref().map_or(Ok(()), |shape| sizes::ensure_fits(name, shape))?;
                let data_type = fact.datum_type.concretize().and_then(convert::data_type);
                value_info.insert(name, ValueInfo { data_type, shape });
            }
            if self.has_rank_only_ops {
                self.add_typed_shapes(&mut value_info)?;
            }
            let graph = self.source.0.graph.as_ref();
            graph.map_or(Ok(()), |graph| sizes::check_shapes(graph, &value_info))?;
            Ok(value_info)
        })
    }

    /// Returns the values of tensors of at most `max_values` values that follow from constants and from those dimensions
    /// of the inputs that have no number in `open`, which is as in [`Parsed::open_dims`].
    ///
    /// # Errors
    /// If the engine does not take open dimensions in this graph.
    pub fn known_values(mut self, open: &[Vec<Option<usize>>], max_values: usize) -> Result<HashMap<String, Value>> {
        self.open_dims(open)?;
        guarded(|| {
            self.model.analyse(false)?;
            let known = |(name, outlet): (&String, &OutletId)| {
                let value = self.model.outlet_fact(*outlet).ok()?.value.concretize()?;
                let value = Some(value).filter(|value| value.len() <= max_values)?;
                Some((name.clone(), Value(convert::without_symbols(value).ok()?)))
            };
            Ok(self.outlets.iter().filter_map(known).collect())
        })
    }

    /// Adds shapes that only the typed graph has.
    fn add_typed_shapes(&self, value_info: &mut ValueInfos) -> Result<()> {
        let (names, outlets): (Vec<&String>, Vec<OutletId>) =
            self.outlets.iter().filter(|(name, _)| value_info.shape(name).is_none()).unzip();
        let typed = self.typed(&outlets)?;
        for (name, &outlet) in names.into_iter().zip(&typed.outputs) {
            let shape = typed.outlet_fact(outlet)?.shape.as_concrete().map(<[usize]>::to_vec);
            value_info.insert(name, ValueInfo { data_type: None, shape });
        }
        Ok(())
    }

    /// Optimizes the graph and plans its execution. The values of an observed tensor do not depend on which others are
    /// observed: where one is observed, the optimizer keeps all tensors apart.
    ///
    /// # Errors
    /// If `observed` names a tensor that the graph does not have, or the engine cannot run the graph.
    pub fn build(self, observed: &[String]) -> Result<Engine> {
        let source = self.source.clone();
        let (model, shapes) = &*source;
        self.built(observed).map_err(|error| with_node(error, model, shapes))
    }

    fn built(self, observed: &[String]) -> Result<Engine> {
        let outlet = |name: &String| {
            let outlet = self.outlets.get(name);
            outlet.copied().with_context(|| format!("tensor `{name}`: does not exist in the graph"))
        };
        let seen: Vec<OutletId> = observed.iter().map(outlet).collect::<Result<_>>()?;
        let outputs: Vec<OutletId> = self.outputs.iter().map(outlet).collect::<Result<_>>()?;
        let unfused = if observed.is_empty() { Vec::new() } else { self.computed(&outputs) };
        // This may fail: shapes of tensors that no output needs may contradict each other.
        let built = self.optimized(&unfused, &seen, &outputs);
        let has_independent_values = built.is_ok();
        let (model, seen, outputs) = built.or_else(|_| self.optimized(&[], &seen, &outputs))?;
        guarded(|| {
            let mut model = model;
            // An observed tensor that no output depends on stays an output, so that its nodes stay in the plan.
            let mut taps: Vec<Vec<(usize, usize)>> = vec![Vec::new(); model.nodes.len()];
            let mut constants = Vec::new();
            for (observed_idx, outlet) in seen.iter().enumerate() {
                match model.nodes[outlet.node].op_as::<Const>() {
                    Some(constant) => constants.push((observed_idx, constant.val().clone())),
                    None => taps[outlet.node].push((outlet.slot, observed_idx)),
                }
            }
            let needed = leaves(&model, &seen, &outputs);
            model.select_output_outlets(&needed)?;
            let plan = model.into_runnable()?;
            let outputs = self.outputs.iter().cloned().zip(0..).collect();
            let inputs = self.inputs.into_iter().map(|input| InputSpec { open: Vec::new(), ..input }).collect();
            let nodes = self.source.0.graph.iter().flat_map(|graph| &graph.node);
            let op_types = nodes.map(|node| (node_name(node).to_string(), node.op_type().to_string())).collect();
            Ok(Engine(Arc::new(Planned { plan, inputs, outputs, taps, constants, has_independent_values, op_types })))
        })
    }

    /// Returns `outputs` and the tensors that they are computed from, in a fixed order, without constants.
    fn computed(&self, outputs: &[OutletId]) -> Vec<OutletId> {
        let mut reached = vec![false; self.model.nodes.len()];
        let mut pending: Vec<usize> = outputs.iter().map(|outlet| outlet.node).collect();
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                pending.extend(self.model.nodes[node].inputs.iter().map(|input| input.node));
            }
        }
        let is_constant = |node: usize| self.weights.has(node) || self.model.nodes[node].op_is::<Const>();
        let is_computed = |outlet: &OutletId| reached[outlet.node] && !is_constant(outlet.node);
        let mut computed: Vec<OutletId> = self.outlets.values().copied().filter(is_computed).collect();
        computed.sort_unstable();
        computed.dedup();
        computed
    }

    /// Returns the typed graph with its weights and with these outputs.
    fn typed(&self, outputs: &[OutletId]) -> Result<TypedModel> {
        let mut model = self.model.clone();
        self.weights.restore_into(&mut model)?;
        model.select_output_outlets(outputs)?;
        let model = model.into_typed()?;
        for node in &model.nodes {
            for (slot, output) in node.outputs.iter().enumerate() {
                let Some(shape) = output.fact.shape.as_concrete() else { continue };
                let label = model.outlet_label(OutletId::new(node.id, slot));
                sizes::ensure_fits(label.unwrap_or(&node.name), shape)?;
            }
        }
        Ok(model)
    }

    /// Returns the optimized graph, and the places of `seen` and `outputs` in it. No fused operator replaces these
    /// tensors or the tensors `unfused`.
    fn optimized(
        &self,
        unfused: &[OutletId],
        seen: &[OutletId],
        outputs: &[OutletId],
    ) -> Result<(TypedModel, Vec<OutletId>, Vec<OutletId>)> {
        guarded(|| {
            let mut kept = unfused.to_vec();
            kept.extend(seen.iter().filter(|outlet| unfused.binary_search(outlet).is_err()));
            let n_kept = kept.len();
            // A closure, for another try where the optimizer refuses the graph: a copy would hold weights that were
            // packed.
            let typed = || self.typed(&[&kept[..], outputs].concat());
            let whole = |typed: TypedModel| kernels::optimized(typed, self.kernels);
            let model = typed()?;
            let optimized = match !unfused.is_empty() && pieces::is_large(&model) {
                true => pieces::optimized(model, self.kernels).or_else(|_| whole(typed()?)),
                false => whole(model),
            };
            // The optimizer refuses some graphs that run (LeViT: a strided Slice after a Reshape). It leaves some
            // outputs without an operator (two equal nodes that are both read).
            let has_operators = |model: &TypedModel| {
                model.eval_order().is_ok_and(|order| order.iter().all(|&id| !model.node(id).op_is::<Dummy>()))
            };
            let model = optimized.ok().filter(has_operators).map_or_else(typed, Ok)?;
            ensure!(model.outputs.len() == n_kept + outputs.len(), "the engine lost an output of the graph");
            let (now, of_outputs) = model.outputs.split_at(n_kept);
            let places: HashMap<OutletId, OutletId> = kept.into_iter().zip(now.iter().copied()).collect();
            let of_seen = seen.iter().map(|outlet| places[outlet]).collect();
            let of_outputs = of_outputs.to_vec();
            Ok((model, of_seen, of_outputs))
        })
    }
}

/// Returns the graph's own outputs, then the observed tensors that no other tensor of the list depends on.
fn leaves(model: &TypedModel, seen: &[OutletId], outputs: &[OutletId]) -> Vec<OutletId> {
    let mut reached = vec![false; model.nodes.len()];
    let mut leaves = outputs.to_vec();
    let reach = |from: &[OutletId], reached: &mut Vec<bool>| {
        let mut pending: Vec<usize> = from.iter().map(|outlet| outlet.node).collect();
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                pending.extend(model.nodes[node].inputs.iter().map(|input| input.node));
            }
        }
    };
    reach(outputs, &mut reached);
    // Later nodes first, so that their inputs are already reached.
    let mut rest: Vec<OutletId> = seen.to_vec();
    rest.sort_by_key(|outlet| std::cmp::Reverse(outlet.node));
    for outlet in rest {
        if !reached[outlet.node] {
            leaves.push(outlet);
            reach(&[outlet], &mut reached);
        }
    }
    leaves
}
