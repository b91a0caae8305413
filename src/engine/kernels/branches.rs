//! The operator If, with both branches optimized and planned once.
//!
//! In each run, the engine copies and plans the branch again, and does not optimize it (tract 0.23.9,
//! `ops/logic/ite.rs`).

use super::{KERNELS, Replacement, TakenOver, optimized, replaced_by};
use std::sync::Arc;
use tract_onnx::tract_core::ops::logic::IfThenElse;
use tract_onnx::tract_hir::internal::*;

/// The engine's If, and the plans of its branches.
#[derive(Debug, Clone)]
struct PlannedIf {
    branches: IfThenElse,
    plans: [Arc<TypedSimplePlan>; 2],
}

impl PartialEq for PlannedIf {
    fn eq(&self, _: &PlannedIf) -> bool {
        false
    }
}

impl Eq for PlannedIf {}

/// Takes over an If whose condition is computed.
pub(super) fn taken_over(_: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(branches) = node.op_as::<IfThenElse>() else { return Ok(None) };
    let plan = |body: &TypedModel| match optimized(body.clone(), KERNELS) {
        Ok(body) => body.into_runnable(),
        // The optimizer refuses some graphs that run.
        Err(_) => body.clone().into_runnable(),
    };
    let (Ok(then), Ok(otherwise)) = (plan(&branches.then_body), plan(&branches.else_body)) else { return Ok(None) };
    Ok(Some(replaced_by(PlannedIf { branches: branches.clone(), plans: [then, otherwise] })))
}

impl Replacement for PlannedIf {
    fn name(&self) -> &'static str {
        "mqq.If"
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.branches
    }

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let [then, otherwise] = &self.plans;
        let (plan, mapping) = match inputs[0].cast_to_scalar::<bool>()? {
            true => (then, &self.branches.then_input_mapping),
            false => (otherwise, &self.branches.else_input_mapping),
        };
        plan.run(mapping.iter().map(|&input| inputs[input].clone()).collect())
    }
}
