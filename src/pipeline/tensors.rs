//! The error of each tensor of a quantized model.

use crate::data::{Array, Dataset, Values};
use crate::engine::{Parsed, ShapedEngines, ShapedSession};
use crate::matching::{ChannelsAt, IsolatedLayers, Matching, TensorMatch, isolate_layers, matching};
use crate::metrics::{cosine, sqnr_db, value_and_error};
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::prepare::prepare;
use crate::progress::Tick;
use crate::quant::ScaleLayout;
use anyhow::{Context, Result};
use rayon::prelude::*;
use std::path::Path;

/// Number of samples that tensors are compared on, spread evenly over the samples of the first shape.
const N_SAMPLES: usize = 8;
/// Minimum values per channel for a channel to be called constant.
const MIN_CHANNEL_VALUES: usize = 16;

/// Figures of the tensors of a quantized model.
pub struct ComparedTensors {
    /// Number of samples.
    pub n_samples: usize,
    /// The tensors with figures, in the order of the float model.
    pub tensors: Vec<ComparedTensor>,
    /// Float tensors without a counterpart of the same number of values.
    pub unmatched: Vec<String>,
    /// Reason why the error that each layer adds is not known.
    pub alone_failed: Option<String>,
}

impl ComparedTensors {
    /// Whether another tensor has the same integer grid, as tensors that share their scale do.
    pub fn shares_grid(&self, tensor: &ComparedTensor) -> bool {
        let Some(grid) = tensor.about.grid else { return false };
        let others = self.tensors.iter().filter(|other| other.about.tensor != tensor.about.tensor);
        others.filter_map(|other| other.about.grid).any(|other| other.ends == grid.ends)
    }
}

/// Figures of a tensor.
pub struct ComparedTensor {
    /// The tensor and its counterpart.
    pub about: TensorMatch,
    /// Sums over all samples.
    sums: TensorSums,
    /// Sums where the layer reads the tensors of the float model.
    alone: Option<TensorSums>,
    /// Sums where the layer reads the tensors of the float model, in front of the tensor's own QuantizeLinear.
    layer_alone: Option<TensorSums>,
}

impl ComparedTensor {
    /// Returns the SQNR in the quantized network, in dB. All errors in front of the tensor are included.
    pub fn sqnr_db(&self) -> f64 {
        self.sums.sqnr_db()
    }

    /// Returns the SQNR where the layer reads the tensors of the float model, in dB.
    pub fn added_sqnr_db(&self) -> Option<f64> {
        self.alone.as_ref().map(TensorSums::sqnr_db)
    }

    /// Whether most of the error that the layer adds comes from the tensor's own QuantizeLinear, not from the weights.
    pub fn is_of_range(&self) -> bool {
        match (&self.alone, &self.layer_alone) {
            (Some(alone), Some(layer)) => layer.noise < 0.5 * alone.noise,
            (Some(_), None) => self.about.layer.is_none(),
            _ => false,
        }
    }

    /// Whether the layer computes in float, so that the error is that of the tensor's own QuantizeLinear.
    pub fn is_of_float_layer(&self) -> bool {
        self.layer_alone.as_ref().is_some_and(|layer| layer.noise == 0.0)
    }

    /// Returns the mean cosine over the samples.
    pub fn cosine(&self) -> f64 {
        let mean = self.sums.cosine / self.sums.n_samples.max(1) as f64;
        if mean.is_finite() { mean.clamp(-1.0, 1.0) } else { -1.0 }
    }

    /// Returns the largest absolute difference; `None` where a value is NaN or infinite.
    pub fn max_difference(&self) -> Option<f64> {
        Some(self.sums.max_error).filter(|error| error.is_finite())
    }

    /// Returns the share of the values that are quantized to an end of the grid and lie beyond this end in the float
    /// network, in percent; `None` without a grid.
    pub fn saturated_percent(&self) -> Option<f64> {
        let share = self.sums.n_saturated as f64 / self.sums.n_values.max(1) as f64;
        self.about.grid.map(|_| 100.0 * share)
    }

