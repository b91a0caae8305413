//! Operators that mqq computes itself because the engine's own are slower.
//!
//! In: a graph of the engine. Out: the optimized graph, where nodes that a kernel takes over have the kernel's
//! operator. A kernel takes the inputs of the node that it replaces and gives the same result up to rounding. All other
//! nodes stay with the engine.

mod branches;
mod broadcast;
mod convolution;
mod grid_sample;
mod max_pool;
mod products;
mod resize;
mod softmax;
mod top_k;
mod windows;
mod winograd;

use tract_onnx::tract_core::optim::Optimizer;
use tract_onnx::tract_core::{as_op, op_as_typed_op, op_out_of_plan};
use tract_onnx::tract_hir::internal::*;

/// The operator that replaces a node's own; `None` where the kernel does not take the node over.
type TakenOver = Option<Box<dyn TypedOp>>;

/// A kernel, which replaces an operator of the engine.
pub struct OpKernel {
    /// Name in documents.
    pub name: &'static str,
    /// Returns the kernel's operator for a node, with the same inputs.
    op: fn(&TypedModel, &TypedNode) -> TractResult<TakenOver>,
}

/// An operator of a kernel, in place of one of the engine.
trait Replacement: std::fmt::Debug + Clone + Eq + Send + Sync + 'static {
    /// Returns the name of the operator in the graph.
    fn name(&self) -> &'static str;

    /// Returns the replaced operator, whose results have the same types and shapes.
    fn replaced(&self) -> &dyn TypedOp;

    /// Computes the results.
    fn eval(&self, context: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>>;
}

/// A [`Replacement`] as the engine runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReplacingOp<R>(R);

impl<R: Replacement> Op for ReplacingOp<R> {
    fn name(&self) -> StaticName {
        self.0.name().into()
    }

    op_as_typed_op!();
}

impl<R: Replacement> EvalOp for ReplacingOp<R> {
    op_out_of_plan!();

    fn eval(&self, context: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.0.eval(context, inputs)
    }
}

impl<R: Replacement> TypedOp for ReplacingOp<R> {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.0.replaced().output_facts(inputs)
    }

    as_op!();
}

/// Takes a node over by an operator.
fn replaced_by(op: impl Replacement) -> Box<dyn TypedOp> {
    Box::new(ReplacingOp(op))
}

/// Returns a float32 tensor; `write` must set all of its values.
fn float_tensor(shape: &[usize], write: impl FnOnce(&mut [f32])) -> TractResult<TVec<TValue>> {
    // SAFETY: every value is written before any is read.
    let mut tensor = unsafe { Tensor::uninitialized::<f32>(shape)? };
    write(tensor.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?);
    Ok(tvec!(tensor.into_tvalue()))
}

/// All kernels.
pub const KERNELS: &[OpKernel] = &[
    OpKernel { name: "convolution", op: convolution::taken_over },
    OpKernel { name: "max pooling", op: max_pool::taken_over },
    OpKernel { name: "grid sampling", op: grid_sample::taken_over },
    OpKernel { name: "softmax", op: softmax::taken_over },
    OpKernel { name: "resizing", op: resize::taken_over },
    OpKernel { name: "top k", op: top_k::taken_over },
    OpKernel { name: "broadcasting", op: broadcast::taken_over },
    OpKernel { name: "branches", op: branches::taken_over },
];

/// Optimizes a graph. A node that kernels take over gets the operator of the first of `kernels` that does. Fails if the
/// engine refuses the graph.
pub(super) fn optimized(model: TypedModel, kernels: &[OpKernel]) -> TractResult<TypedModel> {
    let mut model = decluttered(model)?;
    for id in 0..model.nodes.len() {
        for kernel in kernels {
            if let Some(op) = (kernel.op)(&model, model.node(id))? {
                model.node_mut(id).op = op;
                break;
            }
        }
    }
    let mut model = decluttered(model)?;
    model.optimize()?;
    Ok(model)
}

/// Passes of the engine's first rewriting (tract 0.23.9) that are left out. `PropagateRoi` notes regions of interest,
/// which only streams read; the terms double with each tensor that a Where and another node read. `FoldUniformMask`
/// folds masks that are computed from positions wrongly: a Greater of a Range and 1 is true at position 1.
const LEFT_OUT: &[&str] = &["PropagateRoi", "FoldUniformMask"];

/// Runs the engine's first rewriting on a graph.
fn decluttered(mut model: TypedModel) -> TractResult<TypedModel> {
    let mut optimizer = Optimizer::declutter();
    optimizer.passes.retain(|pass| !LEFT_OUT.iter().any(|name| format!("{pass:?}").starts_with(name)));
    optimizer.optimize(&mut model)?;
    Ok(model)
}
