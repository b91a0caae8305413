//! From statistics to quantization parameters.
//!
//! In: a [`Placement`], a [`TensorStatistics`] per activation, the graph's constants, the [`Scheme`]. Out: a
//! [`QuantPlan`]: scale and zero point of every tensor, the integers of weights and biases. It does not change the
//! graph.

mod bias;
mod block;
mod group;
mod integers;
mod learned;
mod mask;
mod off_grid;
mod pairs;
mod unlike;
mod weight;

pub use bias::{bias_grids, decide_biases};
pub use block::least_error;
pub use integers::Integers;
pub use mask::Mask;
pub use off_grid::{off_grid, warning as warning_of_off_grid};
pub use pairs::Pairs;
pub use unlike::{narrow_tensors, warning as warning_of_unlike};
pub use weight::{round, share};

use crate::observers::{self, Observer, pot_search};
use crate::onnx::proto::GraphProto;
use crate::place::clips::FoldableClip;
use crate::place::{ActivationQuantizer, BiasQuantizer, Placement, WeightQuantizer};
use crate::quant::{GivenRange, QuantParams, Range, ScaleLayout, params_for_range, scale_shape};
use crate::scheme::{QType, Scheme};
use crate::statistics::TensorStatistics;
use anyhow::{Result, ensure};
use rayon::prelude::*;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All parameters and integers that will be written into the graph.
#[derive(Debug, Clone, Default)]
pub struct QuantPlan {
    /// One entry per entry of [`Placement::activations`], in the same order.
    pub activations: Vec<PlannedActivation>,
    /// One entry per entry of [`Placement::weights`], in the same order.
    pub weights: Vec<PlannedWeight>,
    /// The biases of [`Placement::biases`] that are stored as integers, in the same order.
    pub biases: Vec<PlannedBias>,
}

impl QuantPlan {
    /// Returns the names of the inputs of linear layers of transformers.
    pub fn linear_inputs(&self) -> impl Iterator<Item = &String> {
        self.activations.iter().map(|planned| &planned.quantizer).filter(|it| it.linear).map(|it| &it.tensor)
    }

    /// Whether the rounding of weights makes most of the error: most weights with two dimensions or more have coarse
    /// grids ([`PlannedWeight::is_coarse`]), or most activations have more than 8 bits.
    pub fn rounding_matters(&self) -> bool {
        let n_wide = self.activations.iter().filter(|activation| activation.qtype.bits > 8).count();
        if 2 * n_wide > self.activations.len() {
            return true;
        }
        let weights = || self.weights.iter().filter(|weight| weight.shape.len() >= 2);
        2 * weights().filter(|weight| weight.is_coarse()).count() > weights().count()
    }
}

/// A plan, with warnings.
pub type Decided = (QuantPlan, Vec<String>);

/// An activation with its parameters.
#[derive(Debug, Clone)]
pub struct PlannedActivation {
    /// The placed quantizer.
    pub quantizer: ActivationQuantizer,
    /// Integer type.
    pub qtype: QType,
    /// Scale and zero point.
    pub params: QuantParams,
    /// The range that is not clipped.
    pub range: Range,
    /// Lowest and highest finite value of this tensor.
    pub observed: Option<(f32, f32)>,
    /// Number of values that were NaN or infinite.
    pub n_non_finite: u64,
    /// Number of values of an attention mask, minus infinity included. The range need not cover them.
    pub n_masked: u64,
    /// The range observer's name.
    pub observer: &'static str,
    /// Ranges of other observers, from which tuning may choose by the error of the layers that read the tensor.
    pub candidates: Vec<RangeCandidate>,
}

/// The range and parameters of another observer.
#[derive(Debug, Clone)]
pub struct RangeCandidate {
    /// The observer's name.
    pub observer: &'static str,
    /// The range that is not clipped.
    pub range: Range,
    /// Scale and zero point for that range.
    pub params: QuantParams,
}

impl PlannedActivation {
    /// Returns the Clip or Relu before the tensor, if it is removed because the range ends at its bounds.
    pub fn removed_clip(&self) -> Option<&FoldableClip> {
        self.quantizer.clip.as_ref().filter(|clip| clip.has_no_effect_on(&self.params))
    }
}

/// A weight with its parameters.
#[derive(Debug, Clone)]
pub struct PlannedWeight {
    /// The placed quantizer.
    pub quantizer: WeightQuantizer,
    /// Integer type.
    pub qtype: QType,
    /// Scales and zero points: one per slice of the axis, one per block in row-major order, or one.
    pub params: Vec<QuantParams>,
    /// The integers, in the order of the values. Plans with equal integers share them.
    pub integers: Arc<Integers>,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Lowest and highest value.
    pub observed: (f32, f32),
    /// The range observer's name.
    pub observer: &'static str,
    /// Positions of slices with only negligible values.
    pub negligible: Vec<usize>,
    /// Whether rounding was learned, so that integers may differ from the nearest ones.
    pub learned: bool,
    /// Limits on the sum of neighboring weights.
    pub pairs: Option<Pairs>,
}

