//! Operators that mqq computes itself, as the engine's own are slower.
//!
//! In: a graph of the engine. Out: the optimized graph, where nodes that a kernel takes over have its operator. A kernel
//! takes the inputs of the node that it stands for and gives its result, but for rounding. Everything else stays with the
//! engine.

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

use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::TypedOp;
use tract_onnx::tract_core::optim::Optimizer;

/// The operator in place of a node's, where a kernel takes it over.
type TakenOver = Option<Box<dyn TypedOp>>;

/// An operator in place of one of the engine's.
pub struct OpKernel {
    /// Name in documents.
    pub name: &'static str,
    /// The operator for a node of the same inputs, where the kernel takes it over.
    op: fn(&TypedModel, &TypedNode) -> TractResult<TakenOver>,
}

/// A tensor of float32, all of whose values `write` gives.
fn written(shape: &[usize], write: impl FnOnce(&mut [f32])) -> TractResult<TVec<TValue>> {
    // SAFETY: every value is written before any is read.
    let mut tensor = unsafe { Tensor::uninitialized::<f32>(shape)? };
    write(tensor.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?);
    Ok(tvec!(tensor.into_tvalue()))
}

/// All kernels.
pub const KERNELS: &[OpKernel] = &[
    convolution::KERNEL,
    max_pool::KERNEL,
    grid_sample::KERNEL,
    softmax::KERNEL,
    resize::KERNEL,
    top_k::KERNEL,
    broadcast::KERNEL,
    branches::KERNEL,
];

/// Optimizes a graph, with the first of `kernels` that takes a node over.
///
/// # Errors
/// If the engine refuses the graph.
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

/// Passes of the engine's first rewriting (tract 0.23.9) that are left out. Only streams read the regions of interest, and the terms
/// of these double with each tensor that a Where and another node read. Masks that are computed from positions are folded
/// wrongly: a Greater of a Range and 1 is true at position 1.
const LEFT_OUT: &[&str] = &["PropagateRoi", "FoldUniformMask"];

/// A graph behind the engine's first rewriting.
fn decluttered(mut model: TypedModel) -> TractResult<TypedModel> {
    let mut optimizer = Optimizer::declutter();
    optimizer.passes.retain(|pass| !LEFT_OUT.iter().any(|name| format!("{pass:?}").starts_with(name)));
    optimizer.optimize(&mut model)?;
    Ok(model)
}
