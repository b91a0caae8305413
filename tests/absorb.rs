//! Offsets of channels that go into biases: the float outputs stay, up to float rounding; what would not be exact
//! is left alone with the reason; and a tensor whose channels lie apart is quantized better for it.

use crate::support::command::{mqq, run};
use crate::support::{Attr, GraphBuilder, outputs, repository, value_info};
use mqq::equalize::{Declined, Movable, absorb, movable};
use mqq::onnx::proto::ModelProto;
use prost::Message;
use tempfile::TempDir;

type Chain = fn(&mut GraphBuilder);

fn built(chain: Chain) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    chain(&mut g);
    g.output("y").build()
}

fn found(model: &ModelProto, tensors: &[&str]) -> (Vec<Movable>, Vec<Declined>) {
    movable(model.graph.as_ref().unwrap(), &value_info(model), tensors)
}

/// A convolution whose output nothing pads or bends, and its reader.
fn linear(g: &mut GraphBuilder) {
    g.input("x", &[1, 3, 5, 5]);
    g.conv("x", 3, 6, 3, 1, "a");
    g.conv("a", 6, 4, 1, 1, "y");
}

const EXACT: &[(&str, &[&str], Chain)] = &[
    ("two convolutions", &["a"], linear),
    ("a kernel without padding, in groups", &["a"], |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 3, 1, "a");
        let (w, b) = (g.weight("w", &[4, 3, 2, 2]), g.weight("bias", &[4]));
        g.op_with("Conv", &["a", &w, &b], "y", &[("group", Attr::Int(2))]);
    }),
    ("several readers", &["a"], |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.conv("a", 6, 4, 1, 1, "p");
        g.conv("a", 6, 4, 1, 1, "q");
        g.op("Add", &["p", "q"], "y");
    }),
    ("a residual stream", &["a", "c", "e"], |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 3, 1, "a");
        for (stream, inner, branch, sum) in [("a", "p", "b", "c"), ("c", "q", "d", "e")] {
            let expanded = format!("{inner}1");
            g.conv(stream, 6, 8, 1, 1, inner);
            g.op("Relu", &[inner], &expanded);
            g.conv(&expanded, 8, 6, 3, 1, branch);
            g.op("Add", &[stream, branch], sum);
        }
        g.conv("e", 6, 4, 1, 1, "y");
    }),
    ("a normalization before three products", &["a"], |g| {
        g.input("x", &[1, 5, 8]);
        let (gain, shift) = (g.weight("gain", &[8]), g.weight("shift", &[8]));
        g.op("LayerNormalization", &["x", &gain, &shift], "a");
        for name in ["q", "k", "v"] {
            let (w, b) = (g.weight(&format!("w{name}"), &[8, 6]), g.weight(name, &[6]));
            let product = g.op("MatMul", &["a", &w], &format!("{name}1"));
            g.op("Add", &[&b, &product], &format!("{name}2"));
        }
        g.op("Add", &["q2", "k2"], "qk");
        g.op("Add", &["qk", "v2"], "y");
    }),
    ("a bias apart, and a transposed Gemm", &["b"], |g| {
        g.input("x", &[3, 8]);
        let (w1, b1) = (g.weight("w1", &[8, 6]), g.weight("b1", &[6]));
        g.op("MatMul", &["x", &w1], "a");
        g.op("Add", &["a", &b1], "b");
        let (w2, b2) = (g.weight("w2", &[4, 6]), g.weight("b2", &[4]));
        g.op_with("Gemm", &["b", &w2, &b2], "y", &[("transB", Attr::Int(1))]);
    }),
    ("a normalization that does not fold", &["a"], |g| {
        g.input("x", &[1, 3, 4, 4]);
        g.op("Relu", &["x"], "r");
        let constants = ["gain", "shift", "mean"].map(|name| g.weight(name, &[3]));
        let variance = g.values("variance", &[3], &[0.5, 1.0, 2.0]);
        let [gain, shift, mean] = &constants;
        g.op("BatchNormalization", &["r", gain, shift, mean, &variance], "a");
        g.conv("a", 3, 4, 1, 1, "y");
    }),
];

#[test]
fn offsets_leave_the_float_outputs() {
    for (name, tensors, chain) in EXACT {
        let model = built(*chain);
        let (movables, declined) = found(&model, &["a", "b", "c", "d", "e"]);
        let found: Vec<&str> = movables.iter().map(|movable| movable.tensor.as_str()).collect();
        assert_eq!(&found, tensors, "{name}: {declined:?}");
        let mut moved = model.clone();
        for (at, movable) in movables.iter().enumerate() {
            let offset = |c: usize| ((c * 7 + at * 3) % 5) as f32 * 1.5 - 2.0;
            let offsets: Vec<f32> = (0..movable.channels.n).map(offset).collect();
            absorb(moved.graph.as_mut().unwrap(), movable, &offsets).unwrap();
        }
        assert!(moved != model, "{name}");
        for seed in 0..3 {
            let (before, after) = (outputs(&model, seed), outputs(&moved, seed));
            let largest = before.iter().flatten().fold(0f32, |max, y| max.max(y.abs()));
            for (a, b) in before.iter().flatten().zip(after.iter().flatten()) {
                assert!((a - b).abs() < 1e-5 * largest.max(1.0), "{name}: {a} {b}");
            }
        }
    }
}

