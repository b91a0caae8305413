//! Placement by table: for each backend and pattern, which uses are quantized, and which tensors share a
//! grid. No image and no engine.

use crate::support::{Attr, GraphBuilder};
use mqq::backends;
use mqq::diag::explain;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::value_info::{ValueInfo, ValueInfos};
use mqq::place::{Placement, Selection, place};

/// Placement of `model` for `backend`; tensors of `shapes` have these shapes.
fn placement(model: &ModelProto, backend: &str, shapes: &[(&str, &[usize])]) -> Placement {
    let mut value_info = ValueInfos::of_model(model);
    for (name, shape) in shapes {
        value_info.insert(name, ValueInfo { data_type: Some(1), shape: Some(shape.to_vec()) });
    }
    let scheme = backends::resolve(backend).unwrap();
    place(model.graph.as_ref().unwrap(), &value_info, &scheme, &Selection::default())
}

/// `tensor -> node, node`, a line per quantized activation.
fn uses(model: &ModelProto, placement: &Placement) -> Vec<String> {
    let nodes = &model.graph.as_ref().unwrap().node;
    let line = |quantizer: &mqq::place::ActivationQuantizer| {
        let readers: Vec<&str> = quantizer.edges.iter().map(|edge| nodes[edge.0].output[0].as_str()).collect();
        format!("{} -> {}", quantizer.tensor, readers.join(", "))
    };
    placement.activations.iter().map(line).collect()
}

fn group(placement: &Placement, tensor: &str) -> usize {
    placement.activations.iter().find(|quantizer| quantizer.tensor == tensor).unwrap().group
}

/// Kernels of integers take scales per channel for the columns of a matrix on the right, of a product's constants.
#[test]
fn other_constants_of_a_product_than_a_matrix_on_the_right_have_one_scale() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[2, 32, 32]);
    g.weight("matrix", &[32, 32]);
    g.weight("batch", &[2, 32, 32]);
    g.weight("left", &[32, 32]);
    g.weight("vector", &[32]);
    g.ops("a = MatMul x matrix; b = MatMul a batch; c = MatMul left b; y = MatMul c vector");
    g.output("y");
    let model = g.build();
    let shape: &[usize] = &[2, 32, 32];
    let mut per_channel = Vec::new();
    for (backend, _) in backends::BUILT_IN {
        let placement = placement(&model, backend, &[("a", shape), ("b", shape), ("c", shape)]);
        for quantizer in placement.weights.iter().filter(|it| it.axis.is_some() && it.block.is_none()) {
            assert_eq!((quantizer.tensor.as_str(), quantizer.axis), ("matrix", Some(1)), "{backend}");
            per_channel.push(*backend);
        }
    }
    for backend in ["onnxruntime", "onnxruntime-vnni", "openvino", "tensorrt", "ncnn", "academic"] {
        assert!(per_channel.contains(&backend), "{backend}: {per_channel:?}");
    }
}

