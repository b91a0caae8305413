//! Equalized channels: every kind of chain keeps its float outputs, bit for bit where factors are powers of two;
//! everything else is left alone with the reason, and an ill-conditioned network is quantized as well as the one that it came from.

mod support;

use mqq::engine::{Parsed, Shapes};
use mqq::equalize::{Declined, Space, Units, find, scale};
use mqq::onnx;
use mqq::onnx::facts::Facts;
use mqq::onnx::proto::ModelProto;
use mqq::prepare::prepare;
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use support::command::{mqq, run};
use support::{Attr, GraphBuilder, repository, seen_and_outputs};
use tempfile::TempDir;

fn spaces(model: &ModelProto) -> (Vec<Space>, Vec<Declined>) {
    let mut facts = Facts::of_model(model);
    facts.extend(&Parsed::new(model, &Shapes::new()).unwrap().facts().unwrap());
    find(model.graph.as_ref().unwrap(), &facts)
}

/// Powers of two that look random.
fn factors(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|c| f32::from([-3i8, 2, 0, 4, -1, 1][(c * 5 + seed * 7) % 6]).exp2()).collect()
}

/// Factors of any size that look random.
fn any_factors(n: usize, seed: usize) -> Vec<f32> {
    factors(n, seed).iter().enumerate().map(|(c, by)| by * 1.19f32.powi(c as i32 % 4)).collect()
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|a| a.to_bits()).eq(b.iter().map(|b| b.to_bits()))
}

/// Noise 100 dB below the signal.
fn same_to_rounding(a: &[f32], b: &[f32]) -> bool {
    let power =
        |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let noise = power(&mut a.iter().zip(b).map(|(a, b)| a - b));
    a.len() == b.len() && noise <= 1e-10 * power(&mut a.iter().copied())
}

/// Scales every space and expects other weights; gives `same` what the network and the scaled one make of some inputs:
/// the outputs, and the tensors of the spaces in the units of the scaled one.
fn expect_same(
    (name, model): (&str, &ModelProto),
    n_spaces: usize,
    factors: fn(usize, usize) -> Vec<f32>,
    same: fn(&[f32], &[f32]) -> bool,
) {
    let (spaces, declined) = spaces(model);
    assert_eq!(spaces.len(), n_spaces, "{name}: {declined:?}");
    let (mut scaled, mut units) = (model.clone(), BTreeMap::new());
    for (at, space) in spaces.iter().enumerate() {
        let factors = factors(space.n, at);
        scale(scaled.graph.as_mut().unwrap(), space, &factors).unwrap();
        let tensors = space.tensors.iter();
        units.extend(tensors.map(|(name, at)| (name.clone(), Units::new(*at, &factors))));
    }
    assert!(scaled != *model, "{name}");
    let watched: Vec<String> = units.keys().cloned().collect();
    for seed in 0..3 {
        let (seen, outputs) = seen_and_outputs(model, &watched, seed);
        let (seen_scaled, outputs_scaled) = seen_and_outputs(&scaled, &watched, seed);
        assert_eq!(outputs.len(), outputs_scaled.len());
        assert!(outputs.iter().zip(&outputs_scaled).all(|(a, b)| same(a, b)), "{name}");
        let mut converted = Vec::new();
        for (((shape, values), scaled), units) in seen.iter().zip(&seen_scaled).zip(units.values())
        {
            units.convert(shape, values, &mut converted);
            assert!(same(&converted, &scaled.1), "{name}");
        }
    }
}

type Chain = fn(&mut GraphBuilder);

fn built(chain: Chain) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    chain(&mut g);
    g.output("y").build()
}

fn ints(values: &[i64]) -> Attr {
    Attr::Ints(values.to_vec())
}

fn int64s(name: &str, values: &[i64]) -> onnx::proto::TensorProto {
    onnx::tensor::from_i64(name, &[values.len()], values).unwrap()
}

/// A convolution between two others: `op` of `a` is `b`.
fn between(g: &mut GraphBuilder, op: fn(&mut GraphBuilder)) {
    g.input("x", &[1, 3, 9, 9]);
    g.conv("x", 3, 6, 3, 1, "a");
    op(g);
    g.conv("b", 6, 4, 3, 1, "y");
}

