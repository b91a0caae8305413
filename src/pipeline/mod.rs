//! The order of the stages. The only file that knows it.

mod compare;
mod equalize;
mod export;
mod mixed;
mod observe;
mod observer;
mod prepared;
mod samples;
mod statistics;
mod tune;

pub use compare::compare;
pub use equalize::Equalized;
use equalize::Judged;
use export::tuned_float;
pub use export::{emit, prepared_for};
pub use observer::ObserverChoice;
pub use prepared::{Prepared, prepare_file};

use crate::data::Preprocessing;
use crate::decide::{Finders, QuantPlan, decide};
use crate::emit::{CalibrationFacts, ModelFacts, RangesFrom, Sidecar, sidecar};
use crate::engine::Shapes;
use crate::import::ImportedRanges;
use crate::mixed::{Mixed, Wanted};
use crate::onnx::proto::ModelProto;
use crate::place::{Selection, Sites, place};
use crate::progress::Progress;
use crate::range::RangeFinder;
use crate::rewrite::rewrite;
use crate::scheme::{Scheme, WeightStorage};
use crate::tune::{Effort, Methods, Tuned};
use crate::verify;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;

/// What a run of the main job is asked for.
pub struct Request {
    /// The backend's table, switches applied.
    pub scheme: Scheme,
    /// Calibration data, as `--data` gives it.
    pub data: Vec<String>,
    /// Ranges of activations that need no data.
    pub ranges: Option<ImportedRanges>,
    /// How images become inputs.
    pub preprocessing: Preprocessing,
    /// Shapes of inputs that the model leaves open.
    pub shapes: Shapes,
    /// Which nodes to leave out, or to keep.
    pub selection: Selection,
    /// Range finder of activations, and its spelling with options.
    pub activation_finder: (Box<dyn RangeFinder + Send>, String),
    /// Whether that was asked for, and is not the table's.
    pub observer_is_given: bool,
    /// Range finder of weights, and its spelling with options.
    pub weight_finder: (Box<dyn RangeFinder + Send>, String),
    /// How weights are stored.
    pub storage: WeightStorage,
    /// At most so many samples.
    pub limit: Option<usize>,
    /// Samples run at the same time.
    pub threads: usize,
    /// Leave samples out that cannot be read.
    pub skip_bad_data: bool,
    /// How much work goes into better weights.
    pub effort: Effort,
    /// What it goes into, where that is not the effort's own choice.
    pub methods: Option<Methods>,
    /// Which layers get another precision than their rows', where that is asked for.
    pub mixed: Option<Wanted>,
}

impl Request {
    /// Whether samples are loaded again, in an order of their contents.
    fn looks_again(&self) -> bool {
        self.effort.looks_again() || self.methods.is_some() || self.mixed.is_some()
    }

    /// The range finders.
    fn finders(&self) -> Finders<'_> {
        Finders { activation: &*self.activation_finder.0, weight: &*self.weight_finder.0 }
    }
}

/// What a run gives.
pub struct Quantized {
    /// The model with Q/DQ.
    pub model: ModelProto,
    /// The float model that it was made from, as placement saw it; shares its tensors' data.
    pub prepared: ModelProto,
    /// Whether tensors go into a file of their own.
    pub has_external_data: bool,
    /// The sidecar.
    pub sidecar: Sidecar,
    /// Where it is quantized.
    pub sites: Sites,
    /// With which parameters.
    pub plan: QuantPlan,
    /// Samples observed.
    pub n_samples: usize,
    /// How images became inputs.
    pub preprocessing: Option<String>,
    /// A line per input whose open dimensions got numbers in the model that is written.
    pub fixed: Vec<String>,
    /// What equalization did, where it was asked for.
    pub equalized: Option<Equalized>,
    /// How the range finder of activations was chosen, where others were tried.
    pub observer: Option<ObserverChoice>,
    /// Which layers got another precision, where that was asked for.
    pub mixed: Option<Mixed>,
    /// What tuning did, where it did something.
    pub tuned: Option<Tuned>,
}

/// The main job: one model through all stages.
///
/// `progress` is told the number of samples, and gives what to call after each.
///
/// # Errors
/// As the stages; the message begins with the model's path.
pub fn quantize(path: &Path, request: &Request, progress: &Progress) -> Result<Quantized> {
    let prepared = prepare_file(path, &request.scheme, &request.shapes)?;
    finish(path, request, prepared, progress).with_context(|| format!("`{}`", path.display()))
}

