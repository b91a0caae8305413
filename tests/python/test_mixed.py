"""Mixed precision: what the models reach in ONNX Runtime is what was promised."""

import json

import numpy as np
import onnx
import pytest
from expected import hold_quantized
from support import ROOT, digits, float_digits, mqq, run, save, sqnr_db

FIXTURE = ROOT / "fixtures" / "digits_cnn.onnx"


def calibrate(output, backend, *extra):
    mqq("calibrate", FIXTURE, "-b", backend, "--data", ROOT / "calib_data" / "calib", "--preprocess", "half",
        "-o", output, "--quiet", *extra)
    return json.loads(output.with_suffix(".json").read_text())["mixed_precision"]


@pytest.mark.parametrize("backend, target, extra", [
    ("tensorrt", 34, ["--effort", "0"]),
    ("tensorrt", 39, []),
    ("onnxruntime", 36, []),
    ("onnxruntime", 36, ["--raise-to", "int16"]),
    ("openvino", 38, []),
])
def test_a_target_is_reached_on_unseen_images(backend, target, extra, tmp_path):
    output = tmp_path / "mixed.onnx"
    mixed = calibrate(output, backend, "--target-sqnr", target, *extra)
    onnx.checker.check_model(str(output), full_check=True)
    assert mixed["met"] and mixed["sqnr_db"] >= target
    samples, _ = digits("eval")
    expected, found = float_digits("digits_cnn"), run(output, samples)[0]
    # The judges are 28 to 32 calibration images, these are 300 others.
    assert sqnr_db(expected, found) > target - 1.0


def test_a_budget_is_kept_in_the_file(tmp_path):
    output = tmp_path / "mixed.onnx"
    mixed = calibrate(output, "onnxruntime", "--bits-budget", "5.5")
    onnx.checker.check_model(str(output), full_check=True)
    bits, n = 0, 0
    for tensor in onnx.load(output).graph.initializer:
        width = {onnx.TensorProto.INT4: 4, onnx.TensorProto.INT8: 8, onnx.TensorProto.FLOAT: 32}
        if len(tensor.dims) >= 2 and tensor.data_type in width:
            bits += width[tensor.data_type] * int(np.prod(tensor.dims))
            n += int(np.prod(tensor.dims))
    assert bits / n == pytest.approx(mixed["weight_bits"], abs=0.01) and bits / n <= 5.5
    samples, _ = digits("eval")
    hold_quantized("fixtures", ("digits_cnn", "onnxruntime", "--bits-budget 5.5"), [float_digits("digits_cnn")], output,
                   samples, classes=True)


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_first_products_of_raw_features_stay_float(backend, tmp_path):
    """A feature with a hundred times the range of the others leaves these a step or two; --rescue 0 leaves nothing float."""
    rng = np.random.default_rng(8)
    ranges = np.float32([100, 1, 1, 1, 1, 1])
    draw = lambda rows, columns: (rng.standard_normal((rows, columns)) / rows ** 0.5).astype(np.float32)
    nodes = [("MatMul", ["x", "w1"], "a", {}), ("Relu", ["a"], "b", {}), ("MatMul", ["b", "w2"], "c", {}), ("Relu", ["c"], "d", {}),
             ("MatMul", ["d", "w3"], "e", {}), ("Relu", ["e"], "f", {}), ("MatMul", ["f", "w4"], "y", {})]
    constants = {"w1": draw(6, 32) / ranges[:, None], "w2": draw(32, 64), "w3": draw(64, 64), "w4": draw(64, 2)}
    save(tmp_path / "m.onnx", nodes, constants, {"x": (16, 6)})
    np.save(tmp_path / "x.npy", rng.standard_normal((48, 16, 6)).astype(np.float32) * ranges)
    kept = lambda *options: json.loads(mqq(
        "calibrate", tmp_path / "m.onnx", "-b", backend, "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx", "--json", *options))
    tried = lambda: [method for method in json.loads((tmp_path / "q.json").read_text())["methods"] if method["method"] == "keep-first"]
    share = kept()["results"][0]["summary"]["integer_share"]
    assert tried()[0]["accepted"] and share == pytest.approx(1 - 6 * 32 / (6 * 32 + 32 * 64 + 64 * 64 + 64 * 2))
    share = kept("--rescue", 0)["results"][0]["summary"]["integer_share"]
    assert not tried() and share == 1


