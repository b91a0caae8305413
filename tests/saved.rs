//! Saved statistics: `solve` against full runs, shards and their merging, interrupted runs, hostile files.

use crate::support::command::{Ran, mqq, run};
use crate::support::repository;
use assert_cmd::Command;
use mqq::backends;
use mqq::observers::OBSERVERS;
use rayon::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MODELS: [&str; 2] = ["fixtures/digits_cnn.onnx", "fixtures/digits_old.onnx"];

/// `mqq calibrate` at effort 0 on the first `n` of the bundled images.
fn calibrate(model: &Path, backend: &str, n: usize) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(model).args(["-b", backend, "--preprocess", "half", "--effort", "0"]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--limit", &n.to_string()]);
    command
}

fn done(command: &mut Command) -> Ran {
    let ran = run(command);
    assert_eq!(ran.code, 0, "{command:?}: {}", ran.stderr);
    ran
}

/// The error of a command that fails.
fn fails(command: &mut Command) -> String {
    let Ran { code, stderr, .. } = run(command);
    assert_eq!(code, 1, "{command:?}: {stderr}");
    assert!(stderr.starts_with("error: ") && !stderr.contains("panick"), "{stderr}");
    stderr
}

/// Model and sidecar.
fn results(output: &Path) -> [Vec<u8>; 2] {
    [output.to_path_buf(), output.with_extension("json")].map(|path| fs::read(path).unwrap())
}

/// Statistics of `model` for the tables of `of` besides that of `backend`.
fn collected(folder: &Path, name: &str, model: &Path, extra: &[&str]) -> PathBuf {
    let path = folder.join(name);
    let mut command = calibrate(model, "tensorrt", 37);
    if !extra.contains(&"--shard") {
        command.arg("-o").arg(folder.join("unused.onnx"));
    }
    done(command.args(extra).arg("--save-stats").arg(&path));
    path
}

/// Every table, and every observer that effort 0 takes; more than one batch of a moving average.
#[test]
fn solve_is_a_full_run_at_effort_0() {
    for model in MODELS.map(repository) {
        let folder = TempDir::new().unwrap();
        let statistics = collected(folder.path(), "s.mqqs", &model, &["--for", "all"]);
        let tables = backends::BUILT_IN.iter().map(|(name, _)| (*name, vec![]));
        let observers = OBSERVERS.iter().filter(|it| it.choices.is_empty());
        let observers = observers.map(|it| ("mqbench-tensorrt", vec!["--observer", it.name]));
        let others = [
            ("mqbench-tensorrt", vec!["--observer", "ema:0.5:7", "--weight-observer", "mse"]),
            ("onnxruntime", vec!["--observer", "percentile:99"]),
            ("tensorrt", vec!["--exclude", "Gemm"]),
            ("openvino", vec!["--only", "Conv", "--weights", "float"]),
            ("tensorrt", vec!["--no-insert", "--emit", "ppq,trt-cache"]),
        ];
        let cases: Vec<_> = tables.chain(observers).chain(others).enumerate().collect();
        let differs = |(case, (backend, extra)): &(usize, (&str, Vec<&str>))| -> Option<String> {
            let [full, solved] = ["full", "solved"].map(|of| folder.path().join(format!("{case}.{of}.onnx")));
            done(calibrate(&model, backend, 37).args(extra).arg("-o").arg(&full));
            let mut command = mqq();
            command.arg("solve").arg(&model).args(["-b", backend]).args(extra).arg("-o").arg(&solved);
            done(command.arg("--stats").arg(&statistics));
            (results(&full) != results(&solved)).then(|| format!("{backend} {extra:?}"))
        };
        let different: Vec<String> = cases.par_iter().filter_map(differs).collect();
        assert_eq!(different, Vec::<String>::new(), "{}", model.display());
    }
}

