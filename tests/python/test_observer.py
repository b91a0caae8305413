"""The range finder of activations is chosen by what the network makes of it."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import mqq, run, sqnr_db


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
    wide, narrow = calibration["tried_observers"]
    assert calibration["activation_observer"] == wide["observer"] == "percentile:99.999"
    assert wide["gain_db"] > 3 and narrow["gain_db"] < wide["gain_db"]
    assert report["observer"]["observer"] == "percentile:99.999"
    assert {encoding["observer"] for encoding in sidecar["activation_encodings"]} == {"percentile"}
    given, sidecar, report = quantized(folder, "given", "--observer", "mse")
    assert sidecar["calibration"]["activation_observer"] == "mse"
    assert "tried_observers" not in sidecar["calibration"] and "observer" not in report
    expected = run(folder / "peaked.onnx", others)[0]
    by_choice, by_mse = (sqnr_db(expected, run(path, others)[0]) for path in (chosen, given))
    assert by_choice > by_mse + 3, (by_choice, by_mse)


def test_it_is_a_method_and_is_not_tried_where_it_is_not_asked_for(peaked):
    folder, _ = peaked
    for name, options in [("plain", ["--effort", "0"]), ("bias", ["--methods", "bias"])]:
        _, sidecar, report = quantized(folder, name, *options)
        assert sidecar["calibration"]["activation_observer"] == "mse" and "observer" not in report
    _, sidecar, _ = quantized(folder, "alone", "--methods", "observer")
    assert sidecar["calibration"]["activation_observer"] == "percentile:99.999"
