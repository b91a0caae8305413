//! Biases stored as integers of few bits, with quantization parameters of their own.
//!
//! Their grid moves every channel by up to half a step. The forward pass fake-quantizes these biases, so that later
//! layers see the error. Of the grids that the table allows, it takes the grid with the least change after the layer's
//! activation function. So the bias of a channel that never fires may saturate.

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

/// The types of biases that have quantization parameters of their own.
pub struct BiasGrids<'a> {
    types: BTreeMap<Edge, &'a QType>,
    observer: &'a Observer,
}

impl<'a> BiasGrids<'a> {
    /// Collects the types of the biases in `placement`, and of new biases that layers without one may get.
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

    /// Returns the candidate grids for the bias at `edge` with these values; `None` where the bias has no type of its
    /// own. Fails if the values have no grid.
    pub fn of_bias(&self, edge: Edge, values: &[f32]) -> Result<Option<Vec<QuantParams>>> {
        self.types.get(&edge).map(|qtype| bias_grids(values, qtype, self.observer)).transpose()
    }
}

/// Returns the quantizer that the table gives a new bias, with an empty tensor name; `None` for a bias that stays
/// float.
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

/// Returns the grid with the least squared change after the activation function when `bias` is fake-quantized.
/// `outputs` still have the float bias.
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