impl PlannedWeight {
    /// The dequantized values, in order.
    pub fn dequantized(&self) -> Vec<f32> {
        let layout = ScaleLayout::of(&self.shape, self.quantizer.axis, self.quantizer.block);
        let mut values = Vec::with_capacity(self.integers.iter().len());
        layout.for_each_run(|scale, run| {
            let params = &self.params[scale];
            values.extend(run.map(|position| params.dequantize(self.integers.at(position))));
        });
        values
    }

    /// Whether the grid is coarse: fewer than 8 bits, or 8 bits with one scale for all channels.
    pub fn is_coarse(&self) -> bool {
        let one_scale = self.params.len() == 1 && self.quantizer.block.is_none();
        self.qtype.bits < 8 || one_scale && self.qtype.bits == 8
    }

    /// Returns a function from the position of a value to the index of the value's scale.
    pub fn scale_of_value(&self) -> impl Fn(usize) -> usize + use<> {
        let layout = ScaleLayout::of(&self.shape, self.quantizer.axis, self.quantizer.block);
        move |position| layout.scale_of(position)
    }

    /// Dimensions of the tensor of scales; empty for one scale.
    pub fn scale_shape(&self) -> Vec<usize> {
        scale_shape(&self.shape, self.quantizer.axis, self.quantizer.block)
    }
}

/// A bias with its integers.
#[derive(Debug, Clone)]
pub struct PlannedBias {
    /// The placed quantizer.
    pub quantizer: BiasQuantizer,
    /// Its own integer type; `None` for int32.
    pub qtype: Option<QType>,
    /// The integer that stands for 0.0.
    pub zero_point: i32,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// One scale per element, or one scale.
    pub scales: Vec<f32>,
    /// The integers.
    pub integers: Vec<i32>,
}

impl PlannedBias {
    /// The dequantized values.
    pub fn dequantized(&self) -> Vec<f32> {
        let scale = |i: usize| self.scales[if self.scales.len() == 1 { 0 } else { i }];
        let value = |(i, &q): (usize, &i32)| q.saturating_sub(self.zero_point) as f32 * scale(i);
        self.integers.iter().enumerate().map(value).collect()
    }
}

/// Range observers.
#[derive(Debug, Clone, Copy)]
pub struct Observers<'a> {
    /// The observer of activations.
    pub activation: &'a Observer,
    /// The observer of weights.
    pub weight: &'a Observer,
}

impl<'a> Observers<'a> {
    /// The observers of a run.
    pub fn of(options: &'a observers::ObserverOptions) -> Observers<'a> {
        let observers::ObserverOptions { activation, weight, .. } = options;
        Observers { activation: &activation.observer, weight: &weight.observer }
    }
}

/// Chooses all parameters. `statistics` holds one entry per activation quantizer, in the same order. A tensor in
/// `given` takes its range from there, and its statistic is ignored.
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
    let statistics = weight::with_constant_tables(graph, placement, statistics)?;
    let (mut activations, of_activations) = group::decide(placement, &statistics, given, scheme, observers.activation)?;
    let mut weights = weight::decide(graph, placement, scheme, observers.weight)?;
    weight::share(&mut weights, &mut activations);
    let mut plan = QuantPlan { activations, weights, biases: Vec::new() };
    let of_biases = decide_biases(graph, placement, scheme, observers.weight, &mut plan, true)?;
    plan.weights.par_iter_mut().try_for_each(|weight| round(graph, weight))?;
    Ok((plan, [of_activations, of_biases].concat()))
}

/// Chooses the parameters of the activations alone, as [`decide`] does.
///
/// # Errors
/// If a tensor had no finite value; the message names it.
pub fn decide_activations(
    graph: &GraphProto,
    placement: &Placement,
    statistics: &[impl Borrow<TensorStatistics> + Sync],
    scheme: &Scheme,
    observer: &Observer,
) -> Result<Vec<PlannedActivation>> {
    let statistics = weight::with_constant_tables(graph, placement, statistics)?;
    Ok(group::decide(placement, &statistics, None, scheme, observer)?.0)
}

/// Returns the range that is not clipped, and the parameters for `range` on the type's grid. If the type asks for a
/// search of power-of-two scales, both are refined on the statistic.
fn params_for(statistic: &TensorStatistics, range: Range, qtype: &QType) -> Result<(Range, QuantParams)> {
    let params = params_for_range(range, &qtype.grid())?;
    if qtype.pot_search == 0 {
        return Ok((range, params));
    }
    let refined = pot_search(statistic, params, qtype.n_halvings(params.scale));
    let end = |q: i32| f64::from(refined.dequantize(q));
    // The range of a symmetric grid is centered, so that the same scale follows from the range alone.
    let lowest = if qtype.grid().is_centred() { -end(refined.q_max) } else { end(refined.q_min) };
    let (min, max) = (range.min.max(lowest), range.max.min(end(refined.q_max)));
    Ok((if refined == params { range } else { Range { min, max } }, refined))
}
