"""Recurrent operators: each sample begins where the model says, not where the sample before ended; values are those of
ONNX Runtime."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import mqq, run, session

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, FEATURES, HIDDEN = 6, 8, 16


def recurrent(folder, op_type, direction):
    """A recurrent layer, two linear ones behind it, and samples whose ends lie apart."""
    rng = np.random.default_rng(5)
    directions = 2 if direction == "bidirectional" else 1
    rows = GATES[op_type] * HIDDEN
    draw = lambda *shape: (rng.normal(size=shape) * 0.6).astype(np.float32)
    constants = {
        "w": draw(directions, rows, FEATURES),
        "r": draw(directions, rows, HIDDEN),
        "b": draw(directions, 2 * rows),
        "w1": draw(directions * HIDDEN, 32),
        "w2": draw(32, 8),
        "flat": np.array([STEPS, -1], np.int64),
    }
    graph = helper.make_graph(
        [
            helper.make_node(op_type, ["x", "w", "r", "b"], ["y"], hidden_size=HIDDEN, direction=direction),
            helper.make_node("Reshape", ["y", "flat"], ["f"]),
            helper.make_node("MatMul", ["f", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["a"]),
            helper.make_node("MatMul", ["a", "w2"], ["z"]),
        ],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, 1, FEATURES])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("z", "f", "a")],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / "recurrent.onnx")
    (folder / "data").mkdir()
    samples = [{"x": draw(STEPS, 1, FEATURES) * np.float32(scale)} for scale in np.linspace(0.1, 4, 12)]
    for k, sample in enumerate(samples):
        np.savez(folder / "data" / f"{k:02}.npz", **sample)
    return samples


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_samples_do_not_see_each_other(tmp_path, op_type, direction):
    samples = recurrent(tmp_path, op_type, direction)
    model, output = tmp_path / "recurrent.onnx", tmp_path / "out.onnx"
    made = []
    for threads in (1, 2):
        mqq("calibrate", model, "-b", "onnxruntime", "--data", tmp_path / "data", "-o", output, "--threads", threads)
        made.append([output.read_bytes(), output.with_suffix(".json").read_bytes()])
    assert made[0] == made[1]
    _, features, activations = run(model, samples)
    encodings = {e["name"]: e for e in json.loads(made[0][1])["activation_encodings"]}
    for name, values in {"f": features, "a": activations}.items():
        assert encodings[name]["observed"] == pytest.approx([values.min(), values.max()], rel=1e-4, abs=1e-6), name


VARIANTS = [
    ("RNN", "reverse", {}),
    ("GRU", "reverse", {}),
    ("LSTM", "reverse", {}),
    ("GRU", "bidirectional", {"linear_before_reset": 1, "lengths": True, "state": True}),
    ("GRU", "forward", {"clip": 0.5, "activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3]}),
    ("LSTM", "bidirectional", {"lengths": True, "state": True, "peepholes": True}),
    ("LSTM", "forward", {"input_forget": 1, "clip": 0.7, "peepholes": True}),
    ("LSTM", "forward", {"activations": ["Sigmoid", "LeakyRelu", "Elu"], "activation_alpha": [0.1, 0.7]}),
    ("RNN", "bidirectional", {"activations": ["Affine", "Relu"], "activation_alpha": [0.5], "lengths": True}),
]


@pytest.mark.parametrize(("op_type", "direction", "options"), VARIANTS)
def test_values_are_those_of_onnx_runtime(tmp_path, op_type, direction, options):
    """Compared with a model that returns ONNX Runtime's values as constants."""
    rng = np.random.default_rng(11)
    directions = 2 if direction == "bidirectional" else 1
    hidden, batch, rows = 9, 3, GATES[op_type] * 9
    draw = lambda *shape: (rng.normal(size=shape) * 0.7).astype(np.float32)
    constants = {"w": draw(directions, rows, FEATURES), "r": draw(directions, rows, hidden)}
    constants["b"] = draw(directions, 2 * rows)
    attributes = {key: value for key, value in options.items() if key not in ("lengths", "state", "peepholes")}
    inputs = ["x", "w", "r", "b", "", "", "", ""][: 8 if op_type == "LSTM" else 6]
    if options.get("lengths"):
        inputs[4], constants["lengths"] = "lengths", np.array([STEPS, 2, 4], np.int32)
    if options.get("state"):
        inputs[5], constants["h0"] = "h0", draw(directions, batch, hidden)
        if op_type == "LSTM":
            inputs[6], constants["c0"] = "c0", draw(directions, batch, hidden)
    if options.get("peepholes"):
        inputs[7], constants["p"] = "p", draw(directions, 3 * hidden)
    outputs = ["y", "y_h", "y_c"][: 3 if op_type == "LSTM" else 2]
    nodes = [helper.make_node(op_type, inputs, outputs, hidden_size=hidden, direction=direction, **attributes)]
    x = draw(STEPS, batch, FEATURES)
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def save(name, nodes, constants):
        tensors = [numpy_helper.from_array(values, key) for key, values in constants.items()]
        graph = helper.make_graph(nodes, name, [value("x", x.shape)], [value(o, None) for o in outputs], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.save(model, tmp_path / f"{name}.onnx")
        return tmp_path / f"{name}.onnx"

    model = save("model", nodes, constants)
    np.save(tmp_path / "x.npy", x[None])
    expected = session(model, False).run(None, {"x": x})
    zero = helper.make_node("Mul", ["x", "nothing"], ["zeros"])
    zero = [zero, helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=0)]
    moved = [helper.make_node("Add", [f"{name}_found", "zero"], [name]) for name in outputs]
    found = {f"{name}_found": values for name, values in zip(outputs, expected)}
    of_runtime = save("of_runtime", zero + moved, {"nothing": np.zeros(1, np.float32), **found})
    report = json.loads(mqq("compare", model, of_runtime, "--data", tmp_path / "x.npy", "--json"))
    for output in report["outputs"]:
        assert output["max_difference"] < 1e-5, output