/// The check of the pixel values takes 320 runs: at effort 0 only where there are as many samples, from data or not.
#[test]
fn solve_warns_of_the_preprocessing_as_a_full_run_does() {
    let (model, folder) = (repository(MODELS[0]), TempDir::new().unwrap());
    let mut images: Vec<PathBuf> = fs::read_dir(repository("calib_data/calib"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "png"))
        .collect();
    images.sort();
    let lines: String = images.iter().map(|path| format!("{}\n", path.display())).collect();
    let list = folder.path().join("list.txt");
    fs::write(&list, lines.repeat(5)).unwrap();
    for (limit, warns) in [("319", false), ("320", true)] {
        let at = |name: &str| folder.path().join(format!("{limit}.{name}"));
        let full = || {
            let mut command = mqq();
            command.arg("calibrate").arg(&model).args(["-b", "tensorrt", "--preprocess", "unit", "--effort", "0"]);
            command.arg("--data").arg(&list).args(["--limit", limit]);
            command
        };
        done(full().arg("-o").arg(at("full.onnx")));
        for shard in ["0/2", "1/2"] {
            done(full().args(["--shard", shard, "--save-stats"]).arg(at(&shard[..1])));
        }
        done(mqq().args(["stats", "merge"]).arg(at("1")).arg(at("0")).arg("-o").arg(at("s.mqqs")));
        let mut solve = mqq();
        solve.arg("solve").arg(&model).args(["-b", "tensorrt", "--stats"]).arg(at("s.mqqs"));
        let solved = done(solve.arg("-o").arg(at("solved.onnx")));
        assert_eq!(solved.stderr.contains("clearly better"), warns, "{limit}: {}", solved.stderr);
        assert!(results(&at("full.onnx")) == results(&at("solved.onnx")), "{limit}");
    }
}

/// Shards in any order, with moving averages, are one run: the same statistics, model and sidecar.
#[test]
fn merged_shards_are_one_run() {
    let (model, folder) = (repository(MODELS[1]), TempDir::new().unwrap());
    let whole = collected(
        folder.path(),
        "whole.mqqs",
        &model,
        &["--for", "mqbench-openvino,qnn-htp,xint8-a16", "--keep-samples", "9"],
    );
    for of in [1, 2, 3, 7] {
        let mut shards: Vec<PathBuf> = (0..of)
            .map(|index| {
                let part = format!("{index}/{of}");
                let args = ["--for", "mqbench-openvino,qnn-htp,xint8-a16", "--keep-samples", "9", "--shard", &part];
                collected(folder.path(), &format!("{index}-{of}.mqqs"), &model, &args)
            })
            .collect();
        // An order that is neither that of the shards nor its reverse.
        shards.sort_by_key(|path| Sha256::digest(path.file_name().unwrap().as_encoded_bytes()).to_vec());
        let merged = folder.path().join("merged.mqqs");
        done(mqq().args(["stats", "merge"]).args(&shards).arg("-o").arg(&merged));
        assert!(fs::read(&whole).unwrap() == fs::read(&merged).unwrap(), "{of} shards");
    }
}

#[test]
fn shards_that_do_not_fit_are_named() {
    let (model, folder) = (repository(MODELS[0]), TempDir::new().unwrap());
    let shard = |name: &str, extra: &[&str]| collected(folder.path(), name, &model, extra);
    let parts = ["0/3", "1/3", "2/3"].map(|part| shard(&part.replace('/', "-"), &["--shard", part]));
    let [zero, one, two] = &parts;
    let merge = |files: &[&PathBuf]| {
        fails(mqq().args(["stats", "merge"]).args(files).arg("-o").arg(folder.path().join("merged.mqqs")))
    };
    assert!(merge(&[two, zero]).contains("1 shard missing: 1/3"));
    assert!(merge(&[zero, one, zero]).contains("is shard 0/3, as `"));
    assert!(merge(&[zero, &shard("0-2", &["--shard", "1/2"])]).contains("one of 2 shards, expected one of 3"));
    assert!(merge(&[&shard("whole", &[]), zero]).contains("one of 3 shards, expected one of 1"));
    let other = shard("other", &["--shard", "1/3", "--color", "bgr"]);
    assert!(merge(&[zero, &other]).contains("preprocessing: "), "{}", merge(&[zero, &other]));
    let fewer = folder.path().join("fewer");
    done(calibrate(&model, "tensorrt", 30).args(["--shard", "1/3", "--save-stats"]).arg(&fewer));
    assert!(merge(&[zero, &fewer]).contains("a list of 30 samples, expected 37"));
    let tables = shard("tables", &["--shard", "1/3", "--for", "openvino"]);
    assert!(merge(&[zero, &tables]).contains("statistics for openvino, tensorrt of mqq"));
    let solve = |stats: &Path| {
        let mut command = mqq();
        command.arg("solve").arg(&model).args(["-b", "tensorrt", "--out-dir"]).arg(folder.path());
        fails(command.arg("--stats").arg(stats))
    };
    assert!(solve(one).contains("the statistics are of shard 1/3"), "{}", solve(one));
}

