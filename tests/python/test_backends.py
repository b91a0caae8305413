"""Every built-in table on the bundled models, in ONNX and ONNX Runtime."""

import json
import re

import numpy as np
import onnx
import pytest
from expected import hold_quantized
from onnx import TensorProto, helper, numpy_helper
from support import ROOT, calibrate, digits, fixture, float_digits, mqq, quantized, run, save, sqnr_db

BACKENDS = [backend["name"] for backend in json.loads(mqq("backends", "--json"))["backends"]]


@pytest.mark.parametrize("model", ["digits_cnn", "digits_old"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_quantized_fixture_stays_close_to_float(model, backend):
    output = quantized(model, backend)
    onnx.checker.check_model(str(output), full_check=True)
    mqq("check", output, "-b", backend)
    names = lambda values: [value.name for value in values]
    assert names(onnx.load(output).graph.output) == names(onnx.load(fixture(model)).graph.output)
    samples, _ = digits("eval")
    hold_quantized("fixtures", (model, backend, ""), [float_digits(model)], output, samples, classes=True)


def test_removing_activation_functions_changes_no_bit(tmp_path):
    table, apart = tmp_path / "kept.yaml", tmp_path / "apart.yaml"
    # What a Relu makes would go on a Concat's grid where it could not be removed.
    resolved = re.sub(r"(output: act\d+\n) *constraint: same_as_output\n", r"\1", mqq("backends", "qnn-htp"))
    assert "same_as_output" not in resolved
    apart.write_text(resolved)
    resolved = resolved.splitlines(keepends=True)
    at = next(i for i, line in enumerate(resolved) if "fold_clips" in line)
    end = next(i for i in range(at + 1, len(resolved)) if not resolved[i].startswith("  ") or resolved[i].startswith("- "))
    table.write_text("".join(resolved[:at] + resolved[end:]))
    kept = calibrate(fixture("digits_cnn"), table, tmp_path / "kept.onnx")
    removed = calibrate(fixture("digits_cnn"), apart, tmp_path / "removed.onnx")
    count = lambda path: sum(n.op_type in ("Relu", "Clip") for n in onnx.load(path).graph.node)
    assert count(kept) > 5 and count(removed) == 0
    # Nothing that they left behind is unused.
    graph = onnx.load(removed).graph
    used = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= used
    samples, _ = digits("eval")
    with_them, without = run(kept, samples)[0], run(removed, samples)[0]
    assert np.array_equal(with_them, without)


def test_quantized_network_output_lies_on_its_grid():
    output = quantized("digits_cnn", "tflite")
    sidecar = json.loads(output.with_suffix(".json").read_text())
    logits = next(e for e in sidecar["activation_encodings"] if e["name"] == "logits")
    samples, _ = digits("eval")
    steps = run(output, samples)[0] / np.float32(logits["y_scale"])
    assert np.abs(steps - np.round(steps)).max() < 1e-3


# Constants of a MatMul that are no matrix on the right.
FORMS = {"batch": (3, 32, 32), "left": (32, 32), "vector": (32,)}


def products(path, form):
    """A constant of that form in a product that is quantized again and in one that is the network's output; samples."""
    rng = np.random.default_rng(5)
    # No channel is like another, so that scales per channel and for all differ.
    draw = lambda *shape: (rng.normal(size=shape) * rng.uniform(0.2, 2, shape[-1]) / 5).astype(np.float32)
    constants = {"first": draw(32, 32), "last": draw(32, 32), form: draw(*FORMS[form])}
    operands = lambda x: [form, x] if form == "left" else [x, form]
    last = ("Identity", ["s"]) if form == "vector" else ("MatMul", ["s", "last"])
    nodes = [("MatMul", ["x", "first"], "a", {}), ("Relu", ["a"], "r", {}), ("MatMul", operands("r"), "b", {}),
             ("Relu", ["b"], "s", {}), (*last, "y", {}), ("MatMul", operands("x"), "z", {})]
    save(path, nodes, constants, {"x": (3, 32, 32)}, ("y", "z"))
    return [{"x": rng.normal(size=(3, 32, 32)).astype(np.float32)} for _ in range(12)]


def quantized_products(folder, form, backend):
    """The model, the quantized one, and samples that it has not seen."""
    path, output = folder / "model.onnx", folder / "quantized.onnx"
    samples = products(path, form)
    np.save(folder / "data.npy", np.stack([sample["x"] for sample in samples[:8]]))
    mqq("calibrate", path, "-b", backend, "--data", folder / "data.npy", "-o", output, "--quiet")
    return path, output, samples[8:]


# NNIE's codes have no ONNX operator: its model stays float.
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend != "nnie"])
def test_a_product_with_another_constant_than_a_matrix_on_the_right(backend, form, tmp_path):
    """Integer kernels take no scales per channel for it, and ONNX Runtime runs no model that has some."""
    path, output, samples = quantized_products(tmp_path, form, backend)
    onnx.checker.check_model(str(output), full_check=True)
    # Some tables quantize no product.
    if any(node.op_type == "QuantizeLinear" for node in onnx.load(output).graph.node):
        mqq("check", output, "-b", backend)
    hold_quantized("products", (form, backend, ""), run(path, samples), output, samples)


