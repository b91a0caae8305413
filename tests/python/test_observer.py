"""Observers of activations: which is chosen, what they may leave out, what they keep of a sample."""

import json
import random
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from expected import hold
from support import MQQ, mqq, run, save, sqnr_db


@pytest.fixture(scope="module")
def peaked(tmp_path_factory):
    """A network whose output is ruled by the few values that a range by squared error cuts off; samples to calibrate
    on, and others."""
    folder = tmp_path_factory.mktemp("peaked")
    rng = np.random.default_rng(3)
    weight = (rng.normal(size=(8, 8, 1, 1)) * 0.05 + np.eye(8)[:, :, None, None]).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"]),
            helper.make_node("Mul", ["a", "a"], ["b"]),
            helper.make_node("Mul", ["b", "b"], ["y"]),
        ],
        "peaked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 24, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 24, 24])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / "peaked.onnx")
    samples = [{"x": rng.laplace(size=(1, 8, 24, 24)).astype(np.float32)} for _ in range(48)]
    (folder / "data").mkdir()
    for i, sample in enumerate(samples[:24]):
        np.save(folder / "data" / f"{i:02}.npy", sample["x"])
    return folder, samples[24:]


def quantized(folder, name, *options):
    output = folder / f"{name}.onnx"
    report = mqq("calibrate", folder / "peaked.onnx", "-b", "tensorrt", "--data", folder / "data", "-o", output,
                 "--json", *options)
    sidecar = json.loads(output.with_suffix(".json").read_text())
    return output, sidecar, json.loads(report)["results"][0]["summary"]


def test_the_better_observer_is_taken(peaked):
    folder, others = peaked
    chosen, sidecar, report = quantized(folder, "chosen")
    calibration = sidecar["calibration"]
    wide, *narrow = [method for method in sidecar["methods"] if method["method"] == "observer"]
    assert calibration["activation_observer"] == wide["variant"] == "percentile:99.999"
    # The overlap of the plan is below 0.9.
    assert [other["variant"] for other in narrow] == ["percentile:99.99", "entropy"] and wide["judged"]["figures"][0] < 0.9
    assert all(other["judged"]["figures"][1] < wide["judged"]["figures"][1] for other in narrow)
    assert report["observer"] == "percentile:99.999"
    assert {encoding["observer"] for encoding in sidecar["activation_encodings"]} == {"percentile"}
    given, sidecar, report = quantized(folder, "given", "--observer", "mse")
    assert sidecar["calibration"]["activation_observer"] == "mse"
    assert not any(method["method"] == "observer" for method in sidecar["methods"]) and "observer" not in report
    expected = run(folder / "peaked.onnx", others)[0]
    by_choice, by_mse = (sqnr_db(expected, run(path, others)[0]) for path in (chosen, given))
    hold("graphs", ("peaked", "tensorrt", "", "y"), sqnr_db=by_choice)
    hold("graphs", ("peaked", "tensorrt", "gain over mse", "y"), sqnr_db=by_choice - by_mse)


def test_it_is_a_method_and_is_not_tried_where_it_is_not_asked_for(peaked):
    folder, _ = peaked
    for name, options in [("plain", ["--effort", "0"]), ("bias", ["--methods", "bias"])]:
        _, sidecar, report = quantized(folder, name, *options)
        assert sidecar["calibration"]["activation_observer"] == "mse" and "observer" not in report
    _, sidecar, _ = quantized(folder, "alone", "--methods", "observer")
    assert sidecar["calibration"]["activation_observer"] == "percentile:99.999"


def ranges(output):
    encodings = json.loads(output.with_suffix(".json").read_text())["activation_encodings"]
    return {encoding["name"]: encoding["range"] for encoding in encodings}


def test_a_moving_average_is_over_batches_and_knows_no_order(tmp_path):
    rng = np.random.default_rng(1)
    save(tmp_path / "m.onnx", [("Conv", ["x", "w"], "a", {}), ("Relu", ["a"], "b", {}), ("Conv", ["b", "w"], "y", {})],
         {"w": rng.normal(size=(4, 4, 1, 1)).astype(np.float32)}, {"x": [1, 4, 6, 6]})
    files = [tmp_path / f"{i:02}.npy" for i in range(80)]
    for file in files:
        np.save(file, (rng.lognormal() * rng.normal(size=(1, 4, 6, 6))).astype(np.float32))
    shuffled = random.Random(2).sample(files, len(files))
    lists = {"sorted": files, "shuffled": shuffled, "repeated": shuffled + files * 2, "few": files[:32]}
    for name, listed in lists.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{file}\n" for file in listed))

    def found(listed, *options, backend="mqbench-tensorrt"):
        output = tmp_path / "q.onnx"
        mqq("calibrate", tmp_path / "m.onnx", "-b", backend, "--data", tmp_path / f"{listed}.txt", "-o", output,
            "--effort", 0, "--quiet", *options)
        return ranges(output)

    by_table = found("sorted")
    assert by_table == found("sorted", "--observer", "ema") == found("sorted", "--observer", "ema:0.9:32")
    assert by_table == found("shuffled") == found("shuffled", "--threads", 1) == found("repeated")
    # Batches hold the largest of many samples; one batch holds the largest of all.
    whole, single = found("sorted", "--observer", "max"), found("sorted", "--observer", "ema:0.9:1")
    for name, (_, high) in whole.items():
        assert single[name][1] < by_table[name][1] < high
    assert found("sorted", "--observer", "ema:0.9:80") == whole
    assert found("few") == found("few", "--observer", "max")


