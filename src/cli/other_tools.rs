//! Options of other quantizers, and their equivalents: the tips for options that mqq does not have.
//!
//! docs/coming-from.md has the full lists.

/// Names of options, with hyphens, and the rest of the tip that begins with the option.
const EQUIVALENTS: &[(&[&str], &str)] = &[
    (&["subset-size"], "of NNCF is --limit N"),
    (&["samples", "num-samples", "n-samples", "calib-steps"], "of other tools is --limit N"),
    (&["ignored-scope", "ignored-scopes"], "of NNCF is --exclude NAME, a node's name, an operator or a glob"),
    (
        &["preset"],
        "of NNCF is --switch asymmetric-activations for MIXED; a preset of preprocessing is --preprocess NAME",
    ),
    (&["model-type"], "of NNCF is not needed: mqq recognizes transformers"),
    (&["target-device"], "of NNCF is --backend NAME"),
    (&["fast-bias-correction"], "of NNCF is --methods local-bias"),
    (&["disable-bias-correction"], "of NNCF is --methods none"),
    (&["overflow-fix"], "of NNCF is --switch full-range-weights for DISABLE"),
    (&["calibrate-method"], "of ONNX Runtime is --observer NAME"),
    (&["calibration-method"], "of ModelOpt is --observer NAME"),
    (&["quant-scheme"], "of AIMET is --observer NAME"),
    (&["per-channel"], "of ONNX Runtime is the key `granularity` of a table's types: `mqq backends NAME` prints it"),
    (&["reduce-range"], "of ONNX Runtime is --backend onnxruntime --switch seven-bit-weights"),
    (&["quant-format"], "of ONNX Runtime is not needed: the result is always Q/DQ"),
    (&["activation-type"], "of ONNX Runtime is part of the backend's table: --set types.act8.bits=16 for QUInt16"),
    (&["weight-type"], "of ONNX Runtime is part of the backend's table: --backend weight-only-int4 for QInt4"),
    (&["op-types-to-quantize", "nodes-to-quantize"], "of ONNX Runtime and ModelOpt is --only NAME"),
    (&["op-types-to-exclude", "nodes-to-exclude"], "of ONNX Runtime and ModelOpt is --exclude NAME"),
    (&["calibration-data-reader", "calibration-data-path", "calibration-data"], "of other tools is --data PATH"),
    (&["calibration-cache-path"], "of ModelOpt is --ranges-from FILE"),
    (&["calibration-shapes", "override-shapes"], "of ModelOpt is --shape INPUT=1x3x224x224"),
    (&["input-shape", "input-shapes"], "of other tools is --shape INPUT=1x3x224x224"),
    (&["onnx-path"], "of ModelOpt is the model's path without an option"),
    (&["quantize-mode"], "of ModelOpt is --backend NAME"),
    (&["high-precision-dtype"], "of ModelOpt is not needed: mqq does not convert to float16"),
    (&["config-file"], "of AIMET is --backend NAME"),
    (&["batch-size"], "is not needed: an open batch is 1"),
    (&["overwrite", "force"], "is not needed: results are replaced, unless --skip-existing is given"),
];

/// Words for the command that quantizes a model.
const QUANTIZING: &[&str] = &["convert", "compress", "optimize", "ptq", "run"];

/// Returns a tip if an unknown command is a model, or another word for the command that quantizes a model.
pub fn command_tip(found: &str) -> Option<&'static str> {
    let found = found.to_lowercase();
    let is_meant = found.ends_with(".onnx") || QUANTIZING.contains(&found.as_str());
    is_meant.then_some("did you mean `mqq calibrate`, which quantizes a model?")
}

/// Returns a tip if an unknown option, such as `--subset-size`, is one of another quantizer.
pub fn tip(option: &str) -> Option<String> {
    let name = option.trim_start_matches('-').to_lowercase().replace('_', "-");
    let (_, equivalent) = EQUIVALENTS.iter().find(|(names, _)| names.contains(&name.as_str()))?;
    Some(format!("{option} {equivalent}"))
}