def test_a_node_may_have_the_name_of_the_output(tmp_path):
    model = onnx.load(ROOT / "fixtures" / "digits_cnn.onnx")
    model.graph.node[-1].name = "logits"
    onnx.save(model, tmp_path / "named.onnx")
    output = tmp_path / "q.onnx"
    mqq("calibrate", tmp_path / "named.onnx", "-b", "tflite", "--data", ROOT / "calib_data" / "calib",
        "--preprocess", "half", "-o", output, "--limit", 4, "--quiet")
    names = [node.name for node in onnx.load(output).graph.node]
    assert len(names) == len(set(names))
    samples, _ = digits("eval")
    assert run(output, samples[:1])[0].shape == (1, 10)


def written(folder, nodes, inputs, outputs, constants):
    """A float model of these nodes, whose inputs are arrays of samples along the first axis, and its data."""
    tensors = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [value(name, [1, *x.shape[1:]]) for name, x in inputs.items()],
                              [value(name, None) for name in outputs], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    np.savez(folder / "x.npz", **inputs)


def of_samples(folder, backend, inputs):
    """SQNR of each output of a quantized model on the samples."""
    mqq("calibrate", folder / "m.onnx", "-b", backend, "--data", folder / "x.npz", "--effort", "0", "-o", folder / "q.onnx", "-q")
    samples = [{name: x[i:i + 1] for name, x in inputs.items()} for i in range(len(next(iter(inputs.values()))))]
    return [sqnr_db(*pair) for pair in zip(run(folder / "m.onnx", samples), run(folder / "q.onnx", samples))]


@pytest.mark.parametrize("backend", ["tvm", "openvino", "onnxruntime", "tensorrt", "rknn", "snpe"])
def test_a_mask_of_minus_infinity_that_more_than_a_softmax_reads(backend, tmp_path):
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [node("MatMul", ["x", "wq"], ["q"]), node("MatMul", ["x", "wk"], ["k"]), node("MatMul", ["x", "wv"], ["v"]),
             node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["s"]),
             node("Mul", ["s", "quarter"], ["scaled"]), node("Add", ["scaled", "mask"], ["masked"]),
             node("Softmax", ["masked"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["y"]), node("Exp", ["mask"], ["kept"]),
             node("Exp", ["masked"], ["weights"])]
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    inputs = {"x": rng.normal(0, 1, (8, 6, 16)).astype(np.float32), "mask": np.broadcast_to(mask, (8, 6, 6)).copy()}
    constants = {name: rng.normal(0, 0.3, (16, 16)) for name in ("wq", "wk", "wv")}
    written(tmp_path, nodes, inputs, ["y", "kept", "weights"], {"quarter": 0.25, **constants})
    y, kept, weights = of_samples(tmp_path, backend, inputs)
    assert y > 30 and kept > 100 and weights > 25, (y, kept, weights)


@pytest.mark.parametrize("backend", ["tvm", "onnxruntime", "rknn", "snpe"])
def test_a_divisor_with_values_near_zero(backend, tmp_path):
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [node("Conv", ["x", "w1"], ["a"]), node("Sigmoid", ["a"], ["s"]), node("Div", ["x", "s"], ["d"]),
             node("Mul", ["s", "s"], ["ss"]), node("Conv", ["d", "w2"], ["b"]), node("Add", ["b", "ss"], ["c"]),
             node("Conv", ["c", "w3"], ["y"])]
    inputs = {"x": rng.normal(0, 4, (8, 16, 8, 8)).astype(np.float32)}
    constants = {"w1": rng.normal(0, 0.12, (16, 16, 1, 1)), "w2": rng.normal(0, 0.5, (16, 16, 1, 1)),
                 "w3": rng.normal(0, 0.5, (16, 16, 1, 1))}
    written(tmp_path, nodes, inputs, ["y"], constants)
    assert of_samples(tmp_path, backend, inputs)[0] > 15
