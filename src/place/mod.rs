//! Where to quantize: applies a backend's table to a graph.
//!
//! In: a prepared graph, types and shapes of its tensors, a [`Scheme`]. Out: a [`Placement`]: the tensors to quantize
//! with the uses that read them quantized, and every node that stays float with the reason. It uses no data. [`RULES`]
//! is the open list of placement rules; a table names the rules that it wants, in the order in which they run.

mod assigned;
mod attention;
mod chains;
pub mod clips;
mod collect;
mod concat;
mod constants;
mod dilated;
mod draft;
mod embeddings;
mod ends;
mod expectations;
mod fold_clips;
mod followers;
mod gates;
mod grouped;
mod indices;
mod input_statistics;
mod inputs;
mod layer_followers;
mod linear_attention;
mod logarithms;
mod merges;
mod network;
mod normalizations;
mod off_grid;
mod outputs;
mod positions;
mod region;
mod residual;
mod share;
mod small;
mod softmax;
mod squeeze;
mod tail;
mod trace;
mod transformer;
mod types;
mod unread;
mod winograd;

pub use assigned::Assigned;
pub use draft::Draft;
pub use ends::{NetworkEnd, layers_at_end};
pub use layer_followers::with_followers;
pub use off_grid::{OffGrid, uses_at_poles};
pub use region::WideNodes;
pub use small::SKIP_SMALL_MATMULS;
pub use softmax::SoftmaxRole;
pub use tail::DetectorTail;
pub use trace::MOVES;
pub use transformer::QUANTIZE_LINEAR_INPUTS_ALONE;

use crate::onnx::graph::Edge;
use crate::onnx::node::{multiply_adds, node_name};
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::value_info::ValueInfos;
use crate::scheme::ParameterKind::{Count, Ops, Switch, Type};
use crate::scheme::{FixedGrid, RuleCall, Scheme, Takes};
use anyhow::{Context, Result};
use globset::{Glob, GlobMatcher};
use std::collections::BTreeSet;

/// A placement rule: it marks tensors to quantize, or nodes that stay float.
pub struct Rule {
    /// The name of the rule in a backend's table.
    pub name: &'static str,
    /// The parameters that it takes. Any other parameter in a table is an error.
    pub takes: Takes,
    /// Marks nodes and uses of the draft.
    pub apply: fn(&mut Draft, &RuleCall),
}

impl Rule {
    const fn of(name: &'static str, takes: Takes, apply: fn(&mut Draft, &RuleCall)) -> Rule {
        Rule { name, takes, apply }
    }
}

