//! The table that `docs/backends.md` writes step by step works as it stands there.

use crate::support::repository;
use assert_cmd::Command;
use mqq::place::RULES;
use mqq::scheme;
use std::fs;

/// The text between the lines of the first fenced block of `kind`.
fn block(document: &str, kind: &str) -> String {
    let fence = format!("```{kind}\n");
    let start = document.find(&fence).unwrap() + fence.len();
    let end = start + document[start..].find("```").unwrap();
    document[start..end].to_string()
}

#[test]
fn the_worked_example_quantizes_the_bundled_model() {
    let document = fs::read_to_string(repository("docs/backends.md")).unwrap();
    let table = block(&document, "yaml");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mynpu.yaml");
    fs::write(&path, &table).unwrap();
    let model = folder.path().join("quantized.onnx");
    let mqq = || Command::new(assert_cmd::cargo::cargo_bin!("mqq"));
    let data = ["--data", "calib_data/calib", "--preprocess", "half", "--output"];
    let mut calibrate = mqq();
    calibrate.current_dir(repository("."));
    calibrate.args(["calibrate", "fixtures/digits_cnn.onnx", "--backend"]).arg(&path);
    calibrate.args(data).arg(&model).assert().success();
    let mut compare = mqq();
    compare.current_dir(repository(".")).args(["compare", "fixtures/digits_cnn.onnx"]).arg(&model);
    compare.args(["--data", "calib_data/eval", "--preprocess", "half", "--min-sqnr", "15"]);
    compare.assert().success();
    // It is the built-in table but for its name.
    let own = scheme::resolve(path.to_str().unwrap()).unwrap();
    let built_in = scheme::resolve("tflitemicro").unwrap();
    assert_eq!(
        (own.types, own.ops, own.placement),
        (built_in.types, built_in.ops, built_in.placement)
    );
}

#[test]
fn every_rule_and_key_is_explained() {
    let document = fs::read_to_string(repository("docs/backends.md")).unwrap();
    let explained = |name: &str| document.contains(&format!("`{name}`"));
    for rule in RULES {
        assert!(explained(rule.name()), "rule {}", rule.name());
        for (parameter, _) in rule.parameters() {
            assert!(explained(parameter), "parameter {parameter} of rule {}", rule.name());
        }
    }
    // Keys that a resolved table can have, from all built-in ones.
    for (name, _) in scheme::BUILT_IN {
        assert!(explained(name), "table {name}");
        let value = serde_yaml::to_value(scheme::resolve(name).unwrap()).unwrap();
        let keys = |value: &serde_yaml::Value| -> Vec<String> {
            let mapping = value.as_mapping().into_iter().flatten();
            mapping.filter_map(|(key, _)| key.as_str().map(str::to_string)).collect()
        };
        let entries = |key: &str| -> Vec<serde_yaml::Value> {
            value[key].as_mapping().into_iter().flatten().map(|(_, entry)| entry.clone()).collect()
        };
        let nested = entries("types").into_iter().chain(entries("ops")).chain(entries("switches"));
        for key in keys(&value).into_iter().chain(nested.flat_map(|entry| keys(&entry))) {
            assert!(explained(&key), "key {key} of {name}");
        }
    }
}