struct Case {
    name: &'static str,
    build: fn(&mut GraphBuilder),
    output: &'static str,
    tensorrt: &'static [&'static str],
    onnxruntime: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        name: "activations are quantized behind the Relu, the network's output stays float",
        build: |g| {
            g.conv("x", 16, 16, 3, 1, "a");
            g.op("Relu", &["a"], "b");
            g.conv("b", 16, 16, 3, 1, "y");
        },
        output: "y",
        tensorrt: &["x -> a", "b -> y"],
        onnxruntime: &["x -> a", "b -> y"],
    },
    Case {
        name: "of a residual Add the longer path stays float for TensorRT",
        build: |g| {
            g.conv("x", 16, 16, 3, 1, "short");
            g.conv("x", 16, 16, 3, 1, "c1");
            g.op("Relu", &["c1"], "r1");
            g.conv("r1", 16, 16, 3, 1, "long");
            g.ops("sum = Add long short; r = Relu sum");
            g.conv("r", 16, 16, 3, 1, "y");
        },
        output: "y",
        tensorrt: &["x -> short, c1", "short -> sum", "r1 -> long", "r -> y"],
        onnxruntime: &["x -> short, c1", "short -> sum", "r1 -> long", "long -> sum", "r -> y"],
    },
    Case {
        name: "an identity skip is quantized, the convolution before the Add is not",
        build: |g| {
            g.conv("x", 16, 16, 3, 1, "c0");
            g.op("Relu", &["c0"], "skip");
            g.conv("skip", 16, 16, 3, 1, "c1");
            g.op("Add", &["skip", "c1"], "sum");
            g.conv("sum", 16, 16, 3, 1, "y");
        },
        output: "y",
        tensorrt: &["x -> c0", "skip -> c1, sum", "sum -> y"],
        onnxruntime: &["x -> c0", "skip -> c1, sum", "c1 -> sum", "sum -> y"],
    },
    Case {
        name: "SiLU runs at the end of its convolution for TensorRT",
        build: |g| {
            g.conv("x", 16, 16, 3, 1, "c");
            g.ops("s = Sigmoid c; silu = Mul c s");
            g.conv("silu", 16, 16, 3, 1, "y");
        },
        output: "y",
        tensorrt: &["x -> c", "silu -> y"],
        onnxruntime: &["x -> c", "c -> s, silu", "s -> silu", "silu -> y"],
    },
    Case {
        name: "convolutions of few channels stay float for TensorRT, the first and depthwise ones do not",
        build: |g| {
            g.conv("x", 16, 8, 3, 1, "a");
            g.conv("a", 8, 4, 3, 1, "b");
            g.conv("b", 4, 16, 3, 1, "c");
            g.conv("c", 16, 16, 3, 16, "y");
        },
        output: "y",
        tensorrt: &["x -> a", "b -> c", "c -> y"],
        onnxruntime: &["x -> a", "a -> b", "b -> c", "c -> y"],
    },
    Case {
        name: "a convolution whose weight is computed stays float",
        build: |g| {
            g.conv("x", 16, 16, 3, 1, "a");
            g.ops("w = Identity a; y = Conv a w");
        },
        output: "y",
        tensorrt: &["x -> a"],
        onnxruntime: &["x -> a", "a -> w, y"],
    },
    Case {
        name: "matrix-vector products and tiny products stay float for TensorRT",
        build: |g| {
            g.op("Reshape", &["x", "to_vector"], "v");
            g.weight("w1", &[64, 32]);
            g.ops("g = Gemm v w1; m = Reshape g to_matrix");
            g.weight("w2", &[32, 8]);
            g.op("MatMul", &["m", "w2"], "small");
            g.weight("w3", &[32, 32]);
            g.op("MatMul", &["m", "w3"], "y");
        },
        output: "y",
        tensorrt: &["m -> y"],
        onnxruntime: &["v -> g", "g -> m", "m -> small, y"],
    },
    Case {
        name: "an elementwise operator with a constant operand stays float",
        build: |g| {
            g.conv("x", 16, 16, 3, 1, "a");
            g.values("half", &[], &[0.5]);
            g.op("Mul", &["a", "half"], "b");
            g.conv("b", 16, 16, 3, 1, "y");
        },
        output: "y",
        tensorrt: &["x -> a", "b -> y"],
        onnxruntime: &["x -> a", "a -> b", "b -> y"],
    },
    Case {
        name: "LayerNormalization, Softmax and Gelu stay float",
        build: |g| {
            g.weight("scale", &[32]);
            g.op("LayerNormalization", &["x", "scale"], "n");
            g.weight("w", &[32, 32]);
            g.ops("a = MatMul n w; b = Gelu a; y = Softmax b");
        },
        output: "y",
        tensorrt: &["n -> a"],
        onnxruntime: &["n -> a"],
    },
    Case {
        name: "MaxPool reads and makes quantized values",
        build: |g| {
            g.conv("x", 16, 16, 3, 1, "a");
            g.op_with("MaxPool", &["a"], "p", &[("kernel_shape", Attr::Ints(vec![2, 2]))]);
            g.conv("p", 16, 16, 3, 1, "y");
        },
        output: "y",
        tensorrt: &["x -> a", "a -> p", "p -> y"],
        onnxruntime: &["x -> a", "a -> p", "p -> y"],
    },
];