/// A run that ends at an unreadable image leaves what it has; with `--resume` it goes on, to the same bytes.
#[test]
fn an_interrupted_run_goes_on() {
    let folder = TempDir::new().unwrap();
    let images: Vec<PathBuf> = (0..90)
        .map(|i| {
            let image = folder.path().join(format!("{i:03}.png"));
            let from = fs::read_dir(repository("calib_data/calib")).unwrap().map(|entry| entry.unwrap().path());
            let mut from: Vec<PathBuf> = from.collect();
            from.sort();
            fs::copy(&from[i % 60], &image).unwrap();
            image
        })
        .collect();
    let model = repository(MODELS[0]);
    let collect = |name: &str, extra: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(&model).args(["-b", "mqbench-tensorrt", "--preprocess", "half", "--shard", "0/1"]);
        command.arg("--data").arg(folder.path()).arg("--save-stats").arg(folder.path().join(name)).args(extra);
        command
    };
    done(&mut collect("whole.mqqs", &[]));
    let good = fs::read(&images[80]).unwrap();
    fs::write(&images[80], b"no image").unwrap();
    assert!(fails(&mut collect("part.mqqs", &[])).contains("080.png"));
    let part = folder.path().join("part.mqqs");
    let mut solve = mqq();
    solve.arg("solve").arg(&model).args(["-b", "mqbench-tensorrt"]).arg("--stats").arg(&part);
    assert!(fails(&mut solve).contains("interrupted after 64 of 90 samples"));
    let mut merge = mqq();
    merge.args(["stats", "merge"]).arg(&part).arg("-o").arg(folder.path().join("merged.mqqs"));
    assert!(fails(&mut merge).contains("shard 0/1 was interrupted after 64 of 90 samples"));
    let other = fails(&mut collect("part.mqqs", &["--resume", "--color", "bgr"]));
    assert!(other.contains("the interrupted statistics do not fit this run: found preprocessing: "), "{other}");
    fs::write(&images[80], good).unwrap();
    done(&mut collect("part.mqqs", &["--resume"]));
    assert!(fs::read(folder.path().join("whole.mqqs")).unwrap() == fs::read(&part).unwrap());
    // A run that is done stays as it is.
    done(&mut collect("part.mqqs", &["--resume"]));
    assert!(fs::read(folder.path().join("whole.mqqs")).unwrap() == fs::read(&part).unwrap());
}

/// The text and the arrays of a file.
struct Parts {
    header: serde_json::Value,
    arrays: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Parts {
    fn of(bytes: &[u8]) -> Parts {
        let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
        let header = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["mqq_statistics"]).unwrap();
        let arrays = SafeTensors::deserialize(bytes).unwrap().tensors().into_iter();
        let arrays = arrays.map(|(name, it)| (name, (it.dtype(), it.shape().to_vec(), it.data().to_vec())));
        Parts { header, arrays: arrays.collect() }
    }

    /// The file of these parts, with its checksum.
    fn bytes(mut self) -> Vec<u8> {
        self.arrays.remove("sha256");
        let header = self.header.to_string();
        let mut hasher = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(header.as_bytes());
        for (name, (dtype, shape, data)) in &self.arrays {
            add(name.as_bytes());
            add(format!("{dtype:?} {shape:?}").as_bytes());
            add(data);
        }
        self.arrays.insert("sha256".into(), (Dtype::U8, vec![32], hasher.finalize().to_vec()));
        let views = self.arrays.iter();
        let views =
            views.map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        serialize(views, &Some(HashMap::from([("mqq_statistics".to_string(), header)]))).unwrap()
    }
}

