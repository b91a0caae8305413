//! Tuning: better weights, biases and quantization parameters for a plan.
//!
//! In: a prepared model, its plan, some calibration samples. Out: a plan with other integers, scales and ranges, and
//! changes of the float model. The model is placed anew only where a method inserts nodes, leaves first layers float or
//! gives them wider types. A change that does not gain on held-out samples is rejected.

pub mod accept;
mod compare;
mod effort;
mod improve;
pub mod method;
pub mod methods;
mod outcome;
mod setup;
mod tensor_errors;
mod trials;
mod tune_plan;
mod tuning;
mod variants;
pub mod weights;
mod whole;

pub use compare::{Biases, Compared, compare_plans};
pub use effort::Effort;
pub use improve::{Proposals, choose, propose};
pub use method::{Action, Case, Chosen, Method, Methods};
pub use methods::METHODS;
pub use outcome::{EvaluatedTask, Judged, MethodOutcome};
pub use setup::{Evaluation, PlannedModel, Setup, TuningOptions, WeightScheme};
pub use tensor_errors::{TensorError, TensorErrors};
pub use tune_plan::{tune, tune_planned};
pub use tuning::{Tuned, Tuning};
pub use whole::{Lowest, Whole, ensure_gain, n_float_boxes, warning_of_no_box};
