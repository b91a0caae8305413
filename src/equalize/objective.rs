//! The quantization error that a group causes at its readers' outputs, as a function of the channel scales.
//!
//! With channel scales s, a tensor x of the group becomes x / s and a reader's weight w becomes w s. A grid of step d
//! has a quantization error with power d^2 / 12. At a reader's output, the error of a quantized tensor has the power
//! `d_x^2 / 12 * sum_c s_c^2 * sum_o w_oc^2`, where d_x follows from the range of x / s over all channels. The error of
//! the reader's weight has the power `sum_o d_o^2 / 12 * sum_c E[x_c^2] / s_c^2`, where d_o follows from the largest
//! `|w_oc s_c|` of the row, or of the whole weight if it has one scale. A producer's per-tensor weight adds error like
//! a quantized tensor. A producer's weight with a scale per row absorbs the factor and adds none. Each reader's error
//! is divided by the power of its output.

use super::{ChannelStatistics, EqualizationGroup, GroupEnd};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node;
use crate::onnx::proto::GraphProto;
use crate::onnx::weight_channels::WeightChannels;
use crate::place::{ActivationQuantizer, Placement};
use crate::quant::{Codes, Grid, Range, params_for_range};
use crate::scheme::{ScaleKind, Scheme};
use std::collections::{BTreeMap, BTreeSet};

/// The model around a group, with its statistics.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The prepared graph.
    pub graph: &'a GraphProto,
    /// Index of the graph.
    pub index: &'a GraphIndex<'a>,
    /// The quantizers of the graph.
    pub placement: &'a Placement,
    /// Types of the quantizers.
    pub scheme: &'a Scheme,
    /// Channel statistics by tensor.
    pub statistics: &'a BTreeMap<String, ChannelStatistics>,
    /// Minimum range of a channel, as in [`ScaleOptions::least_share`](super::ScaleOptions).
    pub least_share: f32,
}

/// Channel scales that other groups give to weights, by the node's position and whether they belong to output channels.
pub type OtherScales = BTreeMap<(usize, bool), Vec<f32>>;

/// The quantization error of a tensor of the group, or of a producer's weight, which grows with the scaled range.
pub struct RangeTerm {
    pub grid: Grid,
    /// Lowest and highest value per channel of the group; 0 for channels that the tensor does not have.
    pub low: Vec<f64>,
    pub high: Vec<f64>,
    /// Quantization error per channel for step 1 and channel scale 1.
    pub load: Vec<f64>,
}

/// The quantization error of one reader's weight.
pub struct WeightTerm {
    pub grid: Grid,
    /// Number of rows with scales of their own; rows of a group are adjacent.
    pub n_rows: usize,
    /// First channel, in the equalization group, that each group of rows reads, and the number of channels that each
    /// reads.
    pub firsts: Vec<usize>,
    pub n_members: usize,
    /// Largest absolute weight by group of rows, channel and row.
    pub peaks: Vec<f64>,
    /// Quantization error per row for step 1 and channel scale 1, by group of rows and channel.
    pub energy: Vec<f64>,
}

/// The quantization error of one group as a function of its channel scales.
pub struct Objective {
    pub n: usize,
    pub ranges: Vec<RangeTerm>,
    pub weights: Vec<WeightTerm>,
    /// Largest absolute value of each channel.
    pub activation_peak: Vec<f64>,
    /// Largest absolute value of the readers' weights that multiply each channel.
    pub weight_peak: Vec<f64>,
    /// Largest absolute value of the producers' per-tensor weights for each channel.
    pub producer_peak: Vec<f64>,
    /// Whether the error depends on the channel scales of other groups.
    pub depends: bool,
}

/// Factor on ranges with power-of-two scales, a margin for larger values on other samples. Without it, channel scales
/// would move a range to just below a power of two.
const MARGIN: f64 = 1.1;

/// Returns the step of the grid for a range; 0 if the range gives none.
pub fn step(grid: &Grid, low: f64, high: f64) -> f64 {
    params_for_range(Range { min: low, max: high }, grid).map_or(0.0, |p| f64::from(p.scale))
}

/// A reader of the group, with its weight.
struct GroupReader<'a> {
    end: &'a GroupEnd,
    weight_channels: WeightChannels,
    values: Vec<f32>,
    /// Approximate power of the output, for uncorrelated channels.
    power: f64,
    /// `sum_o w_oc^2` over the values of channel c.
    squares: Vec<f64>,
}

