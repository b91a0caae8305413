//! Errors in a table.

use anyhow::anyhow;

/// An error in a table, and its place.
#[derive(Debug)]
pub(super) struct Wrong {
    /// Dotted path of keys.
    pub at: String,
    /// The error, with found and expected value.
    pub error: anyhow::Error,
}

pub(super) fn wrong(at: impl Into<String>, error: anyhow::Error) -> Wrong {
    Wrong { at: at.into(), error }
}

/// Fails with `message` at `at` unless `fine` holds.
pub(super) fn ensure(fine: bool, at: &str, message: impl FnOnce() -> String) -> Result<(), Wrong> {
    if fine { Ok(()) } else { Err(wrong(at, anyhow!(message()))) }
}
