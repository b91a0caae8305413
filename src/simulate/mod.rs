//! Simulates the quantized network without writing it: node by node, over all samples at once, in float32.
//!
//! In: a prepared float model, plans, values of the inputs. Out: the outputs that the written models would have, and
//! their figures against the float ones. It decides nothing: learning is left to a caller's [`LayerHook`].
//!
//! Two drivers run a [`Network`] and read each plan through a [`PlanView`]. [`ForwardPass`] runs several candidates
//! side by side with the float network. [`CachedNetwork`] runs one plan after another and caches shared results.

mod branch;
mod cached;
mod candidate;
mod channels;
mod evaluated;
mod hook;
mod keyed;
mod network;
mod node;
mod output_options;
mod pass;
mod prepared_nodes;
mod quantized_bias;
mod reference;
mod samples;
mod simulated_part;
mod single_node;
mod view;

pub use cached::{CachedNetwork, CachedSamples, OutputAt, OutputHook, SampleValues};
pub use candidate::{BiasOf, Candidate};
pub use channels::{ActivationBounds, ChannelSum, OutChannels, correction, difference};
pub use evaluated::EvaluatedFloat;
pub use hook::{HookChanges, LayerHook, NoHook, TensorAt};
pub use network::{ClipImpl, GroupExamples, Network};
pub use node::NodeAt;
pub use output_options::{HeadMismatch, OutputOptions};
pub use pass::{ForwardPass, simulate};
pub use prepared_nodes::PreparedNodes;
pub use quantized_bias::QuantizedBias;
pub use reference::{Corrected, FloatReference, MeasuredPlan};
pub use samples::{SampleLayout, Samples, ShapeGroups, TokenMask};
pub use simulated_part::simulated_graph;
pub use single_node::{NamedValue, NodeRunner, OneNodeModel, SingleNode};
pub use view::{PlanView, dequantized, fake_quantize};
