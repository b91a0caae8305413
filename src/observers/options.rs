//! The observers of a run.

use super::Observer;

/// A range observer and its spelling.
#[derive(Debug, Clone)]
pub struct Spelled {
    /// The observer.
    pub observer: Observer,
    /// Name with options, such as `percentile:99.99`.
    pub spelling: String,
}

/// The range observers of a run.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// The observer of activations.
    pub activation: Spelled,
    /// Whether the user named the observer of activations.
    pub is_given: bool,
    /// The observer of weights.
    pub weight: Spelled,
}
