//! From statistics to parameters.
//!
//! In: [`Placement`], a [`TensorStatistics`] per activation, the graph's constants, the [`Scheme`]. Out: a
//! [`QuantPlan`]: scale and zero point of every tensor, the integers of weights and biases. It does not
//! touch the graph.

mod bias;
mod block;
mod group;
mod learned;
mod mask;
mod pairs;
mod unlike;
mod weight;

pub use bias::{bias_grids, decide_biases};
pub use block::least_error;
pub use mask::Mask;
pub use pairs::Pairs;
pub use unlike::{unlike_tensors, warning as warning_of_unlike};
pub use weight::round;

use crate::observers::{self, Observer, pot_search};
use crate::onnx::proto::GraphProto;
use crate::place::clips::FoldableClip;
use crate::place::{ActivationQuantizer, BiasQuantizer, Placement, WeightQuantizer};
use crate::quant::{GivenRange, QuantParams, Range, ScaleLayout, Symmetry, params_for_range, scale_shape};
use crate::scheme::{QType, Scheme};
use crate::statistics::TensorStatistics;
use anyhow::{Result, ensure};
use rayon::prelude::*;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that will be written into the graph.
#[derive(Debug, Clone, Default)]
pub struct QuantPlan {
    /// As [`Placement::activations`].
    pub activations: Vec<PlannedActivation>,
    /// As [`Placement::weights`].
    pub weights: Vec<PlannedWeight>,
    /// As [`Placement::biases`].
    pub biases: Vec<PlannedBias>,
}

impl QuantPlan {
    /// The inputs of linear layers of transformers.
    pub fn linear_inputs(&self) -> impl Iterator<Item = &String> {
        self.activations.iter().map(|planned| &planned.quantizer).filter(|it| it.linear).map(|it| &it.tensor)
    }

    /// Whether most weights of two dimensions or more have few values for what they hold.
    pub fn is_coarse(&self) -> bool {
        let weights = || self.weights.iter().filter(|weight| weight.shape.len() >= 2);
        2 * weights().filter(|weight| weight.is_coarse()).count() > weights().count()
    }
}

/// A plan, and warnings about its tensors.
pub type Decided = (QuantPlan, Vec<String>);

/// An activation with its parameters.
#[derive(Debug, Clone)]
pub struct PlannedActivation {
    /// Where it is.
    pub quantizer: ActivationQuantizer,
    /// Its integer type.
    pub qtype: QType,
    /// Scale and zero point.
    pub params: QuantParams,
    /// The interval that is kept.
    pub range: Range,
    /// Lowest and highest finite value of this tensor.
    pub observed: Option<(f32, f32)>,
    /// Values that were NaN or infinite.
    pub n_non_finite: u64,
    /// Values of a mask of attention, minus infinity too: the grid need not reach them.
    pub n_masked: u64,
    /// The range observer's name.
    pub observer: &'static str,
    /// What other observers would do, where one is to be chosen by the layers behind.
    pub candidates: Vec<RangeCandidate>,
}

/// What another range observer makes of an activation.
#[derive(Debug, Clone)]
pub struct RangeCandidate {
    /// Its name.
    pub observer: &'static str,
    /// The interval that it keeps.
    pub range: Range,
    /// Scale and zero point for that.
    pub params: QuantParams,
}

impl PlannedActivation {
    /// The Clip or Relu in front of the tensor, if it goes because the grid has its effect.
    pub fn removed_clip(&self) -> Option<&FoldableClip> {
        self.quantizer.clip.as_ref().filter(|clip| clip.has_no_effect_on(&self.params))
    }
}

/// A weight with its parameters.
#[derive(Debug, Clone)]
pub struct PlannedWeight {
    /// Where it is.
    pub quantizer: WeightQuantizer,
    /// Its integer type.
    pub qtype: QType,
    /// One per slice of the axis, one per block in row-major order, or one.
    pub params: Vec<QuantParams>,
    /// The integers, in the order of the values; shared by plans that differ elsewhere.
    pub integers: Arc<Vec<i32>>,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Lowest and highest value.
    pub observed: (f32, f32),
    /// The range observer's name.
    pub observer: &'static str,
    /// Slices without values to speak of, by position.
    pub dead: Vec<usize>,
    /// Whether the integers are other than the nearest ones.
    pub learned: bool,
    /// Which integers may not be large side by side.
    pub pairs: Option<Pairs>,
}

impl PlannedWeight {
    /// The values that the integers stand for, in their order.
    pub fn dequantized(&self) -> Vec<f32> {
        let layout = ScaleLayout::of(&self.shape, self.quantizer.axis, self.quantizer.block);
        let value = |(position, &q): (usize, &i32)| self.params[layout.scale_of(position)].dequantize(q);
        self.integers.iter().enumerate().map(value).collect()
    }

