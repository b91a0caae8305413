"""`mqq doctor`: each examination finds its case, and none on the bundled model with its images."""

import json
import re
import subprocess

import numpy as np
import onnx
import pytest
import transformers
from PIL import Image
from support import MQQ, ROOT, digits, fixture, mqq, save

RNG = np.random.default_rng(0)
DIGITS = ["--data", ROOT / "calib_data" / "calib", "--preprocess", "half"]


def doctor(model, *args):
    """The report, its findings by examination, and the exit code."""
    done = subprocess.run([MQQ, "doctor", model, "--json", *map(str, args)], capture_output=True, text=True)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert "error" not in report, report
    found = {}
    for finding in report["findings"]:
        found.setdefault(finding["rule"], []).append(finding)
    assert done.returncode == (3 if any(finding["severity"] == "error" for finding in report["findings"]) else 0)
    return report, found


def results(report):
    return {examined["name"]: examined["result"] for examined in report["examined"]}


def arrays(folder, samples):
    folder.mkdir(exist_ok=True)
    for i, sample in enumerate(samples):
        np.save(folder / f"{i:03}.npy", np.asarray(sample, np.float32))
    return ["--data", folder]


def digit_arrays(n=40):
    return [sample["input"] for sample in digits("calib")[0][:n]]


def test_nothing_is_found_on_the_bundled_model_with_its_images():
    report, found = doctor(fixture("digits_cnn"), *DIGITS, "--backend", "tensorrt")
    assert found == {}
    assert set(results(report).values()) == {"nothing"}
    assert (report["n_samples"], report["n_listed"]) == (100, 100) and 0.999 < report["integer_share"] <= 1


@pytest.mark.parametrize("preset", ["unit", "raw", "imagenet", "imagenet-caffe"])
def test_wrong_preprocessing_is_named_with_the_right_one(preset):
    _, found = doctor(fixture("digits_cnn"), "--data", ROOT / "calib_data" / "calib", "--preprocess", preset, "--resize", "exact",
                      "--crop", "none")
    [finding] = found["preprocessing"]
    assert finding["severity"] == "error" and finding["tensor"] == "input"
    # The digits are nearly gray, so that the order of the channels is kept.
    assert "--scale 1/255 --mean 0.5 --std 0.5" in finding["expected"]
    assert preset == "imagenet-caffe" or "`half`" in finding["expected"]


def detector_of_digits(path):
    """The bundled network without BatchNormalization nodes, with a score and its opposite for each digit: [1, 10, 2]."""
    mqq("prepare", fixture("digits_cnn"), "-b", "tensorrt", "-o", path)
    model = onnx.load(path)
    logits = model.graph.output[0].name
    make = onnx.helper.make_node
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64([1, 10, 1]), "shape"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "one"))
    model.graph.node.extend([
        make("Sigmoid", [logits], ["scores"]), make("Reshape", ["scores", "shape"], ["column"]),
        make("Sub", ["one", "column"], ["opposite"]), make("Concat", ["opposite", "column"], ["both"], axis=2),
    ])
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("both", onnx.TensorProto.FLOAT, (1, 10, 2)))
    onnx.save(model, path)


def test_scores_of_detections_give_a_hint_only(tmp_path):
    detector_of_digits(tmp_path / "m.onnx")
    args = ["--data", ROOT / "calib_data" / "calib", "--resize", "exact", "--crop", "none"]
    report, found = doctor(tmp_path / "m.onnx", *args, "--preprocess", "raw")
    [examined] = [examined for examined in report["examined"] if examined["name"] == "preprocessing"]
    assert found == {} and examined["result"] == "unknown" and "no class scores" in examined["reason"]
    assert "--scale 1/255 --mean 0.5 --std 0.5" in examined["hint"]
    lines = mqq("doctor", tmp_path / "m.onnx", *args, "--preprocess", "raw")
    assert "hint" not in lines
    assert f"hint: preprocessing: {examined['hint']}" in mqq("doctor", tmp_path / "m.onnx", *args, "--preprocess", "raw", "--verbose")
    report, _ = doctor(tmp_path / "m.onnx", *args, "--preprocess", "half")
    assert not any("hint" in examined for examined in report["examined"])


