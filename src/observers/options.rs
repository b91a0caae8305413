//! The observers of a run.

use super::Observer;

/// A range observer and how it is called.
#[derive(Debug, Clone)]
pub struct Spelled {
    /// Itself.
    pub observer: Observer,
    /// Its name with options, as in `percentile:99.99`.
    pub spelling: String,
}

/// What ranges are by.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// For activations.
    pub activation: Spelled,
    /// Whether that was asked for, and is not the table's.
    pub is_given: bool,
    /// For weights.
    pub weight: Spelled,
}