    /// Whether its grid has few values for most of what it holds: fewer than 8 bits, or one scale for all channels.
    pub fn is_coarse(&self) -> bool {
        let one_scale = self.params.len() == 1 && self.quantizer.block.is_none();
        self.qtype.bits < 8 || one_scale && self.qtype.bits == 8
    }

    /// The index of the scale of the value at a position.
    pub fn scale_of_value(&self) -> impl Fn(usize) -> usize + use<> {
        let layout = ScaleLayout::of(&self.shape, self.quantizer.axis, self.quantizer.block);
        move |position| layout.scale_of(position)
    }

    /// Dimensions of the tensor of scales; none for one scale.
    pub fn scale_shape(&self) -> Vec<usize> {
        scale_shape(&self.shape, self.quantizer.axis, self.quantizer.block)
    }
}

/// A bias as integers.
#[derive(Debug, Clone)]
pub struct PlannedBias {
    /// Where it is.
    pub quantizer: BiasQuantizer,
    /// Its own integer type; `None` for int32.
    pub qtype: Option<QType>,
    /// The integer that stands for 0.0.
    pub zero_point: i32,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// One scale per element, or one.
    pub scales: Vec<f32>,
    /// The integers.
    pub integers: Vec<i32>,
}

impl PlannedBias {
    /// The values that the integers stand for.
    pub fn dequantized(&self) -> Vec<f32> {
        let scale = |i: usize| self.scales[if self.scales.len() == 1 { 0 } else { i }];
        let value = |(i, &q): (usize, &i32)| q.saturating_sub(self.zero_point) as f32 * scale(i);
        self.integers.iter().enumerate().map(value).collect()
    }
}

/// Which range observers to use.
#[derive(Debug, Clone, Copy)]
pub struct Observers<'a> {
    /// For activations.
    pub activation: &'a Observer,
    /// For weights.
    pub weight: &'a Observer,
}

impl<'a> Observers<'a> {
    /// Those of a run.
    pub fn of(options: &'a observers::ObserverOptions) -> Observers<'a> {
        let observers::ObserverOptions { activation, weight, .. } = options;
        Observers { activation: &activation.observer, weight: &weight.observer }
    }
}

/// Chooses the parameters. `statistics` holds one entry per activation quantizer, in their order; a tensor of
/// `given` has its range from there, and its statistic does not count.
///
/// # Errors
/// If a tensor had no finite value, or a weight or bias is not finite; the message names it.
pub fn decide(
    graph: &GraphProto,
    placement: &Placement,
    statistics: &[impl Borrow<TensorStatistics> + Sync],
    given: Option<&BTreeMap<String, GivenRange>>,
    scheme: &Scheme,
    observers: Observers,
) -> Result<Decided> {
    ensure!(
        statistics.len() == placement.activations.len(),
        "{} statistics, expected {}: one per activation",
        statistics.len(),
        placement.activations.len()
    );
    let statistics = weight::with_tables(graph, placement, statistics)?;
    let (mut activations, of_activations) = group::decide(placement, &statistics, given, scheme, observers.activation)?;
    let (mut weights, of_weights) = weight::decide(graph, placement, scheme, observers.weight)?;
    weight::share(&mut weights, &mut activations);
    let mut plan = QuantPlan { activations, weights, biases: Vec::new() };
    let of_biases = decide_biases(graph, placement, scheme, observers.weight, &mut plan, true)?;
    plan.weights.par_iter_mut().try_for_each(|weight| round(graph, weight))?;
    Ok((plan, [of_activations, of_weights, of_biases].concat()))
}

/// Parameters for `range` on the type's grid, refined on what was observed where the type asks for it,
/// and the range that they keep.
fn params_for(statistic: &TensorStatistics, range: Range, qtype: &QType) -> Result<(Range, QuantParams)> {
    let params = params_for_range(range, &qtype.grid())?;
    if qtype.pot_search == 0 {
        return Ok((range, params));
    }
    let refined = pot_search(statistic, params, qtype.n_halvings(params.scale));
    let end = |q: i32| f64::from(refined.dequantize(q));
    // As far down as up on a symmetric grid, so that the range alone leads to the same scale again.
    let centred = qtype.signed && qtype.symmetry == Symmetry::Symmetric;
    let lowest = if centred { -end(refined.q_max) } else { end(refined.q_min) };
    let (min, max) = (range.min.max(lowest), range.max.min(end(refined.q_max)));
    Ok((if refined == params { range } else { Range { min, max } }, refined))
}
