//! Equalized channels, where they pay on calibration samples.
//!
//! A short pass over the float model looks at the channels and proposes channel scales. The pass that observes the
//! model then observes what the tensors would be with these as well, and the better of the two plans is accepted.

use super::channel_scales::{ChannelScales, ScaledGroup};
use super::{Method, Stage, Touches};
use crate::calibrate::CalibrationStatistics;
use crate::equalize::{EqualizationGroup, Skipped, find, inserted_names};
use crate::onnx::edit::{InsertedMul, ModelEdit, edited};
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::place::{Placement, place};
use crate::plan::{QuantPlan, decide};
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::simulate::Samples;
use crate::tune::accept::EQUALIZATION;
use crate::tune::{Compared, Comparison, Evaluation, PlannedModel, Setup, compare_plans};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// Channel scales from each layer to the next: [`crate::equalize`].
pub const EQUALIZE: Method = Method {
    name: "equalize",
    title: "equalization",
    about: "scales of channels from each layer to the next, which leave the float outputs as they are",
    stage: Stage::FloatModel,
    is_tried: |case| case.effort.level() > 0,
    needs: &[],
    touches: Touches::NONE,
    hook: None,
};

/// Samples by which channel scales are chosen, at most.
const MAX_SAMPLES: usize = 32;
/// Fewest. Channel scales follow from the largest value of each channel, which a few samples do not show.
const LEAST_SAMPLES: usize = 16;

/// What equalization did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Equalized {
    /// Samples that the channel scales were chosen by.
    pub n_samples: usize,
    /// Samples that the result was evaluated by: the held-out ones, and more where those are few. The
    /// channel scales follow from the largest and the mean of each channel, and hardly fit themselves to samples.
    pub n_judges: usize,
    /// Mean SQNR of the outputs over these samples, before and after, in dB; with biases that were corrected on
    /// them where biases will be.
    pub sqnr_db: [f64; 2],
    /// How much less quantization error they have, in dB.
    pub gain_db: f64,
    /// One standard deviation of that, by which samples there are, in dB.
    pub chance_db: f64,
    /// Whether the change was accepted.
    pub kept: bool,
    /// Groups of tensors that got channel scales.
    pub n_spaces: usize,
    /// Inputs of layers that got none.
    pub n_declined: usize,
    /// The groups, accepted or not.
    #[serde(skip)]
    pub groups: Vec<ScaledGroup>,
    /// Muls that were put in for them.
    #[serde(skip)]
    pub inserted: Vec<InsertedMul>,
    /// Values that these multiply, per run; none where the shapes are not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_multiplied: usize,
    /// What got no channel scales.
    #[serde(skip)]
    pub skipped: Vec<Skipped>,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// What equalization would change, before the model is observed.
pub struct Proposal {
    /// The channel scales and the number of samples that they were chosen by, or why there are none.
    scales: Result<(ChannelScales, usize)>,
    /// The model with the Muls that some of the scales need, by ones so far.
    with_muls: Option<WithMuls>,
    seconds: f64,
}

/// A model with inserted Muls by ones.
pub struct WithMuls {
    /// The Muls.
    pub inserted: Vec<InsertedMul>,
    /// The model.
    pub model: ModelProto,
    /// Where it is quantized.
    pub placement: Placement,
    /// The model without, and where that is quantized.
    plain: (ModelProto, Placement),
}

impl WithMuls {
    fn new(setup: Setup, plain: (ModelProto, Placement), inserted: Vec<InsertedMul>) -> Result<WithMuls> {
        let model = edited(&plain.0, &[ModelEdit::Insert(inserted.clone())])?;
        let selection = setup.selection.with_scaling(inserted_names(&inserted));
        let placement = place(graph(&model)?, setup.value_info, setup.scheme, &selection);
        Ok(WithMuls { inserted, model, placement, plain })
    }

