//! Is a model with Q/DQ sound, and does it keep its target's rules?
//!
//! In: a model. Out: an error, or findings. It repairs nothing.

mod linear;
mod qdq;
mod rules;

pub use linear::{Kind, Linear, Role, Values};
pub use qdq::QdqGraph;
pub use rules::{CHECKS, Check, Finding, Report, Severity, ensure_kept, findings, is_quantized};
