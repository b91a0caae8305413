"""Graphs that the engine takes only with help."""

import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from expected import hold_quantized
from support import MQQ, mqq, run, save, session, sqnr_db

C = 16


def test_a_strided_slice_behind_a_reshape(tmp_path):
    """LeViT's; the engine's own rewriting refuses it."""
    rng = np.random.default_rng(0)
    nodes = [("MatMul", ["x", "w"], "a", {}), ("Reshape", ["a", "grid"], "b", {}),
             ("Slice", ["b", "starts", "ends", "axes", "steps"], "c", {}), ("Reshape", ["c", "flat"], "d", {}),
             ("MatMul", ["d", "w2"], "y", {})]
    ints = {"grid": [1, 8, 8, C], "flat": [1, 16, C], "starts": [0, 0], "ends": [99, 99], "axes": [1, 2], "steps": [2, 2]}
    draw = lambda *shape: (rng.standard_normal(shape) / C ** 0.5).astype(np.float32)
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    save(path, nodes, {"w": draw(C, C), "w2": draw(C, 8), **{k: np.array(v) for k, v in ints.items()}}, {"x": (1, 64, C)})
    samples = [{"x": draw(1, 64, C)} for _ in range(8)]
    np.save(tmp_path / "x.npy", np.concatenate([sample["x"] for sample in samples]))
    mqq("calibrate", path, "-b", "tensorrt", "--data", tmp_path / "x.npy", "-o", output, "--quiet")
    hold_quantized("graphs", ("strided slice", "tensorrt", ""), run(path, samples), output, samples)


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_integers_that_a_network_computes_with_are_walked_too(backend, tmp_path):
    """What is cast to int64 the engine holds as expressions of dimensions; tuning runs node by node."""
    rng = np.random.default_rng(1)
    nodes = [("Cast", ["n_kept"], "kept", {"to": TensorProto.INT32}),
             ("CumSum", ["kept", "axis"], "counted", {}),
             ("Cast", ["counted"], "n_counted", {"to": TensorProto.INT64}),
             ("Gather", ["table", "n_counted"], "embedded", {}),
             ("MatMul", ["embedded", "w"], "a", {}), ("Add", ["a", "b"], "c", {}), ("Relu", ["c"], "d", {}),
             ("MatMul", ["d", "w2"], "y", {})]
    draw = lambda *shape: (rng.standard_normal(shape) / C ** 0.5).astype(np.float32)
    constants = {"axis": np.int64(1), "table": draw(40, C), "w": draw(C, C), "b": draw(C), "w2": draw(C, C)}
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    save(path, nodes, constants, {"n_kept": (1, 30)})
    samples = [{"n_kept": (np.arange(30) < k)[None].astype(np.int64)} for k in range(2, 26)]
    np.save(tmp_path / "kept.npy", np.concatenate([sample["n_kept"] for sample in samples]))
    mqq("calibrate", path, "-b", backend, "--data", tmp_path / "kept.npy", "-o", output, "--quiet")
    sidecar = json.loads(output.with_suffix(".json").read_text())
    judged = [method["method"] for method in sidecar["methods"] if "judged" in method]
    assert not sidecar.get("warnings") and judged, sidecar
    hold_quantized("graphs", ("integers", backend, ""), run(path, samples), output, samples)


