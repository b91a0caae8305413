//! Placement beside the vendors' own on one network: Conv-BN-Relu twice, Conv-BN-Add-Relu, depthwise
//! Conv-BN-Clip, MaxPool, a branch of Conv-Relu, Concat, GlobalAveragePool, Flatten, Gemm. The vendors'
//! tools were run with onnxruntime 1.31.1, nvidia-modelopt 0.47.0, nncf 3.4.0, aimet-onnx 2.42.0 and
//! amd-quark 0.13; where a table differs from them, the comment here and in the table says why.

use super::{place_by, uses};
use crate::support::{Attr, GraphBuilder};
use mqq::backends;
use mqq::onnx::proto::ModelProto;
use mqq::place::Placement;
use mqq::prepare::prepare;

fn conv_bn(g: &mut GraphBuilder, x: &str, c_in: usize, groups: i64, y: &str) {
    let conv = format!("{y}.conv");
    g.conv(x, c_in, 32, 3, groups, &conv);
    let [scale, shift, mean] = ["scale", "shift", "mean"].map(|p| g.weight(&format!("{y}.{p}"), &[32]));
    let var = g.values(&format!("{y}.var"), &[32], &[1.0; 32]);
    g.op("BatchNormalization", &[&conv, &scale, &shift, &mean, &var], y);
}

fn network() -> ModelProto {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 3, 16, 16]);
    conv_bn(&mut g, "x", 3, 1, "n1");
    g.op("Relu", &["n1"], "r1");
    conv_bn(&mut g, "r1", 32, 1, "n2");
    g.op("Relu", &["n2"], "r2");
    conv_bn(&mut g, "r2", 32, 1, "n3");
    g.ops("sum = Add n3 r1; r3 = Relu sum");
    conv_bn(&mut g, "r3", 32, 32, "n4");
    g.scalars(&[("zero", 0.0), ("six", 6.0)]);
    g.op("Clip", &["n4", "zero", "six"], "clip");
    g.op_with("MaxPool", &["clip"], "pool", &[("kernel_shape", Attr::Ints(vec![2, 2]))]);
    g.conv("pool", 32, 32, 1, 1, "c5");
    g.op("Relu", &["c5"], "r5");
    g.op_with("Concat", &["pool", "r5"], "joined", &[("axis", Attr::Int(1))]);
    g.ops("mean = GlobalAveragePool joined; flat = Flatten mean");
    g.weight("w", &[10, 64]);
    g.weight("bias", &[10]);
    g.op_with("Gemm", &["flat", "w", "bias"], "y", &[("transB", Attr::Int(1))]);
    g.output("y");
    let mut model = g.build();
    prepare(&mut model, 13).unwrap();
    model
}

struct Placed {
    placement: Placement,
    uses: Vec<String>,
    /// `constant: type`, ` per channel` where there is an axis.
    weights: Vec<String>,
    biases: usize,
}

fn placed(backend: &str) -> Placed {
    let model = network();
    let shapes: &[(&str, &[usize])] = &[("flat", &[1, 64]), ("y", &[1, 10])];
    let placement = place_by(&model, &backends::resolve(backend).unwrap(), shapes);
    let uses = uses(&model, &placement);
    let weight = |quantizer: &mqq::place::WeightQuantizer| {
        format!("{}{}", quantizer.qtype, if quantizer.axis.is_some() { " per channel" } else { "" })
    };
    let weights = placement.weights.iter().map(weight).collect();
    let biases = placement.biases.len();
    Placed { placement, uses, weights, biases }
}

impl Placed {
    fn one_grid(&self, tensors: &[&str]) -> bool {
        let group = |name: &&str| self.placement.activations.iter().find(|s| s.tensor == **name).unwrap().group;
        tensors.windows(2).all(|pair| group(&pair[0]) == group(&pair[1]))
    }
}

/// The part that all tables share: the inputs of every convolution, after the activation function.
const CONV_INPUTS: [&str; 4] = ["x -> n1", "r2 -> n3", "r3 -> n4", "clip -> pool"];

#[test]
fn tensorrt_as_model_optimizer() {
    let found = placed("tensorrt");
    // Only the skip of the Add; MaxPool before and behind; Flatten and the matrix-vector Gemm float; no
    // biases; the network's output float. Model-Optimizer leaves the Relu's branch of the Concat float
    // and quantizes the joined tensor with one scale: the second pair on `r5` has that same scale, so
    // that the values are the same, and TensorRT moves the pair of the output there.
    let expected = [
        "x -> n1", "r1 -> n2, sum", "r2 -> n3", "r3 -> n4", "clip -> pool", "pool -> c5, joined", "r5 -> joined",
        "joined -> mean",
    ];
    assert_eq!(found.uses, expected);
    assert!(found.one_grid(&["clip", "pool", "r5", "joined"]));
    assert_eq!(found.weights, ["wgt8 per channel"; 5]);
    assert_eq!(found.biases, 0);
    assert!(!backends::resolve("tensorrt").unwrap().types["act8"].grid().narrow_range);
}

