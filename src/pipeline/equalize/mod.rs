//! Equalized channels, where they pay on calibration samples.
//!
//! A short pass over the float model looks at the channels and proposes factors. The pass that observes
//! the model then observes what the tensors would be with these factors as well, and the better of the two plans is
//! kept.

mod changes;

use super::tune::Known;
use super::{Request, tune};
use crate::calibrate::{CalibrationStatistics, SampleSet};
use crate::data::Dataset;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::value_info::ValueInfos;
use crate::place::Placement;
use crate::plan::{Observers, QuantPlan, decide};
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::sidecar::{ChannelScalesRecord, EqualizationRecord, SkippedRecord};
use crate::simulate::Samples;
use crate::tune::{Compared, MIN_SAMPLES, Method, Methods, compare_plans};
use anyhow::{Context, Result, ensure};
use changes::{Candidates, Changes};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Samples by which factors are chosen, at most.
const MAX_SAMPLES: usize = 32;
/// Fewest. Factors follow from the largest value of each channel, which a few samples do not show.
const LEAST_SAMPLES: usize = 16;

/// What equalization did.
#[derive(Debug, Clone, Serialize)]
pub struct Equalized {
    /// Samples that the factors were chosen by.
    pub n_samples: usize,
    /// Samples that the result was judged by: those that were held back, and more where those are few. The
    /// factors follow from the largest and the mean of each channel, and hardly fit themselves to samples.
    pub n_judges: usize,
    /// Mean SQNR of the outputs over these samples, before and after, in dB; with biases that were corrected on
    /// them where biases will be.
    pub sqnr_db: [f64; 2],
    /// How much less noise they have, in dB.
    pub gain_db: f64,
    /// How far that is a matter of the samples, in dB: the change is kept unless it is worse by twice that.
    pub chance_db: f64,
    /// Whether the change was kept.
    pub kept: bool,
    /// Spaces that got factors.
    pub n_spaces: usize,
    /// Inputs of layers that got none.
    pub n_declined: usize,
    #[serde(skip)]
    spaces: Vec<ChannelScalesRecord>,
    /// What got no factors.
    #[serde(skip)]
    declined: Vec<SkippedRecord>,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

impl Equalized {
    /// What the sidecar says of it.
    pub(super) fn facts(&self) -> EqualizationRecord {
        EqualizationRecord {
            n_samples: self.n_samples,
            n_judges: self.n_judges,
            sqnr_db: self.sqnr_db,
            gain_db: self.gain_db,
            chance_db: self.chance_db,
            kept: self.kept,
            spaces: if self.kept { self.spaces.clone() } else { Vec::new() },
            declined: self.declined.clone(),
            offsets: Vec::new(),
        }
    }
}

/// What is equalized.
#[derive(Clone, Copy)]
pub(super) struct Stage<'a> {
    /// The prepared model.
    pub model: &'a ModelProto,
    /// Types and shapes of its tensors.
    pub value_info: &'a ValueInfos,
    /// Where it is quantized.
    pub placement: &'a Placement,
    /// What was asked for.
    pub request: &'a Request,
    /// The calibration data; none where nothing is run.
    pub samples: Option<&'a SampleSet>,
}

/// What came of equalization.
#[derive(Default)]
pub(super) struct Judged {
    /// What it did; `None` where it could not run.
    pub equalized: Option<Equalized>,
    /// The equalized model and its plan, where they were kept.
    pub replaced: Option<(ModelProto, QuantPlan)>,
    /// What is known of the float network that stays.
    pub known: Option<Known>,
}

/// What equalization would change, before the model is observed.
pub(super) struct Proposal {
    /// The changes and the number of samples that they were chosen by, or why there are none.
    changes: Result<(Changes, usize)>,
    seconds: f64,
}

/// Looks at the data and proposes changes, where the request asks for it and there is data to run.
///
/// # Errors
/// If a sample cannot be read, unless such samples are left out.
pub(super) fn propose(stage: Stage, progress: &Progress) -> Result<Option<Proposal>> {
    let (Some(samples), methods) = (stage.samples, tune::exact_methods(stage.request)) else {
        return Ok(None);
    };
    if methods == Methods::default() {
        return Ok(None);
    }
    let start = Instant::now();
    let candidates = Candidates::find(stage, methods)?;
    let by_content = match candidates.is_empty() || stage.request.ranges.is_some() {
        true => &[][..],
        false => samples.put_in_order(progress)?,
    };
    let changes = chosen(stage, candidates, (&samples.dataset, by_content));
    Ok(Some(Proposal { changes, seconds: start.elapsed().as_secs_f64() }))
}

