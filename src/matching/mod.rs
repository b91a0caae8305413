//! Finds the tensors of a quantized model that stand for tensors of its float model.
//!
//! In: both models, from any tool. Out: pairs of tensors, the quantized model with QuantizeLinear and DequantizeLinear
//! in place of operators on integers, and a model in which each layer reads the tensors of the float model. It runs
//! nothing and never guesses: a tensor without a certain counterpart is unmatched.

mod isolated_layers;
mod qoperators;
mod roots;
mod tensors;

pub use isolated_layers::{IsolatedLayers, isolate_layers};
pub use qoperators::{AsQdq, as_qdq};
pub use roots::{IntegerGrid, TensorRoots};
pub use tensors::{ChannelsAt, MatchKind, Matching, TensorMatch, matching};
