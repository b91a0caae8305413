"""Every symptom of docs/troubleshooting.md: it appears on the model that the page makes, and its fix removes it.

The figures here come from ONNX Runtime, not from `mqq compare`; test_documents.py runs the page's own commands.
"""

import json
import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from support import MQQ, ROOT, digits, fixture, run
from test_documents import rows, steps, text_of

DATA = ["--data", ROOT / "calib_data" / "calib", "--preprocess", "half"]


def script(name, folder, document="docs/troubleshooting.md"):
    """Runs a Python file of a document in a folder that has the bundled models and images."""
    for link in ("fixtures", "calib_data"):
        if not (folder / link).exists():
            (folder / link).symlink_to(ROOT / link)
    text = next(body for kind, head, body in steps(document) if (kind, head) == ("file", name))
    (folder / name).write_text(text)
    subprocess.run([sys.executable, name], cwd=folder, check=True)


def calibrate(model, output, backend, *options):
    """The process of `mqq calibrate` on the bundled images."""
    data = [] if "--data" in options else DATA
    command = [MQQ, "calibrate", model, "--backend", backend, *data, "-o", output, "--quiet", *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def quantized(model, output, backend, *options):
    ran = calibrate(model, output, backend, *options)
    assert ran.returncode == 0, ran.stderr
    return output


def refused(*args):
    """The error of a run that fails."""
    ran = calibrate(*args)
    assert ran.returncode == 1, ran.stderr
    return ran.stderr


def top1(path):
    samples, classes = digits("eval")
    return np.mean(run(path, samples)[0].argmax(1) == classes)


def test_wrong_preprocessing(tmp_path):
    """The quantized model is near to float on inputs that the float model cannot use, and useless on right ones."""
    wrong = quantized(fixture("digits_cnn"), tmp_path / "wrong.onnx", "onnxruntime", *DATA[:2], "--preprocess", "unit")
    right = quantized(fixture("digits_cnn"), tmp_path / "right.onnx", "onnxruntime")
    assert top1(wrong) < 0.3 and top1(right) > 0.95
    sidecar = json.loads(wrong.with_suffix(".json").read_text())
    assert "unit" in json.dumps(sidecar["calibration"]["preprocessing"])


def test_the_accuracy_fell(tmp_path):
    four = ("academic", "--set", "types.wgt.bits=4")
    fell = quantized(fixture("digits_cnn"), tmp_path / "fell.onnx", *four, "--effort", "0")
    fixed = quantized(fixture("digits_cnn"), tmp_path / "effort1.onnx", *four)
    assert top1(fell) < 0.97 < top1(fixed)


def test_top_1_collapsed(tmp_path):
    script("unequal.py", tmp_path)
    model = tmp_path / "unequal.onnx"
    assert top1(model) > 0.95
    assert top1(quantized(model, tmp_path / "plain.onnx", "tensorrt", "--effort", "0")) < 0.3
    assert top1(quantized(model, tmp_path / "fixed.onnx", "tensorrt")) > 0.95
    one = quantized(model, tmp_path / "one.onnx", "tensorrt", "--effort", "0", "--keep-float", "1")
    assert top1(one) > 0.95
    (layer,) = json.loads(one.with_suffix(".json").read_text())["mixed_precision"]["layers"]
    assert layer["layer"] == "/residual_2/residual_2.0/Conv"


def test_scores_are_all_zero(tmp_path):
    script("detector.py", tmp_path)
    samples = [{"image": sample["input"]} for sample in digits("eval")[0][:20]]
    largest = lambda path: max(sample[4:].max() for sample in run(path, samples)[0].reshape(20, 6, -1))
    model = tmp_path / "detector.onnx"
    assert largest(model) > 0.9
    assert largest(quantized(model, tmp_path / "zero.onnx", "tflite", "--effort", "0")) == 0
    for backend in ("tensorrt", "tflite-16x8"):
        assert largest(quantized(model, tmp_path / f"{backend}.onnx", backend, "--effort", "0")) > 0.9, backend
    separate = quantized(tmp_path / "separate.onnx", tmp_path / "apart.onnx", "tflite", "--effort", "0")
    assert run(separate, samples)[1].max() > 0.9


@pytest.mark.parametrize("backend, on_integers", [("tensorrt", 0), ("onnxruntime", 8)])
def test_int8_is_slower_than_float(tmp_path, backend, on_integers):
    """Convolutions that ONNX Runtime runs on integers, by the table of another target and by its own."""
    model = quantized(fixture("digits_cnn"), tmp_path / "model.onnx", backend, "--effort", "0")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(model), options)
    kernels = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kernels.count("QLinearConv") == on_integers
    assert kernels.count("Conv") + kernels.count("FusedConv") == 8 - on_integers


