//! The quantized network without writing it: its nodes one by one, over all samples at once, in float32.
//!
//! In: a prepared float model, a plan, values of the inputs. Out: the outputs that the written model would have. It
//! decides nothing.

mod samples;

pub use samples::Samples;
