"""`mqq compare --task` against the same figures in Python (benches/tasks.py), on outputs of any network."""

import json
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import ROOT, mqq

sys.path.insert(0, str(ROOT / "benches"))
import tasks  # noqa: E402

N_SAMPLES = 6
SSD = """
boxes: {columns: {output: offsets}, form: ltrb}
priors: {columns: {output: anchors}, form: ltrb}
scores: {columns: {output: scores}, background: first}
score_threshold: 0.4
nms_iou: 0.45
"""


def hand_out(path, part, outputs, image):
    """A model whose outputs are one part of its inputs: those of the float network or of the other."""
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, image)]
    nodes = [helper.make_node("Relu", ["image"], ["seen"])]
    constants = [helper.make_tensor(name, TensorProto.INT64, [1], [value])
                 for name, value in (("start", part), ("end", part + 1), ("axis", 0))]
    for name, shape in outputs.items():
        inputs.append(helper.make_tensor_value_info(f"{name}_in", TensorProto.FLOAT, (2, *shape)))
        nodes.append(helper.make_node("Slice", [f"{name}_in", "start", "end", "axis"], [name]))
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, *shape)) for name, shape in outputs.items()]
    graph = helper.make_graph(nodes, "outputs", inputs, made, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def measured(folder, samples, size, options):
    """The figures of `mqq compare`, for samples of (outputs in float, outputs in the other) by name."""
    image = (1, 3, *size)
    for part, name in enumerate(("float.onnx", "other.onnx")):
        hand_out(folder / name, part, {name: value.shape for name, value in samples[0][0].items()}, image)
    (folder / "data").mkdir()
    for k, (float_, other) in enumerate(samples):
        both = {f"{name}_in": np.stack([float_[name], other[name]]).astype(np.float32) for name in float_}
        np.savez_compressed(folder / "data" / f"{k}.npz", image=np.zeros(image, np.float32), **both)
    report = mqq("compare", folder / "float.onnx", folder / "other.onnx", "--data", folder / "data", "--json", *options)
    (result,) = json.loads(report)["task"]["results"]
    return result


def expected(task, samples):
    counts = np.sum([tasks.TASKS[task](list(a.values()), list(b.values())) for a, b in samples], 0)
    return counts[0] / counts[1]


def noisy(values, scale, rng):
    return (values + rng.normal(0, scale, values.shape)).astype(np.float32)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_boxes_of_yolox(tmp_path, noise):
    rng = np.random.default_rng(1)
    samples = []
    for _ in range(N_SAMPLES):
        rows = np.concatenate([rng.normal(0, 1, (3549, 4)), rng.beta(0.1, 2, (3549, 1)), rng.random((3549, 5))], 1)
        samples.append(({"output": rows.astype(np.float32)}, {"output": noisy(rows, noise, rng)}))
    result = measured(tmp_path, samples, (416, 416), ["--task", "detect", "--head", "yolox"])
    assert result["n_float"] > 100
    assert result["f1"] == pytest.approx(expected("yolox_nano", samples), abs=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_boxes_of_priors(tmp_path, noise):
    rng = np.random.default_rng(2)
    samples = []
    for _ in range(N_SAMPLES):
        corner = rng.random((500, 2))
        anchors = np.concatenate([corner, corner + rng.uniform(0.05, 0.3, (500, 2))], 1).astype(np.float32)
        scores = rng.dirichlet([3, 1, 1, 1, 1], 500).astype(np.float32)
        offsets = rng.normal(0, 0.1, (500, 4)).astype(np.float32)
        other = {"scores": noisy(scores, 0.2 * noise, rng), "offsets": noisy(offsets, noise, rng), "anchors": anchors}
        samples.append(({"scores": scores, "offsets": offsets, "anchors": anchors}, other))
    (tmp_path / "ssd.yaml").write_text(SSD)
    result = measured(tmp_path, samples, (8, 8), ["--task", "detect", "--head", tmp_path / "ssd.yaml"])
    assert result["n_float"] > 100
    assert result["f1"] == pytest.approx(expected("st_ssd_mobilenet_v1_025", samples), abs=1e-9)


def test_maps_above_a_threshold(tmp_path):
    rng = np.random.default_rng(3)
    samples = []
    for _ in range(N_SAMPLES):
        values = rng.random((1, 20, 30)).astype(np.float32)
        samples.append(({"map": values}, {"map": noisy(values, 0.1, rng)}))
    result = measured(tmp_path, samples, (8, 8), ["--task", "segment", "--threshold", "0.3"])
    assert result["miou"] == pytest.approx(expected("ppocrv3_det", samples), abs=1e-9)


def test_numbers_per_channel(tmp_path):
    rng = np.random.default_rng(4)
    scale = np.float32([1, 100, 0.01])[:, None, None]
    values = rng.normal(5, 1, (N_SAMPLES, 3, 9, 7)).astype(np.float32) * scale
    others = noisy(values / scale, 0.3, rng) * scale
    samples = [({"y": a}, {"y": b}) for a, b in zip(values, others)]
    result = measured(tmp_path, samples, (8, 8), ["--task", "regress"])
    columns = lambda x: x.transpose(1, 0, 2, 3).reshape(3, -1).astype(np.float64)
    pairs = list(zip(columns(values), columns(others)))
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in pairs]
    errors = [np.sqrt(((a - b) ** 2).mean()) / a.std() for a, b in pairs]
    assert result["correlation"] == pytest.approx(np.mean(correlations), abs=1e-9)
    assert result["centred_error"] == pytest.approx(np.mean(errors), abs=1e-9)
    assert result["worst"]["channel"] == int(np.argmax(errors))


def test_neighbours(tmp_path):
    rng = np.random.default_rng(5)
    vectors = rng.normal(0, 1, (20, 8)).astype(np.float32)
    others = noisy(vectors, 0.2, rng)
    result = measured(tmp_path, [({"y": a}, {"y": b}) for a, b in zip(vectors, others)], (8, 8), ["--task", "embed"])

    def nearest(x):
        x = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        return (x @ x.T - 9 * np.eye(len(x))).argmax(1)

    kept = (nearest(vectors) == nearest(others)).mean()
    assert 0.3 < kept < 1
    assert result["neighbours"] == pytest.approx(kept, abs=1e-9)