def test_two_ifs(tmp_path):
    """The engine's own Ifs become nodes of one name, which it refuses."""
    rng, n = np.random.default_rng(2), 16
    number = lambda value: numpy_helper.from_array(np.float32(value), "factor")
    branch = lambda tensor, factor: helper.make_graph(
        [helper.make_node("Mul", [tensor, "factor"], ["scaled"])], "branch", [],
        [helper.make_tensor_value_info("scaled", TensorProto.FLOAT, [1, 8, n])], [number(factor)])
    choice = lambda tensor, output: helper.make_node(
        "If", ["is_large"], [output], name=f"if_{output}", then_branch=branch(tensor, 2.0), else_branch=branch(tensor, 0.5))
    nodes = [helper.make_node("ReduceSum", ["x"], ["sum"], name="sum", keepdims=0),
             helper.make_node("Greater", ["sum", "zero"], ["is_large"], name="compare"),
             helper.make_node("MatMul", ["x", "w"], ["a"], name="first"), choice("a", "b"),
             helper.make_node("MatMul", ["b", "v"], ["c"], name="second"), choice("c", "y")]
    draw = lambda *shape: (rng.standard_normal(shape) / n ** 0.5).astype(np.float32)
    constants = {"w": draw(n, n), "v": draw(n, n), "zero": np.float32(0)}
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, n])
    graph = helper.make_graph(nodes, "ifs", [info("x")], [info("y")],
                              [numpy_helper.from_array(value, name) for name, value in constants.items()])
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    samples = [{"x": rng.standard_normal((1, 8, n)).astype(np.float32)} for _ in range(32)]
    np.save(tmp_path / "x.npy", np.concatenate([sample["x"] for sample in samples]))
    mqq("calibrate", path, "-b", "tensorrt", "--data", tmp_path / "x.npy", "-o", output, "--quiet")
    types = [node.op_type for node in onnx.load(output).graph.node]
    assert types.count("If") == 2 and "QuantizeLinear" in types
    assert sqnr_db(run(path, samples)[0], run(output, samples)[0]) > 25


def test_an_input_that_is_an_output_as_well(tmp_path):
    rng = np.random.default_rng(3)
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    save(path, [("MatMul", ["x", "w"], "y", {})], {"w": rng.standard_normal((C, C)).astype(np.float32)}, {"x": (1, C)}, ("y", "x"))
    np.save(tmp_path / "x.npy", rng.standard_normal((16, C)).astype(np.float32))
    mqq("calibrate", path, "-b", "onnxruntime", "--data", tmp_path / "x.npy", "-o", output, "--quiet")
    sample = {"x": rng.standard_normal((1, C)).astype(np.float32)}
    assert np.array_equal(run(output, [sample])[1], sample["x"])