/// Every placement rule.
pub const RULES: &[Rule] = &[
    Rule::of("skip_non_constant_weights", &[("ops", Ops)], constants::skip_non_constant_weights),
    Rule::of("skip_constant_operands", &[("ops", Ops)], constants::skip_constant_operands),
    Rule::of("skip_small_convs", &[("min_channels", Count), ("multiple", Count)], small::skip_small_convs),
    Rule::of(small::SKIP_SMALL_MATMULS, &[("min_dim", Count)], small::skip_small_matmuls),
    Rule::of("skip_grouped_convs", &[("depthwise", Switch)], grouped::skip_grouped_convs),
    Rule::of("skip_dilated_pools", &[], dilated::skip_dilated_pools),
    Rule::of("skip_attention_scores", &[("max_sequence", Count)], attention::skip_attention_scores),
    Rule::of("skip_attention_output", &[], attention::skip_attention_output),
    Rule::of("skip_squeeze_excite", &[], squeeze::skip_squeeze_excite),
    Rule::of("skip_embedding_adds", &[], embeddings::skip_embedding_adds),
    Rule::of("skip_layer_norm_chains", &[], chains::skip_layer_norm_chains),
    Rule::of("skip_softmax_chains", &[], chains::skip_softmax_chains),
    Rule::of("skip_gelu_chains", &[], chains::skip_gelu_chains),
    Rule::of("skip_linear_attention", &[], linear_attention::skip_linear_attention),
    Rule::of("skip_log_chains", &[], logarithms::skip_log_chains),
    Rule::of("skip_positions", &[], positions::skip_positions),
    Rule::of("skip_expectations", &[], expectations::skip_expectations),
    Rule::of("skip_input_statistics", &[], input_statistics::skip_input_statistics),
    Rule::of("skip_detector_tail", &[], tail::skip_detector_tail),
    Rule::of(transformer::QUANTIZE_LINEAR_INPUTS_ALONE, &[], transformer::quantize_linear_inputs_alone),
    Rule::of("scale_linear_inputs", &[], transformer::scale_linear_inputs),
    Rule::of("skip_first_layers", &[("ops", Ops)], |draft, call| ends::skip(draft, call, NetworkEnd::First)),
    Rule::of("skip_last_layers", &[("ops", Ops)], |draft, call| ends::skip(draft, call, NetworkEnd::Last)),
    Rule::of("set_first_layer_types", ends::TYPES, |draft, call| ends::set_types(draft, call, NetworkEnd::First)),
    Rule::of("set_last_layer_types", ends::TYPES, |draft, call| ends::set_types(draft, call, NetworkEnd::Last)),
    Rule::of("set_winograd_types", &[("weight", Type)], winograd::set_winograd_types),
    Rule::of("set_input_type", &[("ops", Ops), ("input", Count), ("type", Type)], types::set_input_type),
    Rule::of("set_left_constant_type", &[("ops", Ops), ("type", Type)], types::set_left_constant_type),
    Rule::of("set_product_input_types", &[("type", Type), ("except_behind", Ops)], types::set_product_input_types),
    Rule::of("skip_merged_inputs", &[("into", Ops), ("from", Ops)], merges::skip_merged_inputs),
    Rule::of("quantize_weighted_inputs", &[], inputs::quantize_weighted_inputs),
    Rule::of("quantize_weights_alone", &[], inputs::quantize_weights_alone),
    Rule::of(gates::SKIP_FUSED_GATES, &[("alone", Switch)], gates::skip_fused_gates),
    Rule::of("residual_add_longest_path_float", &[], residual::residual_add_longest_path_float),
    Rule::of("quantize_inputs", &[("ops", Ops), ("all_uses", Switch)], inputs::quantize_inputs),
    Rule::of("quantize_constant_inputs", &[("ops", Ops)], inputs::quantize_constant_inputs),
    Rule::of("skip_unread", &[("past", Ops), ("past_all", Switch)], unread::skip_unread),
    Rule::of("quantize_followers", &[("ops", Ops), ("fuse", Switch)], followers::quantize_followers),
    Rule::of(outputs::QUANTIZE_OUTPUTS, &[("past", Ops), ("float_ends", Switch)], outputs::quantize_outputs),
    Rule::of("quantize_network_inputs", &[], network::quantize_network_inputs),
    Rule::of("quantize_network_outputs", &[("past", Ops)], network::quantize_network_outputs),
    Rule::of("quantize_concat_inputs", &[], concat::quantize_concat_inputs),
    Rule::of("fold_clips", &[("ops", Ops)], fold_clips::fold_clips),
    Rule::of(share::SHARE_SCALES, &[("clips_apart", Switch), (share::UNLIKE_APART, Switch)], share::share_scales),
];

/// An activation to quantize.
#[derive(Debug, Clone, PartialEq)]
pub struct ActivationQuantizer {
    /// ONNX name of the tensor.
    pub tensor: String,
    /// Name of its type in the table.
    pub qtype: String,
    /// The uses that read the quantized tensor. Every other use, and an output of the graph, stays float.
    pub edges: Vec<Edge>,
    /// Whether an output of the network with this name is quantized, too.
    pub network_output: bool,
    /// Whether its range must hold all values: the tensor, possibly moved, is a quantized output of the network, or the
    /// target computes the range on each run.
    pub holds_all: bool,
    /// Whether a linear layer of a transformer reads it. Its range must then hold all values, because the outliers
    /// carry information.
    pub linear: bool,
    /// The Clip or Relu that produces the tensor, if it may be removed when the quantized range ends at its bounds.
    pub clip: Option<clips::FoldableClip>,
    /// Number of the sharing group: quantizers with the same number share quantization parameters.
    pub group: usize,
    /// Parameters that the table prescribes for the producer's output.
    pub fixed: Option<FixedGrid>,
    /// Role of the tensor for a Softmax, if nothing else uses it.
    pub softmax: Option<SoftmaxRole>,
    /// The rule that marked it.
    pub rule: &'static str,
    /// The reason, in words.
    pub reason: String,
}

impl ActivationQuantizer {
    /// Whether its range must hold all values.
    pub fn keeps_ends(&self) -> bool {
        self.holds_all || self.linear
    }
}

/// A constant weight to quantize.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightQuantizer {
    /// ONNX name of the initializer.
    pub tensor: String,
    /// Name of its type in the table.
    pub qtype: String,
    /// Axis of the scales, or of the blocks; `None` for one scale.
    pub axis: Option<usize>,
    /// Block size along the axis; `None` for one scale per slice.
    pub block: Option<usize>,
    /// The uses that read the quantized weight.
    pub edges: Vec<Edge>,
    /// The name of the activation whose quantization parameters it shares; `None` for its own.
    pub shares_with: Option<String>,
    /// Role of the tensor for a Softmax, if nothing else uses it.
    pub softmax: Option<SoftmaxRole>,
}