    /// Returns the number of channels that are constant in the quantized network and not in the float one, and the
    /// number of all channels; `None` where channels are unknown or have too few values.
    pub fn dead_channels(&self) -> Option<[usize; 2]> {
        let channels = &self.sums.channels;
        let is_constant = |[min, max]: [f32; 2]| min == max;
        let dead = channels.iter().filter(|[float, quantized]| is_constant(*quantized) && !is_constant(*float));
        let is_judged = self.sums.n_values >= MIN_CHANNEL_VALUES * channels.len();
        (!channels.is_empty() && is_judged).then(|| [dead.count(), channels.len()])
    }

    /// Returns how many times the grid's end farthest from 0 is as large as the largest absolute value of the float
    /// tensor; `None` without a grid.
    pub fn range_over_values(&self) -> Option<f64> {
        let [low, high] = self.about.grid?.ends;
        Some(low.abs().max(high.abs()) / self.sums.max_value)
    }

    /// Returns the largest absolute value of the float tensor over its root mean square.
    pub fn crest(&self) -> f64 {
        self.sums.max_value / (self.sums.signal / self.sums.n_values.max(1) as f64).sqrt()
    }
}

/// Sums over the values of a tensor.
#[derive(Debug, Clone, Default)]
struct TensorSums {
    n_samples: usize,
    n_values: usize,
    signal: f64,
    noise: f64,
    cosine: f64,
    max_error: f64,
    max_value: f64,
    n_saturated: usize,
    /// Lowest and highest value of each channel, float and quantized.
    channels: Vec<[[f32; 2]; 2]>,
}

impl TensorSums {
    fn sqnr_db(&self) -> f64 {
        sqnr_db(self.signal, self.noise)
    }

    /// Returns the sums of one sample.
    fn of(shape: &[usize], float: &[f32], quantized: &[f32], about: &TensorMatch) -> TensorSums {
        let mut sums = TensorSums { n_samples: 1, n_values: float.len(), ..TensorSums::default() };
        sums.cosine = cosine(float, quantized);
        // Without a grid, no value is beyond an end.
        let (ends, half) = about.grid.map_or(([f64::MIN, f64::MAX], 0.0), |grid| (grid.ends, 0.5 * grid.scale));
        for (&float, &quantized) in float.iter().zip(quantized) {
            let (value, error) = value_and_error(float, quantized);
            let other = value - error;
            sums.signal += value * value;
            sums.noise += error * error;
            sums.max_error = if error.is_nan() { f64::INFINITY } else { sums.max_error.max(error.abs()) };
            sums.max_value = sums.max_value.max(value.abs());
            let below = other <= ends[0] + half && value < ends[0] - half;
            let above = other >= ends[1] - half && value > ends[1] + half;
            sums.n_saturated += usize::from(below || above);
        }
        if let Some(axis) = channel_axis(shape, about.channel_axis) {
            let layout = ScaleLayout::of(shape, Some(axis), None);
            sums.channels = vec![[[f32::INFINITY, f32::NEG_INFINITY]; 2]; layout.n];
            layout.for_each_run(|channel, run| {
                for (extremes, values) in sums.channels[channel].iter_mut().zip([float, quantized]) {
                    for &value in &values[run.clone()] {
                        *extremes = [extremes[0].min(value), extremes[1].max(value)];
                    }
                }
            });
        }
        sums
    }

    fn merge(&mut self, other: TensorSums) {
        if self.n_samples == 0 {
            *self = other;
            return;
        }
        self.n_samples += other.n_samples;
        self.n_values += other.n_values;
        self.signal += other.signal;
        self.noise += other.noise;
        self.cosine += other.cosine;
        self.max_error = self.max_error.max(other.max_error);
        self.max_value = self.max_value.max(other.max_value);
        self.n_saturated += other.n_saturated;
        for (all, one) in self.channels.iter_mut().zip(other.channels) {
            for (all, one) in all.iter_mut().zip(one) {
                *all = [all[0].min(one[0]), all[1].max(one[1])];
            }
        }
    }
}

/// Returns the axis of the channels; `None` without an axis of one channel or more.
fn channel_axis(shape: &[usize], at: Option<ChannelsAt>) -> Option<usize> {
    let axis = match at? {
        ChannelsAt::Second => 1,
        ChannelsAt::Last => shape.len().checked_sub(1)?,
    };
    shape.get(axis).is_some_and(|&n| n > 0).then_some(axis)
}

