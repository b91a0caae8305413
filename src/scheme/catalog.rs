//! What the names in a table may stand for.

use super::ParameterKind;
use anyhow::Result;

/// The parameters of a rule by name; the name `*` stands for every other.
pub type Takes = &'static [(&'static str, ParameterKind)];

/// The lists of other modules that tables take names from.
pub struct Catalog {
    /// Tables that come with mqq: name and YAML.
    pub tables: &'static [(&'static str, &'static str)],
    /// Placement rules.
    pub rules: Vec<(&'static str, Takes)>,
    /// Rules of targets; each takes a `severity` besides.
    pub checks: Vec<(&'static str, Takes)>,
    /// Fails where an observer's spelling is wrong.
    pub check_observer: fn(&str) -> Result<()>,
    /// Fails where no output format has the name.
    pub check_format: fn(&str) -> Result<()>,
}
