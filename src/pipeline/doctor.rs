//! Examines a model and its data before any run.

use super::collect::{CollectRequest, collect};
use super::compare::SampleData;
use super::sample_sums::f32s;
use super::{on_threads, prepare_for};
use crate::calibrate::CalibrationOptions;
use crate::data::{Array, Dataset};
use crate::diag::{WithHint, count, hint_of};
use crate::doctor::{
    DataSurvey, Examination, Examined, Facts, NO_DATA, RangeAgreement, SurveyedTensor, examine, range_agreement, survey,
};
use crate::engine::{Parsed, ShapedEngines};
use crate::heads::{Decoding, OutputView, TaskName};
use crate::metrics::{ChannelAxes, EvaluatedOutput};
use crate::onnx;
use crate::onnx::graph::GraphIndex;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::GraphProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::{Placement, Selection, place};
use crate::preprocessing::{PixelBudget, PixelVerdict, better_pixel_values};
use crate::progress::Progress;
use crate::scheme::Scheme;
use crate::statistics::{Shard, UntilStable};
use anyhow::{Context, Result, anyhow};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

/// Limit on the multiply-adds of the check of the preprocessing, which take about a minute.
const MAX_MULTIPLY_ADDS: f64 = 2e12;
/// Minimum and maximum number of samples in which boxes are looked for. Few images may show nothing.
const N_BOX_SAMPLES: [usize; 2] = [8, 16];
/// Number of samples whose outputs tell the head.
const N_HEAD_SAMPLES: usize = 4;

/// The model and the options of an examination.
pub struct DoctorRequest<'a> {
    /// The float model.
    pub model: &'a Path,
    /// Samples, without labels; no sources for an examination of the model alone.
    pub data: SampleData<'a>,
    /// The backend's table, and the table of wider types that replaces it for transformers.
    pub tables: (Scheme, Option<Scheme>),
    /// Whether the user names the backend. Otherwise nothing is said about targets.
    pub has_backend: bool,
    /// Whether to find out how many samples the ranges of the backend need.
    pub until_stable: bool,
    /// Nodes to exclude or select.
    pub selection: Selection,
}

impl DoctorRequest<'_> {
    /// Returns whether the network's outputs are class scores, if the user names its task.
    fn are_scores(&self) -> Option<bool> {
        self.data.head.given_task().map(|task| task == TaskName::Classify)
    }
}