@pytest.mark.parametrize(("nodes", "constants", "said"), [
    ([("GlobalLpPool", ["x"], "y", {})], {}, "cannot run these operators: ai.onnx.GlobalLpPool"),
    ([("Swish", ["x"], "y", {"alpha": 1.702})], {}, "cannot run these operators: ai.onnx.Swish with alpha"),
    ([("FusedConv", ["x", "w"], "y", {"domain": "com.microsoft"})], {"w": np.ones((4, 4, 1, 1), np.float32)},
     "use the model from before the optimization"),
])
def test_operators_that_the_engine_computes_otherwise(nodes, constants, said, tmp_path):
    """GlobalLpPool as a mean, Swish without its `alpha`; operators of ONNX Runtime's optimizer have a hint."""
    path = tmp_path / "model.onnx"
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [output], name="last", **attributes) for op, inputs, output, attributes in nodes], "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()])
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    np.save(tmp_path / "x.npy", np.ones((2, 4, 6, 6), np.float32))
    done = subprocess.run([MQQ, "calibrate", path, "-b", "tensorrt", "--data", tmp_path / "x.npy"], capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr, done.stderr


@pytest.mark.parametrize(("opset", "op", "attributes", "n_past", "said"), [
    (24, "Attention", {"is_causal": 1}, 3, "ai.onnx.Attention with past keys that is causal"),
    (25, "Attention", {"left_window_size": 2}, 0, "ai.onnx.Attention with a window"),
    (28, "SpaceToDepth", {"blocksize": 2, "mode": "CRD"}, 0, "ai.onnx.SpaceToDepth with mode CRD"),
])
def test_positions_and_layouts_that_the_engine_lacks(opset, op, attributes, n_past, said, tmp_path):
    """The engine takes a query for one at the first key, sees every key, and has one order of channels."""
    path = tmp_path / "model.onnx"
    past = [numpy_helper.from_array(np.ones((1, 2, n_past, 6), np.float32), name) for name in ("k", "v")] if n_past else []
    inputs = ["x", "x", "x", *(["", "k", "v"] if n_past else [])] if op == "Attention" else ["x"]
    outputs = ["y", *(["present_k", "present_v"] if n_past else [])]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, outputs, name="last", **attributes)], "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], past)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    np.save(tmp_path / "x.npy", np.ones((2, 2, 4, 6), np.float32))
    done = subprocess.run([MQQ, "eval", path, "--data", tmp_path / "x.npy"], capture_output=True, text=True)
    assert done.returncode == 1 and f"cannot run these operators: {said}" in done.stderr, done.stderr


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(("pads", "axes"), [
    ([0, 0, 2, 1, 0, 0, 1, 3], None), ([0, 0, -1, 2, 0, 0, 1, -2], None), ([0, -1, 0, -2, 0, 1, 0, 0], None), ([-2, 3], [-1]),
    ([1, -1, -1, 2], [3, 2]),
])
def test_pads_crop_and_wrap(mode, pads, axes, tmp_path):
    """Negative pads crop; RWKV shifts its tokens by them. The engine's own operator has neither them nor `wrap`."""
    rng = np.random.default_rng(11)
    path = tmp_path / "model.onnx"
    constants = {"w": (rng.standard_normal((4, 4, 1, 1)) / 2).astype(np.float32), "pads": np.array(pads)}
    value = ["v"] if mode == "constant" else [""]
    inputs = ["x", "pads"] + (value if axes or mode == "constant" else [])
    constants |= {"v": np.float32(0.5)} if mode == "constant" else {}
    if axes:
        inputs, constants = inputs + ["axes"], constants | {"axes": np.array(axes)}
    save(path, [("Pad", inputs, "p", {"mode": mode}), ("Conv", ["p", "w"], "c", {}), ("Conv", ["c", "w"], "y", {})],
         constants, {"x": (1, 4, 6, 6)}, ("y", "c"), opset=19)
    assert_range_as_in_onnxruntime(tmp_path, path, "c", rng.standard_normal((16, 4, 6, 6)).astype(np.float32))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "stride", "output_padding"), [(2, 2, 0), (3, 2, 0), (4, 2, 0), (3, 2, 1), (2, 3, 1)])
def test_a_transposed_convolution_pads_itself(kernel, stride, output_padding, auto_pad, tmp_path):
    """With `auto_pad`, the engine refuses kernels smaller than the stride and ignores `output_padding`."""
    rng = np.random.default_rng(12)
    path, w = tmp_path / "model.onnx", rng.standard_normal((4, 4, kernel, kernel)).astype(np.float32)
    up = {"auto_pad": auto_pad, "strides": [stride] * 2, "output_padding": [output_padding] * 2}
    save(path, [("ConvTranspose", ["x", "w"], "u", up), ("Conv", ["u", "one"], "y", {})],
         {"w": w, "one": np.ones((1, 4, 1, 1), np.float32)}, {"x": (1, 4, 5, 5)}, ("y", "u"))
    assert_range_as_in_onnxruntime(tmp_path, path, "u", rng.standard_normal((8, 4, 5, 5)).astype(np.float32))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pads_beside_auto_pad_do_not_count(op, tmp_path):
    """ONNX Runtime ignores them. The engine's own operators ignore `auto_pad` instead."""
    rng = np.random.default_rng(14)
    path, padded = tmp_path / "model.onnx", {"kernel_shape": [3, 3], "auto_pad": "VALID", "pads": [2, 1, 1, 2]}
    save(path, [("Conv", ["x", "w"], "c", {}), (op, ["c"], "p", padded), ("Conv", ["p", "w"], "y", {})],
         {"w": rng.standard_normal((4, 4, 1, 1)).astype(np.float32)}, {"x": (1, 4, 6, 6)}, ("y", "p"))
    model = onnx.load(path)
    del model.graph.value_info[:]
    [output.type.tensor_type.ClearField("shape") for output in model.graph.output]
    onnx.save(model, path)
    assert_range_as_in_onnxruntime(tmp_path, path, "p", rng.standard_normal((8, 4, 6, 6)).astype(np.float32))


