//! Checks of a table beyond its YAML form.

use super::mixed::{FIRST_OPSET, WIDE_OPSET, check_mixed};
use super::table_error::{TableError, ensure, table_error};
use super::{
    Axis, BiasRow, Catalog, Constraint, Granularity, OpRow, ParameterKind, QType, RuleCall, ScaleKind, Scheme,
    WeightStorage,
};
use crate::diag::{WithHint, is_unprintable, none_of};
use crate::onnx::LAST_OPSET;
use crate::quant::{Codes, Symmetry};
use anyhow::anyhow;

/// Checks the table, and the table with each of its switches turned on.
pub(super) fn check(scheme: &Scheme, catalog: &Catalog) -> Result<(), TableError> {
    check_one(scheme, catalog)?;
    for name in scheme.switches.keys() {
        let mut variant = scheme.clone();
        let at = format!("switches.{name}");
        variant.switch_on(name).map_err(|error| table_error(at.clone(), error))?;
        check_one(&variant, catalog).map_err(|inner| table_error(format!("{at}.{}", inner.at), inner.error))?;
    }
    Ok(())
}

fn check_one(scheme: &Scheme, catalog: &Catalog) -> Result<(), TableError> {
    let name = &scheme.name;
    let is_file_name = !name.is_empty() && !name.contains(['/', '\\']) && !name.chars().any(is_unprintable);
    ensure(is_file_name, "name", || {
        format!(
            "found `{name}`, expected a name without slashes and control characters: output files are named after it"
        )
    })?;
    let opset = scheme.min_opset;
    ensure((FIRST_OPSET..=LAST_OPSET).contains(&opset), "min_opset", || {
        format!("{opset}, expected {FIRST_OPSET} to {LAST_OPSET}")
    })?;
    for (name, qtype) in &scheme.types {
        let min_opset = if scheme.is_placed(name) { scheme.min_opset } else { i64::MAX };
        check_type(qtype, min_opset, &format!("types.{name}"))?;
    }
    if let Some(name) = &scheme.wider {
        let mut tables = catalog.tables.iter().map(|(name, _)| *name);
        if !tables.clone().any(|table| table == name) {
            let unknown = none_of(format_args!("backend `{name}` is unknown"), name, &mut tables);
            return Err(table_error("wider", unknown));
        }
    }
    check_mixed(scheme)?;
    check_storage(scheme)?;
    let of_region = scheme.region.iter().flat_map(|region| &region.ops).map(|row| ("region.ops", row));
    for (key, (op, row)) in scheme.ops.iter().map(|row| ("ops", row)).chain(of_region) {
        check_row(scheme, row, op, &format!("{key}.{op}"))?;
    }
    let severity = ("severity", ParameterKind::Word(&["error", "warning"]));
    for (key, calls, rules, common) in [
        ("placement", &scheme.placement, &catalog.rules, None),
        ("check", &scheme.check, &catalog.checks, Some(severity)),
    ] {
        let names = || rules.iter().map(|(name, _)| *name);
        for (position, call) in calls.iter().enumerate() {
            let at = format!("{key}.{position}");
            let Some((_, takes)) = rules.iter().find(|(name, _)| *name == call.rule) else {
                return Err(table_error(
                    at,
                    none_of(format_args!("rule `{}` is unknown", call.rule), &call.rule, names()),
                ));
            };
            let takes: Vec<_> = takes.iter().copied().chain(common).collect();
            check_parameters(scheme, call, &takes, &at)?;
        }
    }
    for (position, name) in scheme.emit.iter().enumerate() {
        (catalog.check_format)(name).map_err(|error| table_error(format!("emit.{position}"), error))?;
    }
    for (key, observer) in [("activation", &scheme.observers.activation), ("weight", &scheme.observers.weight)] {
        (catalog.check_observer)(observer).map_err(|error| table_error(format!("observers.{key}"), error))?;
    }
    match (catalog.contradiction)(scheme) {
        Some((at, text)) => Err(table_error(at, anyhow!(text))),
        None => Ok(()),
    }
}