@pytest.mark.parametrize("backend", ["rknn", "tvm"])
def test_the_sums_of_a_stream_with_a_huge_channel_stay_float_together(backend, tmp_path):
    """No single sum gains: each of the others rounds the small channels away again."""
    rng, c = np.random.default_rng(3), 32
    draw = lambda rows, columns: (rng.standard_normal((rows, columns)) / rows ** 0.5).astype(np.float32)
    nodes, constants = [], {"gamma": np.where(np.arange(c) == 3, 0, 20).astype(np.float32), "beta": np.zeros(c, np.float32)}
    for k in range(6):
        constants[f"w{k}"] = draw(c, c)
        nodes += [("LayerNormalization", [f"s{k}" if k else "x", "gamma", "beta"], f"n{k}", {"axis": -1}),
                  ("MatMul", [f"n{k}", f"w{k}"], f"d{k}", {}), ("Relu", [f"d{k}"], f"r{k}", {}),
                  ("Add", [f"s{k}" if k else "x", f"r{k}"], f"s{k + 1}", {})]
    nodes += [("LayerNormalization", ["s6", "gamma", "beta"], "n6", {"axis": -1}), ("MatMul", ["n6", "w6"], "y", {})]
    save(tmp_path / "m.onnx", nodes, constants | {"w6": draw(c, 8)}, {"x": (1, 24, c)})
    x = rng.standard_normal((24, 24, c)).astype(np.float32)
    x[..., 3] = 400
    np.save(tmp_path / "x.npy", x)
    report = json.loads(mqq("calibrate", tmp_path / "m.onnx", "-b", backend, "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx", "--json"))
    summary = report["results"][0]["summary"]
    [rescued] = [method for method in summary["methods"] if method["method"] == "rescue"]
    assert rescued["accepted"] and summary["float_operators"] == {"Add": 6, "LayerNormalization": 7}
    assert summary["tuning"]["judged"]["figures"][1] > 0.8 and not summary["warnings"]


def test_gated_products_never_leave_the_whole_network_float(tmp_path):
    """Outputs with a scale of their own, as of a forecast: products that a Mul reads, behind which no layer is left."""
    rng = np.random.default_rng(9)
    draw = lambda rows, columns: (rng.standard_normal((rows, columns)) / rows ** 0.5).astype(np.float32)
    nodes = [("MatMul", ["x", "w1"], "a", {}), ("Relu", ["a"], "b", {}), ("MatMul", ["b", "w2"], "c", {}), ("MatMul", ["b", "w3"], "d", {}),
             ("Softplus", ["d"], "e", {}), ("Mul", ["c", "scale"], "mean", {}), ("Mul", ["e", "scale"], "deviation", {}),
             # Most of the multiply-adds, so that the first product is a small one.
             ("MatMul", ["long", "wide"], "kernel", {})]
    constants = {"w1": draw(32, 64), "w2": draw(64, 8), "w3": draw(64, 8)}
    shapes = {"x": (16, 32), "scale": (16, 1), "long": (64, 512), "wide": (512, 64)}
    save(tmp_path / "m.onnx", nodes, constants, shapes, ("mean", "deviation", "kernel"))
    sample = {name: rng.standard_normal((48, *shape)).astype(np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "x.npz", **sample | {"scale": rng.uniform(0.5, 50, (48, 16, 1)).astype(np.float32)})
    mqq("calibrate", tmp_path / "m.onnx", "-b", "onnxruntime", "--data", tmp_path / "x.npz", "-o", tmp_path / "q.onnx", "--quiet")
    sidecar = json.loads((tmp_path / "q.json").read_text())
    weights = {encoding["name"] for encoding in sidecar["param_encodings"]}
    assert {"w2", "w3"} <= weights, sidecar["methods"]


def test_a_report_has_the_sensitivity_of_each_layer(tmp_path):
    """Without a goal, `--report` measures the layers as `--keep-float 0` does; the model's bytes are the same."""
    command = ["calibrate", ROOT / "fixtures/digits_cnn.onnx", "-b", "tensorrt", "--data", ROOT / "calib_data/calib",
               "--preprocess", "half", "--limit", 16, "--methods", "none", "--quiet", "-o"]
    plain, reported, goal = (tmp_path / name for name in ("plain.onnx", "reported.onnx", "goal.onnx"))
    mqq(*command, plain)
    mqq(*command, reported, "--report", tmp_path / "report.json")
    mqq(*command, goal, "--keep-float", 0)
    sidecar = lambda path: json.loads(path.with_suffix(".json").read_text())
    assert plain.read_bytes() == reported.read_bytes() and "sensitivity" not in sidecar(plain)
    measured, expected = sidecar(reported)["sensitivity"], sidecar(goal)["mixed_precision"]["sensitivity"]
    assert [(one["layer"], one["op_type"]) for one in measured] == [(one["layer"], one["op_type"]) for one in expected]
    assert [one["sqnr_db"] for one in measured] == pytest.approx([one["sqnr_db"] for one in expected], abs=1e-6)
    sections = json.loads((tmp_path / "report.json").read_text())["sections"]
    (section,) = [section for section in sections if section["id"] == "sensitivity"]
    assert len(section["table"]["rows"]) == len(measured) >= 8
