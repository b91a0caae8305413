"""`mqq compare` computes Q/DQ models as ONNX defines them: against ONNX Runtime with its optimisations off. Its figures
follow their definitions: against numpy, and the overlap against `benches/overlap.py`."""

import importlib.util
import json
import subprocess

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import MQQ, ROOT, agreement_percent, digits, fixture, mqq, quantized, run, sqnr_db

# Below this, at least one value would lie on another integer.
SAME_DB = 100


def simulation_db(path, sample, folder):
    """Lowest SQNR in dB of the outputs that `mqq compare` computes, against those of ONNX Runtime."""
    model = onnx.load(path)
    expected = run(path, [sample])
    nodes = [
        helper.make_node("Constant", [], [value.name], value=numpy_helper.from_array(output.reshape(-1).astype(np.float32)))
        for value, output in zip(model.graph.output, expected)]
    outputs = [
        helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [output.size])
        for value, output in zip(model.graph.output, expected)]
    graph = helper.make_graph(nodes, "expected", model.graph.input, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "expected.onnx")
    (folder / "sample").mkdir(exist_ok=True)
    np.savez(folder / "sample" / "sample.npz", **sample)
    report = json.loads(mqq("compare", folder / "expected.onnx", path, "--data", folder / "sample", "--json", "--quiet"))
    assert {output["n_samples"] for output in report["outputs"]} == {1}
    return min(output.get("sqnr_db", np.inf) for output in report["outputs"])


