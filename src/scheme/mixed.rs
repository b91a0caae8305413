//! Precisions that single layers may have instead of the types of their rows.

use super::table_error::{TableError, ensure, table_error};
use super::{BiasRow, Granularity, Parameter, QType, Scheme};
use crate::diag::{WithHint, did_you_mean};
use crate::quant::Codes;
use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The name of the precision that leaves a layer float.
pub const FLOAT: &str = "float";

/// First version of ONNX's operator set that has a scale per channel, and the first that the engine runs.
pub const FIRST_OPSET: i64 = 13;

/// First version of ONNX's operator set that has integers of 4 and 16 bits and scales per block.
pub const WIDE_OPSET: i64 = 21;

/// A precision in a table's key `mixed`: types that a layer may have instead of those of its row. Only [`FLOAT`] has
/// none.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precision {
    /// Type of the activations that the layer reads and writes.
    pub activation: Option<String>,
    /// Type of the layer's weight.
    pub weight: Option<String>,
    /// Source of the facts, if not the table's.
    pub source: Option<String>,
}

impl Precision {
    fn types(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let activation = self.activation.iter().map(|name| ("activation", name));
        activation.chain(self.weight.iter().map(|name| ("weight", name)))
    }
}

impl Scheme {
    /// Raises [`Scheme::min_opset`] to [`WIDE_OPSET`] if the types of the precision `name` need it.
    pub fn raise_opset_for(&mut self, name: &str) {
        if !self.opset_supports(name) {
            self.min_opset = WIDE_OPSET;
        }
    }

    /// Whether [`Scheme::min_opset`] has the types of the precision `name`.
    pub fn opset_supports(&self, name: &str) -> bool {
        let types = self.mixed.get(name).into_iter().flat_map(Precision::types);
        let mut types = types.filter_map(|(_, name)| self.types.get(name));
        self.min_opset >= WIDE_OPSET || !types.any(QType::needs_wide_opset)
    }

    /// Whether rows or rules use the type. A type that only `mixed` uses needs its operator set only if a layer gets
    /// the type.
    pub(super) fn is_placed(&self, name: &str) -> bool {
        let is = |other: &Option<String>| other.as_deref() == Some(name);
        let in_row = self.ops.values().any(|row| {
            is(&row.input)
                || is(&row.constant)
                || is(&row.output)
                || row.weight.as_ref().is_some_and(|weight| weight.qtype == name)
                || matches!(&row.bias, BiasRow::Type { qtype } if qtype == name)
        });
        let mut parameters = self.placement.iter().flat_map(|call| call.parameters.values());
        in_row || parameters.any(|p| matches!(p, Parameter::Name(qtype) if qtype == name))
    }
}

/// Checks the precisions of `mixed`: types must be known and of the right form.
pub(super) fn check_mixed(scheme: &Scheme) -> Result<(), TableError> {
    for (name, precision) in &scheme.mixed {
        let at = format!("mixed.{name}");
        let n_types = precision.types().count();
        ensure(name != FLOAT || n_types == 0, &at, || "has types, expected none: the layer stays float".into())?;
        if name != FLOAT && n_types == 0 {
            let error = anyhow!("has no types, expected `activation` or `weight`; only `{FLOAT}` has none");
            return Err(table_error(at, error.hint(did_you_mean(name, [FLOAT]))));
        }
        for (key, qtype) in precision.types() {
            check_type(scheme, key, qtype, &format!("{at}.{key}"))?;
        }
    }
    Ok(())
}

fn check_type(scheme: &Scheme, key: &str, name: &str, at: &str) -> Result<(), TableError> {
    let qtype = scheme.find_type(name, at)?;
    ensure(qtype.kind == Codes::Affine, at, || {
        format!("type `{name}` has codes that cannot be simulated, expected an affine type")
    })?;
    if key == "activation" {
        return scheme.per_tensor_type(name, at).map(drop);
    }
    qtype.check_for_weight(name, at)?;
    let int32 = scheme.ops.iter().find(|(_, row)| row.weight.is_some() && row.bias == BiasRow::Int32);
    match int32 {
        Some((op, _)) => ensure(qtype.granularity != Granularity::PerBlock, at, || {
            format!("scales per block with the int32 bias of {op}, expected one scale per output channel or tensor")
        }),
        None => Ok(()),
    }
}
