//! `mqq compare --task`: figures, bounds and exit codes as scripts use them.

use crate::support::command::{Ran, mqq, run};
use crate::support::{GraphBuilder, repository};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A float model that gives its input, and a quantized one that adds a constant; samples.
struct Pair {
    folder: TempDir,
    shape: Vec<usize>,
}

impl Pair {
    fn new(shape: &[usize], off: &[f32], samples: &[&[f32]]) -> Pair {
        let pair = Pair { folder: TempDir::new().unwrap(), shape: shape.to_vec() };
        pair.model("float.onnx", &vec![0.0; off.len()]);
        pair.model("quantized.onnx", off);
        fs::create_dir(pair.path("data")).unwrap();
        for (i, sample) in samples.iter().enumerate() {
            let tensor = mqq::onnx::tensor::from_f32("x", shape, sample).unwrap();
            fs::write(pair.path(&format!("data/{i}.pb")), prost::Message::encode_to_vec(&tensor)).unwrap();
        }
        pair
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn model(&self, name: &str, constant: &[f32]) {
        let dims: Vec<i64> = self.shape.iter().map(|&dim| dim as i64).collect();
        let mut g = GraphBuilder::new(13);
        g.input("x", &dims);
        g.values("c", &self.shape, constant);
        g.op("Add", &["x", "c"], "y");
        g.output("y");
        mqq::onnx::save(&g.build(), &self.path(name)).unwrap();
    }

    fn compare(&self, extra: &str) -> Ran {
        let mut command = mqq();
        command.arg("compare").arg(self.path("float.onnx")).arg(self.path("quantized.onnx"));
        run(command.arg("--data").arg(self.path("data")).args(extra.split_whitespace()))
    }

    /// Exit codes of runs with these options.
    fn assert_codes(&self, task: &str, cases: &[(&str, i32)]) {
        for (extra, code) in cases {
            let ran = self.compare(&format!("{task} {extra}"));
            assert_eq!(ran.code, *code, "{task} {extra}: {}{}", ran.stdout, ran.stderr);
            if *code == 3 {
                let option = extra.split_whitespace().next().unwrap();
                assert!(
                    ran.stdout.contains(&format!("{option} ")) && ran.stdout.contains("is missed"),
                    "{}",
                    ran.stdout
                );
            }
        }
    }

    fn json(&self, extra: &str) -> Value {
        serde_json::from_str(&self.compare(&format!("{extra} --json")).stdout).unwrap()
    }
}

/// Two boxes of the head `yolo-nms`.
const BOXES: [f32; 12] = [0.0, 0.0, 10.0, 10.0, 0.9, 1.0, 20.0, 0.0, 30.0, 10.0, 0.8, 2.0];
const DETECT: &str = "--task detect --head yolo-nms";

fn boxes(off: [f32; 12]) -> Pair {
    Pair::new(&[1, 2, 6], &off, &[&BOXES])
}

#[test]
fn bounds_of_boxes_are_held() {
    // The first is shifted by 2: its IoU is 2/3, the mean 5/6.
    let shifted = boxes([2.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    shifted.assert_codes(
        DETECT,
        &[("", 0), ("--min-f1 1", 0), ("--min-iou 0.83", 0), ("--min-iou 0.84", 3), ("--min-iou 0.84 --quiet", 3)],
    );
    let report = shifted.json(&format!("{DETECT} --min-iou 0.84 --min-f1 0.9"));
    let task = &report["task"];
    assert_eq!((&task["task"], &task["head"]), (&"detect".into(), &"yolo-nms".into()));
    assert_eq!((&task["results"][0]["f1"], &task["results"][0]["n_matched"]), (&1.0.into(), &2.into()));
    assert!((task["results"][0]["mean_iou"].as_f64().unwrap() - 5.0 / 6.0).abs() < 1e-6);
    assert_eq!((&task["gates"][0]["gate"], &task["gates"][0]["met"]), (&"--min-f1".into(), &true.into()));
    assert_eq!((&task["gates"][1]["gate"], &task["gates"][1]["met"]), (&"--min-iou".into(), &false.into()));
    assert!(task["gates"][1]["found"].as_f64().unwrap() < 0.84 && task["gates"][1].get("output").is_none());
    let text = shifted.compare(DETECT).stdout;
    let line =
        "detect yolo-nms: F1 1.000, mean IoU 0.833, distance of scores 0.000, 2 boxes in float and 2 in quantized";
    assert!(text.lines().nth(1).unwrap().starts_with(line), "{text}");
    // The second is lost by its score, or by its class.
    boxes([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.7, 0.0])
        .assert_codes(DETECT, &[("--min-f1 0.66", 0), ("--min-f1 0.67", 3), ("--min-f1 0.67 --threshold 0.05", 0)]);
    boxes([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
        .assert_codes(DETECT, &[("--min-f1 0.5", 0), ("--min-f1 0.51", 3)]);
}

#[test]
fn what_cannot_be_measured_is_missed() {
    let mut nan = [0.0; 12];
    nan[0] = f32::NAN;
    boxes(nan).assert_codes(DETECT, &[("", 0), ("--min-f1 0", 3), ("--min-iou 0", 3)]);
    // No box of the float model is above the threshold; none is the same.
    let none = boxes([0.0; 12]);
    none.assert_codes(DETECT, &[("--min-f1 0 --threshold 0.95", 3)]);
    let text = none.compare(&format!("{DETECT} --min-f1 0.5 --threshold 0.95")).stdout;
    assert!(
        text.contains("F1 not measured") && text.contains("--min-f1 0.5 is missed: could not be measured"),
        "{text}"
    );
    boxes([0.0, 0.0, 0.0, 0.0, -0.8, 0.0, 0.0, 0.0, 0.0, 0.0, -0.7, 0.0])
        .assert_codes(DETECT, &[("--min-f1 0", 0), ("--min-f1 0.01", 3), ("--min-iou 0", 3)]);
}

#[test]
fn bounds_of_classes_are_held() {
    // The second sample gets another class.
    let pair = Pair::new(&[1, 3], &[0.0, 0.0, 2.0], &[&[9.0, 0.0, 0.0], &[0.0, 1.0, 0.0]]);
    let classify = "--task classify";
    pair.assert_codes(classify, &[("--min-agreement 50", 0), ("--min-agreement 51", 3)]);
    // Known without its name, where a bound of classes is given.
    pair.assert_codes("", &[("--min-agreement 50", 0), ("--min-agreement 51", 3)]);
    fs::write(pair.path("labels.csv"), "file,class_index\n0.pb,0\n1.pb,1\n").unwrap();
    let labels = pair.path("labels.csv").display().to_string();
    let drop = |bound: &str| format!("--max-top1-drop {bound} --labels {labels}");
    pair.assert_codes(classify, &[(&drop("50"), 0), (&drop("49"), 3), ("--max-top1-drop 50", 2)]);
    let result = pair.json(&format!("{classify} --labels {labels}"))["task"]["results"][0].clone();
    assert_eq!((&result["output"], &result["top1_drop"]), (&"y".into(), &50.0.into()));
    Pair::new(&[1, 3], &[0.0, 0.0, f32::NAN], &[&[9.0, 0.0, 0.0]]).assert_codes(classify, &[("--min-agreement 0", 3)]);
}

#[test]
fn bounds_of_maps_are_held() {
    let map = Pair::new(&[1, 1, 2, 2], &[0.0, 0.0, 0.0, -0.4], &[&[0.9, 0.1, 0.1, 0.8]]);
    map.assert_codes(
        "--task segment",
        &[
            ("--min-miou 0.5", 0),
            ("--min-miou 0.51", 3),
            ("--min-miou 1 --threshold 0.3", 0),
            ("--min-miou 0 --threshold 2", 3),
        ],
    );
    map.assert_codes(
        "--task regress --task-output y",
        &[("--min-correlation 0.8", 0), ("--min-correlation 0.99", 3), ("--max-centred-error 0.6", 0)],
    );
    map.assert_codes("--task regress", &[("--max-centred-error 0.1", 3)]);
    // Each of the four numbers is a channel; of one sample none varies.
    map.assert_codes("--task regress --channel-axis 1", &[("--min-correlation 0.8", 0)]);
    map.assert_codes("--task regress --channel-axis 7", &[("", 1)]);
}

#[test]
fn bounds_of_embeddings_are_held() {
    let samples: [&[f32]; 3] = [&[1.0, 0.0], &[0.9, 0.1], &[0.0, 1.0]];
    let same = Pair::new(&[1, 2], &[0.0, 0.0], &samples);
    same.assert_codes("--task embed", &[("--min-cosine 1", 0), ("--min-neighbours 1", 0)]);
    let turned = Pair::new(&[1, 2], &[0.0, 1.0], &samples);
    turned.assert_codes("--task embed", &[("--min-cosine 0.99", 3), ("--min-cosine -1", 0)]);
    let alone = Pair::new(&[1, 2], &[0.0, 0.0], &samples[..1]);
    alone.assert_codes("--task embed", &[("--min-neighbours 0", 3), ("--min-cosine 1", 0)]);
}

#[test]
fn bounds_of_texts_are_held() {
    // Steps 1, 2 and the blank; the quantized model loses the second letter.
    let steps = [0.0, 9.0, 0.0, 0.0, 0.0, 9.0, 9.0, 0.0, 0.0];
    let pair = Pair::new(&[1, 3, 3], &[0.0, 0.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[&steps]);
    pair.assert_codes("--task ctc", &[("--max-edit-distance 0.5", 0), ("--max-edit-distance 0.49", 3)]);
    pair.assert_codes("--task ctc --blank 7", &[("", 1)]);
    // The second step is the blank in float, and the third's letter in the other.
    let texts = pair.json("--task ctc --blank last")["task"]["results"][0].clone();
    assert_eq!((&texts["n_letters"], &texts["edit_distance"]), (&2.into(), &0.0.into()));
}

#[test]
fn an_option_of_another_task_is_wrong_usage() {
    let pair = boxes([0.0; 12]);
    for (extra, words) in [
        ("--min-f1 0.9", "--min-f1 needs --task detect"),
        ("--head yolox", "--head needs --task detect"),
        ("--task classify --min-f1 0.9", "--min-f1 is none of --task classify, expected --min-agreement"),
        ("--task classify --head yolox", "--head is none of --task classify"),
        ("--task detect", "--task detect needs --head: boxes-scores-labels"),
        ("--task detect --head yolx", "head `yolx` is unknown"),
        ("--task detect --head yolox --min-f1 95", "--min-f1 is 95, expected 0 to 1"),
        ("--task detect --head yolox --threshold 3", "expected a score, 0 to 1"),
        ("--task detect --head yolox --blank 1", "--blank is none of --task detect"),
        ("--task classify --min-agreement 0.99", "--min-agreement is 0.99, expected percent, such as 99"),
        ("--task classify --min-agreement nan", "is no number"),
        ("--task classify --max-top1-drop 1", "--max-top1-drop needs --labels"),
        ("--task detection", "expected one of: classify, detect"),
    ] {
        let ran = pair.compare(extra);
        assert!(ran.code == 2 && ran.stderr.contains(words), "{extra}: {} {}", ran.code, ran.stderr);
    }
    // A file that is not there, an output that is none, outputs of another task.
    for (extra, words) in [
        ("--task detect --head none/mine.yaml", "`none/mine.yaml`: does not exist"),
        ("--task embed --task-output z", "--task-output: output `z` is unknown, expected one of: y"),
        ("--task classify", "no output for task classify, found `y` [1, 2, 6], expected floats [batch, classes]"),
        ("--task detect --head boxes-scores-labels", "output `boxes` is unknown, expected one of: y"),
    ] {
        let ran = pair.compare(extra);
        assert!(ran.code == 1 && ran.stderr.contains(words), "{extra}: {} {}", ran.code, ran.stderr);
    }
}

/// A detector that gives as many boxes as it finds.
fn above(folder: &Path, name: &str, least: f32) -> PathBuf {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 4]);
    g.values("least", &[1, 4], &[least; 4]);
    g.op("Greater", &["x", "least"], "is_above");
    let axis = mqq::onnx::tensor::from_i64("axis", &[1], &[0]).unwrap();
    g.tensor(axis);
    g.op("NonZero", &["is_above"], "found");
    g.op_with("Cast", &["found"], "as_floats", &[("to", crate::support::Attr::Int(1))]);
    g.op("Transpose", &["as_floats"], "rows");
    g.values("six", &[2, 6], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    g.op("MatMul", &["rows", "six"], "at");
    g.values("box", &[1, 6], &[0.0, 0.0, 4.0, 1.0, 0.9, 0.0]);
    g.op("Add", &["at", "box"], "y");
    g.output("y");
    let path = folder.join(name);
    mqq::onnx::save(&g.build(), &path).unwrap();
    path
}

#[test]
fn lists_of_boxes_may_differ_in_length() {
    let pair = Pair::new(&[1, 4], &[0.0; 4], &[&[0.9, 0.8, 0.1, 0.2]]);
    let (float, quantized) = (above(pair.folder.path(), "a.onnx", 0.5), above(pair.folder.path(), "b.onnx", 0.85));
    let compare = |extra: &[&str]| {
        let mut command = mqq();
        command.arg("compare").args([&float, &quantized]).arg("--data").arg(pair.path("data"));
        run(command.args(extra))
    };
    let detect = ["--task", "detect", "--head", "yolo-nms"];
    let ran = compare(&detect);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.starts_with("y: another shape than in float for 1 samples, SQNR not measured"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("F1 0.667"), "{}", ran.stdout);
    let json: Value = serde_json::from_str(&compare(&[&detect[..], &["--json"]].concat()).stdout).unwrap();
    assert_eq!(json["outputs"][0]["n_other_shape"], 1);
    assert_eq!(compare(&[&detect[..], &["--min-sqnr=-300"]].concat()).code, 3);
    // Without a task it is an error as ever.
    assert!(compare(&[]).stderr.contains("expected [2, 6] as in the float model"));
}

/// What is printed without a task is what always was.
#[test]
fn nothing_is_said_of_a_task_that_is_not_asked_for() {
    let model = repository("fixtures/digits_cnn.onnx");
    let mut command = mqq();
    command.arg("compare").args([&model, &model]).arg("--data").arg(repository("calib_data/eval"));
    let ran = run(command.args(["--preprocess", "half", "--limit", "3"]));
    assert_eq!(ran.stdout, "logits: equal, agreement 100.0 %, largest difference 0.0000, 3 samples\n");
    let mut command = mqq();
    command.arg("compare").args([&model, &model]).arg("--data").arg(repository("calib_data/eval"));
    let ran = run(command.args(["--preprocess", "half", "--limit", "3", "--json"]));
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(report.get("task").is_none() && report["outputs"][0].get("n_other_shape").is_none());
}