#[test]
fn onnxruntime_as_its_own_tool() {
    let found = placed("onnxruntime");
    // Both inputs of the Add, MaxPool and Flatten in = out, Gemm quantized, biases int32. ONNX Runtime's
    // tool gives the inputs of the Concat scales of their own, here they have one (QLinearConcat is a
    // copy then); it removes Relu and Clip, here ONNX Runtime does when it loads the file; it quantizes the
    // network's output, which stays float here: 8-bit logits tie.
    for line in CONV_INPUTS {
        assert!(found.uses.contains(&line.to_string()), "{line}: {:?}", found.uses);
    }
    for line in ["r1 -> n2, sum", "n3 -> sum", "r5 -> joined", "mean -> flat", "flat -> y"] {
        assert!(found.uses.contains(&line.to_string()), "{line}: {:?}", found.uses);
    }
    assert!(found.one_grid(&["clip", "pool", "r5", "joined"]));
    assert!(found.one_grid(&["mean", "flat"]));
    assert!(!found.uses.iter().any(|line| line.starts_with("y ->")));
    assert_eq!(found.weights, ["wgt8 per channel"; 6]);
    assert_eq!(found.biases, 6);
}

#[test]
fn openvino_as_nncf() {
    let found = placed("openvino");
    // Both inputs of the Add, Gemm's input and weight, no biases, the network's output float, half the
    // range for the first layer's weight. NNCF writes no pair behind MaxPool, and one before Flatten where
    // this one stands behind it: the integers are the same.
    let expected = [
        "x -> n1", "r1 -> n2, sum", "r2 -> n3", "n3 -> sum", "r3 -> n4", "clip -> pool", "pool -> c5, joined",
        "r5 -> joined", "joined -> mean", "flat -> y",
    ];
    assert_eq!(found.uses, expected);
    assert!(found.one_grid(&["clip", "pool"]));
    assert_eq!(found.weights[0], "wgt7 per channel");
    assert_eq!(found.weights[1..], ["wgt8 per channel"; 5]);
    assert_eq!(found.biases, 0);
    assert!(backends::resolve("openvino").unwrap().types["act8"].ada_sign);
}

#[test]
fn qnn_as_aimet_and_onnx_runtime() {
    let found = placed("qnn-htp");
    // Every tensor has a grid, the network's output too; a Clip may go where the grid has its effect.
    let expected = [
        "x -> n1", "r1 -> n2, sum", "r2 -> n3", "n3 -> sum", "r3 -> n4", "clip -> pool", "pool -> c5, joined",
        "r5 -> joined", "joined -> mean", "mean -> flat", "flat -> y", "y ->  (output)",
    ];
    assert_eq!(found.uses, expected);
    // AIMET ties the inputs of a Concat; here those that a Relu or Clip makes, all of this one, keep their own, as with
    // ONNX Runtime.
    assert!(found.one_grid(&["clip", "pool"]) && found.one_grid(&["mean", "flat"]));
    assert!(!found.one_grid(&["pool", "joined"]) && !found.one_grid(&["pool", "r5"]));
    let clips = found.placement.activations.iter().filter(|quantizer| quantizer.clip.is_some());
    let clips: Vec<&str> = clips.map(|quantizer| quantizer.tensor.as_str()).collect();
    assert_eq!(clips, ["r1", "r2", "r3", "clip", "r5"]);
    let conv = "wgtc per channel";
    assert_eq!(found.weights, [conv, conv, conv, conv, conv, "wgt8"]);
    assert_eq!(found.biases, 6);
}

#[test]
fn xint8_as_quark() {
    let found = placed("xint8");
    // As QNN, with powers of two per tensor, and biases on 8-bit grids of their own.
    assert_eq!(found.uses, placed("qnn-htp").uses);
    assert!(found.one_grid(&["clip", "pool", "r5", "joined"]) && found.one_grid(&["mean", "flat"]));
    assert_eq!(found.weights, ["wgt8"; 6]);
    assert_eq!(found.biases, 6);
    assert!(found.placement.biases.iter().all(|bias| bias.qtype.as_deref() == Some("bias8")));
    assert!(found.placement.activations.iter().all(|quantizer| quantizer.clip.is_none()));
    let types = backends::resolve("xint8").unwrap().types;
    assert!(types.values().all(|qtype| qtype.grid().scale_rule.power_of_two.is_some()));
}
