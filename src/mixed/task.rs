//! What precisions are chosen for.

use super::goal::Wanted;
use crate::plan::Observers;
use crate::quant::GivenRange;
use crate::tune::{Evaluation, Setup};
use std::collections::BTreeMap;

/// What precisions are chosen for, and by.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// What is asked for.
    pub wanted: &'a Wanted,
    /// What tuning goes by.
    pub setup: Setup<'a>,
    /// The range observers; that of activations may have been chosen.
    pub observers: Observers<'a>,
    /// Ranges that need no statistics.
    pub given: Option<&'a BTreeMap<String, GivenRange>>,
    /// An earlier evaluation of the plan.
    pub known: Option<&'a Evaluation>,
}
