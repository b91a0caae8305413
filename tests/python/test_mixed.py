"""Mixed precision: what the models reach in ONNX Runtime is what was promised."""

import json

import numpy as np
import onnx
import pytest
from expected import hold_quantized
from support import ROOT, digits, float_digits, mqq, run, sqnr_db

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
