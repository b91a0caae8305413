//! Checks whether a model with Q/DQ is sound and keeps its target's rules.
//!
//! In: a model. Out: findings; for the output of `rewrite`, a [`Checked`] model or an error. It repairs nothing.

mod qdq_graph;
mod qdq_node;
mod rules;

pub use qdq_graph::{QdqGraph, operand_role};
pub use qdq_node::{NodeInput, QdqNode, QdqOperator, Role};
pub use rules::{
    CHECKS, Check, Checked, Finding, RuleReport, Severity, contradiction, ensure_kept, findings, is_quantized,
    non_finite_constants,
};