/// A bias to store as integers.
#[derive(Debug, Clone, PartialEq)]
pub struct BiasQuantizer {
    /// ONNX name of the initializer.
    pub tensor: String,
    /// Name of its own type in the table; `None` for int32 with `scale = scale(input) * scale(weight)`.
    pub qtype: Option<String>,
    /// The node's quantized input.
    pub input: String,
    /// Index of the node's weight in [`Placement::weights`].
    pub weight: usize,
    /// The node and input index.
    pub edge: Edge,
}

/// The cause for which a node has no quantizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatCause {
    /// A rule of the scheme or the user left the node float.
    Rule,
    /// The node is fused to the quantized operator at this position, as a Relu after a Conv.
    Fused(usize),
    /// The scheme does not list its operator.
    NotListed,
    /// No placement rule quantizes its inputs.
    Alone,
}

/// The rule of nodes that the user leaves float.
pub const SELECTION: &str = "selection";

/// A node that stays float.
#[derive(Debug, Clone, PartialEq)]
pub struct FloatNode {
    /// Position in the graph.
    pub node: usize,
    /// The cause.
    pub cause: FloatCause,
    /// The rule that left it float; empty where no rule did.
    pub rule: &'static str,
    /// The reason, in words.
    pub reason: String,
}

/// An operator that makes several quantized tensors share quantization parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Join {
    /// Position of the node.
    pub node: usize,
    /// The joined tensors: for an input that an operator only moves, the quantized tensor before the move.
    pub inputs: Vec<String>,
    /// For each input, the tensor in front of all operators that only move values.
    pub sources: Vec<String>,
    /// The output, if it is quantized.
    pub output: Option<String>,
    /// Whether the table lets inputs with very unlike ranges keep their own quantization parameters.
    pub may_keep_own_params: bool,
    /// Whether the node may be float, and the inputs then share nothing: no reader quantizes its output, or no input is
    /// quantized for all its uses.
    pub parts_if_float: bool,
}

/// The outcome of placement.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Placement {
    /// Activations, in the order of the graph.
    pub activations: Vec<ActivationQuantizer>,
    /// Weights, in the order of their first use.
    pub weights: Vec<WeightQuantizer>,
    /// Biases, in the order of the graph.
    pub biases: Vec<BiasQuantizer>,
    /// Nodes that compute on quantized inputs, by position.
    pub quantized_nodes: Vec<usize>,
    /// Nodes with float outputs that compute in float, by position.
    pub float_nodes: Vec<FloatNode>,
    /// Detector tails: the operators that compute boxes and scores. The table decides whether they stay float.
    pub tails: Vec<DetectorTail>,
    /// Operators that make several activations share quantization parameters, in the order of the graph.
    pub joins: Vec<Join>,
    /// The precisions of single nodes that the caller assigned.
    pub assigned: Assigned,
    /// Whether the network is a transformer and the table has a rule for transformers. A detector with attention after
    /// a convolutional network is not one: it gains from the methods for convolutions.
    pub is_transformer: bool,
}

impl Placement {
    /// The tensors where the detector tails begin, each once, in the order of the tails. A cut at these tensors removes
    /// all tails.
    pub fn cut_of_tails(&self) -> Vec<String> {
        let mut cut: Vec<String> = Vec::new();
        for tensor in self.tails.iter().flat_map(|tail| &tail.begin) {
            if !cut.contains(tensor) {
                cut.push(tensor.clone());
            }
        }
        cut
    }

    /// The quantized nodes that a target with this scheme computes on integers.
    pub fn integer_nodes<'p>(&'p self, graph: &'p GraphProto, scheme: &'p Scheme) -> impl Iterator<Item = usize> + 'p {
        let is_float = |node_idx: usize| {
            let row = graph.node.get(node_idx).and_then(|node| scheme.ops.get(node.op_type()));
            row.is_some_and(|row| row.float_kernel)
        };
        self.quantized_nodes.iter().copied().filter(move |&node_idx| !is_float(node_idx))
    }

    /// Share of the network's multiply-adds on integers, 0 to 1; `None` if there are none or a shape is unknown.
    pub fn integer_share(&self, graph: &GraphProto, value_info: &ValueInfos, scheme: &Scheme) -> Option<f64> {
        let shape = |name: &str| value_info.shape(name).map(<[usize]>::to_vec);
        let counts: Vec<usize> = graph.node.iter().map(|node| multiply_adds(node, shape)).collect::<Option<_>>()?;
        let total: usize = counts.iter().sum();
        let integer: usize = self.integer_nodes(graph, scheme).filter_map(|node_idx| counts.get(node_idx)).sum();
        (total > 0).then(|| integer as f64 / total as f64)
    }
}

/// The reason of a node that --only does not select. An activation function behind a quantized layer is fused all the
/// same.
const NOT_SELECTED: &str = "not selected by --only";

