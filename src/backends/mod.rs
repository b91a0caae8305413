//! The tables that come with mqq, and the names that tables may use.
//!
//! In: a backend's name, or the path of a table. Out: its checked [`Scheme`]. A new backend is a file in `backends/`
//! and a line in [`BUILT_IN`]; nothing else in the crate knows a backend's name.

use crate::check::{CHECKS, contradiction};
use crate::place::RULES;
use crate::scheme::{self, Catalog, Scheme};
use crate::{export, observers};
use anyhow::Result;
use std::path::PathBuf;

/// Expands to the name and the YAML of each built-in table.
macro_rules! tables {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../backends/", $name, ".yaml")))),*]
    };
}

/// The tables that come with mqq: name and YAML.
pub const BUILT_IN: &[(&str, &str)] = tables![
    "academic", "esp-dl", "mqbench-openvino", "mqbench-tensorrt", "ncnn", "nnie", "onnx-qnn", "onnxruntime",
    "onnxruntime-dynamic", "onnxruntime-nbits", "onnxruntime-vnni", "openvino", "pplcuda", "pplw8a16", "qnn-htp",
    "qnn-htp-a16", "rknn", "snpe", "stpu", "tengine", "tensorrt", "tensorrt-nlp", "tflite", "tflite-16x8",
    "tflitemicro", "tidl-msa-wc8-at8", "tidl-msa-wc8p2-at8p2", "tidl-wc8-at8", "tidl-wc8p2-at8p2",
    "tidl-wc8symp2-at8symp2", "tidl-wt8symp2-at8symp2", "tvm", "vitis", "weight-only-int4", "weight-only-int8",
    "xint8", "xint8-a16",
];

/// Returns the names that tables may use.
fn catalog() -> Catalog {
    Catalog {
        tables: BUILT_IN,
        rules: RULES.iter().map(|rule| (rule.name, rule.takes)).collect(),
        checks: CHECKS.iter().map(|check| (check.name, check.takes)).collect(),
        contradiction,
        check_observer: |spelling| observers::by_spelling(spelling).map(drop),
        check_format: |name| export::by_names([name]).map(drop),
    }
}

/// Returns the table of a built-in backend, or of the YAML file at the path `backend`.
///
/// # Errors
/// If there is no such backend or file, or the table is invalid. The message has file, line, key and expected value.
pub fn resolve(backend: &str) -> Result<Scheme> {
    scheme::resolve(backend, &catalog())
}

/// As [`resolve`], with `switches` turned on and then `sets` applied. A set is a dotted path of keys and a YAML value,
/// such as `types.act8.bits=4`; `null` removes the key.
///
/// # Errors
/// As [`resolve`]; also for an unknown switch, a path through a key that does not exist, or an invalid value.
pub fn resolve_with(backend: &str, switches: &[String], sets: &[String]) -> Result<Scheme> {
    scheme::resolve_with(backend, switches, sets, &catalog())
}

/// Returns the table of wider types that may replace `scheme`, with the same `switches` and `sets`. A set may remove a
/// key that the wider table does not have.
///
/// # Errors
/// As [`resolve_with`].
pub fn resolve_wider(scheme: &Scheme, switches: &[String], sets: &[String]) -> Result<Option<Scheme>> {
    scheme::resolve_wider(scheme, switches, sets, &catalog())
}

/// Returns the files of `backend`'s table: its own file and those that it extends, without built-in tables. Empty where
/// [`resolve`] fails.
pub fn files(backend: &str) -> Vec<PathBuf> {
    scheme::files(backend, &catalog())
}
