//! `--zoo`: many models, each with its own options, in runs of their own.

use crate::support::command::{Ran, mqq, run};
use crate::support::repository;
use assert_cmd::Command;
use mqq::guard::free_of_group;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const ZOO: &str = "\
defaults:
  backend: tensorrt
  data: images
  preprocess: half
  effort: 0
  limit: 20
models:
  'b*':
    backend: [tensorrt, openvino]
    exclude: [Gemm]
    observer: max
";

/// A folder with models a and b, one that is none, images, and the file of the zoo.
struct Folder {
    folder: TempDir,
}

impl Folder {
    fn new(zoo: &str) -> Folder {
        let folder = Folder { folder: TempDir::new().unwrap() };
        fs::copy(repository("fixtures/digits_cnn.onnx"), folder.at("a.onnx")).unwrap();
        fs::copy(repository("fixtures/digits_old.onnx"), folder.at("b.onnx")).unwrap();
        fs::write(folder.at("none.onnx"), "no model").unwrap();
        fs::create_dir(folder.at("images")).unwrap();
        for entry in fs::read_dir(repository("calib_data/calib")).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.at("images").join(path.file_name().unwrap())).unwrap();
        }
        fs::write(folder.at("zoo.yaml"), zoo).unwrap();
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A run from another folder: paths in the file are relative to the file.
    fn command(&self, models: &[&str], extra: &[&str]) -> Command {
        let mut command = mqq();
        command.arg("calibrate").args(models.iter().map(|model| self.at(model))).arg("--zoo").arg(self.at("zoo.yaml"));
        command.arg("--out-dir").arg(self.at("out")).args(extra);
        command
    }

    fn run(&self, models: &[&str], extra: &[&str]) -> Ran {
        run(&mut self.command(models, extra))
    }

    fn by_hand(&self, model: &str, backend: &str, extra: &[&str]) {
        let mut command = mqq();
        command.arg("calibrate").arg(self.at(model)).args(["-b", backend, "--preprocess", "half", "--effort", "0"]);
        command.arg("--data").arg(self.at("images")).args(["--limit", "20"]).args(extra);
        assert_eq!(run(command.arg("--out-dir").arg(self.at("hand"))).code, 0);
    }
}

fn statuses(report: &Value) -> Vec<(String, String)> {
    let results = report["results"].as_array().unwrap().iter();
    let of = |result: &Value, key: &str| result[key].as_str().unwrap_or_default().to_string();
    results.map(|result| (of(result, "backend"), of(result, "status"))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(backend, status)| (backend.to_string(), status.to_string())).collect()
}

fn same_files(one: &Path, other: &Path, names: &[&str]) {
    for name in names {
        assert!(fs::read(one.join(name)).unwrap() == fs::read(other.join(name)).unwrap(), "{name}");
    }
}

#[test]
fn models_of_a_zoo_are_as_by_hand_and_a_bad_one_stops_none() {
    let folder = Folder::new(ZOO);
    let junit = folder.at("junit.xml");
    let ran = folder.run(&["none.onnx", "a.onnx", "b.onnx"], &["--json", "--junit", junit.to_str().unwrap()]);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("[3/3] "), "{}", ran.stderr);
    let report = ran.json();
    let expected = [("tensorrt", "failed"), ("tensorrt", "ok"), ("tensorrt", "ok"), ("openvino", "ok")];
    assert_eq!(statuses(&report), pairs(&expected));
    assert!(report["zoo"]["seconds"].as_f64().unwrap() > 0.0);
    folder.by_hand("a.onnx", "tensorrt", &[]);
    let extra = ["--exclude", "Gemm", "--observer", "max"];
    ["tensorrt", "openvino"].iter().for_each(|backend| folder.by_hand("b.onnx", backend, &extra));
    same_files(
        &folder.at("out"),
        &folder.at("hand"),
        &["a.tensorrt.onnx", "a.tensorrt.json", "b.tensorrt.onnx", "b.openvino.onnx", "b.openvino.json"],
    );
    assert_eq!(fs::read_dir(folder.at("out")).unwrap().count(), 6);
    let junit = fs::read_to_string(junit).unwrap();
    assert!(
        junit.contains("<testsuites name=\"mqq calibrate\" tests=\"4\" failures=\"0\" errors=\"1\" skipped=\"0\""),
        "{junit}"
    );
    assert!(junit.contains("<testsuite name=\"openvino\" tests=\"1\""), "{junit}");
    assert!(junit.contains("<error message=\"`"), "{junit}");
    let ran = folder.run(&["a.onnx", "b.onnx"], &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("model   backend   status  "), "{}", ran.stdout);
    assert!(ran.stdout.contains("\n2 models: 3 ok, 0 missed, 0 failed, 0 skipped; "), "{}", ran.stdout);
}

