//! How far the outputs of a quantized network are from those of the float one.
//!
//! In: outputs of both. Out: figures. What is NaN or infinite is never a good figure.

mod compare;

pub use compare::{Comparison, Figures, MAX_DB, NonFinite, n_classes, same_class, value_and_error};