def test_unsupported_operator(tmp_path):
    script("custom.py", tmp_path)
    model = tmp_path / "custom.onnx"
    error = refused(model, tmp_path / "q.onnx", "tensorrt")
    assert "cannot run these operators: Decide (1 node, first: `decide`)" in error
    cut = quantized(model, tmp_path / "custom.tensorrt.onnx", "tensorrt", "--effort", "0", "--outputs", "logits")
    assert top1(cut) > 0.95
    script("join.py", tmp_path)
    ops = [node.op_type for node in onnx.load(tmp_path / "joined.onnx").graph.node]
    assert ops[-1] == "Decide" and "QuantizeLinear" in ops


def test_open_shapes(tmp_path):
    script("open_size.py", tmp_path, "docs/guide.md")
    model, output = tmp_path / "open_size.onnx", tmp_path / "q.onnx"
    assert top1(quantized(model, output, "onnxruntime", "--effort", "0")) > 0.95
    assert top1(quantized(model, output, "onnxruntime", "--effort", "0", "--shape", "input=1x3x32x32")) > 0.95
    np.save(tmp_path / "calib.npy", np.concatenate([sample["input"] for sample in digits("calib")[0]]))
    arrays = quantized(model, output, "onnxruntime", "--effort", "0", "--data", tmp_path / "calib.npy")
    assert top1(arrays) > 0.95


def test_several_inputs(tmp_path):
    script("two_inputs.py", tmp_path, "docs/guide.md")
    model, output = tmp_path / "two_inputs.onnx", tmp_path / "q.onnx"
    assert "an image feeds one input, but the model takes `image`, `state`" in refused(model, output, "onnxruntime")
    data = tmp_path / "two_inputs.npz"
    arrays = np.load(data)
    samples = [{name: arrays[name][k : k + 1] for name in arrays} for k in range(16)]
    found = run(quantized(model, output, "onnxruntime", "--data", data), samples)[0]
    assert np.abs(found - run(model, samples)[0]).max() < 0.2


def test_nan_or_infinite_values(tmp_path):
    """Probabilities that round to 0 have infinite negative powers; a warning names the output from effort 1 on."""
    script("power.py", tmp_path)
    model, samples = tmp_path / "power.onnx", digits("eval")[0][:50]
    finite = lambda path: np.isfinite(run(path, samples)[0]).all()
    assert finite(model)
    assert not finite(quantized(model, tmp_path / "infinite.onnx", "tflite", "--effort", "0"))
    assert finite(quantized(model, tmp_path / "finite.onnx", "tflite", "--effort", "0", "--exclude", "Softmax"))
    command = [MQQ, "calibrate", model, "--backend", "tflite", *DATA, "--limit", "40", "-o", tmp_path / "warned.onnx"]
    warned = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert "warning: " in warned.stderr and "powers" in warned.stderr, warned.stderr

    broken = onnx.load(fixture("digits_cnn"))
    weight = next(tensor for tensor in broken.graph.initializer if tensor.name == "residual_1.0.weight")
    values = onnx.numpy_helper.to_array(weight).copy()
    values.flat[7] = np.nan
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(broken, tmp_path / "broken.onnx")
    assert "`residual_1.0.weight`" in refused(tmp_path / "broken.onnx", tmp_path / "q.onnx", "tensorrt")


def test_every_symptom_of_the_page_has_a_test():
    """`the runtime differs from the arithmetic` is in test_documents.py, as it depends on the processor, and OpenVINO's Concat in
    test_runtimes.py."""
    elsewhere = {"the_runtime_differs_from_the_arithmetic", "openvino_after_a_concat"}
    table = rows(text_of("docs/troubleshooting.md"))
    symptoms = [re.search(r"\[(.*?)\]", row[0])[1] for row in table if "](" in row[0]]
    assert len(symptoms) == 11
    for symptom in symptoms:
        name = re.sub(r"\W+", "_", symptom.lower())
        assert name in elsewhere or f"test_{name}" in globals(), symptom