/// The changes that some of the samples suggest, and the number of these.
///
/// # Errors
/// If there are too few, or they cannot be run.
fn chosen(
    stage: Stage,
    candidates: Candidates,
    (dataset, samples): (&Dataset, &[usize]),
) -> Result<(Changes, usize)> {
    let request = stage.request;
    ensure!(request.ranges.is_none(), "ranges from a file are for the tensors as they are");
    let n = samples.len();
    ensure!(
        candidates.is_empty() || n >= LEAST_SAMPLES,
        "{n} samples, expected {LEAST_SAMPLES} or more"
    );
    let largest = stage.value_info.largest_activation(stage.model);
    let n_tune = request.tune.effort.n_tune(request.tune.effort.n_samples(largest).min(n));
    let n_samples = n_tune.clamp(LEAST_SAMPLES, MAX_SAMPLES).min(n);
    let changes = candidates.choose(stage, (dataset, &samples[..n_samples]))?;
    Ok((changes, n_samples))
}

impl Proposal {
    /// The units that tensors are to be observed in as well.
    pub fn units(&self) -> BTreeMap<String, ChannelScaling> {
        let changes = self.changes.as_ref().ok();
        changes.map(|(changes, _)| changes.units()).unwrap_or_default()
    }

    /// What came of the changes for `plan` and its model; `calibration` is of the model that stays. `plan` gets a warning
    /// where equalization cannot run.
    pub fn judge(
        self,
        stage: Stage,
        plan: &mut QuantPlan,
        calibration: &mut CalibrationStatistics,
    ) -> Judged {
        let start = Instant::now();
        let judged = self.changes.and_then(|changes| attempt(stage, plan, calibration, changes));
        let mut judged = judged.unwrap_or_else(|error| {
            plan.warnings.push(format!("not equalized: {error:#}"));
            Judged::default()
        });
        if let Some(equalized) = &mut judged.equalized {
            equalized.seconds = self.seconds + start.elapsed().as_secs_f64();
        }
        judged
    }
}

impl Equalized {
    /// What is known before it is judged.
    fn new(graph: &GraphProto, changes: &Changes, n_samples: usize) -> Equalized {
        let [n_spaces, n_declined] = changes.counts();
        Equalized {
            n_samples,
            n_judges: 0,
            sqnr_db: [0.0; 2],
            gain_db: 0.0,
            chance_db: 0.0,
            kept: false,
            n_spaces,
            n_declined,
            spaces: changes.spaces(graph),
            declined: changes.declined(),
            seconds: 0.0,
        }
    }
}

/// Judges the changes. `calibration` is of the model without them, and where they are kept of the one with them.
fn attempt(
    stage: Stage,
    plan: &QuantPlan,
    calibration: &mut CalibrationStatistics,
    (changes, n_samples): (Changes, usize),
) -> Result<Judged> {
    let Stage { model, placement, request, .. } = stage;
    let graph = model.graph.as_ref().context("model has no graph")?;
    let run = stage.samples.context("nothing was observed")?;
    let mut equalized = Equalized::new(graph, &changes, n_samples);
    if changes.is_empty() {
        return Ok(Judged { equalized: Some(equalized), ..Judged::default() });
    }
    let judges = judges(stage, run, plan)?;
    let scaled = changes.made(model)?;
    let units = changes.units();
    let scaled_graph = scaled.graph.as_ref().context("model has no graph")?;
    let statistics = calibration.of_scaled(placement);
    let scheme = &request.scheme;
    let scaled_plan = decide(
        scaled_graph,
        placement,
        &statistics,
        None,
        scheme,
        Observers::of(&request.observers),
    )?;
    equalized.n_judges = judges.len();
    let (inputs, values) = (run.names(), run.values(judges.clone())?);
    let corrected = tune::methods(request, plan).contains(Method::Bias);
    let samples = Samples { names: &inputs, values: &values };
    let compared = Compared {
        models: [model, &scaled],
        plans: [plan, &scaled_plan],
        placement,
        units: Some(&units),
        table: tune::weight_scheme(request),
        corrected,
    };
    let (compared, [of_model, of_scaled]) = compare_plans(compared, samples, None)?;
    equalized.sqnr_db = compared.sqnr_db;
    equalized.gain_db = compared.gain_db;
    equalized.chance_db = compared.standard_deviation_db;
    // The model of the noise promised a gain, and two standard deviations are what samples do by chance.
    equalized.kept = compared.is_gain_by(-2.0);
    let reference = if equalized.kept { of_scaled } else { of_model };
    let known = reference.map(|reference| Known { samples: judges, reference });
    let replaced = equalized.kept.then_some((scaled, scaled_plan));
    calibration.settle_scaled(equalized.kept);
    Ok(Judged { equalized: Some(equalized), replaced, known })
}

/// The samples that judge, by their positions in those by content.
///
/// # Errors
/// If there is no memory for enough of them.
pub(super) fn judges(stage: Stage, run: &SampleSet, plan: &QuantPlan) -> Result<Range<usize>> {
    let Stage { model, value_info, request, .. } = stage;
    let largest = value_info.largest_activation(model);
    let n = tune::n_samples(run, largest, request, tune::methods(request, plan));
    ensure!(n >= MIN_SAMPLES, "memory for {n} samples to judge by, expected {MIN_SAMPLES} or more");
    let n_judges = (n - request.tune.effort.n_tune(n)).max(n.min(MAX_SAMPLES));
    Ok(n - n_judges..n)
}