@pytest.fixture(scope="module")
def tailed(tmp_path_factory):
    """Two outputs with a few values far out: one behind a Gemm, one that a Reshape makes of a convolution."""
    folder = tmp_path_factory.mktemp("tailed")
    rng = np.random.default_rng(4)
    save(folder / "m.onnx",
         [("Conv", ["x", "w"], "a", {}), ("Relu", ["a"], "b", {}), ("Conv", ["b", "w"], "c", {}),
          ("Reshape", ["c", "n_shape"], "moved", {}), ("GlobalAveragePool", ["b"], "p", {}), ("Flatten", ["p"], "f", {}),
          ("Gemm", ["f", "fc"], "scores", {})],
         {"w": np.eye(16, dtype=np.float32)[:, :, None, None], "n_shape": np.array([1, -1]),
          "fc": np.eye(16, dtype=np.float32)},
         {"x": [1, 16, 8, 8]}, ["moved", "scores"])
    samples = rng.laplace(size=(48, 16, 8, 8)).astype(np.float32)
    # Most images have low scores.
    samples *= np.where(np.arange(48) % 16 == 0, 20, 1).astype(np.float32)[:, None, None, None]
    np.save(folder / "x.npy", samples)
    return folder


QUANTIZED_OUTPUTS = ["snpe", "pplcuda", "pplw8a16", "stpu", "tengine", "onnx-qnn", "qnn-htp", "tflite", "rknn", "xint8", "esp-dl"]


@pytest.mark.parametrize("backend", QUANTIZED_OUTPUTS)
def test_a_quantized_output_keeps_its_largest_values_whatever_the_observer(backend, tailed, tmp_path):
    for options in [(), ("--observer", "ema:0.9:1"), ("--observer", "percentile:99"), ("--observer", "mse"),
                    ("--observer", "entropy"), ("--effort", 2, "--methods", "ranges")]:
        output = tmp_path / "q.onnx"
        mqq("calibrate", tailed / "m.onnx", "-b", backend, "--data", tailed / "x.npy", "-o", output, "--quiet",
            *(options if "--methods" in options else ("--effort", 0, *options)))
        sidecar = json.loads(output.with_suffix(".json").read_text())
        held = [e for e in sidecar["activation_encodings"] if e["name"] in ("c", "moved", "scores")]
        assert any(e.get("network_output") for e in held)
        for e in held:
            # Half a step more than the last integer still becomes it.
            low, high = (e["y_scale"] * (q + d - e["y_zero_point"]) for q, d in zip(e["q_range"], (-0.51, 0.51)))
            assert low <= e["observed"][0] and e["observed"][1] <= high, (options, e)
        if options == ("--observer", "percentile:99"):
            assert all("includes all observed values" in e["reason"] for e in held if e.get("network_output"))


# A process counts the memory of the one that started it, so a small one does.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_bytes(*args):
    """Peak resident memory of a run."""
    done = subprocess.run([sys.executable, "-c", MEASURE, MQQ, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) * 1024


@pytest.mark.parametrize("observer", ["mse", "ema"])
def test_memory_does_not_grow_with_the_number_of_samples(observer, tmp_path):
    nodes, last = [], "x"
    for k in range(12):
        nodes += [("Gemm", [last, "w"], f"g{k}", {}), ("Relu", [f"g{k}"], f"r{k}", {})]
        last = f"r{k}"
    save(tmp_path / "m.onnx", nodes, {"w": np.eye(8, dtype=np.float32)}, {"x": [1, 8]}, [last])
    # A few values, so that histograms are of one size.
    samples = np.random.default_rng(5).integers(1, 9, size=(24_000, 8)).astype(np.float32)
    peaks = []
    for n in (200, 24_000):
        np.save(tmp_path / f"{n}.npy", samples[:n])
        peaks.append(peak_bytes("calibrate", tmp_path / "m.onnx", "-b", "snpe", "--observer", observer, "--effort", 0,
                                "--data", tmp_path / f"{n}.npy", "-o", tmp_path / "q.onnx", "--quiet"))
    assert (peaks[1] - peaks[0]) / 24_000 < 100, peaks
