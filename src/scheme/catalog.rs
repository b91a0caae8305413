//! What the names in a table may stand for.

use super::RuleCall;
use anyhow::Result;

/// What a parameter of a placement rule holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A whole number; 0 and 1 switch off and on.
    Number,
    /// A list of operator types.
    Ops,
    /// A name of the table's `types`.
    Type,
}

/// The lists of other modules that tables take names from.
pub struct Catalog {
    /// Tables that come with mqq: name and YAML.
    pub tables: &'static [(&'static str, &'static str)],
    /// Placement rules: name, and their parameters.
    pub rules: Vec<(&'static str, &'static [(&'static str, ParameterKind)])>,
    /// Fails where an observer's spelling is wrong.
    pub check_observer: fn(&str) -> Result<()>,
    /// Fails where no output format has the name.
    pub check_format: fn(&str) -> Result<()>,
    /// Fails where there is no such rule of targets, or it does not take the parameters.
    pub check_call: fn(&RuleCall) -> Result<()>,
}