const CHAINS: &[(&str, usize, Chain)] = &[
    ("none", 1, |g| between(g, |g| _ = g.op("Identity", &["a"], "b"))),
    ("Relu", 1, |g| between(g, |g| _ = g.op("Relu", &["a"], "b"))),
    ("LeakyRelu", 1, |g| {
        between(g, |g| _ = g.op_with("LeakyRelu", &["a"], "b", &[("alpha", Attr::Float(0.1))]));
    }),
    ("PRelu", 1, |g| {
        between(g, |g| {
            g.weight("slope", &[6, 1, 1]);
            g.op("PRelu", &["a", "slope"], "b");
        });
    }),
    ("Clip without an upper bound", 1, |g| {
        between(g, |g| {
            g.values("zero", &[], &[0.0]);
            g.op("Clip", &["a", "zero"], "b");
        });
    }),
    ("MaxPool", 1, |g| {
        between(g, |g| {
            let attributes = [("kernel_shape", ints(&[2, 2])), ("strides", ints(&[2, 2]))];
            g.op_with("MaxPool", &["a"], "b", &attributes);
        });
    }),
    ("AveragePool", 1, |g| {
        between(g, |g| {
            let attributes = [("kernel_shape", ints(&[3, 3])), ("pads", ints(&[1, 1, 1, 1]))];
            g.op_with("AveragePool", &["a"], "b", &attributes);
        });
    }),
    ("Pad with 0", 1, |g| {
        between(g, |g| {
            g.tensor(int64s("pads", &[0, 0, 1, 1, 0, 0, 1, 1]));
            g.op("Pad", &["a", "pads"], "b");
        });
    }),
    ("a bias apart", 1, |g| {
        between(g, |g| {
            g.weight("shift", &[6, 1, 1]);
            g.op("Add", &["a", "shift"], "b");
        });
    }),
    ("a factor for all channels", 1, |g| {
        between(g, |g| {
            g.values("half", &[], &[0.7]);
            g.op("Mul", &["a", "half"], "b");
        });
    }),
    ("a factor per channel ends one space and starts another", 2, |g| {
        between(g, |g| {
            g.weight("gain", &[1, 6, 1, 1]);
            g.op("Mul", &["a", "gain"], "b");
        });
    }),
    ("depthwise triple", 2, |g| {
        between(g, |g| {
            g.op("Relu", &["a"], "a1");
            g.conv("a1", 6, 6, 3, 6, "a2");
            g.op("Relu", &["a2"], "b");
        });
    }),
    ("grouped", 1, |g| {
        g.input("x", &[1, 4, 5, 5]);
        g.conv("x", 4, 8, 3, 2, "a");
        g.op("Relu", &["a"], "b");
        g.conv("b", 8, 6, 1, 2, "y");
    }),
    ("ConvTranspose on both sides", 2, |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 4, 1, 1, "a");
        g.op("Relu", &["a"], "b");
        g.weight("wt", &[4, 3, 2, 2]);
        g.weight("bt", &[6]);
        let attributes = [("group", Attr::Int(2)), ("strides", ints(&[2, 2]))];
        g.op_with("ConvTranspose", &["b", "wt", "bt"], "c", &attributes);
        g.conv("c", 6, 3, 3, 1, "y");
    }),
    ("several readers", 1, |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.op("Relu", &["a"], "b");
        g.conv("b", 6, 4, 1, 1, "c");
        g.conv("b", 6, 4, 3, 1, "d");
        g.op("Add", &["c", "d"], "y");
    }),
    ("fire module", 2, |g| {
        g.input("x", &[1, 3, 9, 9]);
        g.conv("x", 3, 4, 1, 1, "s");
        g.op("Relu", &["s"], "squeezed");
        g.conv("squeezed", 4, 6, 1, 1, "e1");
        g.conv("squeezed", 4, 5, 3, 1, "e3");
        g.op("Relu", &["e1"], "r1");
        g.op("Relu", &["e3"], "r3");
        g.op_with("Concat", &["r1", "r3"], "joined", &[("axis", Attr::Int(1))]);
        let attributes = [("kernel_shape", ints(&[3, 3])), ("strides", ints(&[2, 2]))];
        g.op_with("MaxPool", &["joined"], "pooled", &attributes);
        g.conv("pooled", 11, 4, 1, 1, "y");
    }),
    ("a part of a Concat with a reader of its own", 1, |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 4, 3, 1, "a");
        g.conv("a", 4, 4, 3, 1, "b");
        g.conv("x", 3, 2, 1, 1, "c");
        g.op_with("Concat", &["c", "a"], "joined", &[("axis", Attr::Int(1))]);
        g.conv("joined", 6, 4, 1, 1, "d");
        g.op("Add", &["b", "d"], "y");
    }),
    ("residual block", 2, |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 4, 3, 1, "a");
        g.op("Relu", &["a"], "b");
        g.conv("b", 4, 6, 3, 1, "c");
        g.op("Relu", &["c"], "d");
        g.conv("d", 6, 4, 3, 1, "e");
        g.op("Add", &["b", "e"], "f");
        g.op("Relu", &["f"], "h");
        g.conv("h", 4, 3, 1, 1, "y");
    }),
    ("Flatten and Gemm", 1, |g| {
        g.input("x", &[1, 3, 4, 4]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.op("Relu", &["a"], "b");
        g.op("Flatten", &["b"], "c");
        g.weight("w", &[96, 5]);
        g.weight("bias", &[5]);
        g.op("Gemm", &["c", "w", "bias"], "y");
    }),
    ("GlobalAveragePool, Reshape and transposed Gemm, twice", 2, |g| {
        g.input("x", &[1, 3, 4, 4]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.op("Relu", &["a"], "b");
        g.op("GlobalAveragePool", &["b"], "c");
        g.tensor(int64s("shape", &[1, -1]));
        g.op("Reshape", &["c", "shape"], "d");
        g.weight("w1", &[8, 6]);
        g.weight("b1", &[8]);
        let attributes = [("transB", Attr::Int(1)), ("alpha", Attr::Float(0.5))];
        g.op_with("Gemm", &["d", "w1", "b1"], "e", &attributes);
        g.op("Relu", &["e"], "f");
        g.weight("w2", &[8, 4]);
        g.op("Gemm", &["f", "w2"], "y");
    }),
    ("a mean over the plane", 1, |g| {
        g.input("x", &[1, 3, 4, 4]);
        g.conv("x", 3, 6, 3, 1, "a");
        let attributes = [("axes", ints(&[2, 3])), ("keepdims", Attr::Int(0))];
        g.op_with("ReduceMean", &["a"], "b", &attributes);
        g.weight("w", &[6, 4]);
        g.op("MatMul", &["b", "w"], "y");
    }),
    ("channels last", 1, |g| {
        g.input("x", &[1, 3, 4, 4]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.op_with("Transpose", &["a"], "b", &[("perm", ints(&[0, 2, 3, 1]))]);
        g.weight("w", &[6, 4]);
        g.op("MatMul", &["b", "w"], "y");
    }),
    ("MatMul with a bias apart", 1, |g| {
        g.input("x", &[2, 5, 8]);
        g.weight("w1", &[8, 12]);
        g.op("MatMul", &["x", "w1"], "a");
        g.weight("b1", &[12]);
        g.op("Add", &["b1", "a"], "b");
        g.op("Relu", &["b"], "c");
        g.weight("w2", &[12, 6]);
        g.op("MatMul", &["c", "w2"], "y");
    }),
    ("LayerNormalization before query, key and value", 1, |g| {
        g.input("x", &[1, 5, 8]);
        g.weight("gain", &[8]);
        g.weight("shift", &[8]);
        g.op("LayerNormalization", &["x", "gain", "shift"], "n");
        for name in ["q", "k", "v"] {
            let w = g.weight(&format!("w{name}"), &[8, 6]);
            g.op("MatMul", &["n", &w], name);
        }
        g.op("Add", &["q", "k"], "qk");
        g.op("Add", &["qk", "v"], "y");
    }),
    ("LayerNormalization spelled out", 1, |g| {
        g.input("x", &[1, 5, 8]);
        let last = || [("axes", ints(&[-1]))];
        g.op_with("ReduceMean", &["x"], "mean", &last());
        g.op("Sub", &["x", "mean"], "centred");
        g.values("two", &[], &[2.0]);
        g.op("Pow", &["centred", "two"], "squares");
        g.op_with("ReduceMean", &["squares"], "variance", &last());
        g.op("Sqrt", &["variance"], "deviation");
        g.op("Div", &["centred", "deviation"], "normal");
        g.weight("gain", &[8]);
        g.op("Mul", &["normal", "gain"], "scaled");
        g.weight("shift", &[8]);
        g.op("Add", &["scaled", "shift"], "n");
        g.weight("w1", &[8, 6]);
        g.op("MatMul", &["n", "w1"], "a");
        g.weight("w2", &[8, 6]);
        g.op("MatMul", &["n", "w2"], "b");
        g.op("Add", &["a", "b"], "y");
    }),
    ("a normalization that does not fold", 1, |g| {
        g.input("x", &[1, 6, 4, 4]);
        g.op("Relu", &["x"], "r");
        for name in ["gain", "shift", "mean"] {
            g.weight(name, &[6]);
        }
        g.values("variance", &[6], &[0.5, 1.0, 2.0, 0.25, 1.5, 3.0]);
        g.op("BatchNormalization", &["r", "gain", "shift", "mean", "variance"], "n");
        g.op("Relu", &["n"], "a");
        g.conv("a", 6, 4, 3, 1, "y");
    }),
];

fn expect_same_of_all(factors: fn(usize, usize) -> Vec<f32>, same: fn(&[f32], &[f32]) -> bool) {
    for (name, n_spaces, chain) in CHAINS {
        expect_same((name, &built(*chain)), *n_spaces, factors, same);
    }
    for fixture in ["fixtures/digits_cnn.onnx", "fixtures/digits_old.onnx"] {
        let mut model = onnx::load_whole(&repository(fixture)).unwrap().model;
        prepare(&mut model, 13).unwrap();
        let n_spaces = spaces(&model).0.len();
        assert!(n_spaces > 1);
        expect_same((fixture, &model), n_spaces, factors, same);
    }
}

#[test]
fn powers_of_two_keep_float_outputs_bit_for_bit() {
    expect_same_of_all(factors, same_bits);
}

#[test]
fn other_factors_keep_float_outputs_to_rounding() {
    expect_same_of_all(any_factors, same_to_rounding);
}

const DECLINED: &[(&str, Chain)] = &[
    ("`x` is an input of the network or a constant", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 4, 3, 1, "y");
    }),
    ("Clip `Clip_b` stops at 0 and 6", |g| {
        between(g, |g| {
            g.values("zero", &[], &[0.0]);
            g.values("six", &[], &[6.0]);
            g.op("Clip", &["a", "zero", "six"], "b");
        });
    }),
    ("Sigmoid `Sigmoid_b` does not scale", |g| between(g, |g| _ = g.op("Sigmoid", &["a"], "b"))),
    ("Softmax `Softmax_b` does not scale", |g| between(g, |g| _ = g.op("Softmax", &["a"], "b"))),
    ("Mul `Mul_b` does not scale", |g| {
        between(g, |g| {
            g.op("Sigmoid", &["a"], "s");
            g.op("Mul", &["a", "s"], "b");
        });
    }),
    ("DepthToSpace `DepthToSpace_c` does not scale", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 8, 3, 1, "a");
        g.op_with("DepthToSpace", &["a"], "c", &[("blocksize", Attr::Int(2))]);
        g.conv("c", 2, 4, 3, 1, "y");
    }),
    ("`a` is an output of the network", |g| {
        between(g, |g| _ = g.op("Relu", &["a"], "b"));
        g.output("a");
    }),
    ("the constant `shared` has other readers", |g| {
        g.input("x", &[1, 4, 5, 5]);
        g.weight("shared", &[4, 4, 1, 1]);
        g.op("Conv", &["x", "shared"], "a");
        g.op("Conv", &["a", "shared"], "y");
    }),
    ("Pad `Pad_b` does not scale", |g| {
        between(g, |g| {
            g.tensor(int64s("pads", &[0, 0, 1, 1, 0, 0, 1, 1]));
            g.values("one", &[], &[1.0]);
            g.op("Pad", &["a", "pads", "one"], "b");
        });
    }),
    ("the constant `shift` has no entry per channel", |g| {
        between(g, |g| {
            g.values("shift", &[], &[0.5]);
            g.op("Add", &["a", "shift"], "b");
        });
    }),
    ("node `MatMul_n` has no constant float32 weight", |g| {
        g.input("x", &[1, 5, 8]);
        g.input("z", &[1, 8, 8]);
        g.op("MatMul", &["x", "z"], "n");
        g.weight("w", &[8, 6]);
        g.op("MatMul", &["n", "w"], "y");
    }),
    ("LayerNormalization `LayerNormalization_n` does not scale", |g| {
        g.input("x", &[1, 5, 8]);
        g.weight("w0", &[8, 8]);
        g.op("MatMul", &["x", "w0"], "a");
        g.weight("gain", &[8]);
        g.op("LayerNormalization", &["a", "gain"], "n");
        g.weight("w", &[8, 6]);
        g.op("MatMul", &["a", "w"], "b");
        g.weight("v", &[8, 6]);
        g.op("MatMul", &["n", "v"], "c");
        g.op("Add", &["b", "c"], "y");
    }),
    ("there is one channel", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 1, 3, 1, "a");
        g.conv("a", 1, 4, 3, 1, "y");
    }),
];

