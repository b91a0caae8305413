//! Keeps the names of If nodes.
//!
//! The engine names the node that an If becomes after its operator (tract 0.23.9, `ops/logic.rs`). A graph with two Ifs
//! then has two nodes of one name, which the engine refuses.

use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::*;

/// Lets each If node keep its name. Ifs within branches stay as they are.
pub fn keep_names(model: &mut InferenceModel) {
    for node in model.nodes.iter_mut().filter(|node| node.op.name() == "If") {
        node.op = Box::new(NamedIf(node.op.clone()));
    }
}

/// The engine's If, which keeps the name of its node.
#[derive(Debug, Clone)]
struct NamedIf(Box<dyn InferenceOp>);

impl PartialEq for NamedIf {
    fn eq(&self, _: &NamedIf) -> bool {
        false
    }
}

impl Eq for NamedIf {}

impl Op for NamedIf {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    not_a_typed_op!();
}

impl EvalOp for NamedIf {
    fn eval(&self, context: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.0.eval(context, inputs)
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        self.0.eval_out_of_plan(inputs)
    }
}

impl InferenceOp for NamedIf {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        self.0.infer_facts(inputs, outputs, observed)
    }

    fn nboutputs(&self) -> TractResult<usize> {
        self.0.nboutputs()
    }

    fn to_typed(
        &self,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let outlets = self.0.to_typed(source, node, target, mapping)?;
        if let Some(outlet) = outlets.first() {
            target.rename_node(outlet.node, &node.name)?;
        }
        Ok(outlets)
    }

    as_op!();
}
