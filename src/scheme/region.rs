//! Rows of operators in a region of wider types.

use super::OpRow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rows that replace those of `ops` in a region of a few nodes. Where a tensor crosses the border of the region, a
/// second QuantizeLinear and DequantizeLinear convert it to the other type. Operators without a row in `ops` are in no
/// region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Rows by operator.
    pub ops: BTreeMap<String, OpRow>,
    /// Source of the rows, and of the conversion.
    pub source: String,
}