def test_the_axis_of_a_sum_is_a_tensor_with_one_number(tmp_path):
    """The engine takes a scalar only."""
    rng = np.random.default_rng(15)
    path = tmp_path / "model.onnx"
    save(path, [("MatMul", ["x", "w"], "a", {}), ("CumSum", ["a", "axis"], "s", {}), ("MatMul", ["s", "w"], "y", {})],
         {"w": rng.standard_normal((C, C)).astype(np.float32), "axis": np.int64([1])}, {"x": (1, 4, C)}, ("y", "s"))
    assert_range_as_in_onnxruntime(tmp_path, path, "s", rng.standard_normal((8, 4, C)).astype(np.float32))


def test_integers_of_a_cast_are_added_up(tmp_path):
    """As RoBERTa counts its positions. The engine takes such integers for dimensions."""
    rng = np.random.default_rng(18)
    path = tmp_path / "model.onnx"
    save(path, [("Cast", ["x"], "i", {"to": TensorProto.INT64}), ("CumSum", ["i", "axis"], "n", {"exclusive": 1}),
                ("Mul", ["n", "i"], "m", {}), ("Cast", ["m"], "s", {"to": TensorProto.FLOAT}), ("MatMul", ["s", "w"], "y", {})],
         {"w": rng.standard_normal((C, C)).astype(np.float32), "axis": np.int64(-2)}, {"x": (1, 4, C)}, ("y", "s"))
    assert_range_as_in_onnxruntime(tmp_path, path, "s", (5 * rng.standard_normal((8, 4, C))).astype(np.float32))


def test_integers_of_4_bits_in_a_branch(tmp_path):
    """The engine lacks them; they become integers of 8 bits, in branches as well."""
    rng = np.random.default_rng(16)
    draw = lambda *shape: (rng.standard_normal(shape) / C ** 0.5).astype(np.float32)
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, C])
    branch = lambda scale: helper.make_graph(
        [helper.make_node("DequantizeLinear", ["integers", "scale"], ["factors"]), helper.make_node("Mul", ["a", "factors"], ["scaled"])],
        "branch", [], [info("scaled")],
        [helper.make_tensor("integers", TensorProto.INT4, [C], [k % 16 - 8 for k in range(C)]), numpy_helper.from_array(np.float32(scale), "scale")])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
             helper.make_node("Greater", ["sum", "zero"], ["is_large"]),
             helper.make_node("If", ["is_large"], ["b"], then_branch=branch(2.0), else_branch=branch(0.5)),
             helper.make_node("MatMul", ["b", "w"], ["y"])]
    constants = {"w": draw(C, C), "zero": np.float32(0)}
    graph = helper.make_graph(nodes, "branches", [info("x")], [info("y"), info("b")],
                              [numpy_helper.from_array(value, name) for name, value in constants.items()])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    assert_range_as_in_onnxruntime(tmp_path, path, "b", draw(16, 8, C))


def test_nodes_of_one_name(tmp_path):
    """Each Gemm becomes several nodes of the engine, named after it. ONNX's checker passes such a model, ONNX Runtime refuses it."""
    rng = np.random.default_rng(13)
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    save(path, [("Gemm", ["x", "w", "b"], "a", {}), ("Gemm", ["a", "w", "b"], "y", {})], {"w": draw(C, C), "b": draw(C)}, {"x": (1, C)})
    np.save(tmp_path / "x.npy", draw(16, C))
    model = onnx.load(path)
    found = []
    for name in ("", "same"):
        for node in model.graph.node:
            node.name = name
        onnx.save(model, path)
        mqq("calibrate", path, "-b", "onnxruntime", "--data", tmp_path / "x.npy", "-o", output, "--quiet")
        found.append(onnx.load(output))
    stored = [{tensor.name: tensor.raw_data for tensor in of.graph.initializer} for of in found]
    assert stored[0] == stored[1]