/// The findings about a model and its data.
pub struct Diagnosis {
    /// Every examination with its result.
    pub examined: Vec<(&'static Examination, Examined)>,
    /// The data; `None` without data.
    pub data: Option<DataSurvey>,
    /// The share of tensors with at least 80 % of the final range, by number of samples; empty without data.
    pub ranges: Vec<RangeAgreement>,
    /// The number of samples that the ranges of the backend need; `None` where the request does not ask for it.
    pub until_stable: Option<UntilStable>,
    /// The preprocessing of images, in words.
    pub preprocessing: Option<String>,
    /// Share of the multiply-adds that the backend would run on integers, 0 to 1, where it is known.
    pub integer_share: Option<f64>,
}

/// Examines a model and its data.
///
/// # Errors
/// If the model is no float model that the engine can run, or no sample can be run. The message begins with the model.
pub fn doctor(request: &DoctorRequest, progress: &Progress) -> Result<Diagnosis> {
    let DoctorRequest { model, data, tables: (scheme, other), .. } = request;
    let shapes = data.shapes_for(model)?;
    let (prepared, is_transformer) = prepare_for(model, scheme, other.as_ref(), &[], &shapes)?;
    let scheme = other.as_ref().filter(|_| is_transformer).unwrap_or(scheme);
    let graph = prepared.model.graph()?;
    let placement = place(graph, &prepared.value_info, scheme, &request.selection);
    let parsed = prepared.parsed.map_err(|error| anyhow!("{error:#}").hint(hint_of(&error)))?;
    let work = || -> Result<DataFindings> {
        if data.sources.is_empty() {
            let pixel_values = PixelVerdict::Unknown(NO_DATA.to_string());
            return Ok(DataFindings { data: None, preprocessing: None, pixel_values, no_box: None });
        }
        let dataset = data.open(parsed.inputs())?;
        let tensors = tensors(graph, &prepared.value_info, &placement);
        let outputs = EvaluatedOutput::of_scores(graph, &ChannelAxes::new(), request.are_scores());
        let (surveyed, no_box) = survey_of(request, parsed, &tensors, &outputs, &dataset, progress)?;
        let pixel_values = verdict(request, &shapes, &dataset, progress);
        Ok(DataFindings { data: Some(surveyed), preprocessing: dataset.describe(), pixel_values, no_box })
    };
    let findings = on_threads(data.threads, work).with_context(|| format!("`{}`", model.display()))?;
    let DataFindings { data, preprocessing, pixel_values, no_box } = findings;
    let until_stable = if request.until_stable { until_stable(request, progress)? } else { None };
    let facts = Facts {
        model: &prepared.model,
        value_info: &prepared.value_info,
        placement: &placement,
        scheme: Some(scheme).filter(|_| request.has_backend),
        data: data.as_ref(),
        until_stable: until_stable.as_ref(),
        pixel_values: &pixel_values,
        no_box: no_box.as_deref(),
    };
    let examined = examine(&facts);
    let integer_share = placement.integer_share(graph, &prepared.value_info, scheme).filter(|_| request.has_backend);
    let ranges = data.as_ref().map(range_agreement).unwrap_or_default();
    Ok(Diagnosis { examined, data, ranges, until_stable, preprocessing, integer_share })
}

/// Findings about the data, if there are any.
struct DataFindings {
    data: Option<DataSurvey>,
    preprocessing: Option<String>,
    pixel_values: PixelVerdict,
    no_box: Option<String>,
}

/// Runs rounds of samples, and stops once more samples change no range of the backend by a step.
fn until_stable(request: &DoctorRequest, progress: &Progress) -> Result<Option<UntilStable>> {
    let data = &request.data;
    let calibration = CalibrationOptions {
        data: data.sources.to_vec(),
        preprocessing: data.preprocessing.clone(),
        limit: data.limit,
        spread: None,
        skip_bad_data: true,
        checks_preprocessing: false,
        saved: None,
    };
    let collected = CollectRequest {
        tables: vec![request.tables.clone()],
        needs_all: true,
        runs_again: false,
        observer: None,
        shapes: &data.shapes,
        outputs: &[],
        selection: &request.selection,
        calibration: &calibration,
        until_stable: Some(0),
        shard: Shard::WHOLE,
        n_kept: 0,
        resumed: None,
        threads: data.threads,
    };
    Ok(collect(request.model, collected, &mut |_| Ok(()), progress)?.1)
}

/// Returns the verdict on the pixel values; an unknown verdict after an error of the engine.
fn verdict(request: &DoctorRequest, shapes: &Shapes, dataset: &Dataset, progress: &Progress) -> PixelVerdict {
    let budget = PixelBudget { n_runs: usize::MAX, multiply_adds: MAX_MULTIPLY_ADDS, looks_for_hints: true };
    let look = || {
        let model = onnx::load_whole(request.model)?.model;
        better_pixel_values(&model, shapes, request.are_scores(), dataset, budget, progress)
    };
    look().unwrap_or_else(|error| PixelVerdict::Unknown(format!("{error:#}")))
}

/// Returns the survey, and the result of [`no_box`].
fn survey_of(
    request: &DoctorRequest,
    parsed: Parsed,
    tensors: &[SurveyedTensor],
    outputs: &[EvaluatedOutput],
    dataset: &Dataset,
    progress: &Progress,
) -> Result<(DataSurvey, Option<String>)> {
    let names: Vec<String> = tensors.iter().map(|about| about.tensor.clone()).collect();
    let engines = ShapedEngines::new(parsed, &names)?;
    let surveyed = survey(&engines, tensors, outputs, dataset, progress)?;
    let no_box = no_box(request, &engines, outputs, dataset).unwrap_or_default();
    Ok((surveyed, no_box))
}

/// Returns in words that the network, a known detector, finds no box in samples that are spread over the data; `None`
/// if it finds one, or if there are too few samples.
fn no_box(
    request: &DoctorRequest,
    engines: &ShapedEngines,
    outputs: &[EvaluatedOutput],
    dataset: &Dataset,
) -> Result<Option<String>> {
    let [min, max] = N_BOX_SAMPLES;
    let n = dataset.len().min(max);
    let Some(input) = dataset.image_size().filter(|_| n >= min) else { return Ok(None) };
    let run = |i: usize| -> Result<Option<Vec<Array>>> {
        // Unreadable samples are reported elsewhere.
        let Ok(sample) = dataset.load(i * dataset.len() / n) else { return Ok(None) };
        let mut session = engines.session()?;
        Ok(Some(session.run(&sample, &mut |_, _, _| Ok(()))?))
    };
    let ran: Vec<Option<Vec<Array>>> = (0..n).into_par_iter().map(run).collect::<Result<_>>()?;
    let ran: Vec<Vec<Array>> = ran.into_iter().flatten().collect();
    let mut images: Vec<Vec<OutputView>> = Vec::new();
    for arrays in &ran {
        for image in 0..dataset.batch() {
            let pairs = outputs.iter().zip(arrays);
            let of_image = (dataset.batch(), image);
            let views =
                pairs.map(|(about, array)| OutputView::of_image(&about.name, &array.shape, f32s(array), of_image));
            images.push(views.collect());
        }
    }
    let first = &images[..images.len().min(N_HEAD_SAMPLES)];
    let Some(head) = request.data.head.resolve(first, Some(input))? else { return Ok(None) };
    let Decoding::Detect(head) = &head.head.decoding else { return Ok(None) };
    for views in &images {
        if !head.detections(&head.candidates(views, Some(input))?).is_empty() {
            return Ok(None);
        }
    }
    let n = count(ran.len(), "sample");
    Ok(Some(format!("no box with a score of {} or more in {n}", head.threshold)))
}

/// Returns the float tensors that layers read or that a detector's tail concatenates, and the outputs of the network.
fn tensors(graph: &GraphProto, value_info: &ValueInfos, placement: &Placement) -> Vec<SurveyedTensor> {
    let joined: BTreeSet<usize> = placement.tails.iter().flat_map(|tail| tail.nodes.iter().copied()).collect();
    let mut axes: Vec<(&str, isize)> = Vec::new();
    for (node_idx, node) in graph.node.iter().enumerate() {
        match node.op_type() {
            "Conv" | "ConvTranspose" => axes.extend(node.input.iter().take(1).map(|name| (name.as_str(), 1))),
            "Gemm" | "MatMul" => axes.extend(node.input.iter().take(2).map(|name| (name.as_str(), -1))),
            "Concat" if joined.contains(&node_idx) => axes.extend(node.input.iter().map(|name| (name.as_str(), -1))),
            _ => {}
        }
    }
    axes.extend(graph.output.iter().map(|output| (output.name(), 1)));
    let mut seen = BTreeSet::new();
    let is_observed = |name: &str| {
        let is_constant = graph.initializer_named(name).is_some();
        !name.is_empty() && !is_constant && value_info.is_float(name)
    };
    let observed = axes.into_iter().filter(|(name, _)| is_observed(name) && seen.insert(*name));
    let index = GraphIndex::new(graph);
    observed
        .map(|(name, channel_axis)| SurveyedTensor {
            tensor: name.to_string(),
            channel_axis: (!is_flattened(&index, value_info, name)).then_some(channel_axis),
            n_readers: index.consumers(name).len(),
        })
        .collect()
}

/// Whether a tensor holds all values of a sample along its last axis, so that this axis is not the channel axis.
fn is_flattened(index: &GraphIndex, value_info: &ValueInfos, name: &str) -> bool {
    let Some(producer) = index.producer(name).filter(|node| matches!(node.op_type(), "Flatten" | "Reshape")) else {
        return false;
    };
    let shape = |name: &str| value_info.shape(name);
    let (Some(from), Some(to)) = (producer.input.first().and_then(|input| shape(input)), shape(name)) else {
        return false;
    };
    let of_sample = from.get(1..).unwrap_or_default();
    let is_joined = of_sample.iter().filter(|n| **n > 1).count() > 1;
    is_joined && to.last() == Some(&of_sample.iter().product())
}