def test_arrays_of_noise_are_no_images(tmp_path):
    noise = arrays(tmp_path / "noise", RNG.standard_normal((20, 1, 3, 32, 32)))
    _, found = doctor(fixture("digits_cnn"), *noise)
    assert found["random_data"][0]["severity"] == "error"
    uniform = tmp_path / "uniform"
    uniform.mkdir()
    for i in range(12):
        Image.fromarray(RNG.integers(0, 256, (32, 32, 3), np.uint8)).save(uniform / f"{i}.png")
    _, found = doctor(fixture("digits_cnn"), "--data", uniform)
    assert "random_data" in found
    report, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "real", digit_arrays()))
    assert "random_data" not in found and results(report)["random_data"] == "nothing"


def test_arrays_that_are_no_images_may_be_noise(tmp_path):
    """Rows of features; and what a network that removes noise reads, with a time step, is a warning."""
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(16, 4)).astype(np.float32)
    save(tmp_path / "rows.onnx", [("MatMul", ["x", "w"], "y", {})], {"w": weight}, {"x": (1, 24, 16)})
    report, found = doctor(tmp_path / "rows.onnx", *arrays(tmp_path / "rows", rng.normal(size=(20, 1, 24, 16))))
    assert "random_data" not in found and results(report)["random_data"] == "unknown"
    kernel = rng.normal(size=(3, 3, 1, 1)).astype(np.float32)
    nodes = [("Conv", ["x", "w"], "c", {}), ("Cast", ["n_step"], "s", {"to": onnx.TensorProto.FLOAT}), ("Add", ["c", "s"], "y", {})]
    save(tmp_path / "noise.onnx", nodes, {"w": kernel}, {"x": (1, 3, 16, 16), "n_step": (1,)})
    (tmp_path / "noise").mkdir()
    for i in range(16):
        np.savez(tmp_path / "noise" / f"{i:02}.npz", x=rng.normal(size=(1, 3, 16, 16)).astype(np.float32), n_step=np.int64([i]))
    _, found = doctor(tmp_path / "noise.onnx", "--data", tmp_path / "noise")
    assert found["random_data"][0]["severity"] == "warning"


@pytest.mark.parametrize("n_zero", [8, 16])
def test_a_state_is_zero_at_the_start_of_a_stream(n_zero, tmp_path):
    own = np.random.default_rng(21)
    save(tmp_path / "model.onnx", [("Add", ["x", "state"], "y", {})], {}, {"x": (1, 32), "state": (1, 32)})
    draw = lambda: own.normal(size=(1, 32)).astype(np.float32)
    for i in range(16):
        np.savez(tmp_path / f"{i:02}.npz", x=draw(), state=np.zeros((1, 32), np.float32) if i < n_zero else draw())
    _, found = doctor(tmp_path / "model.onnx", "--data", tmp_path / "*.npz")
    assert ("constant_data" in found) == (n_zero == 16)


def test_constant_and_repeated_samples(tmp_path):
    constant = [np.full((1, 3, 32, 32), value) for value in np.linspace(-1, 1, 16)]
    _, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "constant", constant))
    assert found["constant_data"][0]["severity"] == "error"
    few = [*digit_arrays(), constant[0]]
    _, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "few", few))
    assert found["constant_data"][0]["severity"] == "warning" and "040.npy" in found["constant_data"][0]["found"]
    copies = [*digit_arrays(20), *digit_arrays(4)]
    _, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "copies", copies))
    assert found["repeated_data"][0]["severity"] == "warning" and found["repeated_data"][0]["found"].startswith("4 of 24")
    _, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "one", digit_arrays(1) * 10))
    assert found["repeated_data"][0]["severity"] == "error"


def test_values_that_are_not_finite_and_files_that_cannot_be_read(tmp_path):
    samples = digit_arrays(20)
    samples[3] = samples[3].copy()
    samples[3][0, 0, :2, 0] = [np.nan, np.inf]
    data = arrays(tmp_path / "data", samples)
    (tmp_path / "data" / "100.npy").write_bytes(b"no array")
    report, found = doctor(fixture("digits_cnn"), *data)
    assert "003.npy" in found["finite_data"][0]["found"] and "2 such values" in found["finite_data"][0]["found"]
    unreadable = found["readable_data"][0]
    assert unreadable["found"].startswith("1 of 21; the first: ") and "100.npy" in unreadable["found"]
    assert (unreadable["what"], unreadable["expected"]) == ("the number of samples that cannot be read", "0")
    assert (report["n_samples"], report["n_listed"]) == (20, 21)