    /// Goes back to the model without.
    fn take_out(self, setup: Setup, planned: &mut PlannedModel, calibration: &mut CalibrationStatistics) -> Result<()> {
        let (model, placement) = self.plain;
        for mul in &self.inserted {
            calibration.rename(&mul.output, &mul.tensor);
        }
        let statistics = calibration.of(&placement);
        let observers = setup.range_observers();
        let mut plan = decide(graph(&model)?, &placement, &statistics, None, setup.scheme, observers)?;
        plan.warnings.append(&mut planned.plan.warnings);
        *planned = PlannedModel { model, placement, plan };
        Ok(())
    }
}

fn graph(model: &ModelProto) -> Result<&GraphProto> {
    model.graph.as_ref().context("model has no graph")
}

/// Looks at the data and proposes channel scales, where the options ask for it and there is data to run.
///
/// # Errors
/// If a sample cannot be read, unless such samples are left out.
pub fn propose(
    setup: Setup,
    model: &ModelProto,
    placement: &Placement,
    insertable: Vec<InsertedMul>,
    progress: &Progress,
) -> Result<Option<Proposal>> {
    let (Some(samples), true) = (setup.samples, setup.equalizes()) else { return Ok(None) };
    let start = Instant::now();
    let mut with_muls = match insertable.is_empty() {
        true => None,
        false => Some(WithMuls::new(setup, (model.clone(), placement.clone()), insertable)?),
    };
    let (of, placement) = with_muls.as_ref().map_or((model, placement), |with| (&with.model, &with.placement));
    let (groups, skipped) = find(graph(of)?, setup.value_info);
    let by_content = match groups.is_empty() || setup.has_given_ranges {
        true => &[][..],
        false => samples.put_in_order(progress)?,
    };
    let inserted = with_muls.as_ref().map_or(&[][..], |with| &with.inserted);
    let mut scales = chosen(setup, (of, placement), (groups, skipped), inserted, by_content);
    if let (Some(with), Ok((scales, _))) = (&mut with_muls, &mut scales) {
        // Muls that no scales came of go again; the others are where they are in another graph.
        let mut used = std::mem::take(&mut with.inserted);
        used.retain(|mul| scales.has_tensor(&mul.output));
        *with = WithMuls::new(setup, with.plain.clone(), used)?;
        scales.find_again(&find(graph(&with.model)?, setup.value_info).0);
    }
    let with_muls = with_muls.filter(|with| !with.inserted.is_empty() && scales.is_ok());
    Ok(Some(Proposal { scales, with_muls, seconds: start.elapsed().as_secs_f64() }))
}

/// The channel scales that some of the samples suggest, and the number of these.
///
/// # Errors
/// If there are too few, or they cannot be run.
fn chosen(
    setup: Setup,
    (model, placement): (&ModelProto, &Placement),
    found: (Vec<EqualizationGroup>, Vec<Skipped>),
    inserted: &[InsertedMul],
    samples: &[usize],
) -> Result<(ChannelScales, usize)> {
    ensure!(!setup.has_given_ranges, "ranges from a file are for the tensors as they are");
    let n = samples.len();
    ensure!(found.0.is_empty() || n >= LEAST_SAMPLES, "{n} samples, expected {LEAST_SAMPLES} or more");
    let effort = setup.options.effort;
    let largest = setup.value_info.largest_activation(model);
    let n_tune = effort.n_tune(effort.n_samples(largest).min(n));
    let n_samples = n_tune.clamp(LEAST_SAMPLES, MAX_SAMPLES).min(n);
    let scales = ChannelScales::choose(setup, model, placement, found, inserted, &samples[..n_samples])?;
    Ok((scales, n_samples))
}

impl Proposal {
    /// What tensors are to be observed with as well.
    pub fn scalings(&self) -> BTreeMap<String, ChannelScaling> {
        let scales = self.scales.as_ref().ok();
        scales.map(|(scales, _)| scales.scalings()).unwrap_or_default()
    }

    /// The model with Muls that the scales are for, where they are for another one than that without.
    pub fn with_muls(&self) -> Option<&WithMuls> {
        self.with_muls.as_ref()
    }

