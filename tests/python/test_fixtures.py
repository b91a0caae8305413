"""The bundled models, quantized for every backend, in ONNX and ONNX Runtime."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from expected import hold, hold_quantized
from support import ROOT, calibrate, digits, fixture, float_digits, mqq, quantized, run, sqnr_db

MODELS = ["digits_cnn", "digits_old"]
VARIANTS = [
    ("tensorrt", ["--weights", "float"]),
    ("tensorrt", ["--observer", "entropy"]),
    ("tensorrt", ["--observer", "percentile:99.9", "--weight-observer", "mse"]),
    ("onnxruntime", ["--switch", "full-range-weights", "--observer", "max"]),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend, extra", VARIANTS)
def test_options_keep_a_quantized_fixture_close_to_float(model, backend, extra):
    output = quantized(model, backend, *extra)
    onnx.checker.check_model(str(output), full_check=True)
    samples, _ = digits("eval")
    hold_quantized("fixtures", (model, backend, " ".join(extra)), [float_digits(model)], output, samples, classes=True)


@pytest.mark.parametrize("model", MODELS)
def test_sidecar_holds_what_the_model_holds(model):
    output = quantized(model, "onnxruntime")
    sidecar = json.loads(output.with_suffix(".json").read_text())
    values = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(output).graph.initializer}
    encodings = sidecar["activation_encodings"] + sidecar["param_encodings"]
    assert encodings
    for encoding in encodings:
        name = encoding["name"]
        assert np.array_equal(values[f"{name}_scale"], np.float32(encoding["y_scale"])), name
        if encoding["output_dtype"] == "int32":
            continue
        zero_point = values[f"{name}_zero_point"]
        assert zero_point.dtype == encoding["output_dtype"]
        assert np.array_equal(zero_point, encoding["y_zero_point"]), name


def test_the_model_says_who_made_it():
    output = quantized("digits_cnn", "tensorrt")
    sidecar = json.loads(output.with_suffix(".json").read_text())
    found = ort.InferenceSession(output).get_modelmeta().custom_metadata_map
    assert found == {"mqq.backend": "tensorrt", "mqq.version": sidecar["producer"]["version"]}


def test_tensorrt_model_keeps_to_the_rules_of_explicit_quantization():
    model = onnx.load(quantized("digits_cnn", "tensorrt"))
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    producers = {o: n for n in model.graph.node for o in n.output}
    kinds = [n.op_type for n in model.graph.node]
    assert kinds.count("QuantizeLinear") > 5 and kinds.count("DequantizeLinear") > 10
    assert not {"Relu", "Clip"} - set(kinds), "activation functions are never dropped"
    assert "BatchNormalization" not in kinds
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero_point = values[node.input[1]], values[node.input[2]]
            assert zero_point.dtype == np.int8 and not zero_point.any()
            assert (scale > 0).all() and np.isfinite(scale).all()
            assert scale.ndim == 0 or node.input[0] in values, "activations have one scale"
        if node.op_type in ("Conv", "Gemm") and len(node.input) > 2:
            assert node.input[2] in values, "biases stay float"
        if node.op_type == "Concat":
            pairs = [producers[name] for name in node.input]
            assert len({values[pair.input[1]].tobytes() for pair in pairs}) == 1
    for output in model.graph.output:
        assert producers[output.name].op_type != "DequantizeLinear", "the output stays float"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_preparing_leaves_the_outputs_alone(model, opset, tmp_path):
    output = tmp_path / "prepared.onnx"
    source = fixture(model)
    mqq("prepare", source, "-b", "tensorrt", "--opset", opset, "-o", output)
    onnx.checker.check_model(str(output), full_check=True)
    samples = digits("eval")[0][:20]
    for optimized in (False, True):
        expected, found = run(source, samples, optimized)[0], run(output, samples, optimized)[0]
        assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()


def test_a_table_of_ones_own_with_16_bits(tmp_path):
    table = mqq("backends", "tensorrt").replace("name: tensorrt", "name: mine")
    table = table.replace("min_opset: 13", "min_opset: 21").replace("bits: 8", "bits: 16").replace("- int8\n", "- int16\n")
    (tmp_path / "mine.yaml").write_text(table)
    source = fixture("digits_cnn")
    output = calibrate(source, tmp_path / "mine.yaml", tmp_path / "q.onnx", "--observer", "max")
    onnx.checker.check_model(str(output), full_check=True)
    sidecar = json.loads(output.with_suffix(".json").read_text())
    assert {e["output_dtype"] for e in sidecar["activation_encodings"]} == {"int16"}
    samples = digits("eval")[0][:50]
    sqnr = sqnr_db(run(source, samples)[0], run(output, samples)[0])
    hold("fixtures", ("digits_cnn", "tensorrt", "16 bits", "logits"), sqnr_db=sqnr)


def test_a_bias_that_is_left_out_by_an_empty_name(tmp_path):
    proto = onnx.load(ROOT / "fixtures" / "digits_old.onnx")
    first = next(node for node in proto.graph.node if node.op_type == "Conv")
    first.input.append("")
    onnx.save(proto, tmp_path / "empty.onnx")
    mqq("calibrate", tmp_path / "empty.onnx", "-b", "tensorrt", "--data", ROOT / "calib_data" / "calib",
        "--preprocess", "half", "--quiet")
    assert (tmp_path / "empty.tensorrt.onnx").is_file()


def test_compare_agrees_with_onnx_runtime():
    output, source = quantized("digits_cnn", "tensorrt"), fixture("digits_cnn")
    report = json.loads(mqq(
        "compare", source, output, "--data", ROOT / "calib_data" / "eval", "--preprocess", "half",
        "--labels", ROOT / "calib_data" / "eval.csv", "--json", "--quiet"))["outputs"][0]
    samples, classes = digits("eval")
    expected, found = float_digits("digits_cnn"), run(output, samples)[0]
    assert abs(report["sqnr_db"] - sqnr_db(expected, found)) < 0.5
    assert abs(report["top1_percent"][0] - 100 * np.mean(expected.argmax(1) == classes)) < 0.01


def test_the_bench_against_onnx_runtime_runs(tmp_path):
    environment = {**os.environ, "MQQ_ZOO": str(tmp_path), "ROUNDS": "1"}
    bench = [sys.executable, ROOT / "benches" / "against_onnxruntime.py"]
    done = subprocess.run(bench, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(line.endswith("x faster") for line in lines)