#[test]
fn options_of_the_command_line_come_before_those_of_the_file() {
    let folder = Folder::new(ZOO);
    let ran = folder.run(&["a.onnx"], &["--limit", "7", "--backend", "onnxruntime", "--json"]);
    let report = ran.json();
    assert_eq!(statuses(&report), pairs(&[("onnxruntime", "ok")]));
    assert_eq!(report["results"][0]["summary"]["n_samples"], 7);
}

#[test]
fn a_missed_gate_of_a_model_is_code_3() {
    let folder =
        Folder::new(&format!("{ZOO}    gates: [overlap=0.9999]\n  a:\n    gates: [overlap=0.5, agreement=90]\n"));
    let junit = folder.at("junit.xml");
    let ran = folder.run(&["a.onnx", "b.onnx"], &["--json", "--junit", junit.to_str().unwrap()]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let missed: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("gate missed: ")).collect();
    let is_named =
        |line: &&&str| ["tensorrt", "openvino"].iter().any(|b| line.contains(&format!("b.{b}.onnx`: output `")));
    assert_eq!((missed.len(), missed.iter().filter(is_named).count()), (2, 2), "{}", ran.stderr);
    let report = ran.json();
    let expected = [("tensorrt", "ok"), ("tensorrt", "missed"), ("openvino", "missed")];
    assert_eq!(statuses(&report), pairs(&expected));
    assert!(report["results"][1]["error"].as_str().unwrap().contains("expected 0.9999 or more"), "{report}");
    assert!(report["results"][0]["compared"]["outputs"].is_array());
    let gates = report["results"][0]["gates"].as_array().unwrap();
    assert_eq!((&gates[1]["metric"], &gates[1]["bound"]), (&"agreement".into(), &90.0.into()));
    let figure = format!("overlap {:.3}", gates[0]["value"].as_f64().unwrap());
    let junit = fs::read_to_string(junit).unwrap();
    assert!(junit.contains("<failure message=\"output `"), "{junit}");
    assert!(junit.contains(&format!("<system-out>{figure}, gate 0.5&#10;agreement ")), "{junit}");
    let ran = folder.run(&["a.onnx"], &[]);
    assert!(ran.stdout.contains(&format!("  {figure}, agreement ")), "{}", ran.stdout);
    assert!(folder.at("out/b.openvino.onnx").exists(), "a gate is a verdict on a result that is there");
}