def test_samples_of_one_class(tmp_path):
    samples, classes = digits("calib")
    most = np.bincount(classes).argmax()
    of_class = [sample["input"] for sample, label in zip(samples, classes) if label == most]
    # Shifted copies are other samples of the class.
    shifted = [np.roll(sample, shift, 3) for sample in of_class for shift in (0, 1)]
    report, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "one", shifted))
    assert len(shifted) >= 12 and f"class {most} for all {len(shifted)} samples" in found["one_class"][0]["found"]
    report, _ = doctor(fixture("digits_cnn"), *arrays(tmp_path / "few", shifted[:5]))
    assert results(report)["one_class"] == "unknown"


def test_the_task_tells_what_values_leave_open(tmp_path):
    weight = RNG.normal(size=(27, 6)).astype(np.float32) / 100
    save(tmp_path / "m.onnx", [("Flatten", ["x"], "f", {}), ("Gemm", ["f", "w", "b"], "y", {})],
         {"w": weight, "b": np.float32([0, 0, 0.5, 0, 0, 0])}, {"x": (1, 3, 3, 3)})
    data = arrays(tmp_path / "data", RNG.normal(size=(20, 1, 3, 3, 3)))
    report, _ = doctor(tmp_path / "m.onnx", *data)
    [reason] = [examined["reason"] for examined in report["examined"] if examined["name"] == "one_class"]
    assert reason == "the outputs are not taken as class scores; --task classify says that they are"
    _, found = doctor(tmp_path / "m.onnx", *data, "--task", "classify")
    assert "class 2 for all 20 samples" in found["one_class"][0]["found"]
    # Of equal scores the first counts, as in `compare`.
    save(tmp_path / "equal.onnx", [("Flatten", ["x"], "f", {}), ("Gemm", ["f", "w", "b"], "y", {})],
         {"w": 0 * weight, "b": np.float32([0, 0, 0.5, 0.5, 0, 0])}, {"x": (1, 3, 3, 3)})
    _, found = doctor(tmp_path / "equal.onnx", *data, "--task", "classify")
    assert "class 2 for all 20 samples" in found["one_class"][0]["found"]
    report, _ = doctor(fixture("digits_cnn"), *DIGITS, "--task", "embed")
    assert results(report)["one_class"] == "unknown"


def test_too_few_samples_and_how_many_are_enough(tmp_path):
    _, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "few", digit_arrays(15)))
    assert found["enough_data"][0]["severity"] == "warning" and found["enough_data"][0]["found"] == "15"
    # A single sample in a hundred holds the largest values.
    rare = [0.01 * sample for sample in digit_arrays(39)]
    _, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "rare", [*rare, digit_arrays(40)[39]]))
    growing = found["enough_data"][0]
    assert "half of the 40 samples give a clearly narrower range" in growing["what"] and growing["expected"] == "10 % or less"
    assert growing["hint"] == "the ranges still grow: use more samples"
    report, found = doctor(fixture("digits_cnn"), *DIGITS)
    assert "enough_data" not in found
    ranges = report["ranges_by_samples"]
    assert [entry["n_samples"] for entry in ranges] == [1, 3, 6, 12, 25, 50, 100]
    shares = [entry["share"] for entry in ranges]
    assert shares == sorted(shares) and shares[0] < 0.7 and shares[-1] == 1


def test_how_many_samples_the_ranges_of_a_backend_need(tmp_path):
    report, found = doctor(fixture("digits_cnn"), *DIGITS, "-b", "tensorrt", "--until-stable")
    until_stable = report["until_stable"]
    assert until_stable["is_stable"] and until_stable["n_samples"] < until_stable["n_listed"] == 100
    assert [entry["n_samples"] for entry in until_stable["rounds"]][:3] == [16, 32, 64]
    assert "enough_data" not in found
    # The largest values come last in the order in which samples are taken.
    n, growing = 40, digit_arrays(40)
    order = sorted(range(n), key=lambda i: i * 0x9E3779B97F4A7C15 % 2**64)
    for rank, position in enumerate(order):
        growing[position] = growing[position] * 1.2**rank
    report, found = doctor(fixture("digits_cnn"), *arrays(tmp_path / "growing", growing), "-b", "tensorrt", "--until-stable")
    assert not report["until_stable"]["is_stable"] and report["until_stable"]["rounds"][-1]["n_changed"] > 0
    assert "from 32 to 40 still changed" in found["enough_data"][0]["found"]
    done = subprocess.run([MQQ, "doctor", fixture("digits_cnn"), *DIGITS, "--until-stable"], capture_output=True, text=True)
    assert done.returncode == 2 and "--backend" in done.stderr


