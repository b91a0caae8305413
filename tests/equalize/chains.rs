//! Chains of tensors whose channels can be scaled, and some that cannot.

use crate::support::{Attr, GraphBuilder};
use mqq::onnx;
use mqq::onnx::proto::ModelProto;

/// Makes the graph from `x` to `y`.
pub type Chain = fn(&mut GraphBuilder);

/// The model of a chain.
pub fn built(chain: Chain) -> ModelProto {
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

/// Chains that can be scaled: a name, how many spaces there are, and the graph.
pub const CHAINS: &[(&str, usize, Chain)] = &[
    ("none", 1, |g| between(g, |g| _ = g.op("Identity", &["a"], "b"))),
    ("Relu", 1, |g| between(g, |g| _ = g.op("Relu", &["a"], "b"))),
    ("a Shape beside it", 1, |g| {
        between(g, |g| {
            g.ops("dims = Shape a; rectified = Relu a; b = Reshape rectified dims");
        });
    }),
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
        g.ops("r1 = Relu e1; r3 = Relu e3");
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
        g.ops("f = Add b e; h = Relu f");
        g.conv("h", 4, 3, 1, 1, "y");
    }),
    ("Flatten and Gemm", 1, |g| {
        g.input("x", &[1, 3, 4, 4]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.ops("b = Relu a; c = Flatten b");
        g.weight("w", &[96, 5]);
        g.weight("bias", &[5]);
        g.op("Gemm", &["c", "w", "bias"], "y");
    }),
    ("GlobalAveragePool, Reshape and transposed Gemm, twice", 2, |g| {
        g.input("x", &[1, 3, 4, 4]);
        g.conv("x", 3, 6, 3, 1, "a");
        g.ops("b = Relu a; c = GlobalAveragePool b");
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
        g.ops("b = Add b1 a; c = Relu b");
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
        g.ops("qk = Add q k; y = Add qk v");
    }),
    ("LayerNormalization spelled out", 1, |g| {
        g.input("x", &[1, 5, 8]);
        let last = || [("axes", ints(&[-1]))];
        g.op_with("ReduceMean", &["x"], "mean", &last());
        g.op("Sub", &["x", "mean"], "centred");
        g.values("two", &[], &[2.0]);
        g.op("Pow", &["centred", "two"], "squares");
        g.op_with("ReduceMean", &["squares"], "variance", &last());
        g.ops("deviation = Sqrt variance; normal = Div centred deviation");
        g.weight("gain", &[8]);
        g.op("Mul", &["normal", "gain"], "scaled");
        g.weight("shift", &[8]);
        g.op("Add", &["scaled", "shift"], "n");
        g.weight("w1", &[8, 6]);
        g.op("MatMul", &["n", "w1"], "a");
        g.weight("w2", &[8, 6]);
        g.ops("b = MatMul n w2; y = Add a b");
    }),
    ("a normalization that does not fold", 1, |g| {
        g.input("x", &[1, 6, 4, 4]);
        g.op("Relu", &["x"], "r");
        for name in ["gain", "shift", "mean"] {
            g.weight(name, &[6]);
        }
        g.values("variance", &[6], &[0.5, 1.0, 2.0, 0.25, 1.5, 3.0]);
        g.ops("n = BatchNormalization r gain shift mean variance; a = Relu n");
        g.conv("a", 6, 4, 3, 1, "y");
    }),
];

/// Chains that are skipped: the beginning of the reason, and the graph.
pub const DECLINED: &[(&str, Chain)] = &[
    ("`x` is an input of the network or a constant", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 4, 3, 1, "y");
    }),
    ("Clip `Clip_b` has the bounds 0 and 6", |g| {
        between(g, |g| {
            g.scalars(&[("zero", 0.0), ("six", 6.0)]);
            g.op("Clip", &["a", "zero", "six"], "b");
        });
    }),
    ("channel scales cannot pass Sigmoid `Sigmoid_b`", |g| between(g, |g| _ = g.op("Sigmoid", &["a"], "b"))),
    ("channel scales cannot pass Softmax `Softmax_b`", |g| between(g, |g| _ = g.op("Softmax", &["a"], "b"))),
    ("channel scales cannot pass Mul `Mul_b`", |g| {
        between(g, |g| {
            g.ops("s = Sigmoid a; b = Mul a s");
        });
    }),
    ("channel scales cannot pass DepthToSpace `DepthToSpace_c`", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 8, 3, 1, "a");
        g.op_with("DepthToSpace", &["a"], "c", &[("blocksize", Attr::Int(2))]);
        g.conv("c", 2, 4, 3, 1, "y");
    }),
    ("`a` is an output of the network", |g| {
        between(g, |g| _ = g.op("Relu", &["a"], "b"));
        g.output("a");
    }),
    ("other nodes also read the constant `shared`", |g| {
        g.input("x", &[1, 4, 5, 5]);
        g.weight("shared", &[4, 4, 1, 1]);
        g.ops("a = Conv x shared; y = Conv a shared");
    }),
    ("channel scales cannot pass Pad `Pad_b`", |g| {
        between(g, |g| {
            g.tensor(int64s("pads", &[0, 0, 1, 1, 0, 0, 1, 1]));
            g.values("one", &[], &[1.0]);
            g.op("Pad", &["a", "pads", "one"], "b");
        });
    }),
    ("the constant `shift` does not have one value per channel", |g| {
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
    ("channel scales cannot pass LayerNormalization `LayerNormalization_n`", |g| {
        g.input("x", &[1, 5, 8]);
        g.weight("w0", &[8, 8]);
        g.op("MatMul", &["x", "w0"], "a");
        g.weight("gain", &[8]);
        g.op("LayerNormalization", &["a", "gain"], "n");
        g.weight("w", &[8, 6]);
        g.op("MatMul", &["a", "w"], "b");
        g.weight("v", &[8, 6]);
        g.ops("c = MatMul n v; y = Add b c");
    }),
    ("there is only one channel", |g| {
        g.input("x", &[1, 3, 5, 5]);
        g.conv("x", 3, 1, 3, 1, "a");
        g.conv("a", 1, 4, 3, 1, "y");
    }),
];
