//! What tuning a plan goes by, and what it did.

use super::method::Methods;
use super::outcome::{Judged, MethodOutcome};
use super::setup::WeightScheme;
use crate::metrics::{ChannelAxes, Measurement};
use crate::simulate::{FloatReference, Samples};
use serde::Serialize;

/// What tuning goes by.
#[derive(Clone, Copy)]
pub struct Tuning<'a> {
    /// The scheme that the plan follows.
    pub table: WeightScheme<'a>,
    /// Calibration samples.
    pub samples: Samples<'a>,
    /// The first so many are learned from; the others are held-out: they decide whether a method is accepted.
    pub n_tune: usize,
    /// The methods to try; those that change layers count.
    pub methods: &'a Methods,
    /// What an earlier evaluation over these samples kept of the float network; biases that it corrected by all of
    /// them are taken, where correcting them is accepted.
    pub known: Option<&'a FloatReference>,
    /// Axes of channels that the user gives, by output.
    pub axes: &'a ChannelAxes,
}

/// What tuning did.
#[derive(Clone, Serialize)]
pub struct Tuned {
    /// Samples that were learned from before the held-out ones decided. Where both are few, or evaluating equalization or
    /// observers corrected the biases by all, what was accepted learned from all in the end.
    pub n_samples: usize,
    /// The network before tuning and after all that was accepted.
    pub judged: Judged,
    /// Biases corrected.
    pub n_biases: usize,
    /// Weights with other scales or integers.
    pub n_weights: usize,
    /// Weights whose integers are not the nearest ones.
    pub n_rounded: usize,
    /// Groups of activations with other ranges.
    pub n_ranges: usize,
    /// The methods, in the order in which they were tried.
    #[serde(skip)]
    pub methods: Vec<MethodOutcome>,
    /// The network as it is now, on the held-out samples.
    #[serde(skip)]
    pub measured: Measurement,
    /// What is known of the float network.
    #[serde(skip)]
    pub reference: FloatReference,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}
