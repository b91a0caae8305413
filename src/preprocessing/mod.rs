//! Checks whether other pixel values than the given ones fit the float network clearly better.
//!
//! In: the float model, the images, their preprocessing. Out: a [`PixelVerdict`]. Candidates are the usual scales in
//! both orders of the color channels; resizing is not checked. Networks with class scores are judged by these
//! (`scores`), other networks by their batch normalizations (`norms`). For networks with neither, scores of detections
//! give a hint (`detections`). A candidate must be better by a margin, and on nearly all bootstraps over the images.

mod detections;
mod norms;
mod scores;

use crate::data::{Array, Color, Dataset, FittedImage, PixelValues};
use crate::diag::{count, quoted};
use crate::engine::{Engine, Parsed, Session};
use crate::metrics::{ChannelAxes, EvaluatedOutput, n_classes};
use crate::onnx::inputs::Shapes;
use crate::onnx::node::multiply_adds;
use crate::onnx::proto::ModelProto;
use crate::prepare::prepare_unfolded;
use crate::progress::{Progress, Tick};
use anyhow::{Result, anyhow};
use rayon::prelude::*;

/// Maximum number of images, for networks with class scores and for others.
const MAX_IMAGES: [usize; 2] = [16, 24];
/// Minimum number of images; fewer tell too little.
const MIN_IMAGES: usize = 12;
/// Approximate maximum number of runs per image, for networks with class scores and for others.
const N_RUNS: [f64; 2] = [20.0, 6.0];
/// Minimum gain of a candidate, in units of the figure.
const MARGIN: f64 = 0.03;
/// Number of bootstraps over the images.
const N_BOOTSTRAPS: usize = 60;
/// Minimum share of the bootstraps on which a candidate must be better, 0 to 1.
const LEAST_SHARE: f64 = 0.95;

/// Limits on the runs of the network.
#[derive(Debug, Clone, Copy)]
pub struct PixelBudget {
    /// Maximum number of runs, of all candidates on all images together.
    pub n_runs: usize,
    /// Maximum multiply-adds of all runs together. Larger networks are checked on fewer images, or not at all.
    pub multiply_adds: f64,
    /// Whether scores of detections are searched for a hint.
    pub looks_for_hints: bool,
}

/// The verdict of the float network on the pixel values.
pub enum PixelVerdict {
    /// Other pixel values fit clearly better.
    Better(BetterPixels),
    /// None of the usual pixel values fits clearly better, by class scores or batch normalizations.
    Fit,
    /// The network cannot tell, for this reason.
    Unknown(String),
    /// The network cannot tell, but other pixel values may fit better.
    Hint {
        /// The reason that the network cannot tell.
        reason: String,
        /// A sentence that names the other pixel values.
        hint: String,
    },
}

/// Pixel values that fit the network clearly better than the given ones.
pub struct BetterPixels {
    /// The given pixel values, as options.
    pub given: String,
    /// The pixel values that fit better, as options.
    pub better: String,
    /// A sentence with the figures of both.
    pub sentence: String,
    /// Approximate number of runs of the network that the search took.
    pub n_runs: usize,
}