/// SHA-256 of a file, in hexadecimal; the file is not held in memory.
fn sha256_of(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut file = std::fs::File::open(path)?;
    let mut part = vec![0; 1 << 16];
    loop {
        match file.read(&mut part)? {
            0 => break,
            n => hasher.update(&part[..n]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn finish(
    path: &Path,
    request: &Request,
    prepared: Prepared,
    progress: &Progress,
) -> Result<Quantized> {
    let Prepared { mut model, facts, fixed, changes, opset, has_external_data, parsed } = prepared;
    let graph = model.graph.as_ref().context("model has no graph")?;
    let mut sites = place(graph, &facts, &request.scheme, &request.selection);
    let samples = statistics::open(&parsed, &sites, request)?;
    let stage = equalize::Stage { model: &model, facts: &facts, sites: &sites, request };
    let proposal = equalize::propose(stage, samples.as_deref(), progress)?;
    let units = proposal.as_ref().map(equalize::Proposal::units).unwrap_or_default();
    let data = (samples, &units);
    let mut gathered = statistics::gather(&model, parsed, &sites, request, data, progress)?;
    let given = request.ranges.as_ref().map(|imported| &imported.ranges);
    let (scheme, finders) = (&request.scheme, request.finders());
    let mut plan = decide(graph, &sites, &gathered.statistics, given, scheme, finders)?;
    let judged = proposal.map(|it| it.judge(stage, &mut plan, &mut gathered, progress));
    let Judged { equalized, replaced, mut known } = judged.unwrap_or_default();
    if let Some(replaced) = replaced {
        (model, plan) = replaced;
    }
    let stage = equalize::Stage { model: &model, facts: &facts, sites: &sites, request };
    let observer = observer::choose(stage, &mut plan, &gathered, &mut known);
    let taken = observer.as_ref().map(ObserverChoice::finder).transpose()?;
    let activation: &dyn RangeFinder = match &taken {
        Some(taken) => &**taken,
        None => finders.activation,
    };
    let finders = Finders { activation, ..finders };
    let known = known.as_ref();
    let stage = mixed::Stage { model: &model, facts: &facts, request, finders, known };
    let (tuned, mixed) = match mixed::mixed(stage, &sites, &plan, &mut gathered, progress)? {
        None => {
            let tuned =
                tune::tune(&mut model, &mut plan, &mut sites, &facts, request, &gathered, known)?;
            (tuned, None)
        }
        Some(chosen) => {
            // Those about equalization; those about tensors come again with the new plan.
            let earlier = plan.warnings;
            (model, sites, plan) = (chosen.model, chosen.sites, chosen.plan);
            plan.keep_warnings(earlier);
            (chosen.tuned, Some(chosen.mixed))
        }
    };
    let graph = model.graph.as_ref().context("model has no graph")?;
    let skipped = gathered.skipped.iter().map(|reason| format!("left out: {reason}"));
    plan.warnings.splice(0..0, skipped);
    for pattern in request.selection.unmatched(graph) {
        plan.warnings.push(format!("`{pattern}` matches no node"));
    }
    if plan.activations.is_empty() {
        plan.warnings.push("nothing was quantized: see the reasons in the sidecar".to_string());
    }
    let calibration = CalibrationFacts {
        n_samples: gathered.n_samples,
        n_skipped: gathered.skipped.len(),
        activation_observer: observer
            .as_ref()
            .map_or_else(|| request.activation_finder.1.clone(), |chosen| chosen.observer.clone()),
        tried_observers: observer.as_ref().map(|chosen| chosen.tried.clone()).unwrap_or_default(),
        weight_observer: request.weight_finder.1.clone(),
        ranges_from: request.ranges.as_ref().map(|imported| RangesFrom {
            file: imported.file.clone(),
            format: imported.format.to_string(),
        }),
        preprocessing: gathered.preprocessing.clone(),
        inputs: gathered.inputs,
    };
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let done = fixed.iter().cloned().chain(changes).collect();
    let model_facts = ModelFacts { file, sha256: sha256_of(path)?, opset, prepared: done };
    let sidecar = sidecar(
        graph,
        &facts,
        &request.scheme,
        &sites,
        &plan,
        model_facts,
        calibration,
        equalized.as_ref().map(Equalized::facts),
        mixed.clone(),
        tuned.as_ref().map(tune::facts),
    )?;
    let prepared = tuned_float(&model, &plan, tuned.as_ref())?;
    rewrite(&mut model, &plan, request.storage)?;
    plan.warnings.extend(verify::ensure_kept(&model, &request.scheme)?);
    Ok(Quantized {
        model,
        prepared,
        has_external_data,
        sidecar,
        sites,
        plan,
        n_samples: gathered.n_samples,
        preprocessing: gathered.preprocessing,
        fixed,
        equalized,
        observer,
        mixed,
        tuned,
    })
}
