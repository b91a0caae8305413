"""Graphs that the engine takes only with help."""

import json

import numpy as np
import pytest
from onnx import TensorProto
from expected import hold_quantized
from support import mqq, run, save

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
