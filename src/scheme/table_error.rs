//! Errors in a table.

use anyhow::anyhow;

/// An error in a table, and its place.
#[derive(Debug)]
pub(super) struct TableError {
    /// Dotted path of keys.
    pub at: String,
    /// The error, with found and expected value.
    pub error: anyhow::Error,
}

pub(super) fn table_error(at: impl Into<String>, error: anyhow::Error) -> TableError {
    TableError { at: at.into(), error }
}

/// Fails with `message` at `at` unless `fine` holds.
pub(super) fn ensure(fine: bool, at: &str, message: impl FnOnce() -> String) -> Result<(), TableError> {
    if fine { Ok(()) } else { Err(table_error(at, anyhow!(message()))) }
}