#[test]
fn what_is_not_exact_is_left_alone_with_the_reason() {
    for (reason, chain) in DECLINED {
        let (_, declined) = spaces(&built(*chain));
        let reasons: Vec<String> = declined.iter().map(|d| d.reason.to_string()).collect();
        assert!(reasons.iter().any(|found| found.starts_with(reason)), "{reason}: {reasons:?}");
    }
}

fn calibrate(model: &Path, backend: &str, output: &Path, extra: &[&str]) -> serde_json::Value {
    let mut command = mqq();
    command.arg("calibrate").arg(model).args(["-b", backend, "--json"]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half"]);
    let ran = run(command.arg("-o").arg(output).args(extra));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    report["results"][0]["summary"].clone()
}

/// The bundled model with channels taken apart by factors of 2^-4 to 2^4: the same function, far harder to
/// quantize.
fn ill_conditioned(path: &Path) {
    let mut model = onnx::load_whole(&repository("fixtures/digits_cnn.onnx")).unwrap().model;
    prepare(&mut model, 13).unwrap();
    let (spaces, _) = spaces(&model);
    for space in &spaces {
        let factors: Vec<f32> = (0..space.n).map(|c| ((c * 5 % 9) as f32 - 4.0).exp2()).collect();
        scale(model.graph.as_mut().unwrap(), space, &factors).unwrap();
    }
    std::fs::write(path, model.encode_to_vec()).unwrap();
}

#[test]
fn an_ill_conditioned_network_is_as_good_as_the_one_that_it_came_from() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("ill.onnx");
    ill_conditioned(&model);
    // Steps that are powers of two give less way.
    for (backend, margin) in [("tensorrt", 0.5), ("onnxruntime-vnni", 0.5), ("xint8", 3.0)] {
        let output = folder.path().join("out.onnx");
        let db = |model: &Path| {
            let summary = calibrate(model, backend, &output, &["--effort", "2"]);
            let equalized = &summary["equalized"];
            let db = |at: usize| equalized["sqnr_db"][at].as_f64().unwrap();
            let number = |key: &str| equalized[key].as_f64().unwrap();
            assert_eq!(equalized["kept"], number("gain_db") > -2.0 * number("chance_db"));
            (db(0), if equalized["kept"] == true { db(1) } else { db(0) })
        };
        let (plain, plain_after) = db(&repository("fixtures/digits_cnn.onnx"));
        let (ill, ill_after) = db(&model);
        assert!(ill < plain - 6.0, "{backend}: {ill} against {plain} dB");
        assert!(ill_after > plain - margin, "{backend}: {ill} -> {ill_after}, from {plain} dB");
        assert!(ill_after > plain_after - 1.5 - margin, "{backend}: {ill_after}, {plain_after} dB");
    }
}

