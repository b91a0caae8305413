"""Samples of several shapes: sentences of several lengths, pictures of several sizes."""

import json
import subprocess

import numpy as np
import onnx
import pytest
import transformers
from onnx import TensorProto, helper, numpy_helper
from support import MQQ, mqq, session

LENGTHS = [7, 8, 11, 12, 13, 19, 24, 30, 47, 60]
N_SAMPLES = 24


def sentences(folder, mask=True, order=1, n_samples=N_SAMPLES):
    """Files of one sentence each; names in the opposite order for `order` -1."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    found = []
    for k in range(n_samples):
        length = LENGTHS[k % len(LENGTHS)]
        ids = rng.integers(1, transformers.VOCABULARY, (1, length))
        kept = np.ones((1, length), np.int64)
        kept[:, length - k % 3:] = k % 3 == 0
        found.append({"input_ids": ids, "attention_mask": kept} if mask else {"input_ids": ids})
    for k, sample in enumerate(found):
        np.savez(folder / f"{k if order == 1 else n_samples - k:03}.npz", **sample)
    return found


def pictures(folder):
    """A network of convolutions for pictures of any size, and pictures of four sizes."""
    folder.mkdir()
    rng = np.random.default_rng(4)
    draw = lambda *shape: numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), f"w{len(weights)}")
    weights = []
    for shape in ((8, 3, 3, 3), (8, 8, 3, 3), (4, 8, 1, 1)):
        weights.append(draw(*shape))
    conv = lambda x, k, y, **more: helper.make_node("Conv", [x, f"w{k}"], [y], y, **more)
    nodes = [conv("picture", 0, "a", pads=[1] * 4, strides=[2, 2]), helper.make_node("Relu", ["a"], ["ra"], "ra"),
             conv("ra", 1, "b", pads=[1] * 4), helper.make_node("Relu", ["b"], ["rb"], "rb"), conv("rb", 2, "map")]
    value = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    graph = helper.make_graph(nodes, "pictures", [value("picture", ["n", 3, "h", "w"])], [value("map", ["n", 4, "h2", "w2"])],
                              weights)
    path = folder / "float.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    data = folder / "data"
    data.mkdir()
    found = []
    for k in range(16):
        height, width = [(16, 16), (20, 12), (13, 31), (32, 24)][k % 4]
        found.append({"picture": rng.normal(0, 1, (1, 3, height, width)).astype(np.float32)})
        np.save(data / f"{k:02}.npy", found[-1]["picture"])
    return path, data, found


def build(name, folder):
    """The float model, its data and samples."""
    if name == "pictures":
        return pictures(folder / "pictures")
    path = folder / "float.onnx"
    if name == "encoder":
        transformers.bert(path, 17, "operator", "erf, divided", "where")
    else:
        transformers.llama(path, operators=False)
    return path, folder / "data", sentences(folder / "data", mask=name == "encoder")


def calibrate(path, data, output, *options):
    mqq("calibrate", path, "-b", "onnxruntime", "--data", data, "-o", output, *options)
    return json.loads(output.with_suffix(".json").read_text())


@pytest.mark.parametrize("name", ["encoder", "decoder", "pictures"])
def test_observed_ranges_are_those_of_all_samples(name, tmp_path):
    path, data, samples = build(name, tmp_path)
    sidecar = calibrate(path, data, tmp_path / "out.onnx", "--effort", "0")
    assert sidecar["schema_version"] == "3.4" and sidecar["calibration"]["n_samples"] == len(samples)
    largest = {key: list(array.shape) for key, array in max(samples, key=lambda s: next(iter(s.values())).size).items()}
    assert {i["name"]: i["shape"] for i in sidecar["calibration"]["inputs"]} == largest
    for record in sidecar["calibration"]["inputs"]:
        shapes = sorted({sample[record["name"]].shape for sample in samples}, key=lambda shape: (np.prod(shape), shape))
        expected = {"n_shapes": len(shapes), "smallest": list(shapes[0]), "largest": list(shapes[-1])}
        assert record["shapes"] == expected and len(shapes) > 1
    model = onnx.load(path)
    known = {name for node in model.graph.node for name in node.output} | {i.name for i in model.graph.input}
    observed = {e["name"]: e["observed"] for e in sidecar["activation_encodings"] if e["name"] in known and e.get("observed")}
    assert len(observed) >= 3
    inputs = {i.name for i in model.graph.input}
    have = {o.name for o in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in observed if name not in have | inputs)
    onnx.save(model, tmp_path / "seen.onnx")
    runner = session(tmp_path / "seen.onnx", optimized=False)
    made = [name for name in observed if name not in inputs]
    ran = [dict(zip(made, runner.run(made, sample)), **sample) for sample in samples]
    for name, (low, high) in observed.items():
        values = [one[name] for one in ran]
        expected = [min(v.min() for v in values), max(v.max() for v in values)]
        np.testing.assert_allclose([low, high], expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["encoder", "decoder", "pictures"])
def test_all_methods_take_samples_of_several_shapes(name, tmp_path):
    path, data, samples = build(name, tmp_path)
    sidecar = calibrate(path, data, tmp_path / "out.onnx")
    assert not [warning for warning in sidecar["warnings"] if "skipped" in warning]
    assert [method for method in sidecar["methods"] if method["accepted"]]
    (output, *_) = json.loads(mqq("compare", path, tmp_path / "out.onnx", "--data", data, "--json"))["outputs"]
    # The figures are of all values of all samples.
    runs = [session(model, optimized=False) for model in (path, tmp_path / "out.onnx")]
    a, b = (np.concatenate([run.run(None, sample)[0].reshape(-1) for sample in samples]).astype(float) for run in runs)
    expected = 10 * np.log10(np.square(a).sum() / np.square(a - b).sum())
    assert output["n_samples"] == len(samples) and output["sqnr_db"] == pytest.approx(expected, abs=1)
    assert output["sqnr_db"] > 20 and 0.8 < output["metrics"]["overlap"] < 1
    # Channels are along the axis that has one length: logits by token, a map by place.
    assert output["axis"] == (1 if name == "pictures" else 2)


def test_neither_threads_nor_names_of_files_change_a_byte(tmp_path):
    path, data, _ = build("encoder", tmp_path)
    sentences(tmp_path / "turned", order=-1)
    written = []
    for name, folder, threads in (("a", data, 1), ("b", data, 2), ("c", tmp_path / "turned", 2)):
        output = tmp_path / name / "out.onnx"
        calibrate(path, folder, output, "--threads", threads, "--observer", "ema")
        written.append((output.read_bytes(), output.with_suffix(".json").read_bytes()))
        figures = mqq("compare", path, output, "--data", folder, "--threads", threads, "--json")
        written[-1] += (json.loads(figures)["outputs"][0]["metrics"]["overlap"],)
    assert written[0][:2] == written[1][:2] == written[2][:2]
    assert written[0][2] == written[1][2] == pytest.approx(written[2][2], abs=1e-9)


def test_mixed_precision_takes_samples_of_several_shapes(tmp_path):
    path, data, _ = build("decoder", tmp_path)
    sidecar = calibrate(path, data, tmp_path / "out.onnx", "--keep-float", "2")
    assert len(sidecar["mixed_precision"]["layers"]) == 2


def refused(*args):
    done = subprocess.run([MQQ, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


def test_errors_name_file_input_and_both_shapes(tmp_path):
    path, data, _ = build("encoder", tmp_path)
    command = ["calibrate", path, "--effort", "0", "--data", data, "--out-dir", tmp_path, "-b"]
    one = np.ones((1, 9), np.int64)
    np.savez(data / "zz.npz", input_ids=one, attention_mask=one[:, :5])
    found = refused(*command, "onnxruntime")
    assert "zz.npz`: input `attention_mask`: dimension `sequence` is 5, expected 9 as for input `input_ids`" in found
    np.savez(data / "zz.npz", input_ids=one[..., None], attention_mask=one)
    found = refused(*command, "onnxruntime")
    assert "zz.npz`: array has shape [1, 9, 1], expected for input `input_ids`: [1, ?], or several samples" in found
    (data / "zz.npz").unlink()
    # A shape that the user gives is the shape of all samples; so is the one that a backend fixes.
    found = refused(*command, "onnxruntime", "--shape", "input_ids=1x7")
    assert "array has shape [1, 8], expected for input `input_ids`: [1, 7]" in found
    found = refused(*command, "qnn-htp")
    assert "input `input_ids` is [1, 7] in" in found and "and [1, 60] in" in found and "expected samples of one shape" in found
    assert "hint: pad the samples to one length" in found