#[test]
fn results_of_the_same_origin_are_kept() {
    let folder = Folder::new(ZOO);
    let skipped = |extra: &[&str]| {
        let ran = folder.run(&["a.onnx", "b.onnx"], &[&["--json", "--skip-existing"], extra].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let statuses = statuses(&ran.json());
        statuses.into_iter().map(|(_, status)| status == "skipped").collect::<Vec<bool>>()
    };
    assert_eq!(skipped(&[]), [false; 3]);
    assert_eq!(skipped(&[]), [true; 3]);
    assert_eq!(skipped(&["--threads", "1"]), [true; 3]);
    assert_eq!(skipped(&["--limit", "19"]), [false; 3]);
    assert_eq!(skipped(&["--limit", "19"]), [true; 3]);
    fs::write(folder.at("zoo.yaml"), ZOO.replace("[Gemm]", "[Gemm, Softmax]")).unwrap();
    assert_eq!(skipped(&["--limit", "19"]), [true, false, false]);
    fs::remove_file(folder.at("out/b.openvino.json")).unwrap();
    assert_eq!(skipped(&["--limit", "19"]), [true, true, false]);
    fs::copy(repository("fixtures/digits_old.onnx"), folder.at("a.onnx")).unwrap();
    assert_eq!(skipped(&["--limit", "19"]), [false, true, true]);
    let image =
        folder.at("images").join(fs::read_dir(folder.at("images")).unwrap().next().unwrap().unwrap().file_name());
    fs::copy(repository("docs/../calib_data/eval").read_dir().unwrap().next().unwrap().unwrap().path(), image).unwrap();
    assert_eq!(skipped(&["--limit", "19"]), [false; 3]);
}

/// Data and labels of the gates are looked for before a model is quantized.
#[test]
fn a_model_whose_gates_cannot_be_evaluated_leaves_no_results() {
    let zoo = format!("{ZOO}    gates: [overlap=0.5]\n    eval: missing\n");
    let folder = Folder::new(&zoo);
    let ran = folder.run(&["a.onnx", "b.onnx"], &["--json"]);
    assert_eq!(ran.code, 1);
    let report = ran.json();
    let states: Vec<&str> =
        report["results"].as_array().unwrap().iter().map(|it| it["status"].as_str().unwrap()).collect();
    assert_eq!(states, ["ok", "failed"]);
    assert!(report["results"][1]["error"].as_str().unwrap().contains("missing`: does not exist"), "{report:#}");
    assert!(folder.at("out/a.tensorrt.onnx").exists());
    assert!(!folder.at("out/b.tensorrt.onnx").exists() && !folder.at("out/b.openvino.onnx").exists());
}

/// `limit` counts samples of the calibration, and `false` undoes an option of earlier lines.
#[test]
fn gates_take_all_data_of_eval_and_false_undoes_an_option() {
    let eval = repository("calib_data/eval").display().to_string();
    let zoo = ZOO.replace("  limit: 20\n", "  limit: 20\n  until-stable: true\n");
    let zoo = format!("{zoo}  a:\n    until-stable: false\n    gates: [overlap=0.5]\n    eval: {eval}\n");
    let folder = Folder::new(&zoo);
    let report: Value = serde_json::from_str(&folder.run(&["a.onnx"], &["--json"]).stdout).unwrap();
    let result = &report["results"][0];
    assert_eq!((&result["status"], &result["until_stable"]), (&"ok".into(), &Value::Null), "{report:#}");
    assert_eq!(
        (&result["summary"]["n_samples"], result["compared"]["outputs"][0]["n_samples"].as_u64()),
        (&20.into(), Some(300))
    );
}

/// One folder for models of one name, a report for all models, a JUnit file over data.
#[test]
fn files_of_one_model_replace_no_files_of_another() {
    let folder = Folder::new(ZOO);
    fs::create_dir(folder.at("other")).unwrap();
    fs::copy(folder.at("b.onnx"), folder.at("other/b.onnx")).unwrap();
    let report = folder.at("report.html").display().to_string();
    let image = fs::read_dir(folder.at("images")).unwrap().next().unwrap().unwrap().path();
    let cases: [(&[&str], &[&str], &str); 4] = [
        (
            &["b.onnx", "other/b.onnx"],
            &[],
            "other/b.onnx`: its results for tensorrt would have the names of those of `",
        ),
        (&["a.onnx"], &["--report", &report], "'--report <FILE>'"),
        (&["a.onnx"], &["-v"], "'--verbose'"),
        (
            &["a.onnx"],
            &["--junit", image.to_str().unwrap()],
            "would be written as the JUnit report, but the run reads it",
        ),
    ];
    for (models, extra, text) in cases {
        let ran = folder.run(models, extra);
        assert!(ran.code == 2 && ran.stderr.contains(text), "{models:?}: {}: {}", ran.code, ran.stderr);
        assert!(!folder.at("out").exists());
    }
}

/// A budget that is below that of any model: one at a time.
#[test]
fn a_small_budget_runs_one_model_at_a_time() {
    let folder = Folder::new(ZOO);
    let ran = folder.run(&["a.onnx", "b.onnx"], &["--memory", "1M", "--json"]);
    let report = ran.json();
    assert_eq!((ran.code, report["zoo"]["memory_bytes"].as_u64()), (0, Some(1 << 20)));
}

#[test]
fn a_file_of_a_zoo_with_an_error_is_named() {
    let cases = [
        ("defaults: {backnd: tensorrt}", "zoo.yaml`:1: `defaults`: unknown option `backnd`"),
        ("models:\n  'b*':\n    threads: 2", "zoo.yaml`:3: `b*`: unknown option `threads`"),
        ("defaults: {report: x.html}", "`defaults`: unknown option `report`"),
        ("modls: {}", "unknown key `modls`"),
        ("backend: tensorrt", "hint: options of all models are keys of `defaults`"),
        ("models: {'b[': {}}", "`b[`"),
        ("models: {b: 3}", "`b` has no options"),
        ("defaults:\n  backend: tensorrt\n  effort: 9", "zoo.yaml`:3: model `b.onnx`: invalid value '9'"),
        ("defaults: {backend: tensorrt}\nmodels: {b: {limit: x}}", "zoo.yaml`:2: model `b.onnx`: invalid value 'x'"),
        (
            "defaults:\n  limit: [1, 2]",
            "zoo.yaml`:2: `defaults`: `limit`: found a list of 2 values, expected one value",
        ),
        ("defaults: {limit: [1, 2]}", "hint: `mqq help calibrate` lists the options"),
        ("defaults: {data: []}", "`data`: found an empty list, expected a value"),
        ("defaults: {effort: 0}", "model `b.onnx`: has no `backend`, expected one"),
        ("null", "found nothing, expected keys with values"),
        ("defaults: {backend: tensorrt, gates: [overlp=1]}", "zoo.yaml`:1: model `b.onnx`: metric `overlp` is unknown"),
    ];
    for (zoo, text) in cases {
        let folder = Folder::new(zoo);
        let ran = folder.run(&["b.onnx"], &[]);
        assert!(ran.code == 1 && ran.stderr.contains(text), "{zoo}: {}: {}", ran.code, ran.stderr);
        assert!(!folder.at("out").exists());
    }
    let folder = Folder::new(&ZOO.replace("  data: images\n", ""));
    let ran = folder.run(&["a.onnx"], &[]);
    assert!(ran.stderr.contains("a.onnx`: --data is missing, expected samples"), "{}", ran.stderr);
    let ran = folder.run(&["images"], &[]);
    assert!(ran.code == 2 && ran.stderr.contains("images`: is a directory, expected a model"), "{}", ran.stderr);
    let ran =
        folder.run(&["images", "a.onnx"], &["--preprocess", "half", "--data", folder.at("images").to_str().unwrap()]);
    assert!(ran.code == 1 && folder.at("out/a.tensorrt.onnx").is_file(), "{}", ran.stderr);
    assert!(ran.stderr.contains("images`: is a directory"), "{}", ran.stderr);
    let folder = Folder::new(&format!("{ZOO}  'x*': {{}}\n"));
    let ran = folder.run(&["a.onnx"], &[]);
    assert!(ran.stderr.contains("`x*` matches no model"), "{}", ran.stderr);
}

/// Processes that ran before in a container keep their memory; the page cache is given back.
#[test]
fn the_memory_of_a_container_is_the_rest_of_its_limit() {
    let folder = TempDir::new().unwrap();
    let free = |limit: &str| {
        fs::write(folder.path().join("memory.max"), limit).unwrap();
        free_of_group(folder.path())
    };
    assert_eq!(free_of_group(folder.path()), None);
    assert_eq!((free("max\n"), free("1000\n")), (None, Some(1000)));
    fs::write(folder.path().join("memory.current"), "700\n").unwrap();
    assert_eq!(free("1000\n"), Some(300));
    fs::write(folder.path().join("memory.stat"), "anon 500\ninactive_file 150\nactive_file 50\n").unwrap();
    assert_eq!((free("1000\n"), free("400\n")), (Some(450), Some(0)));
}
