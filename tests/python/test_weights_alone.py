"""Weights alone and dynamic products in ONNX Runtime: what is stored means the same in every form, and kernels take it."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from support import mqq, run, save, session, sqnr_db

TABLES = ["weight-only-int8", "weight-only-int4", "onnxruntime-nbits", "onnxruntime-dynamic"]


def network_of(folder, depth, width):
    """Three products of one tensor, and a Gemm either way round; the folder of the model, and samples."""
    rng = np.random.default_rng(3)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32) / np.sqrt(shape[0], dtype=np.float32)
    nodes = [("MatMul", ["x", f"w{k}"], k, {}) for k in "qkv"]
    nodes += [
        ("Add", ["q", "k"], "s", {}), ("Mul", ["s", "v"], "m", {}),
        ("Gemm", ["m", "wa", "ba"], "g", {"transB": 1}), ("Relu", ["g"], "r", {}), ("Gemm", ["r", "wb"], "y", {}),
    ]
    constants = {f"w{k}": normal(depth, width) for k in "qkv"}
    constants |= {"wa": normal(depth, width), "ba": normal(depth), "wb": normal(depth, 40)}
    save(folder / "float.onnx", nodes, constants, {"x": [8, depth]})
    return folder, [{"x": rng.normal(size=(8, depth)).astype(np.float32)} for _ in range(16)]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """One with blocks that are not full."""
    return network_of(tmp_path_factory.mktemp("weights_alone"), 72, 48)


def calibrated(network, backend, *options):
    folder, _ = network
    output = folder / ("_".join(map(str, [backend, *options])).replace("/", "_") + ".onnx")
    mqq("calibrate", folder / "float.onnx", "-b", backend, "-o", output, "--quiet", *options)
    return output


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


@pytest.mark.parametrize("backend, lowest", list(zip(TABLES, [36, 15, 16, 28])))
def test_every_form_runs_and_stays_close_to_float(network, backend, lowest):
    folder, samples = network
    output = calibrated(network, backend)
    expected = run(folder / "float.onnx", samples)[0]
    for optimized in (False, True):
        found = sqnr_db(expected, run(output, samples, optimized)[0])
        assert found > lowest, (optimized, found)
    mqq("check", output, "-b", backend)
    # The engine of `mqq compare` runs it, too.
    np.save(folder / "data.npy", samples[0]["x"][None])
    mqq("compare", folder / "float.onnx", output, "--data", folder / "data.npy")
    sidecar = json.loads(output.with_suffix(".json").read_text())
    assert [e["name"] for e in sidecar["param_encodings"]] == ["wq", "wk", "wv", "wa", "wb"]
    assert sidecar["activation_encodings"] == []


@pytest.mark.parametrize("options", [(), ("--switch", "symmetric")])
def test_nbits_and_dequantize_linear_are_the_same_weights(network, options):
    _, samples = network
    blocks = calibrated(network, "onnxruntime-nbits", "--set", "weight_storage.nbits.accuracy_level=0", *options)
    fast = calibrated(network, "onnxruntime-nbits", *options)
    dequantized = calibrated(network, "onnxruntime-nbits", "--weights", "integer", *options)
    operators = lambda path: {node.op_type for node in onnx.load(path).graph.node}
    assert "MatMulNBits" in operators(blocks) and "MatMulNBits" not in operators(dequantized)
    expected = run(dequantized, samples)[0]
    assert sqnr_db(expected, run(blocks, samples)[0]) > 100
    assert cosine(expected, run(fast, samples)[0]) > 0.99


def test_dynamic_products_are_fused(network):
    folder, _ = network
    output = calibrated(network, "onnxruntime-dynamic")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(str(output), options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]
    # One for the three that read `x`; the two Gemms have theirs within.
    assert operators.count("DynamicQuantizeLinear") == 1
    assert operators.count("MatMulIntegerToFloat") == 3 and operators.count("DynamicQuantizeMatMul") == 2
    assert "MatMulInteger" not in operators


def test_dynamic_products_compute_what_onnx_says(network):
    folder, samples = network
    output = calibrated(network, "onnxruntime-dynamic")
    model = onnx.load(output)
    initializers = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    x, scale = samples[0]["x"], initializers["wq_scale"]
    step = np.float32((max(x.max(), 0) - min(x.min(), 0)) / 255)
    zero = np.clip(np.round(-min(x.min(), 0) / step), 0, 255)
    integers = np.clip(np.round(x / step) + zero, 0, 255) - zero
    expected = integers @ initializers["wq_QuantizeLinear"].astype(np.float64) * step * scale
    model.graph.output.append(onnx.helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT, None))
    onnx.save(model, folder / "watched.onnx")
    found = session(folder / "watched.onnx", False).run(["q"], samples[0])[0]
    assert sqnr_db(expected.astype(np.float32), found) > 55


@pytest.mark.parametrize("backend", TABLES)
def test_data_do_no_harm(network, backend):
    folder, samples = network
    (folder / "samples").mkdir(exist_ok=True)
    for i, sample in enumerate(samples):
        np.save(folder / "samples" / f"{i}.npy", sample["x"])
    expected = run(folder / "float.onnx", samples)[0]
    reached = [sqnr_db(expected, run(calibrated(network, backend, *options), samples)[0])
               for options in ((), ("--data", folder / "samples"))]
    assert reached[1] > reached[0] - 0.5, reached


def test_without_data_a_line_says_what_data_would_bring(network, tmp_path):
    command = ["calibrate", network[0] / "float.onnx", "-b", "weight-only-int8", "-o", tmp_path / "q.onnx"]
    assert "  not measured: with --data, " in mqq(*command, "--effort", 0)
    np.save(tmp_path / "x.npy", np.stack([sample["x"] for sample in network[1]]))
    assert "  not measured: with --data, " not in mqq(*command, "--data", tmp_path / "x.npy")