#[test]
fn uses_of_every_pattern() {
    let shapes: &[(&str, &[usize])] =
        &[("v", &[1, 64]), ("g", &[1, 32]), ("m", &[4, 16, 32]), ("small", &[4, 16, 8]), ("a", &[4, 16, 32])];
    let mut failures = Vec::new();
    for case in CASES {
        let mut builder = GraphBuilder::new(17);
        builder.input("x", &[1, 16, 8, 8]);
        (case.build)(&mut builder);
        builder.output(case.output);
        let model = builder.build();
        for (backend, expected) in [("tensorrt", case.tensorrt), ("onnxruntime", case.onnxruntime)] {
            let shapes: Vec<_> = shapes
                .iter()
                .filter(|(name, _)| *name != "y" && !(*name == "a" && case.name.contains("MaxPool")))
                .copied()
                .chain([("y", if case.name.contains("matrix") { &[4, 16, 32][..] } else { &[1, 16, 8, 8] })])
                .collect();
            let found = uses(&model, &placement(&model, backend, &shapes));
            if found != expected {
                failures.push(format!("{backend}: {}\n  found    {found:?}\n  expected {expected:?}", case.name));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn concat_model() -> ModelProto {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 16, 8, 8]);
    g.conv("x", 16, 16, 1, 1, "a");
    g.op("Relu", &["a"], "ra");
    g.conv("x", 16, 16, 3, 1, "b");
    g.op("Relu", &["b"], "rb");
    g.op_with("Concat", &["ra", "rb"], "joined", &[("axis", Attr::Int(1))]);
    g.op_with("MaxPool", &["joined"], "pool", &[("kernel_shape", Attr::Ints(vec![2, 2]))]);
    g.conv("pool", 32, 16, 3, 1, "y");
    g.output("y");
    g.build()
}

#[test]
fn concat_and_pooling_share_one_grid() {
    let model = concat_model();
    for backend in ["tensorrt", "onnxruntime"] {
        let placement = placement(&model, backend, &[]);
        let shared = group(&placement, "joined");
        for tensor in ["ra", "rb", "pool"] {
            assert_eq!(group(&placement, tensor), shared, "{backend}: {tensor}");
        }
        assert_ne!(group(&placement, "x"), shared, "{backend}");
    }
}

#[test]
fn weights_and_biases_follow_the_table() {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 16, 8, 8]);
    g.conv("x", 16, 32, 3, 1, "a");
    g.weight("t", &[32, 16, 2, 2]);
    g.ops("up = ConvTranspose a t; m = Reshape up shape");
    g.weight("w", &[64, 16]);
    g.weight("bias", &[64]);
    g.op_with("Gemm", &["m", "w", "bias"], "y", &[("transB", Attr::Int(1))]);
    g.output("y");
    let model = g.build();
    let shapes: &[(&str, &[usize])] = &[("m", &[256, 16]), ("y", &[256, 64])];
    let axes = |backend: &str| -> Vec<(String, Option<usize>)> {
        let placement = placement(&model, backend, shapes);
        placement.weights.iter().map(|weight| (weight.tensor.clone(), weight.axis)).collect()
    };
    let expected =
        |transposed| [("a.weight".to_string(), Some(0)), ("t".to_string(), transposed), ("w".to_string(), Some(0))];
    assert_eq!(axes("tensorrt"), expected(None));
    assert_eq!(axes("onnxruntime"), expected(Some(1)));
    assert!(placement(&model, "tensorrt", shapes).biases.is_empty());
    let biases: Vec<String> =
        placement(&model, "onnxruntime", shapes).biases.iter().map(|bias| bias.tensor.clone()).collect();
    assert_eq!(biases, ["a.bias", "bias"]);

    let mut scheme = backends::resolve("tensorrt").unwrap();
    scheme.switch_on("conv-transpose-per-channel").unwrap();
    let value_info = ValueInfos::of_model(&model);
    let placement = place(model.graph.as_ref().unwrap(), &value_info, &scheme, &Selection::default());
    assert_eq!(placement.weights.iter().find(|weight| weight.tensor == "t").unwrap().axis, Some(1));
}

#[test]
fn the_user_leaves_nodes_out() {
    let model = concat_model();
    let value_info = ValueInfos::of_model(&model);
    let scheme = backends::resolve("tensorrt").unwrap();
    let graph = model.graph.as_ref().unwrap();
    let quantized = |exclude: &[&str], only: &[&str]| -> Vec<String> {
        let own = |patterns: &[&str]| patterns.iter().map(|p| p.to_string()).collect::<Vec<_>>();
        let selection = Selection::new(&own(exclude), &own(only)).unwrap();
        let placement = place(graph, &value_info, &scheme, &selection);
        let name = |&node: &usize| graph.node[node].name().to_string();
        placement.quantized_nodes.iter().map(name).collect()
    };
    let all = ["Conv_a", "Conv_b", "Concat_joined", "MaxPool_pool", "Conv_y"];
    assert_eq!(quantized(&[], &[]), all);
    // A Concat of which one input stays float stays float, and so does what pools it.
    assert_eq!(quantized(&["Conv_a"], &[]), ["Conv_b", "Conv_y"]);
    assert_eq!(quantized(&["*_y"], &[]), all[..4]);
    assert_eq!(quantized(&["MaxPool"], &[]), ["Conv_a", "Conv_b", "Conv_y"]);
    assert_eq!(quantized(&[], &["Conv"]), ["Conv_a", "Conv_b", "Conv_y"]);
    assert!(Selection::new(&["[".to_string()], &[]).is_err());
}

#[test]
fn every_built_in_table_is_sound_and_wrong_ones_are_explained() {
    for (name, _) in backends::BUILT_IN {
        let scheme = backends::resolve(name).unwrap();
        assert_eq!(scheme.name, *name);
        assert!(!scheme.source.is_empty() && !scheme.description.is_empty(), "{name}");
        assert!(scheme.load.is_some(), "{name}: the table does not tell how the target loads the model");
        // The output of `mqq backends NAME` is a valid table.
        let text = serde_yaml::to_string(&scheme).unwrap();
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(backends::resolve(file.path().to_str().unwrap()).unwrap(), scheme, "{name}");
    }
    let good = backends::BUILT_IN.iter().find(|(name, _)| *name == "tensorrt").unwrap().1;
    let cases = [
        ("min_opset: 13", "min_opest: 13", "min_opset"),
        ("bits: 8,", "bits: 40,", "expected 2 to 16"),
        ("input: act8, weight", "input: act9, weight", "did you mean `act8`"),
        ("activation: mse", "activation: msee", "did you mean `mse`"),
        ("- share_scales", "- share_scale", "did you mean `share_scales`"),
        ("axis: output", "axis: outptu", "axis"),
    ];
    for (from, to, expected) in cases {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        std::fs::write(file.path(), good.replacen(from, to, 1)).unwrap();
        let path = file.path().to_str().unwrap();
        let error = explain(&backends::resolve(path).unwrap_err());
        assert!(error.contains(expected) && error.contains(path), "{to}: {error}");
    }
}
