"""Detectors whose last Concat joins boxes in pixels and scores: scores survive where the target runs float operators, and
are told of as lost where it joins integers."""

import json
import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support import mqq, run, save, sqnr_db

N_CLASSES, CELLS, STRIDE = 20, 8, 80
# Rows of the output: centre and size of a box in pixels, then the scores.
SCORES = slice(4, 4 + N_CLASSES)


def detector(path, has_open_batch=False):
    """Random weights; an input [1, 3, 32, 32] becomes [1, 4 + N_CLASSES, CELLS²], boxes up to 640 and more. With an open
    batch, the shapes of the Reshapes are computed."""
    rng = np.random.default_rng(5)
    layer = lambda out, of, k: (rng.standard_normal((out, of, k, k)) / (of * k * k) ** 0.5).astype(np.float32)
    grid = np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS))).reshape(1, 2, -1).astype(np.float32)
    constants = {"w1": 2 * layer(32, 3, 3), "w2": 2 * layer(32, 32, 3), "w3": layer(4, 32, 1) / 4,
                 "w4": 2 * layer(N_CLASSES, 32, 1), "b4": np.full(N_CLASSES, -1, np.float32),
                 "boxes": np.array([1, 4, -1]), "classes": np.array([1, N_CLASSES, -1]), "grid": grid,
                 "zero": np.array([0]), "two": np.array([2]), "four": np.array([4]), "one": np.array([1]),
                 "stride": np.float32(STRIDE)}
    step = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [("Conv", ["x", "w1"], "c1", step), ("Relu", ["c1"], "r1", {}),
             ("Conv", ["r1", "w2"], "c2", step), ("Relu", ["c2"], "r2", {}),
             ("Conv", ["r2", "w3"], "reg", {}), ("Conv", ["r2", "w4", "b4"], "cls", {}),
             ("Reshape", ["reg", "boxes"], "offsets", {}), ("Reshape", ["cls", "classes"], "logits", {}),
             ("Slice", ["offsets", "zero", "two", "one"], "xy", {}),
             ("Slice", ["offsets", "two", "four", "one"], "wh", {}),
             ("Add", ["xy", "grid"], "cells", {}), ("Mul", ["cells", "stride"], "centre", {}),
             ("Exp", ["wh"], "e", {}), ("Mul", ["e", "stride"], "size", {}), ("Sigmoid", ["logits"], "scores", {}),
             ("Concat", ["centre", "size", "scores"], "y", {"axis": 1})]
    if has_open_batch:
        constants |= {"minus": np.array([-1]), "n_classes": np.array([N_CLASSES])}
        nodes = [("Shape", ["x"], "shape", {}), ("Slice", ["shape", "zero", "one"], "n", {}),
                 ("Concat", ["n", "four", "minus"], "boxes", {"axis": 0}),
                 ("Concat", ["n", "n_classes", "minus"], "classes", {"axis": 0}), *nodes]
        constants = {name: value for name, value in constants.items() if name not in ("boxes", "classes")}
    save(path, nodes, constants, {"x": ("n" if has_open_batch else 1, 3, 32, 32)})
    return [{"x": rng.standard_normal((1, 3, 32, 32)).astype(np.float32)} for _ in range(24)]


def quantized(backend, folder, *options, has_open_batch=False):
    """Scores of the float and the quantized model on samples that it has not seen, and the run's warnings."""
    path, output = folder / "model.onnx", folder / "quantized.onnx"
    samples = detector(path, has_open_batch)
    np.save(folder / "data.npy", np.concatenate([sample["x"] for sample in samples[:16]]))
    effort = [] if "--effort" in options else ["--effort", 0]
    report = json.loads(mqq("calibrate", path, "-b", backend, "--data", folder / "data.npy", "-o", output, *effort,
                            "--json", *options))
    onnx.checker.check_model(str(output), full_check=True)
    scores = [run(model, samples[16:])[0].reshape(8, 4 + N_CLASSES, -1)[:, SCORES] for model in (path, output)]
    return *scores, report["results"][0]["summary"]["warnings"]


@pytest.mark.parametrize("backend", ["tensorrt", "onnxruntime", "onnxruntime-vnni", "openvino", "tvm"])
def test_scores_survive_beside_boxes_in_pixels(backend, tmp_path):
    expected, found, warnings = quantized(backend, tmp_path)
    assert expected.max() > 0.9
    assert sqnr_db(expected, found) > 25
    # The class of a cell, where one stands out.
    best = np.sort(expected, 1)
    clear = best[:, -1] - best[:, -2] > 0.1
    assert clear.sum() > 50 and (expected.argmax(1) == found.argmax(1))[clear].all()
    assert not [warning for warning in warnings if "which leaves `" in warning]