/// Checks the types of weights whose integers an operator such as MatMulNBits or MatMulInteger holds itself.
fn check_storage(scheme: &Scheme) -> Result<(), TableError> {
    let (fits, expected): (fn(&QType) -> bool, _) = match scheme.weight_storage {
        WeightStorage::Integer | WeightStorage::Float => return Ok(()),
        WeightStorage::Nbits { nbits } => {
            let level = nbits.accuracy_level;
            ensure(level <= 4, "weight_storage.nbits.accuracy_level", || format!("{level}, expected 0 to 4"))?;
            let fits = |qtype: &QType| {
                let block = qtype.block_size.is_some_and(|n| n >= 16 && n.is_power_of_two());
                block && matches!(qtype.bits, 4 | 8) && qtype.storage_bits.is_none_or(|bits| bits == qtype.bits)
            };
            (fits, "4 or 8 bits in blocks of 16, 32, 64 and so on, for `weight_storage: nbits`")
        }
        WeightStorage::Dynamic => (
            |qtype| qtype.storage_bits.unwrap_or(qtype.bits) == 8 && qtype.block_size.is_none(),
            "8 bits per tensor or per channel, for `weight_storage: dynamic`",
        ),
    };
    let of_rows =
        scheme.ops.iter().filter_map(|(op, row)| Some((format!("ops.{op}.weight.type"), row.weight.as_ref()?)));
    let of_rows = of_rows.map(|(at, weight)| (at, &weight.qtype));
    let of_layers =
        scheme.mixed.iter().filter_map(|(name, it)| Some((format!("mixed.{name}.weight"), it.weight.as_ref()?)));
    for (at, name) in of_rows.chain(of_layers) {
        ensure(fits(scheme.find_type(name, &at)?), &at, || format!("type `{name}`, expected {expected}"))?;
    }
    let dynamic = scheme.weight_storage == WeightStorage::Dynamic;
    for (op, row) in &scheme.ops {
        let input = row.input.as_ref().and_then(|name| scheme.types.get(name));
        let plain = |qtype: &QType| qtype.dtype() == "uint8" && qtype.symmetry == Symmetry::Asymmetric;
        ensure(input.is_none_or(|qtype| dynamic && plain(qtype)), &format!("ops.{op}.input"), || match dynamic {
            true => "expected asymmetric uint8, which DynamicQuantizeLinear produces".into(),
            false => "expected none: with `weight_storage: nbits` activations are float".into(),
        })?;
        let float = row.bias == BiasRow::Float && row.output.is_none();
        ensure(float, &format!("ops.{op}"), || "has a quantized `bias` or `output`, expected float".into())?;
    }
    Ok(())
}

fn check_type(qtype: &QType, min_opset: i64, at: &str) -> Result<(), TableError> {
    let key = |key: &str| format!("{at}.{key}");
    ensure(matches!(qtype.bits, 2..=16), &key("bits"), || format!("{}, expected 2 to 16", qtype.bits))?;
    let storage = qtype.storage_bits.unwrap_or(qtype.bits);
    let storage_key = if qtype.storage_bits.is_some() { "storage_bits" } else { "bits" };
    ensure(matches!(storage, 4 | 8 | 16) && storage >= qtype.bits, &key(storage_key), || {
        let bits = qtype.bits;
        format!("{bits} bits are stored in {storage} bits, expected `storage_bits` of 4, 8 or 16, and not below `bits`")
    })?;
    let raise = format!("`min_opset: {WIDE_OPSET}` has them (--set min_opset={WIDE_OPSET})");
    let has_opset = |key: &str, what: &str, hint: &str| match min_opset >= WIDE_OPSET {
        true => Ok(()),
        false => {
            let error = anyhow!("{what} need `min_opset` {WIDE_OPSET} or later, found {min_opset}");
            Err(table_error(key, error.hint(hint)))
        }
    };
    if storage != 8 {
        let in_8_bits = match storage {
            ..8 => format!("`storage_bits: 8` keeps them in 8 bits (--set {at}.storage_bits=8); "),
            _ => String::new(),
        };
        has_opset(&key(storage_key), &format!("integers of {storage} bits"), &format!("{in_8_bits}{raise}"))?;
    }
    let centred = qtype.symmetry == Symmetry::Symmetric && qtype.signed;
    let pot = qtype.scale == ScaleKind::PowerOfTwo;
    ensure(pot || qtype.pot_rounding.is_none(), &key("pot_rounding"), || {
        "expected only with `scale: power_of_two`".into()
    })?;
    ensure(qtype.pot_search == 0 || (pot && centred), &key("pot_search"), || {
        "expected only with `scale: power_of_two` and a symmetric signed type".into()
    })?;
    ensure(pot || qtype.max_fraction_bits.is_none(), &key("max_fraction_bits"), || {
        "expected only with `scale: power_of_two`".into()
    })?;
    ensure(qtype.max_fraction_bits.is_none_or(|bits| bits <= 126), &key("max_fraction_bits"), || {
        format!("{}, expected 0 to 126", qtype.max_fraction_bits.unwrap_or(0))
    })?;
    ensure(qtype.pot_search <= 32, &key("pot_search"), || format!("{}, expected 0 to 32", qtype.pot_search))?;
    ensure(!qtype.ada_sign || centred, &key("ada_sign"), || "expected only with a symmetric signed type".into())?;
    let range = qtype.min_real_range;
    ensure((0.0..=f64::from(f32::MAX)).contains(&range), &key("min_real_range"), || {
        format!("{range}, expected 0 or more, and at most the largest float32")
    })?;
    ensure(qtype.max_pair_sum != Some(0), &key("max_pair_sum"), || "0, expected 1 or more".into())?;
    ensure((qtype.granularity == Granularity::PerBlock) == qtype.block_size.is_some(), &key("block_size"), || {
        "expected with `granularity: per_block` and only there".into()
    })?;
    ensure(qtype.block_size != Some(0), &key("block_size"), || "0, expected 1 or more".into())?;
    if qtype.granularity == Granularity::PerBlock {
        has_opset(&key("granularity"), "scales per block", &raise)?;
    }
    let plain = centred && qtype.bits == 8 && !pot && qtype.granularity == Granularity::PerTensor;
    ensure(qtype.kind != Codes::Nnie || plain, &key("kind"), || {
        "NNIE's codes need 8 bits, a signed symmetric grid, `granularity: per_tensor` and `scale: float`".into()
    })
}