def chain(path, weights, relu=True):
    """Convolutions with these weights, each followed by a Relu."""
    nodes, constants, last = [], {}, "x"
    for i, weight in enumerate(weights):
        constants[f"w{i}"] = np.asarray(weight, np.float32)
        nodes.append(("Conv", [last, f"w{i}"], f"c{i}", {"kernel_shape": list(weight.shape[2:]), "pads": [1] * 4}))
        nodes.append(("Relu", [f"c{i}"], f"r{i}", {}))
        last = f"r{i}"
    save(path, nodes[:-1], constants, {"x": [1, weights[0].shape[1], 16, 16]}, [nodes[-2][2]])
    return path


def weights(*channels):
    return [RNG.normal(size=(n_out, n_in, 3, 3)) / 3 / n_in for n_in, n_out in zip(channels, channels[1:])]


def smooth(n, channels):
    """Maps whose neighbours are alike."""
    noise = RNG.normal(size=(n, 1, channels, 16, 16))
    return np.cumsum(np.cumsum(noise, 3), 4) / 8


def test_weights_that_no_grid_holds(tmp_path):
    first, second, third = weights(3, 8, 8, 8)
    second[:3] = 0
    third[4] = 1e-40
    path = chain(tmp_path / "m.onnx", [first, second, third])
    _, found = doctor(path)
    assert [finding["tensor"] for finding in found["dead_weights"]] == ["w1"] and "3 of 8" == found["dead_weights"][0]["found"]
    assert [finding["tensor"] for finding in found["subnormal_weights"]] == ["w2"]
    first[0, 0, 0, 0] = np.nan
    _, found = doctor(chain(tmp_path / "nan.onnx", [first, second, third]))
    assert found["finite_weights"][0]["severity"] == "error" and found["finite_weights"][0]["node"] == "Conv_0"


def test_channels_that_are_dead_or_outliers(tmp_path):
    first, second, third = weights(3, 8, 8, 8)
    # Three channels are below 0 everywhere, and one is far wider than the others.
    first[:3] = -np.abs(first[:3])
    second[5] *= 300
    data = arrays(tmp_path / "data", np.abs(smooth(16, 3)))
    path = chain(tmp_path / "m.onnx", [first, second, third])
    _, found = doctor(path, *data, "--backend", "onnx-qnn")
    assert [(finding["tensor"], finding["found"]) for finding in found["dead_channels"]] == [("r0", "3 of 8")]
    assert [finding["tensor"] for finding in found["outlier_channels"]] == ["r1"]
    assert [finding["tensor"] for finding in found["outlier_weights"]] == ["w1"]
    # Scales per channel hold such weights, and layers that stay float, as those of few channels, need no levels.
    _, found = doctor(path, *data, "--backend", "tensorrt")
    assert "outlier_weights" not in found and "outlier_channels" not in found
    assert [finding["tensor"] for finding in doctor(path, *data)[1]["outlier_channels"]] == ["r1"]


def test_positions_are_no_channels(tmp_path):
    (weight,) = weights(3, 8)
    wide = smooth(16, 3)
    wide[..., 0, 0] *= 1e4
    nodes = [("Conv", ["x", "w"], "c", {"kernel_shape": [3, 3], "pads": [1] * 4}), ("Flatten", ["c"], "f", {}),
             ("Gemm", ["f", "g"], "y", {})]
    constants = {"w": weight.astype(np.float32), "g": RNG.normal(size=(8 * 256, 10)).astype(np.float32)}
    save(tmp_path / "m.onnx", nodes, constants, {"x": [1, 3, 16, 16]}, ["y"])
    _, found = doctor(tmp_path / "m.onnx", *arrays(tmp_path / "data", wide), "--backend", "onnx-qnn")
    assert "outlier_channels" not in found