/// Files that are cut, changed, foreign, from another version or made to harm: one clear error each.
#[test]
fn hostile_files_are_refused() {
    let (model, folder) = (repository(MODELS[0]), TempDir::new().unwrap());
    let good = fs::read(collected(folder.path(), "good.mqqs", &model, &["--for", "mqbench-tensorrt"])).unwrap();
    let changed = |change: &dyn Fn(&mut Parts)| {
        let mut parts = Parts::of(&good);
        change(&mut parts);
        parts.bytes()
    };
    let first = |ending: &str| Parts::of(&good).arrays.keys().find(|name| name.ends_with(ending)).unwrap().clone();
    let (counts, extremes) = (first("/counts"), first("/extremes"));
    let with_array = |name: &str, dtype: Dtype, shape: &[usize], data: &[u8]| {
        changed(&|parts| _ = parts.arrays.insert(name.to_string(), (dtype, shape.to_vec(), data.to_vec())))
    };
    let of_counts = |data: &[u8]| with_array(&counts, Dtype::U8, &[data.len()], data);
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let foreign = "is not a file of mqq's statistics, or is truncated";
    let nested = format!("{{\"a\":{}", "[".repeat(100_000));
    let other_version = |format: u32| changed(&|parts| parts.header["format"] = format.into());
    let huge = u64::MAX.to_le_bytes();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), foreign),
        ("text", b"just some words, and no statistics at all".to_vec(), foreign),
        ("cut in the header", good[..100].to_vec(), foreign),
        ("cut in the arrays", good[..good.len() - 1].to_vec(), foreign),
        ("longer", [&good[..], &[0]].concat(), foreign),
        ("header of many bytes", [&huge[..], &good[8..]].concat(), foreign),
        ("deeply nested header", header(&nested), foreign),
        (
            "huge array",
            header(r#"{"a":{"dtype":"U64","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#),
            foreign,
        ),
        ("offsets beyond the end", header(r#"{"a":{"dtype":"U8","shape":[99],"data_offsets":[0,99]}}"#), foreign),
        ("weights", header(r#"{"__metadata__":{"format":"pt"}}"#), foreign),
        ("a changed count", flipped(good.len() - 1), "has been changed: its checksum"),
        ("a later version", other_version(2), "has version 2 of the format, written by mqq "),
        ("an earlier version", other_version(0), "has version 0 of the format, written by mqq "),
        ("a bin of none", of_counts(&[0xff, 0xff, 0xff, 0x7f, 1]), "expected below"),
        ("bins out of order", of_counts(&[3, 1, 0, 1]), "the bins are not in order"),
        ("an empty bin", of_counts(&[3, 0]), "is empty, expected one value or more"),
        ("a cut number", of_counts(&[3, 0x80]), "ends within a number"),
        (
            "counts beyond 64 bits",
            of_counts(&[&[1][..], &[0xff; 9], &[1], &[1], &[0xff; 9], &[1]].concat()),
            "too many values for 64 bits",
        ),
        (
            "extremes of other bins",
            with_array(&extremes, Dtype::F32, &[2], &[0, 0, 0x80, 0xc7, 0, 0, 0x80, 0x47]),
            "are not in the outermost bins",
        ),
        ("NaN for an extreme", with_array(&extremes, Dtype::F32, &[2], &[0xff; 8]), "are not in the outermost bins"),
        ("another type", with_array(&extremes, Dtype::F64, &[1], &[0; 8]), "expected F32"),
        ("a missing array", changed(&|parts| _ = parts.arrays.remove(&counts)), "has no array `"),
        (
            "samples out of order",
            with_array("samples", Dtype::U64, &[2], &[&huge[..], &[0; 8]].concat()),
            "is not in order",
        ),
        ("batches of other samples", with_array("batches/0", Dtype::F32, &[1, 1, 2], &[0; 8]), "array `batches/0`"),
        (
            "no origin",
            changed(&|parts| _ = parts.header.as_object_mut().unwrap().remove("model")),
            "missing key `model`",
        ),
    ];
    for (case, bytes, expected) in cases {
        let path = folder.path().join("hostile.mqqs");
        fs::write(&path, bytes).unwrap();
        let mut solve = mqq();
        solve.arg("solve").arg(&model).args(["-b", "tensorrt", "--out-dir"]).arg(folder.path().join("none"));
        for command in [solve.arg("--stats").arg(&path), mqq().args(["stats", "show"]).arg(&path)] {
            let stderr = fails(command);
            assert!(stderr.starts_with(&format!("error: `{}`: ", path.display())), "{case}: {stderr}");
            assert!(stderr.contains(expected), "{case}: {stderr}");
        }
        assert!(!folder.path().join("none").exists(), "{case}");
    }
}

#[test]
fn statistics_of_another_model_or_table_are_refused() {
    let (model, folder) = (repository(MODELS[0]), TempDir::new().unwrap());
    let statistics = collected(folder.path(), "s.mqqs", &model, &[]);
    let solve = |model: &Path, extra: &[&str]| {
        let mut command = mqq();
        command.arg("solve").arg(model).args(extra).arg("--out-dir").arg(folder.path().join("none"));
        fails(command.arg("--stats").arg(&statistics))
    };
    let other = solve(&repository(MODELS[1]), &["-b", "tensorrt"]);
    assert!(other.contains("of another model: `digits_cnn.onnx` with SHA-256"), "{other}");
    for (backend, extra) in [("xint8-a16", ""), ("qnn-htp", ""), ("tensorrt", "--observer=ema")] {
        let lacking = solve(&model, &["-b", backend, extra].as_slice()[..if extra.is_empty() { 2 } else { 3 }]);
        assert!(lacking.contains("the statistics lack ") && lacking.contains("--for"), "{backend}: {lacking}");
    }
    assert!(!folder.path().join("none").exists());
}

#[test]
fn statistics_are_shown_and_compared() {
    let (model, folder) = (repository(MODELS[0]), TempDir::new().unwrap());
    let one = collected(folder.path(), "one.mqqs", &model, &[]);
    let shown = done(mqq().args(["stats", "show"]).arg(&one)).stdout;
    assert!(shown.contains("37, 0 left out") && shown.contains("tensorrt") && shown.contains("% beyond"), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("    |") && line.ends_with("  input")), "{shown}");
    let json = |command: &mut Command| -> serde_json::Value {
        serde_json::from_str(&done(command.arg("--json")).stdout).unwrap()
    };
    let shown = json(mqq().args(["stats", "show", "--observer", "max"]).arg(&one));
    assert_eq!((&shown["n_samples"], &shown["schema_version"]), (&37.into(), &"3.0".into()));
    let tensors = shown["prepared_models"][0]["tensors"].as_array().unwrap();
    let input = tensors.iter().find(|it| it["tensor"] == "input").unwrap();
    assert_eq!((&input["observed"], &input["beyond"]), (&serde_json::json!([-1.0, 1.0]), &0.0.into()));
    let sum: f64 = input["histogram"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    // A moving average needs extremes by sample.
    let with = |file: &Path, observer: &str| {
        let shown = json(mqq().args(["stats", "show", "--observer", observer]).arg(file));
        shown["prepared_models"][0]["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["range"].clone())
            .collect::<Vec<_>>()
    };
    let lacking = fails(mqq().args(["stats", "show", "--observer", "ema"]).arg(&one));
    assert!(lacking.contains("`: has no extremes by sample, expected them for observer `ema`"), "{lacking}");
    let averaged = collected(folder.path(), "ema.mqqs", &model, &["--observer", "ema"]);
    assert!(with(&averaged, "ema") != with(&averaged, "max"));
    assert!(with(&averaged, "max") == with(&one, "max"));
    let ran = run(mqq().args(["stats", "show", "--observer", "auto"]).arg(&one));
    assert!(
        ran.code == 2
            && ran.stderr.contains("observer `auto` needs samples, expected an observer that needs only statistics"),
        "{}",
        ran.stderr
    );
    let bgr = collected(folder.path(), "dark.mqqs", &model, &["--scale", "1/510"]);
    let same = json(mqq().args(["stats", "diff"]).arg(&one).arg(&one));
    assert!(same["differences"].as_array().unwrap().iter().all(|it| it["distance"] == 0.0));
    let text = run(mqq().args(["stats", "diff"]).arg(&one).arg(&one)).stdout;
    assert!(text.starts_with("equal: ") && text.ends_with(" tensors with the same values\n"), "{text}");
    let text = run(mqq().args(["stats", "diff", "--limit", "2"]).arg(&one).arg(&bgr)).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 5 && lines[1].starts_with("distance: the largest difference"), "{text}");
    assert!(lines[2].starts_with("distance range ") && lines[2].ends_with(" tensor"), "{text}");
    let different = json(mqq().args(["stats", "diff", "--limit", "2"]).arg(&one).arg(&bgr));
    let different = different["differences"].as_array().unwrap();
    assert_eq!(different.len(), same["differences"].as_array().unwrap().len());
    assert!(different[0]["distance"].as_f64().unwrap() > 0.2, "{different:?}");
}

/// With all samples kept, every method works as with the data; with fewer, a run is the same or refused.
#[test]
fn solve_with_kept_samples_is_a_full_run() {
    for model in MODELS.map(repository) {
        let folder = TempDir::new().unwrap();
        let all = collected(folder.path(), "all.mqqs", &model, &["--for", "all", "--keep-samples", "40"]);
        let some = collected(folder.path(), "some.mqqs", &model, &["--for", "all", "--keep-samples", "36"]);
        let observers = ["max", "mse", "auto", "percentile:99.9", "ema:0.9:8"];
        let of_observers = observers.iter().map(|it| ("tensorrt", vec!["--observer", it]));
        let of_tables =
            ["onnxruntime", "qnn-htp", "xint8", "snpe", "onnxruntime-dynamic", "weight-only-int4", "academic"];
        let of_efforts = [
            ("openvino", vec!["--effort", "2"]),
            ("tensorrt", vec!["--effort", "3", "--methods", "bias,rounding"]),
            ("tensorrt", vec!["--effort", "0"]),
            ("tensorrt", vec!["--keep-float", "2"]),
        ];
        let cases: Vec<_> =
            of_observers.chain(of_tables.iter().map(|it| (*it, vec![]))).chain(of_efforts).enumerate().collect();
        let solve = |backend: &str, extra: &[&str], statistics: &Path, output: &Path| {
            let mut command = mqq();
            command.arg("solve").arg(&model).args(["-b", backend]).args(extra).arg("--stats").arg(statistics);
            run(command.arg("-o").arg(output))
        };
        let differs = |(case, (backend, extra)): &(usize, (&str, Vec<&str>))| -> Option<String> {
            let path = |of: &str| folder.path().join(format!("{case}.{of}.onnx"));
            let (full, solved, part) = (path("full"), path("solved"), path("part"));
            let mut command = mqq();
            command.arg("calibrate").arg(&model).args(["-b", backend, "--preprocess", "half", "--limit", "37"]);
            done(command.arg("--data").arg(repository("calib_data/calib")).args(extra).arg("-o").arg(&full));
            let ran = solve(backend, extra, &all, &solved);
            assert_eq!(ran.code, 0, "{backend} {extra:?}: {}", ran.stderr);
            let ran = solve(backend, extra, &some, &part);
            let is_refused = ran.code == 1 && ran.stderr.contains("the statistics lack ") && !part.exists();
            let is_same = ran.code == 0 && results(&full) == results(&part);
            (results(&full) != results(&solved) || !is_refused && !is_same)
                .then(|| format!("{backend} {extra:?}: {}", ran.stderr))
        };
        let different: Vec<String> = cases.par_iter().filter_map(differs).collect();
        assert_eq!(different, Vec::<String>::new(), "{}", model.display());
        // Methods that need no statistics of other tensors, on the samples that the effort takes.
        let some = folder.path().join("96.mqqs");
        let mut command = calibrate(&model, "tensorrt", 100);
        command.args(["--for", "openvino,tflite", "--keep-samples", "96"]).arg("--save-stats").arg(&some);
        done(command.arg("-o").arg(folder.path().join("unused.onnx")));
        for backend in ["tensorrt", "openvino", "tflite"] {
            let [full, solved] = ["full", "solved"].map(|of| folder.path().join(format!("{backend}.{of}.onnx")));
            let mut command = mqq();
            command.arg("calibrate").arg(&model).args(["-b", backend, "--preprocess", "half"]);
            let methods = ["--methods", "bias"];
            done(command.arg("--data").arg(repository("calib_data/calib")).args(methods).arg("-o").arg(&full));
            let ran = solve(backend, &methods, &some, &solved);
            assert_eq!(ran.code, 0, "{backend}: {}", ran.stderr);
            assert!(results(&full) == results(&solved), "{backend}");
        }
    }
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let (model, folder) = (repository(MODELS[0]), TempDir::new().unwrap());
    let statistics = collected(folder.path(), "s.mqqs", &model, &[]);
    let usage = |command: &mut Command, expected: &str| {
        let ran = run(command);
        assert_eq!(ran.code, 2, "{command:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{command:?}: {}", ran.stderr);
    };
    let calibrate = || calibrate(&model, "tensorrt", 4);
    usage(calibrate().args(["--shard", "0/2"]), "--save-stats");
    usage(calibrate().args(["--for", "openvino"]), "--save-stats");
    usage(calibrate().args(["--resume"]), "--save-stats");
    for of_model in
        [&["-o", "q.onnx"][..], &["--out-dir", "q"], &["--emit", "ppq"], &["--report", "q.html"], &["--strict"]]
    {
        let mut command = calibrate();
        command.args(["--shard", "0/2", "--save-stats"]).arg(folder.path().join("none")).args(of_model);
        usage(&mut command, "cannot be used with");
    }
    for shard in ["2/2", "0/0", "1", "a/b", "-1/2"] {
        usage(calibrate().arg("--save-stats").arg(&statistics).arg(format!("--shard={shard}")), "expected I");
    }
    let two = repository(MODELS[1]);
    usage(calibrate().arg(&two).arg("--save-stats").arg(folder.path().join("two")), "but there are 2 models");
    let mut without = mqq();
    without.arg("calibrate").arg(&model).args(["-b", "weight-only-int8", "--save-stats"]);
    usage(without.arg(folder.path().join("none")), "but --data is missing");
    let mut unknown = calibrate();
    unknown.arg("--save-stats").arg(folder.path().join("none")).args(["--for", "tensorrrt"]);
    assert!(run(&mut unknown).stderr.contains("did you mean `tensorrt`?"));
    // Files that a command reads.
    let mut solve = mqq();
    solve.arg("solve").arg(&model).args(["-b", "tensorrt"]).arg("--stats").arg(&statistics);
    usage(solve.arg("-o").arg(&statistics), "would be written as the quantized model of");
    usage(mqq().args(["stats", "merge"]).arg(&statistics).arg("-o").arg(&statistics), "merged statistics");
    usage(calibrate().arg("--save-stats").arg(&model), "would be written as the statistics");
    for args in [&["stats", "show"][..], &["stats", "diff", "a.mqqs"], &["stats", "merge", "-o", "b.mqqs"]] {
        let none = folder.path().join("none.mqqs");
        let stderr = fails(mqq().args(args).arg(&none).current_dir(folder.path()));
        assert!(stderr.contains("`: does not exist\nhint: check the path"), "{args:?}: {stderr}");
    }
}

#[test]
fn an_effort_without_kept_samples_is_refused() {
    let (model, folder) = (repository(MODELS[0]), TempDir::new().unwrap());
    let statistics = collected(folder.path(), "s.mqqs", &model, &[]);
    let mut command = mqq();
    command.arg("solve").arg(&model).args(["-b", "tensorrt", "--effort", "1"]).arg("--stats").arg(&statistics);
    let ran = run(command.arg("--out-dir").arg(folder.path()));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("keeps no samples") && ran.stderr.contains("--keep-samples"), "{}", ran.stderr);
}