/// Nodes that the user excludes or selects, by node name, glob over node names, or operator type; and facts about
/// tensors.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Nodes to exclude.
    pub exclude: Vec<Pattern>,
    /// Nodes to select; empty for all.
    pub only: Vec<Pattern>,
    /// Names of Muls that scale channels before a quantizer. These Muls and their inputs stay float. The graph need not
    /// have a Mul of each name.
    pub scaling: BTreeSet<String>,
    /// Tensors whose ranges are much narrower than those of the tensors that they are joined with. They keep their own
    /// quantization parameters, if the table allows it.
    pub narrow_tensors: BTreeSet<String>,
    /// Nodes in the table's region of wider types, by the name of each node's first output.
    pub wide: BTreeSet<String>,
    /// Tensors that some nodes read as float, because no grid holds their values.
    pub off_grid: OffGrid,
}

/// A node name, a glob over node names, or an operator type.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    glob: GlobMatcher,
}

impl Selection {
    /// Compiles the patterns of nodes to exclude and of nodes to select.
    ///
    /// # Errors
    /// If a pattern is not a valid glob.
    pub fn new(exclude: &[String], only: &[String]) -> Result<Selection> {
        let compile = |patterns: &[String]| -> Result<Vec<Pattern>> {
            let compile_one = |text: &String| {
                let glob = Glob::new(text).with_context(|| format!("`{text}` is not a valid pattern"))?;
                Ok(Pattern { text: text.clone(), glob: glob.compile_matcher() })
            };
            patterns.iter().map(compile_one).collect()
        };
        Ok(Selection { exclude: compile(exclude)?, only: compile(only)?, ..Selection::default() })
    }

    /// Returns the patterns that match no node of `graph`.
    pub fn unmatched(&self, graph: &GraphProto) -> Vec<String> {
        let patterns = self.exclude.iter().chain(&self.only);
        let idle = patterns.filter(|p| !graph.node.iter().any(|node| p.matches(node)));
        idle.map(|pattern| pattern.text.clone()).collect()
    }

    fn reason_to_skip(&self, node: &NodeProto) -> Option<String> {
        if let Some(pattern) = self.exclude.iter().find(|pattern| pattern.matches(node)) {
            return Some(format!("excluded by `{}`", pattern.text));
        }
        let kept = self.only.is_empty() || self.only.iter().any(|pattern| pattern.matches(node));
        (!kept).then(|| NOT_SELECTED.to_string())
    }
}

impl Pattern {
    fn matches(&self, node: &NodeProto) -> bool {
        let name = node_name(node);
        self.text == name || self.text == node.op_type() || self.glob.is_match(name)
    }
}

/// Whether `graph` is a transformer: more than three of four weights with two dimensions or more belong to linear
/// layers around attention and layer normalization.
pub fn is_transformer(graph: &GraphProto, value_info: &ValueInfos, scheme: &Scheme) -> bool {
    Draft::new(graph, value_info, scheme).is_transformer()
}

/// Applies the rules of `scheme` to `graph`.
pub fn place(graph: &GraphProto, value_info: &ValueInfos, scheme: &Scheme, selection: &Selection) -> Placement {
    place_assigned(graph, value_info, scheme, selection, &Assigned::default())
}

/// Applies the rules of `scheme` to `graph`, with assigned precisions of single nodes.
pub fn place_assigned(
    graph: &GraphProto,
    value_info: &ValueInfos,
    scheme: &Scheme,
    selection: &Selection,
    assigned: &Assigned,
) -> Placement {
    let mut draft = Draft::new(graph, value_info, scheme);
    draft.narrow_tensors = selection.narrow_tensors.clone();
    for (node_idx, node) in graph.node.iter().enumerate() {
        if selection.scaling.contains(node_name(node)) {
            draft.rule = "channel_scales";
            draft.leave_float(node_idx, "scales channels before a quantizer");
            draft.keep_edge_float((node_idx, 0));
        }
        if node.output.first().is_some_and(|output| selection.wide.contains(output)) {
            draft.region.insert(node_idx);
        }
        draft.rule = SELECTION;
        if let Some(reason) = selection.reason_to_skip(node) {
            draft.leave_float(node_idx, reason);
        }
    }
    assigned.leave_float(&mut draft);
    draft.rule = "indices";
    indices::leave_indices_float(&mut draft);
    draft.rule = "computed_bias";
    constants::leave_computed_biases_float(&mut draft);
    draft.rule = "off_grid";
    off_grid::leave_uses_float(&mut draft, &selection.off_grid);
    for call in &scheme.placement {
        if let Some(rule) = RULES.iter().find(|rule| rule.name == call.rule) {
            draft.rule = rule.name;
            (rule.apply)(&mut draft, call);
        }
    }
    assigned.set_types(&mut draft);
    draft.rule = assigned::RULE;
    draft.quantize_copies();
    Placement { assigned: assigned.clone(), ..draft.finish() }
}