/// Loads a model of any tool into the engine. Where the engine does not know an older operator, the model is first
/// upgraded to operator set `opset`, as in calibration.
pub(super) fn parsed(model: &ModelProto, opset: i64, shapes: &Shapes) -> Result<Parsed> {
    Parsed::new(model, shapes).or_else(|error| {
        let mut prepared = model.clone();
        match prepare(&mut prepared, opset) {
            Ok(changes) if !changes.is_empty() => Parsed::new(&prepared, shapes),
            _ => Err(error),
        }
    })
}

/// Compares the tensors of both models on a few samples, on the threads of the current pool. Fails if a model cannot be
/// built or run.
pub(super) fn compare_tensors(
    paths: [&Path; 2],
    models: &[ModelProto; 2],
    (opset, shapes): (i64, &Shapes),
    dataset: &Dataset,
    tick: &Tick,
) -> Result<ComparedTensors> {
    let Matching { tensors, mut unmatched } =
        matching(&models[0], &models[1]).context("internal error: a model without a graph")?;
    let parse = |i: usize| parsed(&models[i], opset, shapes).with_context(|| format!("`{}`", paths[i].display()));
    let (float, quantized) = (parse(0)?, parse(1)?);
    // An upgraded model may lack a tensor.
    let is_there = |tensor: &TensorMatch| float.has_tensor(&tensor.tensor) && quantized.has_tensor(&tensor.read);
    let (tensors, lost): (Vec<TensorMatch>, Vec<TensorMatch>) = tensors.into_iter().partition(is_there);
    unmatched.extend(lost.into_iter().map(|tensor| tensor.tensor));
    let names = |of: fn(&TensorMatch) -> &String| tensors.iter().map(of).cloned().collect::<Vec<String>>();
    let engines = [
        ShapedEngines::new(float, &names(|tensor| &tensor.tensor))?,
        ShapedEngines::new(quantized, &names(|tensor| &tensor.read))?,
    ];
    let samples = chosen(dataset);
    let shapes_of = first_shapes(&engines[0], dataset, &samples, tensors.len())?;
    let built = IsolatedEngine::build(&models[1], &tensors, (opset, shapes), &shapes_of);
    let (alone, alone_failed) = match built {
        Ok(alone) => (alone, None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let pass = SamplePass { tensors: &tensors, engines: &engines, alone: alone.as_ref() };
    let measured = samples.par_iter().map(|&sample_idx| {
        let measured = pass.run(&dataset.load(sample_idx)?).with_context(|| format!("`{}`", dataset.name(sample_idx)));
        tick();
        measured
    });
    let measured: Vec<Vec<[TensorSums; 3]>> = measured.collect::<Result<_>>()?;
    let mut total = vec![<[TensorSums; 3]>::default(); tensors.len()];
    for sums in measured {
        for (total, one) in total.iter_mut().zip(sums) {
            total.iter_mut().zip(one).for_each(|(total, one)| total.merge(one));
        }
    }
    let mut compared = ComparedTensors { n_samples: samples.len(), tensors: Vec::new(), unmatched, alone_failed };
    for (about, [sums, alone, layer_alone]) in tensors.into_iter().zip(total) {
        let known = |sums: TensorSums| Some(sums).filter(|sums| sums.n_values > 0);
        match sums.n_values {
            0 => compared.unmatched.push(about.tensor),
            _ => compared.tensors.push(ComparedTensor {
                about,
                sums,
                alone: known(alone),
                layer_alone: known(layer_alone),
            }),
        }
    }
    Ok(compared)
}

/// Returns the samples that tensors are compared on: of the first shape, spread evenly over the data.
pub(super) fn chosen(dataset: &Dataset) -> Vec<usize> {
    let first = dataset.by_shape(0).and_then(|order| order.first().copied()).unwrap_or_default();
    let same: Vec<usize> = (0..dataset.len()).filter(|&i| dataset.shape_rank(i) == dataset.shape_rank(first)).collect();
    let n = N_SAMPLES.min(same.len());
    (0..n).map(|i| same[i * same.len() / n]).collect()
}

/// Returns the shapes of the float tensors; `None` for a tensor that is not float32.
fn first_shapes(
    engines: &ShapedEngines,
    dataset: &Dataset,
    samples: &[usize],
    n_tensors: usize,
) -> Result<Vec<Option<Vec<usize>>>> {
    let mut shapes = vec![None; n_tensors];
    if let Some(&sample_idx) = samples.first() {
        let mut session = engines.session()?;
        session.run(&dataset.load(sample_idx)?, &mut |tensor_idx, shape, _| {
            shapes[tensor_idx] = Some(shape.to_vec());
            Ok(())
        })?;
    }
    Ok(shapes)
}

/// The engine that runs each layer on its own.
struct IsolatedEngine {
    layers: IsolatedLayers,
    engines: ShapedEngines,
    /// Positions of the observed tensors, and whether the observed value is in front of QuantizeLinear.
    observed: Vec<(usize, bool)>,
}

impl IsolatedEngine {
    fn build(
        quantized: &ModelProto,
        tensors: &[TensorMatch],
        (opset, given): (i64, &Shapes),
        shapes: &[Option<Vec<usize>>],
    ) -> Result<Option<IsolatedEngine>> {
        let float = tensors.iter().zip(shapes).map(|(tensor, shape)| shape.as_ref().map(|_| tensor));
        let Some(layers) = isolate_layers(quantized, &float.collect::<Vec<_>>()) else { return Ok(None) };
        let inputs = layers.model.graph()?.input.iter();
        let own = inputs.filter_map(|input| Some((input.name().to_string(), given.get(input.name())?.clone())));
        let mut of_inputs: Shapes = own.collect();
        for (name, position) in &layers.inputs {
            of_inputs.extend(shapes[*position].clone().map(|shape| (name.clone(), shape)));
        }
        let parsed = parsed(&layers.model, opset, &of_inputs)?;
        let (mut names, mut observed) = (Vec::new(), Vec::new());
        for (position, tensor) in tensors.iter().enumerate() {
            for (value, in_front) in [(&tensor.root, true), (&tensor.read, false)] {
                let is_wanted = !in_front || tensor.root != tensor.read;
                if is_wanted && parsed.has_tensor(value) {
                    names.push(value.clone());
                    observed.push((position, in_front));
                }
            }
        }
        Ok(Some(IsolatedEngine { layers, engines: ShapedEngines::new(parsed, &names)?, observed }))
    }
}

/// The runs of one sample.
struct SamplePass<'a> {
    tensors: &'a [TensorMatch],
    engines: &'a [ShapedEngines; 2],
    alone: Option<&'a IsolatedEngine>,
}

impl SamplePass<'_> {
    /// Returns the sums of each tensor: in the quantized network, of the layer alone, and of the layer without the
    /// tensor's own QuantizeLinear. Only the tensors of this sample are in memory.
    fn run(&self, sample: &[Array]) -> Result<Vec<[TensorSums; 3]>> {
        let n = self.tensors.len();
        let mut float: Vec<Option<Array>> = vec![None; n];
        self.engines[0].session()?.run(sample, &mut |tensor_idx, shape, values| {
            float[tensor_idx] = Some(Array { shape: shape.to_vec(), values: Values::F32(values.to_vec()) });
            Ok(())
        })?;
        let mut sums = vec![<[TensorSums; 3]>::default(); n];
        let mut add = |(tensor_idx, kind): (usize, usize), quantized: &[f32]| {
            let Some(Array { shape, values: Values::F32(values) }) = &float[tensor_idx] else { return };
            if values.len() == quantized.len() {
                sums[tensor_idx][kind] = TensorSums::of(shape, values, quantized, &self.tensors[tensor_idx]);
            }
        };
        self.engines[1].session()?.run(sample, &mut |tensor_idx, _, quantized| {
            add((tensor_idx, 0), quantized);
            Ok(())
        })?;
        if let Some(alone) = self.alone {
            let of_float = alone.layers.inputs.iter().map(|(_, position)| float[*position].clone());
            let own = alone.layers.own_inputs.iter().map(|&position| sample.get(position).cloned());
            let inputs: Option<Vec<Array>> = of_float.chain(own).collect();
            let inputs = inputs.context("internal error: a tensor of the float model is missing")?;
            let mut session: ShapedSession = alone.engines.session()?;
            session.run(&inputs, &mut |observed_idx, _, quantized| {
                let (tensor_idx, in_front) = alone.observed[observed_idx];
                add((tensor_idx, if in_front { 2 } else { 1 }), quantized);
                Ok(())
            })?;
        }
        Ok(sums)
    }
}