def test_a_normalization_in_training_mode_is_named(tmp_path):
    """Up to operator set 13 outputs for the statistics mean training, also where the graph is upgraded past it."""
    path, value = tmp_path / "model.onnx", lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    vectors = ["scale", "bias", "mean", "variance"]
    node = helper.make_node("BatchNormalization", ["x", *vectors], ["y", "m", "v", "sm", "sv"], name="norm")
    graph = helper.make_graph([node], "graph", [value("x", [1, 4, 6, 6])], [value("y", [1, 4, 6, 6])],
                              [numpy_helper.from_array(np.ones(4, np.float32), name) for name in vectors])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)
    np.save(tmp_path / "x.npy", np.ones((2, 4, 6, 6), np.float32))
    for opset in (13, 17):
        done = subprocess.run([MQQ, "calibrate", path, "-b", "tensorrt", "--data", tmp_path / "x.npy", "--set", f"min_opset={opset}"],
                              capture_output=True, text=True)
        assert done.returncode == 1 and "node `norm` (BatchNormalization): is in training mode" in done.stderr, done.stderr


def observed(sidecar, tensor):
    """The lowest and highest value of a tensor in the engine."""
    encodings = json.loads(sidecar.read_text())["activation_encodings"]
    return next(encoding["observed"] for encoding in encodings if encoding["name"] == tensor)


def assert_range_as_in_onnxruntime(tmp_path, path, tensor, x):
    """Of the tensor that is the network's second output, over the samples `x` of one input."""
    np.save(tmp_path / "x.npy", x)
    mqq("calibrate", path, "-b", "onnxruntime", "--data", tmp_path / "x.npy", "--methods", "none", "--observer", "max",
        "-o", tmp_path / "q.onnx", "--quiet")
    reference = run(path, [{"x": one[None]} for one in x])[1]
    assert observed(tmp_path / "q.json", tensor) == pytest.approx([reference.min(), reference.max()], rel=1e-5)


@pytest.mark.parametrize("diagonal", ["scalar", "vector", "computed"])
def test_a_causal_mask(diagonal, tmp_path):
    """Decoders compute the diagonal of Trilu from the length of the sequence; the engine's own takes a constant scalar."""
    rng = np.random.default_rng(4)
    draw = lambda *shape: (rng.standard_normal(shape) / C ** 0.5).astype(np.float32)
    k = {"scalar": "one", "vector": "ones", "computed": "k"}[diagonal]
    nodes = [("MatMul", ["x", "w"], "q", {}), ("Shape", ["x"], "s", {}), ("Gather", ["s", "one"], "n", {"axis": 0}),
             ("Sub", ["n", "n"], "none", {}), ("Add", ["none", "one"], "k", {}), ("Unsqueeze", ["n", "axis"], "n1", {}),
             ("Concat", ["n1", "n1"], "square", {"axis": 0}), ("ConstantOfShape", ["square"], "all", {"value": numpy_helper.from_array(np.float32([-9]))}), ("Trilu", ["all", k], "mask", {"upper": 1}), ("Transpose", ["q"], "t", {"perm": [0, 2, 1]}), ("MatMul", ["q", "t"], "a", {}),
             ("Add", ["a", "mask"], "masked", {}), ("Softmax", ["masked"], "p", {"axis": -1}), ("MatMul", ["p", "q"], "mixed", {}),
             ("MatMul", ["mixed", "w2"], "y", {})]
    constants = {"one": np.int64(1), "ones": np.int64([1]), "axis": np.int64([0]), "w": draw(C, C), "w2": draw(C, C)}
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    save(path, nodes, constants, {"x": (1, "n", C)}, outputs=("y", "mixed"))
    samples = [{"x": draw(1, 8, C) * 4} for _ in range(8)]
    np.save(tmp_path / "x.npy", np.concatenate([sample["x"] for sample in samples]))
    mqq("calibrate", path, "-b", "onnxruntime", "--data", tmp_path / "x.npy", "-o", output, "--effort", 0, "--observer", "max", "--quiet")
    mixed = run(path, samples)[1]
    assert np.allclose(observed(output.with_suffix(".json"), "mixed"), [mixed.min(), mixed.max()], rtol=1e-4)


