//! Better integers and scales for the weight of a layer.

pub mod descent;
pub mod layer;
mod moments;
pub mod problem;
pub mod rounding;
pub mod scales;
mod search;

pub use layer::LayerProduct;
pub use moments::input_means;
pub use search::{WeightRule, WeightSearch};
