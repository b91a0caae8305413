//! Inputs of the choice of precisions.

use super::goal::Wanted;
use crate::plan::Observers;
use crate::quant::GivenRange;
use crate::tune::{Evaluation, Setup};
use std::collections::BTreeMap;

/// Inputs of the choice of precisions.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// The goal, and the precisions to choose from.
    pub wanted: &'a Wanted,
    /// Inputs of tuning.
    pub setup: Setup<'a>,
    /// The range observers. Tuning may have chosen the observer of activations.
    pub observers: Observers<'a>,
    /// Given ranges, which need no statistics.
    pub given: Option<&'a BTreeMap<String, GivenRange>>,
    /// An earlier evaluation of the plan.
    pub known: Option<&'a Evaluation>,
}
