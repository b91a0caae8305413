//! `--until-stable`: the result is that of the samples that were taken, alone.

use crate::support::command::{Ran, mqq, run};
use crate::support::{repository, write_npy};
use assert_cmd::Command;
use mqq::data::spread;
use mqq::statistics::{RangeChange, UntilStable};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn done(command: &mut Command) -> Ran {
    let ran = run(command);
    assert_eq!(ran.code, 0, "{command:?}: {}", ran.stderr);
    ran
}

fn calibrate(data: &Path, backends: &str, folder: &Path, extra: &[&str]) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", backends, "--preprocess", "half"]);
    command.arg("--data").arg(data).arg("--out-dir").arg(folder).args(extra);
    command
}

/// The bundled images, in the order of the list.
fn images() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository("calib_data/calib")).unwrap().map(|entry| entry.unwrap().path());
    let mut images: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|it| it == "png")).collect();
    images.sort();
    images
}

/// A list of `n` of the bundled images, in their order.
fn list_of(folder: &Path, n: usize) -> PathBuf {
    let images = images();
    let mut chosen = spread(images.len());
    chosen.truncate(n);
    chosen.sort_unstable();
    let lines: String = chosen.iter().map(|&i| format!("{}\n", images[i].display())).collect();
    let list = folder.join("list.txt");
    fs::write(&list, lines).unwrap();
    list
}

fn until_stable(ran: &Ran) -> Vec<Value> {
    let report = ran.json();
    report["results"].as_array().unwrap().iter().map(|result| result["until_stable"].clone()).collect()
}

/// Model, sidecar and statistics; with a moving average, with samples that methods run again, and on any number of threads.
#[test]
fn the_result_is_that_of_the_samples_alone() {
    let data = repository("calib_data/calib");
    let cases: [(&str, &[&str]); 4] = [
        ("tensorrt", &["--effort", "0"]),
        ("mqbench-tensorrt", &["--effort", "0", "--observer", "ema:0.9:8"]),
        ("tensorrt,onnxruntime", &["--scale", "1"]),
        ("openvino", &["--effort", "0", "--keep-samples", "9", "--save-stats"]),
    ];
    for (backends, options) in cases {
        let [taken, alone] = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let extra = |folder: &Path, more: &[&str]| -> Vec<String> {
            let mut all: Vec<String> = options.iter().map(|option| option.to_string()).collect();
            if options.last() == Some(&"--save-stats") {
                all.push(folder.join("s.mqqs").display().to_string());
            }
            all.extend(more.iter().map(|option| option.to_string()));
            all
        };
        let with = |data: &Path, folder: &Path, more: &[&str]| {
            let extra = extra(folder, more);
            done(&mut calibrate(data, backends, folder, &extra.iter().map(String::as_str).collect::<Vec<_>>()))
        };
        let found = until_stable(&with(&data, taken.path(), &["--until-stable", "--json"]));
        let n = found[0]["n_samples"].as_u64().unwrap() as usize;
        assert!(found[0]["is_stable"] == true && n < 100 && found[0]["n_listed"] == 100, "{backends}: {found:?}");
        assert!(found.iter().all(|other| *other == found[0]));
        let again = TempDir::new().unwrap();
        let text = with(&data, again.path(), &["--until-stable", "--threads", "1"]).stdout;
        assert!(text.contains(&format!(": {n} of 100 samples were enough: from ")), "{text}");
        assert!(text.contains(&format!("{n} samples")), "{text}");
        with(&list_of(alone.path(), n), alone.path(), &[]);
        let ends = |folder: &Path| {
            let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let mut files: Vec<PathBuf> = files.filter(|path| !path.ends_with("list.txt")).collect();
            files.sort();
            files
        };
        let files = ends(taken.path());
        let has = |ending: &str| files.iter().any(|file| file.extension().is_some_and(|it| it == ending));
        assert!(has("onnx") && has("json") && has("mqqs") == (options.last() == Some(&"--save-stats")));
        for file in files {
            let name = file.file_name().unwrap();
            let bytes = fs::read(&file).unwrap();
            assert!(bytes == fs::read(alone.path().join(name)).unwrap(), "{backends}: {name:?} of the samples alone");
            assert!(bytes == fs::read(again.path().join(name)).unwrap(), "{backends}: {name:?} on one thread");
        }
    }
}

