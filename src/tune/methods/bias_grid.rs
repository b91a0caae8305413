//! Biases that are stored as integers with quantization parameters of their own, of far fewer bits than an int32.
//!
//! Such a grid moves every channel by up to half a step. The forward pass fake-quantizes biases, so that the layers behind
//! see what it does, and takes the grid among those that the table allows that changes least behind the layer's
//! activation: the bias of a channel that never fires may saturate.

use crate::engine::Value;
use crate::observers::Observer;
use crate::onnx::graph::Edge;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::place::{BiasQuantizer, Placement};
use crate::plan::{QuantPlan, bias_grids};
use crate::quant::QuantParams;
use crate::scheme::{BiasRow, QType, Scheme};
use crate::simulate::{ActivationBounds, OutChannels};
use crate::tune::setup::WeightScheme;
use anyhow::Result;
use std::collections::BTreeMap;

/// The types of the biases that have one of their own.
pub struct BiasGrids<'a> {
    types: BTreeMap<Edge, &'a QType>,
    observer: &'a Observer,
}

impl<'a> BiasGrids<'a> {
    /// Those of `placement`, and of layers without a bias that may get one.
    pub fn of(graph: &GraphProto, placement: &Placement, plan: &QuantPlan, table: WeightScheme<'a>) -> BiasGrids<'a> {
        let WeightScheme { scheme, observer } = table;
        let new = |(node_idx, node): (usize, &NodeProto)| {
            let none = node.input.get(2).is_none_or(String::is_empty);
            none.then_some(new_quantizer(node, (node_idx, 2), placement, plan, scheme)?)
        };
        let new: Vec<BiasQuantizer> = graph.node.iter().enumerate().filter_map(new).collect();
        let of = |quantizer: &BiasQuantizer| Some((quantizer.edge, scheme.types.get(quantizer.qtype.as_ref()?)?));
        BiasGrids { types: placement.biases.iter().chain(&new).filter_map(of).collect(), observer }
    }

    /// The grids that the bias at an input of a node may have; `None` where it has no type of its own.
    ///
    /// # Errors
    /// If the values have no grid.
    pub fn of_bias(&self, edge: Edge, values: &[f32]) -> Result<Option<Vec<QuantParams>>> {
        self.types.get(&edge).map(|qtype| bias_grids(values, qtype, self.observer)).transpose()
    }
}

/// Where the table quantizes a bias that the node gets, as yet without a name.
pub fn new_quantizer(
    node: &NodeProto,
    edge: Edge,
    placement: &Placement,
    plan: &QuantPlan,
    scheme: &Scheme,
) -> Option<BiasQuantizer> {
    let qtype = match &scheme.ops.get(node.op_type())?.bias {
        BiasRow::Int32 => None,
        BiasRow::Type { qtype } => Some(qtype.clone()),
        BiasRow::Float => return None,
    };
    let weight = plan.weights.iter().position(|w| w.quantizer.edges.contains(&(edge.0, 1)))?;
    let quantized = placement.activations.iter().any(|quantizer| quantizer.edges.contains(&(edge.0, 0)));
    let (tensor, input) = (String::new(), node.input.first()?.clone());
    quantized.then_some(BiasQuantizer { tensor, qtype, input, weight, edge })
}

/// The parameters that change least of what comes through the activation behind a layer, if `bias` is fake-quantized;
/// `outputs` have it as it is.
pub fn least_changing(
    grids: Vec<QuantParams>,
    bias: &[f32],
    channels: &OutChannels,
    bounds: ActivationBounds,
    outputs: &[&Value],
) -> Option<QuantParams> {
    let change = |grid: &QuantParams| -> f64 {
        let by: Vec<f32> = bias.iter().map(|&b| grid.fake_quantize(b) - b).collect();
        outputs.iter().map(|y| channels.change(y, bounds, &by)).sum()
    };
    grids.into_iter().map(|grid| (change(&grid), grid)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, grid)| grid)
}