const DECLINED: &[(&str, Chain)] = &[
    ("`Conv_y` pads with zeros", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.conv("a", 6, 4, 3, 1, "y");
    }),
    ("Relu `Relu_b`", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.op("Relu", &["a"], "b");
        g.conv("b", 6, 4, 1, 1, "y");
    }),
    ("Relu `Relu_p`", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.op("Relu", &["a"], "p");
        g.conv("a", 6, 6, 1, 1, "q");
        g.op("Add", &["p", "q"], "y");
    }),
    ("node `Conv_a` has no bias", |g| {
        g.input("x", &[1, 3, 5, 5]);
        let w = g.weight("w", &[6, 3, 1, 1]);
        g.op("Conv", &["x", &w], "a");
        g.conv("a", 6, 4, 1, 1, "y");
    }),
    ("node `MatMul_y` has no bias", |g| {
        g.input("x", &[1, 5, 8]);
        let (gain, shift) = (g.weight("gain", &[8]), g.weight("shift", &[8]));
        g.op("LayerNormalization", &["x", &gain, &shift], "a");
        let w = g.weight("w", &[8, 6]);
        g.op("MatMul", &["a", &w], "y");
    }),
    ("no operand of Add `Add_c`", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 1, 1, "a");
        g.conv("x", 3, 6, 1, 1, "b");
        g.op("Add", &["a", "b"], "c");
        g.conv("a", 6, 6, 1, 1, "p");
        g.conv("b", 6, 6, 1, 1, "q");
        g.op("Add", &["p", "q"], "pq");
        g.op("Add", &["pq", "c"], "y");
    }),
    ("`x` is an input", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.op("Identity", &["x"], "z");
        g.conv("x", 3, 6, 1, 1, "y");
    }),
];

#[test]
fn what_is_not_exact_is_left_alone_with_the_reason() {
    for (reason, chain) in DECLINED {
        let model = built(*chain);
        let (movables, declined) = found(&model, &["x", "a", "b", "c"]);
        assert!(movables.is_empty(), "{reason}: {movables:?}");
        let reasons: Vec<String> = declined.iter().map(|d| d.reason.to_string()).collect();
        assert!(reasons.iter().any(|found| found.starts_with(reason)), "{reason}: {reasons:?}");
    }
}

#[test]
fn channels_that_lie_apart_are_quantized_better() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 32, 32]);
    let w = g.weight("w", &[6, 3, 1, 1]);
    let b = g.values("far", &[6], &[20.0, -15.0, 3.0, 0.5, -8.0, 12.0]);
    g.op("Conv", &["x", &w, &b], "a");
    g.conv("a", 6, 8, 1, 1, "b");
    let model = folder.path().join("apart.onnx");
    std::fs::write(&model, g.output("b").build().encode_to_vec()).unwrap();
    let (output, sidecar) = (folder.path().join("out.onnx"), folder.path().join("out.json"));
    let mut command = mqq();
    command.arg("calibrate").arg(&model).args([
        "-b",
        "onnxruntime",
        "--json",
        "--methods",
        "absorb",
    ]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half"]);
    let ran = run(command.arg("-o").arg(&output).args(["--emit", "deploy"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let equalized = &report["results"][0]["summary"]["equalized"];
    assert_eq!((&equalized["kept"], &equalized["n_absorbed"]), (&true.into(), &1.into()));
    // A range of about 2 instead of 35: 25 dB, but the weights' noise stays.
    assert!(equalized["gain_db"].as_f64().unwrap() > 6.0, "{equalized}");
    let facts: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&sidecar).unwrap()).unwrap();
    let offsets = &facts["equalization"]["offsets"][0];
    assert_eq!(offsets["tensor"], "a");
    let offset = offsets["offsets"][0].as_f64().unwrap();
    assert!((19.0..21.0).contains(&offset), "{offset}");
    let exported = folder.path().join("exported.onnx");
    let mut command = mqq();
    command.arg("export").arg(&sidecar).args(["--format", "deploy", "-o"]).arg(&exported);
    let ran = run(command.arg("--model").arg(&model));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let emitted = std::fs::read(output.with_extension("deploy.onnx")).unwrap();
    assert!(std::fs::read(&exported).unwrap() == emitted);
    // Its ranges are for other tensors than the model's own.
    let mut command = mqq();
    command.arg("calibrate").arg(&model).args(["-b", "onnxruntime", "--ranges-from"]).arg(&sidecar);
    let ran = run(command.arg("-o").arg(folder.path().join("again.onnx")));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("equalized"), "{}", ran.stderr);
}