/// Returns the maximum number of dimensions of the weights of operator `op`.
fn max_rank(op: &str) -> i64 {
    match op {
        "Gemm" => 2,
        "LSTM" | "GRU" | "RNN" => 3,
        "Conv" | "ConvTranspose" => 5,
        _ => 8,
    }
}

fn check_row(scheme: &Scheme, row: &OpRow, op: &str, at: &str) -> Result<(), TableError> {
    for (key, name) in [("input", &row.input), ("constant", &row.constant), ("output", &row.output)] {
        if let Some(name) = name {
            scheme.per_tensor_type(name, &format!("{at}.{key}"))?;
        }
    }
    let bias_at = format!("{at}.bias");
    if let Some(weight) = &row.weight {
        let columns = weight.axis == Axis::Columns;
        ensure(!columns || op == "MatMul", &format!("{at}.weight.axis"), || {
            "`columns`, expected it for MatMul only".into()
        })?;
        if let Axis::Number(axis) = weight.axis {
            let rank = max_rank(op);
            ensure((-rank..rank).contains(&axis), &format!("{at}.weight.axis"), || {
                format!("{axis}, expected {} to {}: weights of {op} have at most {rank} dimensions", -rank, rank - 1)
            })?;
        }
        let at = format!("{at}.weight.type");
        let qtype = scheme.find_type(&weight.qtype, &at)?;
        qtype.check_for_weight(&weight.qtype, &at)?;
        let int32 = row.bias == BiasRow::Int32;
        ensure(!int32 || qtype.granularity != Granularity::PerBlock, &bias_at, || {
            "int32 with a weight that has scales per block, expected `float`: an output channel has several scales"
                .into()
        })?;
        let input = row.input.as_ref().and_then(|name| scheme.types.get(name));
        let affine = [Some(qtype), input].into_iter().flatten().all(|t| t.kind == Codes::Affine);
        ensure(!int32 || affine, &bias_at, || {
            "int32 with an input or a weight that has no scale, expected `float`".into()
        })?;
    }
    if let BiasRow::Type { qtype: name } = &row.bias {
        scheme.per_tensor_type(name, &format!("{bias_at}.type"))?;
    }
    if let Some(Constraint::Fixed { fixed_output: fixed }) = row.constraint {
        let output_at = format!("{at}.output");
        let at = format!("{at}.constraint.fixed_output");
        let Some(output) = &row.output else {
            return Err(table_error(
                at,
                anyhow!("the row has no `output`, expected the type of the prescribed output"),
            ));
        };
        let grid = scheme.per_tensor_type(output, &output_at)?.grid();
        ensure(fixed.scale.is_normal() && fixed.scale > 0.0, &format!("{at}.scale"), || {
            format!("{}, expected a number above 0", fixed.scale)
        })?;
        let (q_min, q_max) = (grid.q_min(), grid.q_max());
        ensure((q_min..=q_max).contains(&fixed.zero_point), &format!("{at}.zero_point"), || {
            format!("{}, expected {q_min} to {q_max}, the range of type `{output}`", fixed.zero_point)
        })?;
    }
    Ok(())
}

/// Checks the names and kinds of the parameters of one rule.
fn check_parameters(
    scheme: &Scheme,
    call: &RuleCall,
    takes: &[(&'static str, ParameterKind)],
    at: &str,
) -> Result<(), TableError> {
    let types: Vec<&str> = scheme.types.keys().map(String::as_str).collect();
    for (name, value) in &call.parameters {
        let at = format!("{at}.{}.{name}", call.rule);
        let find = |name: &str| takes.iter().find(|(known, _)| *known == name);
        let Some((_, kind)) = find(name).or_else(|| find("*")) else {
            let unknown = format!("rule `{}` has no parameter `{name}`", call.rule);
            let error = match takes {
                [] => anyhow!("{unknown}, expected none"),
                takes => none_of(unknown, name, takes.iter().map(|(name, _)| *name)),
            };
            return Err(table_error(at, error));
        };
        kind.check(value, &types).map_err(|error| table_error(at, error))?;
    }
    Ok(())
}