def detector(path):
    """Boxes in pixels and scores, joined."""
    shape = np.array([1, 4, 256], np.int64)
    nodes = [
        ("Conv", ["x", "w"], "c", {"kernel_shape": [3, 3], "pads": [1] * 4}), ("Relu", ["c"], "r", {}),
        ("Conv", ["r", "wb"], "cb", {"kernel_shape": [1, 1]}), ("Conv", ["r", "ws"], "cs", {"kernel_shape": [1, 1]}),
        ("Reshape", ["cb", "shape"], "fb", {}), ("Reshape", ["cs", "shape"], "fs", {}),
        ("Exp", ["fb"], "eb", {}), ("Mul", ["eb", "stride"], "boxes", {}), ("Sigmoid", ["fs"], "scores", {}),
        ("Concat", ["boxes", "scores"], "y", {"axis": 1})]
    of = lambda *dims: (RNG.normal(size=dims) / 3).astype(np.float32)
    constants = {"w": of(8, 3, 3, 3), "wb": of(4, 8, 1, 1), "ws": of(4, 8, 1, 1), "shape": shape, "stride": np.float32(32)}
    save(path, nodes, constants, {"x": [1, 3, 16, 16]}, ["y"])
    return path


def test_a_tail_that_joins_boxes_with_scores(tmp_path):
    path, data = detector(tmp_path / "m.onnx"), arrays(tmp_path / "data", smooth(12, 3))
    _, found = doctor(path, *data)
    assert "boxes" in found["mixed_units"][0]["found"] and "--backend" in found["mixed_units"][0]["hint"]
    # An integer-only target quantizes it; the hint's cut is one that the program takes.
    _, found = doctor(path, *data, "--backend", "qnn-htp")
    hint = found["mixed_units"][0]["hint"]
    mqq("calibrate", path, "-b", "qnn-htp", *data, "--effort", 0, "--outputs", re.search(r"--outputs (\S+),? and", hint)[1].rstrip(","),
        "--out-dir", tmp_path / "out")
    _, found = doctor(path, *data, "--backend", "tensorrt")
    assert "mixed_units" not in found


def test_layers_and_islands_that_stay_float(tmp_path):
    nodes = [
        ("Conv", ["x", "w0"], "c", {"kernel_shape": [3, 3], "pads": [1] * 4}), ("Softmax", ["c"], "e", {"axis": 1}),
        ("Conv", ["e", "w1"], "y", {"kernel_shape": [3, 3], "pads": [1] * 4})]
    first, second = (weight.astype(np.float32) for weight in weights(3, 16, 16))
    save(tmp_path / "m.onnx", nodes, {"w0": first, "w1": second}, {"x": [1, 3, 16, 16]}, ["y"])
    report, found = doctor(tmp_path / "m.onnx", "--backend", "tensorrt")
    assert "float_islands" not in found and "float_operators" not in found, "no export makes a Softmax of integers"
    islands = next(examined for examined in report["examined"] if examined["name"] == "float_islands")
    assert islands["result"] == "nothing" and "is 1 (1 Softmax), with 2 conversions to float and back: rules of" in islands["hint"]
    text = mqq("doctor", tmp_path / "m.onnx", "--backend", "tensorrt")
    assert f"  information [float_islands] {islands['hint']}\n" in text
    assert "float_islands" not in re.search("nothing found for .*", text)[0]
    assert "[float_islands]" not in mqq("doctor", tmp_path / "m.onnx", "--backend", "tensorrt", "--quiet")
    assert report["integer_share"] == 1
    report, found = doctor(tmp_path / "m.onnx", "--backend", "tensorrt", "--exclude", "Conv_2")
    assert found["float_operators"][0]["found"].startswith("84 %") and abs(report["integer_share"] - 3 / 19) < 1e-9
    assert "float_islands" not in found
    first, second = (weight.astype(np.float32) for weight in weights(3, 16, 55))
    save(tmp_path / "near.onnx", nodes, {"w0": first, "w1": second}, {"x": [1, 3, 16, 16]}, ["y"])
    _, found = doctor(tmp_path / "near.onnx", "--backend", "tensorrt", "--exclude", "Conv_0")
    assert found["float_operators"][0]["found"].startswith("5.2 % (1 Conv)"), "not 5 %, expected below 5 %"
    report, _ = doctor(tmp_path / "m.onnx")
    unknown = {examined["name"]: examined["reason"] for examined in report["examined"] if examined["result"] == "unknown"}
    assert unknown["float_islands"] == "no backend is given (--backend)" and unknown["random_data"] == "no data is given (--data)"


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_a_spelled_out_activation_is_an_island_that_an_export_avoids(backend, tmp_path):
    nodes = [
        ("Conv", ["x", "w0"], "c", {"kernel_shape": [3, 3], "pads": [1] * 4}), ("Add", ["c", "three"], "shifted", {}),
        ("Clip", ["shifted", "low", "high"], "gate", {}), ("Mul", ["c", "gate"], "product", {}),
        ("Div", ["product", "high"], "e", {}), ("Conv", ["e", "w1"], "y", {"kernel_shape": [3, 3], "pads": [1] * 4})]
    first, second = (weight.astype(np.float32) for weight in weights(3, 16, 16))
    constants = {"w0": first, "w1": second, "three": np.float32(3), "low": np.float32(0), "high": np.float32(6)}
    save(tmp_path / "m.onnx", nodes, constants, {"x": [1, 3, 16, 16]}, ["y"])
    _, found = doctor(tmp_path / "m.onnx", "--backend", backend)
    assert found["float_islands"][0]["expected"] == "0"
    assert "; an export with HardSwish or HardSigmoid as one operator takes fewer" in found["float_islands"][0]["hint"]


