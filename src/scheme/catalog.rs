//! The names that tables may use.

use super::{ParameterKind, Scheme};
use anyhow::Result;

/// The parameters of a rule by name; the name `*` stands for all others.
pub type Takes = &'static [(&'static str, ParameterKind)];

/// The names that other modules provide for tables.
pub struct Catalog {
    /// Tables that come with mqq: name and YAML.
    pub tables: &'static [(&'static str, &'static str)],
    /// Placement rules.
    pub rules: Vec<(&'static str, Takes)>,
    /// Rules of targets; each also accepts `severity`.
    pub checks: Vec<(&'static str, Takes)>,
    /// Returns the key of a table that a rule of the table's own `check` refuses, and the reason.
    pub contradiction: fn(&Scheme) -> Option<(String, String)>,
    /// Fails for an invalid spelling of an observer.
    pub check_observer: fn(&str) -> Result<()>,
    /// Fails for an unknown output format.
    pub check_format: fn(&str) -> Result<()>,
}