def save(path, nodes, inputs, outputs, constants, opset=21):
    tensors = [t if isinstance(t, TensorProto) else numpy_helper.from_array(np.asarray(t), name) for name, t in constants.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def value(name, shape, data_type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, data_type, shape)


def integers(name, data_type, values, shape=()):
    return helper.make_tensor(name, data_type, shape, np.ravel(values))


BOUNDS = {
    "UINT8": (0, 255), "INT8": (-128, 127), "UINT16": (0, 65535), "INT16": (-32768, 32767),
    "UINT4": (0, 15), "INT4": (-8, 7),
}
# Shape of the scales for a tensor [4, 6, 10], and the attributes that say how they lie.
LAYOUTS = {
    "per_tensor": ((), {}),
    "per_axis": ((6,), {"axis": 1}),
    "per_last_axis": ((10,), {"axis": -1}),
    "per_block": ((4, 6, 4), {"axis": 2, "block_size": 3}),
    "per_block_of_rows": ((2, 6, 10), {"axis": 0, "block_size": 2}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BOUNDS)
def test_every_integer_and_every_layout_of_scales(name, layout, tmp_path):
    rng = np.random.default_rng(0)
    data_type, (low, high) = getattr(TensorProto, name), BOUNDS[name]
    shape, attributes = LAYOUTS[layout]
    scales = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    zero_points = rng.integers(low, high + 1, shape)
    save(tmp_path / "q.onnx", [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero_point"], ["y"], **attributes),
    ], [value("x", [4, 6, 10])], [value("y", [4, 6, 10])],
        {"scale": scales, "zero_point": integers("zero_point", data_type, zero_points, shape)})
    # Half of the values lie on the grid or half-way between two of its values, and some are far outside.
    full = scales if not shape else scales.reshape([len(scales) if k == 1 else 1 for k in range(3)]) \
        if layout == "per_axis" else 0.05
    steps = rng.integers(2 * (low - high), 2 * (high - low), (4, 6, 10)) / 2
    x = np.where(rng.random((4, 6, 10)) < 0.5, steps * full, rng.normal(size=(4, 6, 10)) * 0.05 * (high - low))
    sample = {"x": x.astype(np.float32)}
    assert simulation_db(tmp_path / "q.onnx", sample, tmp_path) == np.inf


def test_integers_stay_integers_between_the_pairs(tmp_path):
    rng = np.random.default_rng(1)
    quantize = lambda x, y: helper.make_node("QuantizeLinear", [x, "scale", "zero_point"], [y])
    save(tmp_path / "q.onnx", [
        quantize("a", "qa"), quantize("b", "qb"),
        helper.make_node("Concat", ["qa", "qb"], ["joined"], axis=1),
        helper.make_node("MaxPool", ["joined"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 0, 0]),
        helper.make_node("Transpose", ["pooled"], ["moved"], perm=[0, 2, 3, 1]),
        helper.make_node("Pad", ["moved", "pads", "zero_point"], ["padded"]),
        helper.make_node("Reshape", ["padded", "shape"], ["flat"]),
        helper.make_node("DequantizeLinear", ["flat", "scale", "zero_point"], ["y"]),
    ], [value("a", [1, 2, 7, 7]), value("b", [1, 3, 7, 7])], [value("y", [1, 120])],
        {"scale": np.float32(0.02), "zero_point": np.uint8(130), "shape": np.array([1, -1]),
         "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0])})
    sample = {name: rng.normal(size=[1, n, 7, 7]).astype(np.float32) for name, n in (("a", 2), ("b", 3))}
    assert simulation_db(tmp_path / "q.onnx", sample, tmp_path) == np.inf


def test_without_a_zero_point_and_with_another_type_of_scale(tmp_path):
    rng = np.random.default_rng(2)
    save(tmp_path / "q.onnx", [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=TensorProto.INT16),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["wide"]),
        helper.make_node("QuantizeLinear", ["wide", "scale"], ["u"]),
        helper.make_node("DequantizeLinear", ["u", "scale"], ["y"]),
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("QuantizeLinear", ["half", "scale16", "zero16"], ["q16"]),
        helper.make_node("DequantizeLinear", ["q16", "scale16", "zero16"], ["half_y"]),
        helper.make_node("Cast", ["half_y"], ["z"], to=TensorProto.FLOAT),
    ], [value("x", [300])], [value("y", [300]), value("z", [300])],
        {"scale": np.float32(0.003), "scale16": np.float16(0.01), "zero16": np.int8(-3)})
    sample = {"x": rng.normal(size=300).astype(np.float32)}
    assert simulation_db(tmp_path / "q.onnx", sample, tmp_path) == np.inf


@pytest.mark.parametrize("storage", ["integer", "float"])
def test_weights_and_biases(storage, tmp_path):
    rng = np.random.default_rng(3)
    weight = integers("qw", TensorProto.INT8, rng.integers(-127, 128, 8 * 3 * 9), (8, 3, 3, 3))
    scales = rng.uniform(0.001, 0.01, 8).astype(np.float32)
    constants = {
        "sx": np.float32(0.02), "zx": np.uint8(120), "sw": scales, "sb": scales * np.float32(0.02),
        "qb": rng.integers(-1000, 1000, 8).astype(np.int32), "zw": np.zeros(8, np.int8),
        "qw4": integers("qw4", TensorProto.INT4, rng.integers(-8, 8, 200 * 5), (200, 5)),
        "sw4": rng.uniform(0.01, 0.02, (25, 5)).astype(np.float32), "flat": np.array([1, 200]),
    }
    nodes = []
    if storage == "float":
        constants["w"] = rng.normal(size=(8, 3, 3, 3)).astype(np.float32)
        nodes.append(helper.make_node("QuantizeLinear", ["w", "sw", "zw"], ["qw"], axis=0))
    else:
        constants["qw"] = weight
    nodes += [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["qx"]),
        helper.make_node("DequantizeLinear", ["qx", "sx", "zx"], ["dx"]),
        helper.make_node("DequantizeLinear", ["qw", "sw", "zw"], ["dw"], axis=0),
        helper.make_node("DequantizeLinear", ["qb", "sb"], ["db"], axis=0),
        helper.make_node("Conv", ["dx", "dw", "db"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Reshape", ["c", "flat"], ["f"]),
        helper.make_node("DequantizeLinear", ["qw4", "sw4"], ["dw4"], axis=0, block_size=8),
        helper.make_node("MatMul", ["f", "dw4"], ["y"]),
    ]
    save(tmp_path / "q.onnx", nodes, [value("x", [1, 3, 7, 7])], [value("y", [1, 5])], constants)
    sample = {"x": rng.normal(size=(1, 3, 7, 7)).astype(np.float32)}
    assert simulation_db(tmp_path / "q.onnx", sample, tmp_path) > SAME_DB


def attention(path, rng, n_tokens=12, width=32):
    """One attention head over tokens [1, n_tokens, width], with the residual Add behind it."""
    weights = {f"w{k}": (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32) for k in "qkvo"}
    nodes = [helper.make_node("MatMul", ["x", f"w{k}"], [k]) for k in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Div", ["scores", "root"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "wo"], ["out"]),
        helper.make_node("Add", ["out", "x"], ["y"]),
    ]
    shape = [1, n_tokens, width]
    save(path, nodes, [value("x", shape)], [value("y", shape)], {**weights, "root": np.float32(np.sqrt(width))}, opset=13)
    return shape


TABLES = [
    "tensorrt", "onnxruntime", "onnxruntime-vnni", "openvino", "qnn-htp", "qnn-htp-a16", "tflite", "rknn",
    "tensorrt-nlp", "academic", "tvm",
]


@pytest.mark.parametrize("backend", TABLES)
def test_attention_as_tables_quantize_it(backend, tmp_path):
    rng = np.random.default_rng(4)
    shape = attention(tmp_path / "float.onnx", rng)
    (tmp_path / "data").mkdir()
    for i in range(8):
        np.save(tmp_path / "data" / f"{i}.npy", rng.normal(size=shape).astype(np.float32))
    output = tmp_path / "q.onnx"
    mqq("calibrate", tmp_path / "float.onnx", "-b", backend, "--data", tmp_path / "data", "-o", output, "--quiet")
    made_by = {name: node.op_type for node in onnx.load(output).graph.node for name in node.output}
    products = [node for node in onnx.load(output).graph.node if node.op_type == "MatMul"]
    quantized = [node for node in products if {made_by.get(name) for name in node.input} == {"DequantizeLinear"}]
    # Four have a constant operand; the others are the two products of attention.
    linear_alone = ("tensorrt", "onnxruntime", "onnxruntime-vnni", "openvino", "academic")
    assert len(quantized) == (4 if backend in linear_alone else 6)
    sample = {"x": rng.normal(size=shape).astype(np.float32)}
    assert simulation_db(output, sample, tmp_path) > SAME_DB


# The overlap is prepared on the first 64 samples, those of the reference are all.
N_SAMPLES = 60


def reference():
    spec = importlib.util.spec_from_file_location("overlap", ROOT / "benches" / "overlap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hold_overlap(report, expected, found, axes=None):
    """Holds the figures of an output against those of the reference, for samples of both networks."""
    mean, lowest, (described,) = reference().overlap([[sample] for sample in expected], [[sample] for sample in found], axes)
    groups = {group["kind"]: (group["n_channels"], group["overlap"]) for group in report["groups"]}
    of_reference = {name: (group["n"], pytest.approx(group["j"], abs=1e-6)) for name, group in described["groups"].items()}
    assert report["metrics"]["overlap"] == pytest.approx(mean, abs=1e-6) and 0.2 < mean < 0.9999
    assert groups == of_reference and min(group["overlap"] for group in report["groups"]) == pytest.approx(lowest, abs=1e-6)
    assert report["axis"] == described["axis"]


def compare(*args):
    """Code, stdout and stderr of `mqq compare`."""
    done = subprocess.run([MQQ, "compare", *map(str, args)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def lookup(path, rows):
    """A network whose output is the row of a table that its input names."""
    return save(path, [
        helper.make_node("Cast", ["x"], ["row"], to=TensorProto.INT64),
        helper.make_node("Gather", ["rows", "row"], ["y"], axis=0),
    ], [value("x", [1])], [value("y", [1, rows.shape[1]])], {"rows": rows})


@pytest.mark.parametrize("version", [("tensorrt",), ("onnxruntime", "--effort", "0")], ids=["tensorrt", "onnxruntime"])
@pytest.mark.parametrize("model", ["digits_cnn", "digits_old"])
def test_figures_follow_their_definitions(model, version, tmp_path):
    """On the very values that ONNX Runtime computes: one that lies on another integer would be seen."""
    samples = digits("eval")[0][:N_SAMPLES]
    tables = [run(path, samples)[0] for path in (fixture(model), quantized(model, *version))]
    models = [lookup(tmp_path / f"{name}.onnx", rows) for name, rows in zip(("float", "quantized"), tables)]
    np.savez(tmp_path / "rows.npz", x=np.arange(N_SAMPLES, dtype=np.float32))
    code, stdout, stderr = compare(*models, "--data", tmp_path / "rows.npz", "--json")
    assert code == 0, stderr
    output = json.loads(stdout)["outputs"][0]
    assert output["n_samples"] == N_SAMPLES
    hold_overlap(output, *([row[None] for row in rows] for rows in tables))
    expected, found = (rows.astype(np.float64) for rows in tables)
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    metrics = output["metrics"]
    assert metrics["cosine"] == pytest.approx(((expected * found).sum(1) / norms).mean(), abs=1e-6)
    assert metrics["max-error"] == pytest.approx(np.abs(expected - found).max(), abs=1e-6)
    assert metrics["agreement"] == pytest.approx(agreement_percent(expected, found))
    assert metrics["sqnr"] == pytest.approx(sqnr_db(expected, found), abs=1e-6)
    keys = {"sqnr": "sqnr_db", "max-error": "max_difference", "agreement": "agreement_percent"}
    assert {name: output[key] for name, key in keys.items()} == {name: metrics[name] for name in keys}
    assert list(metrics) == ["overlap", "sqnr", "cosine", "agreement", "max-error"]


@pytest.mark.parametrize("axis", [2, 3])
def test_maps_have_channels_where_they_differ_most(axis, tmp_path):
    """A map of three channels, last or in the middle, one of them sparse, that is rounded to steps of 0.5."""
    rng = np.random.default_rng(5)
    shape = [1, 6, 3, 8] if axis == 2 else [1, 6, 8, 3]
    offsets = np.moveaxis(np.array([0, 30, -12], np.float32).reshape(1, 3, 1, 1), 1, axis)
    save(tmp_path / "float.onnx", [helper.make_node("Add", ["x", "offsets"], ["y"])],
         [value("x", shape)], [value("y", shape)], {"offsets": offsets})
    save(tmp_path / "q.onnx", [
        helper.make_node("Add", ["x", "offsets"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["y"]),
    ], [value("x", shape)], [value("y", shape)], {"offsets": offsets, "step": np.float32(0.5), "zero": np.int8(0)})
    (tmp_path / "data").mkdir()
    powers = np.moveaxis(np.array([1, 3, 1], np.float32).reshape(1, 3, 1, 1), 1, axis)
    samples = [{"x": rng.normal(size=shape).astype(np.float32) ** powers} for _ in range(5)]
    for i, sample in enumerate(samples):
        np.save(tmp_path / "data" / f"{i}.npy", sample["x"])
    models = [tmp_path / "float.onnx", tmp_path / "q.onnx"]
    expected, found = ([values.reshape(shape) for values in run(path, samples)[0]] for path in models)
    for given in [None, 1]:
        extra = [] if given is None else ["--channel-axis", f"y={given}"]
        report = json.loads(mqq("compare", *models, "--data", tmp_path / "data", "--json", *extra))["outputs"][0]
        assert report["axis"] == (given or axis)
        hold_overlap(report, expected, found, {} if given is None else {0: given})


DIGITS = ["--data", ROOT / "calib_data" / "eval", "--preprocess", "half", "--limit", 20]


def test_a_missed_gate_is_named():
    other = quantized("digits_cnn", "tensorrt")
    gates = ["overlap=0.99999", "cosine=0.9", "max-error=1e-3"]
    extra = [part for gate in gates for part in ("--fail-under", gate)]
    code, stdout, stderr = compare(fixture("digits_cnn"), other, *DIGITS, "--json", *extra)
    report = json.loads(stdout)
    metrics = report["outputs"][0]["metrics"]
    assert code == 3
    assert report["missed"] == [
        {"metric": name, "tensor": "logits", "value": metrics[name], "bound": bound}
        for name, bound in (("overlap", 0.99999), ("max-error", 1e-3))]
    assert stderr.splitlines() == [
        f"gate missed: output `logits`: overlap is {metrics['overlap']:.3f}, expected 0.99999 or more",
        f"gate missed: output `logits`: largest difference is {metrics['max-error']:.4f}, expected 0.001 or less"]
    code, stdout, stderr = compare(fixture("digits_cnn"), other, *DIGITS, "--quiet", *extra)
    assert code == 3 and stdout.startswith("logits: overlap ") and len(stderr.splitlines()) == 2
    code, stdout, stderr = compare(fixture("digits_cnn"), other, *DIGITS, "--quiet", "--fail-under", "overlap=0.5")
    assert (code, stdout, stderr) == (0, "", "")


def test_an_unknown_metric_is_wrong_usage():
    code, stdout, stderr = compare(fixture("digits_cnn"), fixture("digits_cnn"), *DIGITS, "--fail-under", "psnr=1")
    assert (code, stdout) == (2, "")
    names = "overlap, sqnr, cosine, agreement, top1, max-error, equal, top1-drop, top5, row-agreement, f1"
    assert f"metric `psnr` is unknown, expected one of: {names}" in stderr


def test_integer_outputs_have_the_share_of_equal_values(tmp_path):
    """Indexes and labels: their SQNR says nothing."""
    rng = np.random.default_rng(6)
    nodes = [("Conv", ["x", "w"], "c", {}), ("ArgMax", ["c"], "n_label", {"axis": 1})]
    support.save(tmp_path / "m.onnx", nodes, {"w": rng.standard_normal((8, 3, 1, 1)).astype(np.float32)}, {"x": (1, 3, 8, 8)}, ("n_label", "c"))
    samples = rng.standard_normal((12, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", samples)
    mqq("calibrate", tmp_path / "m.onnx", "-b", "tensorrt", "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx", "--effort", 0)
    code, stdout, stderr = compare(tmp_path / "m.onnx", tmp_path / "q.onnx", "--data", tmp_path / "x.npy", "--json")
    labels, values = json.loads(stdout)["outputs"]
    before, after = (run(tmp_path / name, [{"x": x[None]} for x in samples])[0] for name in ("m.onnx", "q.onnx"))
    assert code == 0 and labels["metrics"]["equal"] == pytest.approx(100 * (before == after).mean(), abs=1)
    assert 50 < labels["metrics"]["equal"] < 100 and "equal" not in values["metrics"]