/// Looks for pixel values that fit the network clearly better than those of `dataset`. `are_scores` tells whether the
/// network's outputs are class scores; with `None`, the outputs' values decide.
///
/// # Errors
/// If the model cannot be run.
pub fn better_pixel_values(
    model: &ModelProto,
    shapes: &Shapes,
    are_scores: Option<bool>,
    dataset: &Dataset,
    budget: PixelBudget,
    progress: &Progress,
) -> Result<PixelVerdict> {
    let unknown = |reason: &str| Ok(PixelVerdict::Unknown(reason.to_string()));
    let Some(given) = dataset.pixel_values() else {
        return unknown("the samples are not single images of three channels in float32");
    };
    let mut model = model.clone();
    prepare_unfolded(&mut model)?;
    let mut parsed = Parsed::new(&model, shapes)?;
    let (n_images, n_runs) = n_images(&model, &mut parsed, dataset, budget)?;
    if n_images < MIN_IMAGES && n_images == dataset.len() {
        return Ok(PixelVerdict::Unknown(format!(
            "{} are too few: at least {MIN_IMAGES} are needed",
            count(n_images, "image")
        )));
    }
    if n_images < MIN_IMAGES || n_runs > budget.n_runs {
        return unknown("the network is too large to try each of the usual pixel values");
    }
    // Evenly spread, because images of one class are often neighbors. Unreadable images are reported elsewhere.
    let images = (0..n_images).into_par_iter().map(|i| dataset.fitted_image(i * dataset.len() / n_images));
    let images: Vec<FittedImage> = images.filter_map(Result::ok).collect();
    if images.len() < MIN_IMAGES {
        return unknown("too few images can be read");
    }
    let outputs = EvaluatedOutput::of_scores(model.graph()?, &ChannelAxes::new(), are_scores);
    let tick = progress("check of the preprocessing", n_runs);
    let trials = PixelTrials { engine: parsed.build(&[])?, dataset, images, given, tick };
    if let Some(found) = scores::search(&trials, &outputs)? {
        return Ok(match found {
            Some(found) => PixelVerdict::Better(found.better_than(&trials, n_runs)),
            None => PixelVerdict::Fit,
        });
    }
    let norms = norms::of(model.graph()?);
    if norms.len() < norms::MIN_NORMS {
        let reason = "the network has no class scores, and its BatchNormalization nodes are folded or missing";
        let hint = if budget.looks_for_hints { detections::search(&trials)? } else { None };
        return Ok(match hint {
            Some(hint) => PixelVerdict::Hint { reason: reason.to_string(), hint },
            None => PixelVerdict::Unknown(reason.to_string()),
        });
    }
    let observed: Vec<String> = norms.iter().map(|norm| norm.tensor.clone()).collect();
    let trials = PixelTrials { engine: Parsed::new(&model, shapes)?.build(&observed)?, ..trials };
    Ok(match norms::search(&trials, &norms)? {
        Some((better, sentence)) => {
            PixelVerdict::Better(BetterPixels { given: trials.given.to_options(), better, sentence, n_runs })
        }
        None => PixelVerdict::Fit,
    })
}

/// Returns the number of images that the budget allows, and the approximate number of runs.
fn n_images(model: &ModelProto, parsed: &mut Parsed, dataset: &Dataset, budget: PixelBudget) -> Result<(usize, usize)> {
    let value_info = parsed.value_info()?;
    let shape = |name: &str| value_info.shape(name).map(<[usize]>::to_vec);
    let graph = model.graph()?;
    let is_row = |name: &str| value_info.shape(name).is_some_and(|shape| n_classes(shape, 1).is_some());
    let kind = usize::from(!graph.output.iter().any(|output| is_row(output.name())));
    let (n_runs, max_images) = (N_RUNS[kind], MAX_IMAGES[kind]);
    let costs = graph.node.iter().map(|node| multiply_adds(node, shape).unwrap_or(0));
    let affordable = budget.multiply_adds / n_runs / costs.sum::<usize>().max(1) as f64;
    let n_images = (affordable as usize).min(max_images).min(dataset.len());
    Ok((n_images, (n_runs * n_images as f64) as usize))
}

/// The images, and the network to run them on.
struct PixelTrials<'a> {
    engine: Engine,
    dataset: &'a Dataset,
    images: Vec<FittedImage>,
    given: PixelValues,
    /// Called after each run of an image.
    tick: Tick,
}