/// The list ends before ranges do: all samples are taken, and the tensor that changed most is named.
#[test]
fn ranges_that_still_change_are_named() {
    let folder = TempDir::new().unwrap();
    let n = 48;
    // Each sample is larger than those before it in the order in which they are taken.
    let mut values = vec![0.0; n * 3 * 32 * 32];
    for (rank, &position) in spread(n).iter().enumerate() {
        let sample = &mut values[position * 3 * 32 * 32..(position + 1) * 3 * 32 * 32];
        sample
            .iter_mut()
            .enumerate()
            .for_each(|(i, value)| *value = ((i % 17) as f32 - 8.0) * 1.3f32.powi(rank as i32));
    }
    let data = folder.path().join("growing.npy");
    write_npy(&data, &[n, 3, 32, 32], &values);
    let [all, plain] = ["all", "plain"].map(|name| folder.path().join(name));
    let ran = done(&mut calibrate(&data, "tensorrt", &all, &["--effort", "0", "--until-stable"]));
    assert!(
        ran.stdout.contains("48 of 48 samples were taken, and those from 32 to 48 still changed "),
        "{}",
        ran.stdout
    );
    done(&mut calibrate(&data, "tensorrt", &plain, &["--effort", "0"]));
    for name in ["digits_cnn.tensorrt.onnx", "digits_cnn.tensorrt.json"] {
        assert!(fs::read(all.join(name)).unwrap() == fs::read(plain.join(name)).unwrap(), "{name}");
    }
}

/// Methods have their samples: 96 above effort 1.
#[test]
fn an_effort_has_the_samples_that_it_uses() {
    let folder = TempDir::new().unwrap();
    let data = repository("calib_data/calib");
    let of = |effort: &str, methods: &[&str]| {
        let extra = [&["--effort", effort, "--until-stable", "--json"], methods].concat();
        until_stable(&done(&mut calibrate(&data, "tensorrt", folder.path(), &extra)))[0]["n_samples"].clone()
    };
    assert_eq!((of("0", &[]), of("2", &["--methods", "bias"])), (64.into(), 100.into()));
}

#[test]
fn what_cannot_be_right_is_refused() {
    let folder = TempDir::new().unwrap();
    let (data, out) = (repository("calib_data/calib"), folder.path().join("out"));
    let stats = folder.path().join("s.mqqs").display().to_string();
    let fails = |backend: &str, extra: &[&str]| {
        let Ran { code, stderr, .. } = run(&mut calibrate(&data, backend, &out, extra));
        assert!(stderr.starts_with("error: "), "{stderr}");
        (code, stderr)
    };
    for other in [&["--save-stats", &stats, "--shard", "0/2"][..], &["--save-stats", &stats, "--resume"]] {
        let (code, error) = fails("tensorrt", &[&["--until-stable"], other].concat());
        assert!(code == 2 && error.contains("cannot be used with"), "{error}");
    }
    let (code, error) = fails("onnxruntime-nbits", &["--until-stable"]);
    assert!(code == 1 && error.contains("`onnxruntime-nbits` observes no tensor"), "{error}");
    let mut none = mqq();
    none.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt", "--until-stable"]);
    let Ran { code, stderr, .. } = run(&mut none);
    assert!(code == 2 && stderr.contains("--data is missing"), "{stderr}");
}

/// Of 500 samples in ten folders of classes, the first of any number have about a tenth of each; and about half of each of two
/// cameras in turn.
#[test]
fn the_order_is_spread_over_the_list() {
    let order = spread(500);
    assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 500);
    for n in [16, 32, 64, 128, 256] {
        let mut by_class = [0; 10];
        order[..n].iter().for_each(|i| by_class[i / 50] += 1);
        assert!(by_class.iter().all(|&of_class| (of_class as f64 - n as f64 / 10.0).abs() < 2.0), "{n}: {by_class:?}");
        for period in 2..9 {
            let of_first = order[..n].iter().filter(|&i| i % period == 0).count() as f64;
            assert!((of_first - n as f64 / period as f64).abs() < 5.0, "{n}, {period}: {of_first}");
        }
    }
}

#[test]
fn two_rounds_in_a_row_end_the_rounds() {
    let change = |steps: f64| Some(vec![RangeChange { tensor: "t".to_string(), steps }]);
    let mut rounds = UntilStable::new(1000, 0);
    for (n, changes) in [(16, None), (32, change(0.5)), (64, change(1.5)), (128, change(1.0)), (256, change(0.1))] {
        assert_eq!(rounds.next(), Some(n));
        rounds.add(changes);
    }
    assert_eq!((rounds.next(), rounds.n_samples, rounds.is_stable), (None, 256, true));
    assert_eq!(rounds.sentence(), "256 of 1000 samples were enough: from 64 to 256 no range changed by a step");
    let mut few = UntilStable::new(40, 0);
    [None, change(0.0), change(3.25)].into_iter().for_each(|changes| few.add(changes));
    assert_eq!((few.next(), few.is_stable, few.n_samples), (None, false, 40));
    let sentence = "40 of 40 samples were taken, and those from 32 to 40 still changed 1 range by a step or more, most of all `t`: by 3.2 steps";
    assert_eq!(few.sentence(), sentence);
    let mut one = UntilStable::new(1, 0);
    one.add(None);
    assert_eq!((one.next(), one.is_stable), (None, false));
    assert_eq!(
        one.sentence(),
        "1 of 1 sample was taken, which is too few to tell whether more samples would change a range"
    );
}