@pytest.mark.parametrize("indices", ["constant", "computed"])
def test_nd_indices_from_the_end_of_an_axis(indices, tmp_path):
    """The engine's own operators refuse such an index, or read outside the data."""
    rng = np.random.default_rng(5)
    draw = lambda *shape: (rng.standard_normal(shape) / C ** 0.5).astype(np.float32)
    nodes = [("Floor", ["x"], "floor", {}), ("Cast", ["floor"], "n_floor", {"to": TensorProto.INT64}),
             ("ReduceMax", ["n_floor"], "n_top", {"keepdims": 0}), ("Mul", ["n_top", "zero"], "shift", {}),
             ("Add", ["constant", "shift"], "computed", {}), ("MatMul", ["x", "w"], "h", {}),
             ("ScatterND", ["h", indices, "rows"], "scattered", {}), ("GatherND", ["scattered", indices], "gathered", {}),
             ("MatMul", ["gathered", "w2"], "y", {})]
    constants = {"w": draw(C, C), "w2": draw(C, C), "rows": 9 * draw(2, C), "constant": np.int64([[0, -1], [0, -3]]), "zero": np.int64(0)}
    path = tmp_path / "model.onnx"
    save(path, nodes, constants, {"x": (1, 4, C)}, outputs=("y", "gathered"))
    assert_range_as_in_onnxruntime(tmp_path, path, "gathered", draw(4, 4, C))


def test_an_nd_index_outside_its_axis(tmp_path):
    path = tmp_path / "model.onnx"
    save(path, [("MatMul", ["x", "w"], "h", {}), ("GatherND", ["h", "last"], "y", {})],
         {"w": np.ones((C, C), np.float32), "last": np.int64([[0, -5]])}, {"x": (1, 4, C)})
    np.save(tmp_path / "x.npy", np.ones((4, 4, C), np.float32))
    done = subprocess.run([MQQ, "calibrate", path, "-b", "onnxruntime", "--data", tmp_path / "x.npy"], capture_output=True, text=True)
    assert done.returncode == 1 and "index -5 of axis 1, expected -4 to 3" in done.stderr, done.stderr


@pytest.mark.parametrize("axes", [["axis", "step"], []])
def test_a_slice_of_as_many_boxes_as_are_kept(axes, tmp_path):
    """`keep[:50]` of fewer than 50; ONNX ends a Slice at the length, and so must the engine where values decide the length."""
    rng = np.random.default_rng(5)
    nodes = [("Conv", ["x", "w"], "c", {}), ("Greater", ["c", "limit"], "is_kept", {}), ("NonZero", ["is_kept"], "kept", {}),
             ("Transpose", ["kept"], "rows", {}), ("GatherND", ["c", "rows"], "values", {}),
             ("Slice", ["values", "start", "end", *axes], "first", {}), ("Relu", ["first"], "y", {})]
    ints = {"start": [0], "end": [50], "axis": [0], "step": [1]}
    constants = {"w": rng.standard_normal((4, 3, 1, 1)).astype(np.float32), "limit": np.float32(0.5)}
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    save(path, nodes, {**constants, **{name: np.int64(values) for name, values in ints.items()}}, {"x": (1, 3, 8, 8)})
    samples = rng.standard_normal((12, 3, 8, 8)).astype(np.float32) * np.linspace(0.05, 2, 12, dtype=np.float32)[:, None, None, None]
    np.save(tmp_path / "x.npy", samples)
    mqq("calibrate", path, "-b", "tensorrt", "--data", tmp_path / "x.npy", "-o", output, "--quiet")
    n_kept = [len(session(path, False).run(None, {"x": sample[None]})[0]) for sample in samples]
    assert min(n_kept) < 50 == max(n_kept)