    /// Changes the model and its plan where that is accepted; `calibration` is of the model that stays. The plan gets a
    /// warning where equalization cannot run. Gives what it did, and what is known by evaluating it.
    pub fn evaluate(
        self,
        setup: Setup,
        planned: &mut PlannedModel,
        calibration: &mut CalibrationStatistics,
    ) -> Result<(Option<Equalized>, Option<Evaluation>)> {
        let start = Instant::now();
        let inserted = self.with_muls.as_ref().map(|with| with.inserted.clone()).unwrap_or_default();
        let attempt = |(scales, n_samples)| attempt(setup, planned, calibration, scales, (&inserted, n_samples));
        let outcome = self.scales.and_then(attempt);
        let (equalized, mut known) = match outcome {
            Ok((equalized, known)) => {
                let seconds = self.seconds + start.elapsed().as_secs_f64();
                (Some(Equalized { seconds, ..equalized }), known)
            }
            Err(error) => {
                planned.plan.warnings.push(format!("equalization skipped: {error:#}"));
                (None, None)
            }
        };
        if let Some(with) = self.with_muls
            && equalized.as_ref().is_none_or(|equalized| !equalized.kept)
        {
            known = None;
            with.take_out(setup, planned, calibration)?;
        }
        Ok((equalized, known))
    }
}

/// Evaluates the channel scales. `calibration` is of the model without them, and where they are accepted of the one with
/// them.
fn attempt(
    setup: Setup,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
    scales: ChannelScales,
    (inserted, n_samples): (&[InsertedMul], usize),
) -> Result<(Equalized, Option<Evaluation>)> {
    let PlannedModel { model, placement, plan } = &*planned;
    let groups = scales.groups(model.graph.as_ref().context("model has no graph")?);
    let (n_spaces, n_declined) = (groups.len(), scales.skipped.len());
    let skipped = scales.skipped.clone();
    let mut equalized = Equalized { n_samples, n_spaces, n_declined, groups, skipped, ..Equalized::default() };
    if scales.is_empty() {
        return Ok((equalized, None));
    }
    let data = setup.samples.context("nothing was observed")?;
    let evaluated_by = setup.evaluation_samples(data, model, plan)?;
    let edits = scales.edits()?;
    let scaled = edited(model, &edits)?;
    let scalings = scales.scalings();
    let scaled_graph = scaled.graph.as_ref().context("model has no graph")?;
    let statistics = calibration.of_scaled(placement);
    let observers = setup.range_observers();
    let scaled_plan = decide(scaled_graph, placement, &statistics, None, setup.scheme, observers)?;
    equalized.n_judges = evaluated_by.len();
    let (names, values) = (data.names(), data.values(evaluated_by.clone())?);
    let samples = Samples { names: &names, values: &values };
    let compared = Compared {
        models: [model, &scaled],
        plans: [plan, &scaled_plan],
        placement,
        scalings: Some(&scalings),
        table: setup.weight_scheme(),
        corrected: setup.methods(plan).touches().corrects_biases(),
    };
    let Comparison { gain, references: [of_model, of_scaled], .. } = compare_plans(compared, samples, None)?;
    equalized.sqnr_db = gain.sqnr_db;
    equalized.gain_db = gain.gain_db;
    equalized.chance_db = gain.standard_deviation_db;
    equalized.kept = EQUALIZATION.accepts(&gain);
    calibration.settle_scaled(equalized.kept);
    let reference = if equalized.kept { of_scaled } else { of_model };
    if equalized.kept {
        let insert = (!inserted.is_empty()).then(|| ModelEdit::Insert(inserted.to_vec()));
        let edits = insert.into_iter().chain(edits).collect();
        (planned.model, planned.plan) = (scaled, QuantPlan { edits, ..scaled_plan });
        let n_values =
            |mul: &InsertedMul| setup.value_info.shape(&mul.tensor).map(|shape| shape.iter().product::<usize>());
        equalized.n_multiplied = inserted.iter().filter_map(n_values).sum();
        equalized.inserted = inserted.to_vec();
    }
    let known = reference.map(|reference| Evaluation { samples: evaluated_by, reference });
    Ok((equalized, known))
}
