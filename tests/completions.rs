//! Completion of values, as the scripts of `mqq completions` ask for it; and man pages.

use crate::support::command::{mqq, run};
use mqq::backends;
use mqq::data::PRESETS;
use mqq::export::FORMATS;
use mqq::heads::{self, TaskName};
use mqq::metrics::METRICS;
use mqq::observers::OBSERVERS;
use mqq::tune::METHODS;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The completions of the last word of a command line in `folder`, as bash asks for them.
fn complete(words: &[&str], folder: &Path) -> Vec<String> {
    let mut command = mqq();
    command.current_dir(folder).env("MQQ_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).args(["--", "mqq"]).args(words);
    let ran = run(&mut command);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words:?}");
    ran.stdout.lines().map(str::to_string).collect()
}

#[test]
fn values_are_completed_from_the_lists() {
    let folder = TempDir::new().unwrap();
    let own = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let backends = own(&backends::BUILT_IN.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let formats = own(&FORMATS.iter().map(|format| format.name).collect::<Vec<_>>());
    let observers = own(&OBSERVERS.iter().map(|observer| observer.name).collect::<Vec<_>>());
    let methods = own(&METHODS.iter().map(|method| method.name).chain(["none"]).collect::<Vec<_>>());
    let metrics: Vec<String> = METRICS.iter().map(|metric| format!("{}=", metric.name)).collect();
    let presets: Vec<String> = PRESETS.iter().map(|preset| preset.name.clone()).collect();
    let tasks = own(&TaskName::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>());
    let heads = own(&heads::BUILT_IN.iter().chain(heads::ALIASES).map(|(name, _)| *name).collect::<Vec<_>>());
    let cases: [(&[&str], &Vec<String>); 15] = [
        (&["calibrate", "--backend", ""], &backends),
        (&["calibrate", "m.onnx", "-b", ""], &backends),
        (&["check", "--backend", ""], &backends),
        (&["inspect", "--backend", ""], &backends),
        (&["backends", ""], &backends),
        (&["calibrate", "--preprocess", ""], &presets),
        (&["presets", ""], &presets),
        (&["calibrate", "--emit", ""], &formats),
        (&["export", "--format", ""], &formats),
        (&["calibrate", "--observer", ""], &observers),
        (&["calibrate", "--methods", ""], &methods),
        (&["calibrate", "--target", ""], &metrics),
        (&["compare", "--fail-under", ""], &metrics),
        (&["compare", "--task", ""], &tasks),
        (&["compare", "--head", ""], &heads),
    ];
    for (words, expected) in cases {
        let mut found = complete(words, folder.path());
        // An option may follow where no value has to.
        found.retain(|name| !name.starts_with('-'));
        let mut expected = expected.clone();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{words:?}");
    }
}

#[test]
fn a_list_is_completed_behind_its_last_comma() {
    let folder = TempDir::new().unwrap();
    assert_eq!(complete(&["calibrate", "--methods", "bias,loc"], folder.path()), ["bias,local-bias"]);
    assert_eq!(complete(&["calibrate", "--emit=trt-cache,openvino"], folder.path()), ["--emit=trt-cache,openvino-fq"]);
}

#[test]
fn files_are_completed_where_an_option_takes_them() {
    let folder = TempDir::new().unwrap();
    for name in ["ten.yaml", "ten.txt", "model.onnx"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    assert_eq!(complete(&["calibrate", "--backend", "tenso"], folder.path()), ["tensorrt", "tensorrt-nlp"]);
    assert_eq!(complete(&["calibrate", "--backend", "ten."], folder.path()), ["ten.yaml"]);
    assert_eq!(complete(&["calibrate", "--data", "te"], folder.path()), ["ten.txt", "ten.yaml"]);
    assert!(complete(&["calibrate", "mod"], folder.path()).contains(&"model.onnx".to_string()));
}

#[test]
fn each_shell_has_a_script() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ran = run(mqq().args(["completions", shell]));
        assert!(ran.code == 0 && ran.stdout.contains("MQQ_COMPLETE") && ran.stdout.contains(shell), "{}", ran.stdout);
    }
}

#[test]
fn each_command_has_a_man_page() {
    let folder = TempDir::new().unwrap();
    assert_eq!(run(mqq().arg("man").arg(folder.path())).code, 0);
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(page("mqq.1").contains("mqq\\-calibrate(1)"), "{}", page("mqq.1"));
    assert!(page("mqq-calibrate.1").contains("\\-\\-backend"));
    assert_eq!(run(mqq().arg("man").arg(folder.path().join("missing"))).code, 1);
}
