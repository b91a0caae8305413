"""Attention with masks, and positions that are computed: grids must leave alone what they say."""

import functools
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from expected import hold, hold_quantized
from support import mqq, run, save, sqnr_db

N, C = 24, 32  # Positions and channels.
LOWEST = float(np.finfo(np.float32).min)
# Tables that quantize the sum of scores and mask, with scales of any size and powers of two, zero points and none.
BACKENDS = ["onnxruntime", "openvino", "qnn-htp", "tflite", "xint8"]


def attention(path, mask, variant):
    """One head over `x` [1, N, C] whose scores see `mask` at the positions that a sample's `n_kept` leaves out."""
    rng = np.random.default_rng(3)
    draw = lambda *shape: (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
    constants = {"wq": 2 * draw(C, C), "wk": 2 * draw(C, C), "wv": draw(C, C), "root": np.float32(C ** 0.5),
                 "none": np.float32(0), "one": np.float32(1), "mask": np.float32(mask), "positions": np.arange(N).reshape(1, 1, N),
                 "causal": np.triu(np.full((1, N, N), mask, np.float32), 1)}
    add = [("Less", ["positions", "n_kept"], "kept", {}),
           ("Where", ["kept", "none", "mask"], "added", {}),
           ("Add", ["scaled", "added"], "masked", {})]
    left_out = [add[0], ("Cast", ["kept"], "ones", {"to": TensorProto.FLOAT}), ("Sub", ["one", "ones"], "left", {})]
    variants = {
        "added": add,
        "product": [*left_out, ("Mul", ["left", "mask"], "added", {}), add[2]],
        "filled": [*left_out, ("Cast", ["left"], "out", {"to": TensorProto.BOOL}),
                   ("Where", ["out", "mask", "left"], "added", {}), add[2]],
        "chosen": [add[0], ("Where", ["kept", "scaled", "mask"], "masked", {})],
        "constant": [("Add", ["scaled", "causal"], "masked", {})],
    }
    nodes = [("MatMul", ["x", "wq"], "q", {}), ("MatMul", ["x", "wk"], "k", {}), ("MatMul", ["x", "wv"], "v", {}),
             ("Transpose", ["k"], "kt", {"perm": [0, 2, 1]}), ("MatMul", ["q", "kt"], "scores", {}),
             ("Div", ["scores", "root"], "scaled", {}), *variants[variant],
             ("Softmax", ["masked"], "weights", {"axis": -1}), ("MatMul", ["weights", "v"], "y", {})]
    inputs = {"x": (1, N, C)}
    if variant != "constant":
        inputs["n_kept"] = (1, 1, 1)
    else:
        constants.pop("positions")
    save(path, nodes, constants, inputs)
    sample = lambda k: {"x": rng.standard_normal((1, N, C)).astype(np.float32), "n_kept": np.full((1, 1, 1), 5 + k % 15)}
    return [{name: value for name, value in sample(k).items() if name in inputs} for k in range(24)]


def quantized_db(mask, variant, backend, folder):
    """SQNR in dB of the quantized model on samples that it has not seen."""
    path, output = folder / "model.onnx", folder / "quantized.onnx"
    samples = attention(path, mask, variant)
    for k, sample in enumerate(samples[:16]):
        np.savez(folder / f"{k:02}.npz", **sample)
    report = json.loads(mqq("calibrate", path, "-b", backend, "--data", folder, "-o", output, "--effort", 0, "--json"))
    assert not report["results"][0]["summary"]["warnings"], report
    onnx.checker.check_model(str(output), full_check=True)
    return sqnr_db(run(path, samples[16:])[0], run(output, samples[16:])[0])


@pytest.fixture(scope="module")
def unmasked_db(tmp_path_factory):
    """The same where the mask is 0."""
    return functools.cache(lambda *case: quantized_db(0, *case, tmp_path_factory.mktemp("unmasked")))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", ["added", "chosen", "constant"])
@pytest.mark.parametrize("mask", [-100, -1e4, LOWEST, -np.inf])
def test_a_mask_costs_no_more_than_its_absence(mask, variant, backend, unmasked_db, tmp_path):
    found = quantized_db(mask, variant, backend, tmp_path)
    assert found > unmasked_db(variant, backend) - 6
    hold("graphs", (f"attention with a mask {variant}", backend, "", "y"), sqnr_db=found)


@pytest.mark.parametrize("backend", [*BACKENDS, "esp-dl"])
@pytest.mark.parametrize("variant", ["product", "filled"])
@pytest.mark.parametrize("mask", [-1e4, LOWEST])
def test_a_mask_of_transformers_library(mask, variant, backend, unmasked_db, tmp_path):
    """1 - mask, times the lowest float or replaced by it: a rounded scale of the lowest float makes it infinite, and the product NaN."""
    assert quantized_db(mask, variant, backend, tmp_path) > unmasked_db(variant, backend) - 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_stay_what_they_are(backend, tmp_path):
    """Floats that become the indices of a Gather, as transformers number the positions that a mask keeps."""
    rng = np.random.default_rng(4)
    nodes = [("Cast", ["n_mask"], "mask", {"to": TensorProto.FLOAT}),
             ("CumSum", ["mask", "axis"], "counted", {}),
             ("Mul", ["counted", "mask"], "numbered", {}),
             ("Sub", ["numbered", "one"], "from_zero", {}),
             ("Add", ["from_zero", "two"], "moved", {}),
             ("Cast", ["moved"], "position", {"to": TensorProto.INT64}),
             ("Gather", ["table", "position"], "embedded", {}),
             ("MatMul", ["embedded", "w"], "y", {})]
    constants = {"axis": np.int64(1), "one": np.float32(1), "two": np.float32(2),
                 "table": rng.standard_normal((300, C)).astype(np.float32),
                 "w": (rng.standard_normal((C, C)) / 6).astype(np.float32)}
    path, output = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    save(path, nodes, constants, {"n_mask": (1, 250)})
    samples = [{"n_mask": (np.arange(250) < 100 + 9 * k)[None].astype(np.int64)} for k in range(16)]
    np.save(tmp_path / "mask.npy", np.concatenate([sample["n_mask"] for sample in samples]))
    mqq("calibrate", path, "-b", backend, "--data", tmp_path / "mask.npy", "-o", output, "--quiet", "--effort", 0)
    hold_quantized("graphs", ("positions", backend, ""), run(path, samples), output, samples)
    floats = json.loads(output.with_suffix(".json").read_text())["float_nodes"]
    assert {node["node"] for node in floats if node.get("rule") == "indices"} >= {"Mul_2", "Sub_3", "Add_4"}