#[test]
fn equalized_models_are_the_same_for_any_number_of_threads_and_on_export() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("ill.onnx");
    ill_conditioned(&model);
    let bytes = |threads: &str| {
        let output = folder.path().join(format!("{threads}.onnx"));
        let extra = ["--effort", "2", "--threads", threads, "--emit", "deploy,openvino-fq"];
        let summary = calibrate(&model, "tensorrt", &output, &extra);
        assert_eq!(summary["equalized"]["kept"], true);
        ["onnx", "json", "deploy.onnx", "openvino.onnx"]
            .map(|suffix| std::fs::read(output.with_extension(suffix)).unwrap())
    };
    let written = bytes("1");
    assert!(written == bytes("2"));
    let sidecar = folder.path().join("1.json");
    let facts: serde_json::Value = serde_json::from_slice(&written[1]).unwrap();
    let facts = &facts["equalization"];
    assert!(facts["spaces"].as_array().unwrap().iter().any(|space| {
        let factors = space["factors"].as_array().unwrap();
        factors.iter().any(|factor| factor.as_f64().unwrap() != 1.0)
    }));
    assert!(facts["declined"].as_array().unwrap().iter().any(|declined| {
        declined["reason"].as_str().unwrap().contains("an input of the network")
    }));
    for (format, expected) in [("deploy", &written[2]), ("openvino-fq", &written[3])] {
        let exported = folder.path().join("exported");
        let mut command = mqq();
        command.arg("export").arg(&sidecar).args(["--format", format, "-o"]).arg(&exported);
        let ran = run(command.arg("--model").arg(&model));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(std::fs::read(&exported).unwrap() == *expected, "{format}");
    }
    // Its ranges are for scaled tensors, which the plain model does not have.
    let mut command = mqq();
    command.arg("calibrate").arg(&model).args(["-b", "tensorrt", "--ranges-from"]).arg(&sidecar);
    let ran = run(command.arg("-o").arg(folder.path().join("again.onnx")));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("equalized"), "{}", ran.stderr);
}
