"""`mqq eval` against numpy on the outputs of ONNX Runtime, and its gates."""

import json
import subprocess

import numpy as np
import pytest
from support import MQQ, ROOT, digits, fixture, float_digits, mqq, quantized, run

LABELS = ["--labels", ROOT / "calib_data" / "eval.csv"]
DATA = ["--data", ROOT / "calib_data" / "eval", "--preprocess", "half"]


def evaluated(model, *args):
    done = subprocess.run([MQQ, "eval", model, *map(str, DATA), *map(str, args), "--json"], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("is_float", [True, False])
def test_figures_are_those_of_numpy(is_float):
    model = fixture("digits_cnn") if is_float else quantized("digits_cnn", "onnxruntime", "--effort", 0)
    samples, labels = digits("eval")
    outputs = float_digits("digits_cnn") if is_float else run(model, samples)[0]
    code, report, _ = evaluated(model, *LABELS)
    [output] = report["outputs"]
    one = 100 / len(labels) + 1e-9
    assert code == 0 and report["n_samples"] == len(labels) and "non_finite" not in output
    assert output["top1_percent"] == pytest.approx(100 * np.mean(outputs.argmax(1) == labels), abs=one)
    five = np.argsort(-outputs, axis=1, kind="stable")[:, :5]
    assert output["top5_percent"] == pytest.approx(100 * np.mean((five == labels[:, None]).any(1)), abs=one)
    step = 1e-4 if is_float else 0.5
    assert output["range"] == pytest.approx([outputs.min(), outputs.max()], abs=step)
    counts = np.bincount(outputs.argmax(1), minlength=10)
    assert {int(k): v for k, v in output["classes"].items()} == pytest.approx(
        {k: 100 * n / len(labels) for k, n in enumerate(counts) if n}, abs=one)


def test_without_labels_there_is_no_accuracy():
    code, report, _ = evaluated(fixture("digits_cnn"))
    [output] = report["outputs"]
    assert code == 0 and "top1_percent" not in output and "top5_percent" not in output
    assert output["n_classes"] == 10 and sum(output["classes"].values()) == pytest.approx(100)
    printed = mqq("eval", fixture("digits_cnn"), *DATA)
    assert printed.startswith("logits: ") and "of 10 classes found, most often" in printed and len(printed.splitlines()) == 1


@pytest.mark.parametrize("gate, code", [("top1=95", 0), ("top1=99.9", 3), ("top5=99.9", 0), ("coco-map=0.1", 3)])
def test_gates(gate, code):
    ended, report, errors = evaluated(fixture("digits_cnn"), *LABELS, "--fail-under", gate)
    assert ended == code, errors
    assert [missed["metric"] for missed in report["missed"]] == ([gate.split("=")[0]] if code else [])
    assert ("gate missed: " in errors) == (code == 3)


def test_labels_that_are_numbered_from_another_class_are_a_warning(tmp_path):
    lines = (ROOT / "calib_data" / "eval.csv").read_text().splitlines()
    split = [line.rsplit(",", 1) for line in lines]
    shifted = [f"{ROOT / 'calib_data' / name},{max(int(label) - 1, 0)}" if label.strip().isdigit() else f"{name},{label}"
               for name, label in split]
    (tmp_path / "shifted.csv").write_text("\n".join(shifted) + "\n")
    code, report, _ = evaluated(fixture("digits_cnn"), "--labels", tmp_path / "shifted.csv")
    [warning] = report["warnings"]
    assert code == 0 and "and the label plus 1 in " in warning and "background" in warning
    _, report, _ = evaluated(fixture("digits_cnn"), *LABELS)
    assert report["warnings"] == []


def test_a_metric_of_two_models_is_no_gate():
    ended, report, _ = evaluated(fixture("digits_cnn"), *LABELS, "--fail-under", "sqnr=20")
    assert ended == 2 and "`sqnr` compares two models, expected one of top1, top5, coco-map" in report["error"]
