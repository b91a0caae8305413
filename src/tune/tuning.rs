//! Inputs and result of tuning a plan.

use super::method::Methods;
use super::outcome::{Judged, MethodOutcome};
use super::setup::WeightScheme;
use crate::metrics::Measurement;
use crate::progress::Progress;
use crate::simulate::{FloatReference, OutputOptions, PreparedNodes, Samples};
use serde::Serialize;
use std::ops::Range;

/// Inputs of tuning a plan.
#[derive(Clone, Copy)]
pub struct Tuning<'a> {
    /// The plan's scheme.
    pub table: WeightScheme<'a>,
    /// Calibration samples.
    pub samples: Samples<'a>,
    /// The first `n_tune` samples are learned from. The others are held out and decide whether a method is accepted.
    pub n_tune: usize,
    /// The methods to try; only those that change layers count.
    pub methods: &'a Methods,
    /// Reference values from an earlier evaluation over these samples. If this evaluation corrected biases on all
    /// samples, accepted bias correction takes its biases.
    pub known: Option<&'a FloatReference>,
    /// The user's options for the evaluation of outputs.
    pub outputs: OutputOptions<'a>,
    /// Prepared nodes that forward passes share.
    pub prepared: &'a PreparedNodes,
    /// Reports progress.
    pub progress: &'a Progress<'a>,
}

/// The result of tuning a plan.
#[derive(Clone, Serialize)]
pub struct Tuned {
    /// Number of samples that methods learned from before the held-out samples decided. Where samples are few, or an
    /// earlier evaluation corrected the biases on all samples, the accepted methods learned from all samples in the
    /// end.
    pub n_samples: usize,
    /// Figures of the network before tuning and with all accepted methods.
    pub judged: Judged,
    /// Number of corrected biases.
    pub n_biases: usize,
    /// Number of weights with new scales or integers.
    pub n_weights: usize,
    /// Number of weights whose integers are not the nearest ones.
    pub n_rounded: usize,
    /// Number of activation groups with new ranges.
    pub n_ranges: usize,
    /// Outcomes of the methods, in the order in which they were tried.
    #[serde(skip)]
    pub methods: Vec<MethodOutcome>,
    /// Figures of the tuned network on the held-out samples.
    #[serde(skip)]
    pub measured: Measurement,
    /// Reference values of the float network.
    #[serde(skip)]
    pub reference: FloatReference,
}

impl Tuned {
    /// Returns the positions of the held-out samples, in the order by content.
    pub fn held_out(&self) -> Range<usize> {
        self.n_samples..self.n_samples + self.measured.n_samples()
    }
}
