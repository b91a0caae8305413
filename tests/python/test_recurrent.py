"""Each sample begins where the model says, not where the sample before ended."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import mqq, run

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
