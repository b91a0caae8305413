//! Progress of work that takes a while.

/// Called after each step of a stage.
pub type Tick = Box<dyn Fn() + Sync>;

/// Called with the name of a stage and its number of steps when the stage begins. Returns the function to call after
/// each step.
pub type Progress<'a> = dyn Fn(&str, usize) -> Tick + Sync + 'a;