def test_the_table_of_transformers_leaves_islands_by_design(tmp_path):
    transformers.vit(tmp_path / "m.onnx", 11, "spelled", "sigmoid", False)
    report, found = doctor(tmp_path / "m.onnx", "--backend", "tensorrt")
    assert report["integer_share"] > 0.9 and "float_islands" not in found


def test_operators_that_onnxruntime_computes_in_float_or_removes(tmp_path):
    """It has no integer ConvTranspose; a Relu behind an Add goes where the quantized range begins at 0."""
    conv = {"kernel_shape": [3, 3], "pads": [1] * 4}
    nodes = [("Conv", ["x", "w0"], "c", conv), ("Conv", ["c", "w1"], "d", conv), ("Add", ["c", "d"], "sum", {}),
             ("Relu", ["sum"], "r", {}), ("Conv", ["r", "w1"], "e", conv), ("ConvTranspose", ["e", "v"], "y", {})]
    first, second = (weight.astype(np.float32) for weight in weights(3, 16, 16))
    save(tmp_path / "m.onnx", nodes, {"w0": first, "w1": second, "v": second[:, :, :1, :1]}, {"x": [1, 3, 16, 16]}, ["y"])
    report, found = doctor(tmp_path / "m.onnx", "--backend", "onnxruntime")
    per_pixel = [9 * 3 * 16, 9 * 16 * 16, 9 * 16 * 16, 16 * 16]
    assert abs(report["integer_share"] - sum(per_pixel[:3]) / sum(per_pixel)) < 1e-9
    assert "float_islands" not in found
    report, found = doctor(tmp_path / "m.onnx", "--backend", "openvino")
    assert report["integer_share"] == 1


def test_the_report_and_the_text_have_what_the_object_has(tmp_path):
    command = [MQQ, "doctor", fixture("digits_cnn"), *map(str, DIGITS), "--preprocess", "unit"]
    command.remove("half")
    command.remove("--preprocess")
    done = subprocess.run([*command, "--report", tmp_path / "r.md"], capture_output=True, text=True)
    assert done.returncode == 3 and "error [preprocessing] `input`" in done.stdout
    page = (tmp_path / "r.md").read_text()
    assert "1 error, 0 warnings" in page and "outlier_channels" in page.replace("\\", "")
    quiet = subprocess.run([*command, "--quiet"], capture_output=True, text=True)
    assert quiet.returncode == 3 and "preprocessing" in quiet.stdout and quiet.stderr == ""


def test_the_document_lists_every_examination():
    report, _ = doctor(fixture("digits_cnn"))
    text = (ROOT / "docs" / "doctor.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (error|warning|error, warning) \| (.+?) \|", text, re.M)
    assert [row[0] for row in rows] == [examined["name"] for examined in report["examined"]]
    assert [row[2] for row in rows] == [examined["about"] for examined in report["examined"]]
