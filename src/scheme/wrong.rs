//! Where a table is wrong.

use anyhow::anyhow;

/// What is wrong in a table, and where.
#[derive(Debug)]
pub(super) struct Wrong {
    /// Dotted path of keys.
    pub at: String,
    /// What was found, what was expected.
    pub error: anyhow::Error,
}

pub(super) fn wrong(at: impl Into<String>, error: anyhow::Error) -> Wrong {
    Wrong { at: at.into(), error }
}

/// Fails with `message` at `at` where `fine` does not hold.
pub(super) fn ensure(fine: bool, at: &str, message: impl FnOnce() -> String) -> Result<(), Wrong> {
    if fine { Ok(()) } else { Err(wrong(at, anyhow!(message()))) }
}
