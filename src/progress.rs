//! Progress of long work.

/// Gets the number of steps; returns a function to call after each step.
pub type Progress<'a> = dyn Fn(usize) -> Box<dyn Fn() + Sync> + Sync + 'a;
