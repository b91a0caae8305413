//! Qualcomm's encodings files of the versions 0.6.1, 1.0.0 and 2.x. The `encodings` formats of `export` explain the
//! sign of their offsets. Entries with float types and entries of parameters are skipped.

use super::{Contents, RangeReader};
use crate::quant::{GivenRange, Range};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

fn version(contents: &Contents) -> Option<&str> {
    contents.json.as_ref()?.get("version")?.as_str()
}

fn number(entry: &Value, key: &str) -> Result<f64> {
    let value = entry.get(key).with_context(|| format!("has no {key}"))?;
    value.as_f64().with_context(|| format!("{key} is {value}, expected a number"))
}

/// Returns the only element of a list, or a value that is no list.
fn only<'a>(value: &'a Value, key: &str) -> Result<&'a Value> {
    match value.as_array().map(Vec::as_slice) {
        None => Ok(value),
        Some([only]) => Ok(only),
        Some(list) => anyhow::bail!("{key} has {} values, expected one: an activation has one scale", list.len()),
    }
}

/// Returns the range of a grid in version 0.6.1 or 1.0.0, where the offset is for unsigned integers.
fn of_offset(scale: f64, offset: f64, bits: f64, symmetric: bool) -> Result<GivenRange> {
    ensure!(bits.fract() == 0.0 && (2.0..=16.0).contains(&bits), "has {bits} bits, expected 2 to 16");
    ensure!(offset.fract() == 0.0 && offset.abs() <= 65536.0, "offset is {offset}, expected an integer of 16 bits");
    let half = (bits - 1.0).exp2();
    match symmetric && offset == -half {
        true => GivenRange::from_params(scale, 0, bits as u64, true),
        false => GivenRange::from_params(scale, -offset as i64, bits as u64, false),
    }
}

/// `{"activation_encodings": {tensor: [{bitwidth, is_symmetric, scale, offset, min, max}]}}`. The version may be
/// missing. Entries may have only `min` and `max`, as in SNPE overrides.
pub(super) const V0_6_1: RangeReader =
    RangeReader { name: "encodings-0.6.1", recognizes: recognizes_0_6_1, read: read_0_6_1 };

fn recognizes_0_6_1(contents: &Contents) -> bool {
    let by_tensor = contents.json.as_ref().and_then(|json| json.get("activation_encodings"));
    by_tensor.is_some_and(Value::is_object) && matches!(version(contents), None | Some("0.6.1" | "0.5.0" | "0.4.0"))
}

fn read_0_6_1(contents: &Contents) -> Result<BTreeMap<String, GivenRange>> {
    let by_tensor = contents.json.as_ref().and_then(|json| json.get("activation_encodings"));
    let by_tensor = by_tensor.and_then(Value::as_object).context("has no activation_encodings")?;
    let mut ranges = BTreeMap::new();
    for (name, entry) in by_tensor {
        let range = read_061(entry).with_context(|| format!("tensor `{name}`"))?;
        ranges.extend(range.map(|range| (name.clone(), range)));
    }
    Ok(ranges)
}

fn read_061(entry: &Value) -> Result<Option<GivenRange>> {
    let entry = only(entry, "the entry")?;
    if entry.get("dtype").and_then(Value::as_str) == Some("float") {
        return Ok(None);
    }
    let symmetric = match entry.get("is_symmetric") {
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        other => other.and_then(Value::as_bool).unwrap_or(false),
    };
    if entry.get("scale").is_some() && entry.get("offset").is_some() {
        let bits = number(entry, "bitwidth")?;
        let (scale, offset) = (number(entry, "scale")?, number(entry, "offset")?);
        return of_offset(scale, offset, bits, symmetric).map(Some);
    }
    let range = Range { min: number(entry, "min")?, max: number(entry, "max")? };
    ensure!(range.min <= range.max, "range is [{}, {}], expected two numbers in ascending order", range.min, range.max);
    Ok(Some(GivenRange { range, amax: None }))
}