impl Objective {
    /// Returns the quantization error of `group`; `None` if nothing quantized depends on its channel scales, or a grid
    /// is not affine.
    pub fn of(group: &EqualizationGroup, setting: &Setting, others: &OtherScales) -> Option<Objective> {
        let readers: Vec<GroupReader> =
            group.consumers.iter().filter_map(|end| GroupReader::of(end, group.n, setting)).collect();
        let mut objective = Objective {
            n: group.n,
            ranges: Vec::new(),
            weights: Vec::new(),
            activation_peak: vec![0.0; group.n],
            weight_peak: vec![0.0; group.n],
            producer_peak: vec![0.0; group.n],
            depends: false,
        };
        let load = |of: &dyn Fn(&GroupReader) -> bool| -> Vec<f64> {
            let mut load = vec![0.0; group.n];
            for reader in readers.iter().filter(|reader| of(reader)) {
                for (load, square) in load.iter_mut().zip(&reader.squares) {
                    *load += square / reader.power / 12.0;
                }
            }
            load
        };
        readers.iter().for_each(|reader| objective.add_reader(reader, setting, others));
        for quantizer in &setting.placement.activations {
            let Some(channels) = group.tensors.get(&quantizer.tensor) else { continue };
            let qtype = setting.scheme.types.get(&quantizer.qtype);
            let statistic = setting.statistics.get(&quantizer.tensor);
            let (Some(qtype), Some(statistic), None) = (qtype, statistic, quantizer.fixed) else {
                continue;
            };
            let reached = reached(quantizer, group, setting);
            let load = load(&|reader| reached.contains(&reader.end.node));
            let lowest = statistic.min.iter().copied().fold(f32::INFINITY, f32::min);
            let grid = qtype.adapted(Some(lowest)).grid();
            let margin = if qtype.scale == ScaleKind::PowerOfTwo { MARGIN } else { 1.0 };
            let mut term =
                RangeTerm { grid, low: vec![0.0; group.n], high: vec![0.0; group.n], load: vec![0.0; group.n] };
            let least = statistic.minimum_range(setting.least_share);
            for (i, c) in channels.range().enumerate() {
                let (min, max) = (statistic.min[i], statistic.max[i]);
                let min = if min < 0.0 { min.min(-least) } else { 0.0 };
                let max = if max > 0.0 { max.max(least) } else { 0.0 };
                term.low[c] = margin * f64::from(min).max(-1e30);
                term.high[c] = margin * f64::from(max).min(1e30);
                term.load[c] = load[c];
                let reach = term.high[c].max(-term.low[c]);
                objective.activation_peak[c] = objective.activation_peak[c].max(reach);
            }
            objective.ranges.push(term);
        }
        let all = load(&|_| true);
        for end in &group.producers {
            objective.add_producer(end, &all, setting, others);
        }
        if objective.ranges.is_empty() {
            for reader in &readers {
                let Some(statistic) = setting.statistics.get(&reader.end.tensor) else { continue };
                for (i, c) in reader.end.channels.range().enumerate() {
                    let reach = f64::from(statistic.max[i].max(-statistic.min[i]));
                    objective.activation_peak[c] = objective.activation_peak[c].max(reach);
                }
            }
        }
        let affine = |grid: &Grid| grid.codes == Codes::Affine;
        let known = objective.ranges.iter().map(|t| &t.grid).all(affine)
            && objective.weights.iter().map(|t| &t.grid).all(affine);
        let quantized = !objective.ranges.is_empty() || !objective.weights.is_empty();
        (known && quantized).then_some(objective)
    }

    /// Whether channel `c` has nonzero values and weights, so that its channel scale matters.
    pub fn is_live(&self, c: usize) -> bool {
        self.activation_peak[c] > 0.0 && self.weight_peak[c] > 0.0
    }

    fn add_reader(&mut self, reader: &GroupReader, setting: &Setting, others: &OtherScales) {
        let GroupReader { end, weight_channels, values, power, .. } = reader;
        let channel = |i: usize| end.channels.of(weight_channels.ends(i).1);
        for (i, &value) in values.iter().enumerate() {
            let peak = &mut self.weight_peak[channel(i)];
            *peak = peak.max(f64::from(value.abs()));
        }
        let Some((grid, per_row)) = weight_grid(end, setting) else { return };
        let (n_in, n_out) = (weight_channels.n_in_per_group(), weight_channels.n_out_per_group());
        let statistic = &setting.statistics[&end.tensor];
        // Number of values per channel of the group that a row multiplies.
        let per_channel = end.channels.run.min(n_in) as f64 * weight_channels.area as f64;
        let energy = |c: usize| statistic.mean_square(c - end.channels.first) * per_channel / power / 12.0;
        let out = others.get(&(end.node, true));
        let n_groups = if per_row { weight_channels.groups } else { 1 };
        let first_of = |group: usize| if per_row { end.channels.of(group * n_in) } else { end.channels.first };
        let last = end.channels.of(if per_row { n_in } else { weight_channels.n_in } - 1);
        let n_members = last - first_of(0) + 1;
        let rows = if per_row { n_out } else { 1 };
        let mut term = WeightTerm {
            grid,
            n_rows: rows * n_groups,
            firsts: (0..n_groups).map(first_of).collect(),
            n_members,
            peaks: vec![0.0; n_groups * n_members * rows],
            energy: vec![0.0; n_groups * n_members],
        };
        for (i, &value) in values.iter().enumerate() {
            let (o, _) = weight_channels.ends(i);
            let (group, row) = if per_row { (o / n_out, o % n_out) } else { (0, 0) };
            let by = out.filter(|_| !per_row).map_or(1.0, |out| out[o]);
            let member = channel(i) - term.firsts[group];
            let peak = &mut term.peaks[(group * n_members + member) * rows + row];
            *peak = peak.max(f64::from((value / by).abs()));
        }
        // The error of a row refers to its output without the channel scales of other groups.
        let scaled = out
            .filter(|_| !per_row)
            .map_or(1.0, |out| out.iter().map(|s| f64::from(*s) * f64::from(*s)).sum::<f64>() / out.len() as f64);
        let of_rows = if per_row { 1.0 } else { n_out as f64 * scaled };
        for group in 0..n_groups {
            for member in 0..n_members {
                let c = term.firsts[group] + member;
                term.energy[group * n_members + member] = energy(c) * of_rows;
            }
        }
        self.depends |= !per_row;
        self.weights.push(term);
    }