@pytest.mark.parametrize("is_boolean", [True, False])
def test_an_attention_with_a_mask(is_boolean, tmp_path):
    """`False` excludes a position; the engine's own operator adds a boolean mask as 0 and 1."""
    rng = np.random.default_rng(15)
    path, mask = tmp_path / "model.onnx", np.tril(np.ones((6, 6), bool))
    draw = lambda *shape: (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    save(path, [*[("MatMul", ["x", f"w{name}"], name, {}) for name in "qkv"],
                ("Attention", ["q", "k", "v", "mask"], "a", heads), ("MatMul", ["a", "wo"], "y", {})],
         {f"w{name}": draw(C, C) for name in "qkvo"} | {"mask": mask if is_boolean else np.where(mask, 0, -1e9).astype(np.float32)},
         {"x": (1, 6, C)}, ("y", "a"), opset=23)
    assert_range_as_in_onnxruntime(tmp_path, path, "a", 3 * draw(16, 6, C))


@pytest.mark.parametrize("excluded", [False, -np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize(("shape", "is_causal"), [((6, 6), 0), ((1, 1, 6, 6), 1), ((1, 2, 6, 6), 0), ((1, 2, 6, 6), 1)])
def test_a_query_without_keys_gets_zeros(excluded, shape, is_causal, tmp_path):
    """As in ONNX; the engine gives NaN or the mean of all values."""
    rng = np.random.default_rng(17)
    path, mask = tmp_path / "model.onnx", rng.random(shape) < .6
    mask[..., 2, :], mask[..., 3, :4] = False, False
    mask = mask if excluded is False else np.where(mask, 0, excluded).astype(np.float32)
    draw = lambda *shape: (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": is_causal}
    save(path, [*[("MatMul", ["x", f"w{name}"], name, {}) for name in "qkv"], ("Attention", ["q", "k", "v", "mask"], "y", attributes)],
         {f"w{name}": draw(C, C) for name in "qkv"} | {"mask": mask}, {"x": (1, 6, C)}, ("y",), opset=23)
    x = draw(1, 6, C)
    expected, = session(path, False).run(None, {"x": x})
    assert (expected[0, 2] == 0).all() and (not is_causal or (expected[0, 3] == 0).all())
    assert largest_difference(tmp_path, path, x, expected) < 1e-5


@pytest.mark.parametrize(("data_type", "zero_point"), [(np.uint8, 100), (np.int8, -5), (np.uint16, 9), (np.int16, 77)])
def test_nan_quantizes_to_the_lowest_integer(data_type, zero_point, tmp_path):
    path, x = tmp_path / "model.onnx", np.array([[np.nan, 1, np.nan, -2, np.inf]], np.float32)
    save(path, [("QuantizeLinear", ["x", "s", "z"], "q", {}), ("DequantizeLinear", ["q", "s", "z"], "y", {})],
         {"s": np.float32(.1), "z": data_type(zero_point)}, {"x": x.shape}, ("y",), opset=21)
    expected, = session(path, False).run(None, {"x": x})
    assert largest_difference(tmp_path, path, x, expected) == 0


def largest_difference(tmp_path, path, x, expected):
    """The largest difference between the output `y` of the engine on the sample `x`, and an array."""
    constant = tmp_path / "constant.onnx"
    save(constant, [("Identity", ["expected"], "y", {})], {"expected": expected}, {"x": x.shape}, ("y",), opset=21)
    np.save(tmp_path / "x.npy", x)
    report = json.loads(mqq("compare", constant, path, "--data", tmp_path / "x.npy", "--json"))
    return report["outputs"][0]["max_difference"]


def test_branches_of_unlike_shapes_are_told(tmp_path):
    """The condition depends on values."""
    branch = lambda op, output, **more: helper.make_graph(
        [helper.make_node(op, ["c"], [output], **more)], op, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])
    path, then = tmp_path / "model.onnx", branch("MaxPool", "then", kernel_shape=[2, 2])
    save(path, [("ReduceSum", ["x"], "sum", {"keepdims": 0}), ("Greater", ["sum", "zero"], "is", {}), ("Conv", ["x", "w"], "c", {}),
                ("If", ["is"], "y", {"then_branch": then, "else_branch": branch("Relu", "else")})],
         {"w": np.ones((4, 4, 1, 1), np.float32), "zero": np.float32(0)}, {"x": (1, 4, 6, 6)})
    np.save(tmp_path / "x.npy", np.ones((2, 4, 6, 6), np.float32))
    for command in (["eval", path], ["calibrate", path, "-b", "tensorrt"]):
        done = subprocess.run([MQQ, *command, "--data", tmp_path / "x.npy"], capture_output=True, text=True)
        assert done.returncode == 1 and "node `If_3` (If): the engine cannot run its branches" in done.stderr, done.stderr
        assert "hint: use --outputs TENSOR" in done.stderr


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_a_celu_has_a_factor(alpha, tmp_path):
    rng = np.random.default_rng(16)
    path, w = tmp_path / "model.onnx", rng.standard_normal((4, 4, 1, 1)).astype(np.float32)
    save(path, [("Conv", ["x", "w"], "c", {}), ("Celu", ["c"], "p", {"alpha": alpha}), ("Conv", ["p", "w"], "y", {})],
         {"w": w}, {"x": (1, 4, 6, 6)}, ("y", "p"))
    assert_range_as_in_onnxruntime(tmp_path, path, "p", rng.standard_normal((8, 4, 6, 6)).astype(np.float32))


@pytest.mark.parametrize("attributes", [
    {"output_shape": [13, 15]}, {"output_shape": [16, 17]}, {"output_shape": [14, 14], "auto_pad": "SAME_UPPER"},
    {"output_shape": [13, 14], "auto_pad": "SAME_LOWER", "group": 2}, {"output_shape": [14, 15], "dilations": [2, 1]},
    {"output_shape": [15, 16], "output_padding": [1, 0]},
])
def test_a_conv_transpose_with_the_size_of_its_output(attributes, tmp_path):
    """Pads follow from the size. The engine's own operator leaves them out."""
    rng = np.random.default_rng(18)
    path, group = tmp_path / "model.onnx", attributes.get("group", 1)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    save(path, [("ConvTranspose", ["x", "w", "b"], "t", {"strides": [2, 2], **attributes}), ("Mul", ["t", "m"], "p", {}),
                ("Conv", ["p", "v"], "y", {})],
         {"w": draw(4, 6 // group, 3, 4), "b": draw(6), "m": draw(*attributes["output_shape"]) ** 3, "v": draw(3, 6, 1, 1)},
         {"x": (1, 4, 7, 7)}, ("y", "p"))
    assert_range_as_in_onnxruntime(tmp_path, path, "p", draw(8, 4, 7, 7))


@pytest.mark.parametrize("scale", [1.5, 0.7, 2.0])
def test_a_nearest_resize_of_opset_10_rounds_down(scale, tmp_path):
    """`compare` runs the float model without an upgrade of its opset."""
    rng = np.random.default_rng(17)
    path, data = tmp_path / "model.onnx", tmp_path / "x.npy"
    w = rng.standard_normal((4, 4, 1, 1)).astype(np.float32)
    save(path, [("Conv", ["x", "w"], "c", {}), ("Resize", ["c", "scales"], "r", {"mode": "nearest"}), ("Conv", ["r", "w"], "y", {})],
         {"w": w, "scales": np.array([1, 1, scale, scale], np.float32)}, {"x": (1, 4, 10, 10)}, opset=10)
    x = rng.standard_normal((16, 4, 10, 10)).astype(np.float32)
    np.save(data, x)
    mqq("calibrate", path, "-b", "onnxruntime", "--data", data, "-o", tmp_path / "q.onnx", "--methods", "none", "--quiet")
    report = json.loads(mqq("compare", path, tmp_path / "q.onnx", "--data", data, "--json"))
    samples = [{"x": one[None]} for one in x]
    expected = sqnr_db(run(path, samples)[0], run(tmp_path / "q.onnx", samples)[0])
    assert report["outputs"][0]["metrics"]["sqnr"] == pytest.approx(expected, abs=0.5)