/// `{"activation_encodings": [{name, bw, is_sym, scale: [s], offset: [o]}]}`.
pub(super) const V1_0_0: RangeReader =
    RangeReader { name: "encodings-1.0.0", recognizes: recognizes_1_0_0, read: read_1_0_0 };

fn recognizes_1_0_0(contents: &Contents) -> bool {
    version(contents) == Some("1.0.0")
}

fn read_1_0_0(contents: &Contents) -> Result<BTreeMap<String, GivenRange>> {
    let read = |entry: &Value| -> Result<Option<GivenRange>> {
        if entry.get("dtype").and_then(Value::as_str) == Some("FLOAT") {
            return Ok(None);
        }
        let symmetric = entry.get("is_sym").and_then(Value::as_bool).unwrap_or(false);
        let first = |key: &str| -> Result<f64> {
            let value = entry.get(key).with_context(|| format!("has no {key}"))?;
            let value = only(value, key)?;
            value.as_f64().with_context(|| format!("{key} is {value}, expected a number"))
        };
        let shift = entry.get("zero_point_shift").is_some();
        ensure!(!shift, "has a zero_point_shift, expected an integer zero point");
        of_offset(first("scale")?, first("offset")?, number(entry, "bw")?, symmetric).map(Some)
    };
    entries(contents, "activation_encodings", read)
}

/// `{"encodings": [{name, output_dtype, y_scale, y_zero_point}]}`, with entries of activations and of parameters.
pub(super) const V2: RangeReader = RangeReader { name: "encodings-2.0.0", recognizes: recognizes_2, read: read_2 };

fn recognizes_2(contents: &Contents) -> bool {
    version(contents).is_some_and(|version| version.starts_with("2."))
}

fn read_2(contents: &Contents) -> Result<BTreeMap<String, GivenRange>> {
    let read = |entry: &Value| -> Result<Option<GivenRange>> {
        let dtype = entry.get("output_dtype").and_then(Value::as_str);
        let dtype = dtype.context("has no output_dtype, expected a string")?;
        let (digits, signed) = match (dtype.strip_prefix("uint"), dtype.strip_prefix("int")) {
            (Some(digits), _) => (digits, false),
            (None, Some(digits)) => (digits, true),
            (None, None) => return Ok(None),
        };
        // Biases and scales along an axis belong to parameters: an activation has one scale and at most 16 bits.
        let y_scale = entry.get("y_scale").context("has no y_scale")?;
        if digits == "32" || !y_scale.is_number() {
            return Ok(None);
        }
        let bits: u64 = digits
            .parse()
            .ok()
            .with_context(|| format!("output_dtype is `{dtype}`, expected a type such as `int8`"))?;
        let zero_point = match entry.get("y_zero_point") {
            None | Some(Value::Null) => 0,
            Some(value) => value.as_i64().with_context(|| format!("y_zero_point is {value}, expected an integer"))?,
        };
        let scale = number(entry, "y_scale")?;
        GivenRange::from_params(scale, zero_point, bits, signed).map(Some)
    };
    entries(contents, "encodings", read)
}

fn entries(
    contents: &Contents,
    key: &str,
    read: impl Fn(&Value) -> Result<Option<GivenRange>>,
) -> Result<BTreeMap<String, GivenRange>> {
    let list = contents.json.as_ref().and_then(|json| json.get(key)).and_then(Value::as_array);
    let mut ranges = BTreeMap::new();
    for (position, entry) in list.with_context(|| format!("has no list {key}"))?.iter().enumerate() {
        let name = entry.get("name").and_then(Value::as_str);
        let name = name.with_context(|| format!("{key}[{position}] has no name"))?;
        let range = read(entry).with_context(|| format!("tensor `{name}`"))?;
        ranges.extend(range.map(|range| (name.to_string(), range)));
    }
    Ok(ranges)
}
