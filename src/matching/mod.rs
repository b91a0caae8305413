//! Finds the tensors of a quantized model that stand for tensors of its float model.
//!
//! In: both models, from any tool. Out: pairs of tensors, the quantized model with QuantizeLinear and DequantizeLinear
//! in place of operators on integers, and a model in which each layer reads the tensors of the float model. It runs
//! nothing and never guesses: a tensor without a certain counterpart is unmatched.

mod alone;
mod qoperators;
mod stand_ins;
mod tensors;

pub use alone::{LayersAlone, layers_alone};
pub use qoperators::{AsQdq, as_qdq};
pub use stand_ins::{IntegerGrid, StandIns};
pub use tensors::{ChannelsAt, MatchedBy, Matching, TensorMatch, matching};