    fn add_producer(&mut self, end: &GroupEnd, load: &[f64], setting: &Setting, others: &OtherScales) {
        let Some(weight_channels) = end.weight_channels else { return };
        let Some((grid, false)) = weight_grid(end, setting) else { return };
        let node = &setting.graph.node[end.node];
        let input = setting.statistics.get(&node.input[0]);
        let (Some(values), Some(input)) = (weight_values(end, setting), input) else { return };
        let scale = others.get(&(end.node, false));
        let energy = input.mean_square_of_all() * (values.len() / weight_channels.n_out.max(1)) as f64;
        let mut high = vec![0.0f64; self.n];
        for (i, value) in values.iter().enumerate() {
            let (o, c) = weight_channels.ends(i);
            let by = scale.map_or(1.0, |scale| scale[c]);
            let high = &mut high[end.channels.of(o)];
            *high = high.max(f64::from((value * by).abs()));
        }
        self.producer_peak.iter_mut().zip(&high).for_each(|(peak, high)| *peak = peak.max(*high));
        let low = high.iter().map(|high| -high).collect();
        let load = (0..self.n).map(|c| if end.channels.range().contains(&c) { load[c] } else { 0.0 });
        let load = load.map(|load| load * energy).collect();
        self.depends = true;
        self.ranges.push(RangeTerm { grid, low, high, load });
    }
}

impl<'a> GroupReader<'a> {
    fn of(end: &'a GroupEnd, n: usize, setting: &Setting) -> Option<GroupReader<'a>> {
        let weight_channels = end.weight_channels?;
        let values = weight_values(end, setting)?;
        let statistic = setting.statistics.get(&end.tensor)?;
        let mut squares = vec![0.0; n];
        for (i, &value) in values.iter().enumerate() {
            squares[end.channels.of(weight_channels.ends(i).1)] += f64::from(value) * f64::from(value);
        }
        let power: f64 = end.channels.range().enumerate().map(|(i, c)| squares[c] * statistic.mean_square(i)).sum();
        (power > 0.0 && power.is_finite()).then_some(GroupReader { end, weight_channels, values, power, squares })
    }
}

/// Returns the positions of the nodes that values quantized by `quantizer` reach through tensors of the group.
fn reached(quantizer: &ActivationQuantizer, group: &EqualizationGroup, setting: &Setting) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut pending: Vec<usize> = quantizer.edges.iter().map(|(node, _)| *node).collect();
    while let Some(node) = pending.pop() {
        if reached.insert(node) {
            let outputs = setting.graph.node.get(node).into_iter().flat_map(|node| &node.output);
            for output in outputs.filter(|output| group.tensors.contains_key(*output)) {
                pending.extend(setting.index.consumers(output).iter().map(|(node, _)| *node));
            }
        }
    }
    reached
}

fn weight_values(end: &GroupEnd, setting: &Setting) -> Option<Vec<f32>> {
    let name = setting.graph.node[end.node].input.get(end.slot)?;
    setting.index.floats(name)
}

/// Returns the grid of a node's weight, and whether every row has its own scale. `None` if the weight is not quantized,
/// or if its scales are along the input channels: these absorb every factor, so that the error does not depend on it.
fn weight_grid(end: &GroupEnd, setting: &Setting) -> Option<(Grid, bool)> {
    let quantizer = setting.placement.weights.iter().find(|w| w.edges.contains(&(end.node, end.slot)))?;
    let grid = setting.scheme.types.get(&quantizer.qtype)?.grid();
    let node = &setting.graph.node[end.node];
    let shape = setting.index.initializer(&node.input[end.slot])?;
    let axis = node::axis_position(node::output_axis(node, end.slot), shape.dims.len());
    match quantizer.axis {
        None => Some((grid, false)),
        Some(_) if quantizer.block.is_some() => Some((grid, true)),
        Some(found) => (found == axis).then_some((grid, true)),
    }
}
