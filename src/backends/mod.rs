//! The tables that come with mqq, and what names a table may use.
//!
//! In: a backend's name, or the path of a table. Out: its checked [`Scheme`]. A new backend is a file in `backends/` and a
//! line in [`BUILT_IN`]; nothing else in the crate knows a backend's name.

use crate::check::CHECKS;
use crate::place::RULES;
use crate::scheme::{self, Catalog, Scheme};
use crate::{export, observers};
use anyhow::Result;
use std::path::PathBuf;

/// A line per built-in table.
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

/// The lists that tables take names from.
fn catalog() -> Catalog {
    Catalog {
        tables: BUILT_IN,
        rules: RULES.iter().map(|rule| (rule.name, rule.takes)).collect(),
        checks: CHECKS.iter().map(|check| (check.name, check.takes)).collect(),
        check_observer: |spelling| observers::by_spelling(spelling).map(drop),
        check_format: |name| export::by_names([name]).map(drop),
    }
}

/// The table of a built-in backend, or of a YAML file where `backend` is the path of one.
///
/// # Errors
/// If there is no such backend or file, or the table is wrong: file, line, key, what was expected.
pub fn resolve(backend: &str) -> Result<Scheme> {
    scheme::resolve(backend, &catalog())
}

/// [`resolve`], then `switches` of the table turned on, then `sets` of the form `types.act8.bits=4` laid
/// over it: a dotted path of keys, and a YAML value (`null` takes the key away).
///
/// # Errors
/// As [`resolve`]; if a switch is unknown; if a path leads through a key that does not exist, or to a
/// value that the table cannot have.
pub fn resolve_with(backend: &str, switches: &[String], sets: &[String]) -> Result<Scheme> {
    scheme::resolve_with(backend, switches, sets, &catalog())
}

/// The files that the table of `backend` is read from: its own and those it extends, without built-in ones. None where
/// [`resolve`] fails.
pub fn files(backend: &str) -> Vec<PathBuf> {
    scheme::files(backend, &catalog())
}