@pytest.mark.parametrize("has_open_batch", [False, True])
def test_a_target_of_integers_runs_the_tail_on_16_bits(has_open_batch, tmp_path):
    expected, found, warnings = quantized("qnn-htp", tmp_path, has_open_batch=has_open_batch)
    assert sqnr_db(expected, found) > 25 and not warnings
    graph = onnx.load(tmp_path / "quantized.onnx").graph
    producer = {name: node for node in graph.node for name in node.output}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    # The type of the zero point of the DequantizeLinear that a node reads first.
    read = lambda op: [types[producer[node.input[0]].input[2]] for node in graph.node if node.op_type == op]
    assert read("Conv") == [onnx.TensorProto.UINT8] * 4
    assert read("Sigmoid") + read("Exp") + read("Concat")[-1:] == [onnx.TensorProto.UINT16] * 3
    wider = {backend: json.loads(mqq("inspect", tmp_path / "model.onnx", "-b", backend, "--json"))["placement"]
             ["detector_tails"][0]["is_wider"] for backend in ("qnn-htp", "tflite", "tensorrt")}
    assert wider == {"qnn-htp": True, "tflite": False, "tensorrt": False}


@pytest.mark.parametrize("backend", ["tflite", "xint8", "esp-dl", "tengine"])
def test_a_target_of_integers_is_told_what_it_loses(backend, tmp_path):
    expected, found, warnings = quantized(backend, tmp_path)
    assert len(np.unique(found)) < 4
    (warning,) = [warning for warning in warnings if "which leaves `" in warning]
    assert "make the two separate outputs of the model" in warning
    assert "tensors `scores` (" in warning
    # Only tengine runs float operators.
    assert ("keep `Concat_15` float with --exclude" in warning) == (backend == "tengine")
    assert "`centre` (" in warning or "`size` (" in warning


def test_the_outputs_of_the_warning_keep_the_scores(tmp_path):
    expected, _, warnings = quantized("tflite", tmp_path)
    (outputs,) = {word for warning in warnings for word in re.findall(r"\(--outputs ([^)]+)\)", warning)}
    assert outputs == "centre,size,scores"
    mqq("calibrate", tmp_path / "model.onnx", "-b", "tflite", "--data", tmp_path / "data.npy", "-o",
        tmp_path / "quantized.onnx", "--effort", 0, "--outputs", outputs)
    head, tail = (ort.InferenceSession(tmp_path / f"quantized{kind}.onnx", providers=["CPUExecutionProvider"])
                  for kind in ("", ".tail"))
    names = [output.name for output in head.get_outputs()]
    found = []
    for sample in detector(tmp_path / "model.onnx")[16:]:
        cut = dict(zip(names, head.run(None, sample)))
        found.append(tail.run(None, {entry.name: cut[entry.name] for entry in tail.get_inputs()})[0][0, SCORES])
    assert sqnr_db(expected, np.stack(found)) > 20


HEAD = """task: detect
boxes: { output: 0, axis: 1, columns: [0, 4] }
form: cxcywh
scores: { output: 0, axis: 1, columns: [4, 24] }
threshold: 0.5
nms: 0.6
"""


def test_a_detector_without_scores_gets_wider_types(tmp_path):
    (tmp_path / "head.yaml").write_text(HEAD)
    options = ["--effort", 1, "--head", tmp_path / "head.yaml"]
    expected, found, warnings = quantized("tflite", tmp_path, *options)
    assert sqnr_db(expected, found) > 25
    broken, lost = warnings[:2]
    assert broken.startswith("`tflite` destroys the accuracy (F1 0.000): `tflite-16x8`, which has wider types, is used instead")
    assert lost.startswith("with `tflite`, tensors `scores` (")
    *_, warnings = quantized("tflite", tmp_path, *options, "--rescue", 0)
    assert any("are far from the float ones: F1 0.000 (" in warning for warning in warnings)


@pytest.mark.parametrize("way_out", [["qnn-htp-a16"]] + [[name, "--exclude", "Concat_15"] for name in ("qnn-htp", "tengine")],
                         ids=["16 bits", "exclude, qnn-htp", "exclude, tengine"])
def test_the_ways_out_keep_the_scores(way_out, tmp_path):
    backend, *options = way_out
    expected, found, warnings = quantized(backend, tmp_path, *options)
    assert sqnr_db(expected, found) > 25
    assert not [warning for warning in warnings if "which leaves `" in warning]
