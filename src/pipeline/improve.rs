//! The methods of tuning, on the first plan.

use super::request::Request;
use crate::calibrate::CalibrationStatistics;
use crate::metrics::OutputGroups;
use crate::mixed::{LayerSensitivity, Mixed, Rescued, Task, choose_precisions, layer_sensitivity, rescue};
use crate::observers::by_spelling;
use crate::plan::Observers;
use crate::tune::accept::FINE;
use crate::tune::{
    Chosen, EvaluatedTask, Lowest, MethodOutcome, PlannedModel, Proposals, Setup, TensorErrors, Tuned, Whole, choose,
    ensure_gain, tune_planned,
};
use anyhow::Result;
use serde::Serialize;
use serde_with::skip_serializing_none;

/// Results of the tuning methods on the first plan.
#[skip_serializing_none]
#[derive(Clone, Serialize)]
pub struct Improved {
    /// Outcomes of the methods, in the order in which they were tried.
    pub methods: Vec<MethodOutcome>,
    /// The final range observer of activations, with its options; absent where the table's observer is kept.
    pub observer: Option<&'static str>,
    /// The channels of the outputs, as used by the overlap; empty where nothing was evaluated.
    #[serde(skip)]
    pub outputs: Vec<OutputGroups>,
    /// The network's task, where it is known.
    pub task: Option<EvaluatedTask>,
    /// The result of mixed precision, where the user asked for it.
    pub mixed_precision: Option<Mixed>,
    /// The result of tuning layers, where layers were tuned.
    pub tuning: Option<Tuned>,
    /// The error of each tensor, where layers were tuned.
    #[serde(skip)]
    pub tensor_errors: Option<TensorErrors>,
    /// Cost of each layer's own precision, highest first; empty if the run did not request it.
    #[serde(skip)]
    pub sensitivity: Vec<LayerSensitivity>,
}

/// Runs all methods on the first plan: on the float model, on the whole plan, then on single layers, with mixed
/// precision where the user asks for it. Returns the results, and the lowest final figure.
pub(super) fn improve(
    setup: Setup,
    request: &Request,
    planned: &mut PlannedModel,
    proposals: Proposals,
    calibration: &mut CalibrationStatistics,
) -> Result<(Improved, Option<Lowest>)> {
    let plain = planned.clone();
    let (mut methods, mut known) = proposals.evaluate(setup, planned, calibration);
    let Chosen { outcomes, observer, .. } = choose(setup, planned, calibration, &mut known);
    methods.extend(outcomes);
    let chosen = observer.map(by_spelling).transpose()?;
    let observers = setup.range_observers();
    let activation = chosen.as_ref().unwrap_or(observers.activation);
    let mut observers = Observers { activation, ..observers };
    let (mixed_precision, tuning, advice) = match &request.mixed {
        None => {
            let Rescued { outcome: rescued, advice } = rescue(setup, observers, planned, calibration, known.as_ref());
            if rescued.as_ref().is_some_and(|rescued| rescued.accepted) {
                // The float network is unchanged; only the figures of the plan are no longer valid.
                known.iter_mut().for_each(|known| known.reference.measured = None);
            }
            methods.extend(rescued);
            (None, tune_planned(setup, planned, known.as_ref())?, advice)
        }
        Some(wanted) => {
            let task = Task { wanted, setup, observers, given: request.given(), known: known.as_ref() };
            let (mixed, tuning) = choose_precisions(task, planned, calibration)?;
            (Some(mixed), tuning, None)
        }
    };
    methods.extend(tuning.iter().flat_map(|tuned| tuned.methods.clone()));
    let outputs = tuning.as_ref().map(|tuned| tuned.measured.prepared().groups().to_vec()).unwrap_or_default();
    let head = tuning.as_ref().and_then(|tuned| tuned.measured.prepared().head());
    let task = head.map(EvaluatedTask::new);
    let (tensor_errors, sensitivity) = (None, Vec::new());
    let mut improved =
        Improved { methods, observer, outputs, task, mixed_precision, tuning, tensor_errors, sensitivity };
    let held_out = improved.tuning.as_ref().map(Tuned::held_out);
    let whole = match improved.mixed_precision {
        None => ensure_gain(setup, plain, planned, improved.tuning.as_ref(), &improved.methods)?,
        Some(_) => Whole::default(),
    };
    if let Some(undone) = whole.undone {
        improved.methods.iter_mut().filter(|outcome| outcome.accepted).for_each(|outcome| {
            (outcome.accepted, outcome.reason) =
                (false, Some("all changes together make the network worse".to_string()));
        });
        (improved.observer, improved.tuning) = (None, None);
        // The unchanged plan follows from the first statistics and the table's observers.
        observers = setup.range_observers();
        calibration.restore();
        improved.methods.push(undone);
    }
    if let (Some(advice), Some(lowest)) = (advice, whole.lowest.filter(|lowest| lowest.figure < FINE)) {
        let figure = lowest.spelled();
        planned.warnings.push(format!("{figure} on held-out samples, expected {FINE} or more: {advice}"));
    }
    improved.tensor_errors = TensorErrors::measure(setup, planned, held_out)?;
    if request.sensitivity && improved.mixed_precision.is_none() {
        let measured = layer_sensitivity(setup, observers, request.given(), planned, calibration);
        improved.sensitivity = measured.unwrap_or_else(|error| {
            planned.warnings.push(format!("sensitivity analysis skipped: {error:#}"));
            Vec::new()
        });
    }
    // Without methods, the user asks for this table as it is: no other one replaces it.
    let lowest = whole.lowest.filter(|_| !improved.methods.is_empty());
    Ok((improved, lowest))
}
