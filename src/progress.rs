//! How work that takes a while tells how far it is.

/// Told the number of steps of some work, gives what to call after each.
pub type Progress<'a> = dyn Fn(usize) -> Box<dyn Fn() + Sync> + Sync + 'a;