impl PixelTrials<'_> {
    /// Returns the indices of `n` evenly spread images.
    fn spread(&self, n: usize) -> Vec<usize> {
        (0..n).map(|i| i * self.images.len() / n).collect()
    }

    /// Returns the usual pixel values except the given ones.
    fn usual(&self) -> impl Iterator<Item = PixelValues> + Clone {
        let usual = [Color::Rgb, Color::Bgr].into_iter().flat_map(candidates);
        usual.filter(|values| !values.is_same(&self.given))
    }

    /// Calls `run` on all threads, with each image at `indices` after `changed` and preprocessing with `values`.
    /// Results are in the order of `indices`.
    fn run_images<T: Send>(
        &self,
        indices: &[usize],
        values: &PixelValues,
        changed: impl Fn(&FittedImage) -> Result<FittedImage> + Sync,
        run: impl Fn(&mut Session, Array) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let trial = self.dataset.trial(values)?;
        let one = |session: &mut Result<Session>, index: &usize| {
            let session = session.as_mut().map_err(|error| anyhow!("{error:#}"))?;
            let result = run(session, trial.array(&changed(&self.images[*index])?));
            (self.tick)();
            result
        };
        indices.par_iter().map_init(|| self.engine.session(), one).collect()
    }
}

/// Returns the usual pixel values with color channels in the order `color`.
fn candidates(color: Color) -> Vec<PixelValues> {
    const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
    const STD: [f64; 3] = [0.229, 0.224, 0.225];
    const CAFFE_BGR: [f64; 3] = [104.0, 117.0, 123.0];
    let reversed = |values: [f64; 3], is_reversed: bool| match is_reversed {
        true => [values[2], values[1], values[0]],
        false => values,
    };
    let is_bgr = color == Color::Bgr;
    let (imagenet, caffe) = ([MEAN, STD].map(|values| reversed(values, is_bgr)), reversed(CAFFE_BGR, !is_bgr));
    [
        (1.0, [0.0; 3], [1.0; 3]),
        (1.0 / 255.0, [0.0; 3], [1.0; 3]),
        (1.0 / 255.0, [0.5; 3], [0.5; 3]),
        (1.0 / 255.0, imagenet[0], imagenet[1]),
        (1.0, caffe, [1.0; 3]),
    ]
    .map(|(scale, mean, std)| PixelValues { color, scale, mean, std })
    .into()
}

/// Returns the entropy of probabilities, in nats.
fn entropy(p: &[f64]) -> f64 {
    -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

/// Returns sets of image indices: first `indices` itself, then bootstraps, each drawn from it with replacement.
fn bootstraps(indices: &[usize]) -> Vec<Vec<usize>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        indices[(state % indices.len() as u64) as usize]
    };
    let drawn = (0..N_BOOTSTRAPS).map(|_| indices.iter().map(|_| draw()).collect());
    std::iter::once(indices.to_vec()).chain(drawn).collect()
}

/// Returns whether `figures` are clearly higher than `others`. The first figure of each is over all images, the others
/// are over the bootstraps.
fn is_clearly_higher(figures: &[f64], others: &[f64]) -> bool {
    let n_higher = figures.iter().zip(others).skip(1).filter(|(figure, other)| figure > other).count();
    figures[0] - others[0] > MARGIN && n_higher as f64 >= LEAST_SHARE * (figures.len() - 1) as f64
}

/// Pixel values that fit better, with the figure of the given values and their own figure.
struct BetterScores {
    values: PixelValues,
    figures: [f64; 2],
}

impl BetterScores {
    fn better_than(&self, trials: &PixelTrials, n_runs: usize) -> BetterPixels {
        let BetterScores { values, figures: [before, after] } = self;
        let presets = match values.presets()[..] {
            [] => String::new(),
            ref names => format!(" (as in {})", quoted(names, ", ")),
        };
        let better = format!("{}{presets}", values.to_options());
        let sentence = format!(
            "the network tells classes apart clearly better with {better}: {after:.2} nats, not {before:.2}, on {}",
            count(trials.images.len(), "image")
        );
        BetterPixels { given: trials.given.to_options(), better, sentence, n_runs }
    }
}
