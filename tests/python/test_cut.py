"""`mqq calibrate --outputs`: the quantized head and the float tail, run one after the other in ONNX Runtime."""

import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import MQQ, ROOT, mqq, save, session, sqnr_db

RNG = np.random.default_rng(3)


def detector(path):
    """Two output layers, a box decoding that also reads the shape of an input, and an output of one layer alone."""
    def weight(name, *shape):
        return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32) / 5, name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], "relu"),
        helper.make_node("Conv", ["r0", "w1"], ["boxes_raw"], "boxes"),
        helper.make_node("Conv", ["r0", "w2"], ["scores_raw"], "scores"),
        helper.make_node("Exp", ["boxes_raw"], ["boxes_exp"], "exp"),
        helper.make_node("Mul", ["boxes_exp", "ratio"], ["boxes_scaled"], "scale"),
        helper.make_node("Sigmoid", ["scores_raw"], ["scores_sigmoid"], "sigmoid"),
        helper.make_node("Concat", ["boxes_scaled", "scores_sigmoid"], ["flat"], "join", axis=1),
        # A shape that is computed from an output layer; the layer is cut, not the shape.
        helper.make_node("Shape", ["boxes_raw"], ["shape"], "shape"),
        helper.make_node("Slice", ["shape", "zero", "one"], ["batch"], "batch"),
        helper.make_node("Concat", ["batch", "rest"], ["target"], "target", axis=0),
        helper.make_node("Reshape", ["flat", "target"], ["joined"], "reshape"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8]),
              helper.make_tensor_value_info("ratio", TensorProto.FLOAT, [1])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
               for name, shape in (("joined", ["N", 6, 64]), ("scores_raw", ["N", 2, 8, 8]))]
    graph = helper.make_graph(nodes, "detector", inputs, outputs,
                              [weight("w0", 8, 3, 3, 3), weight("w1", 4, 8, 1, 1), weight("w2", 2, 8, 1, 1),
                               *(numpy_helper.from_array(np.int64(v), k)
                                 for k, v in {"zero": [0], "one": [1], "rest": [6, 64]}.items())])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def samples(folder, n=16):
    made = [{"x": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32), "ratio": np.float32([i + 1])}
            for i in range(n)]
    for i, sample in enumerate(made):
        np.savez(folder / f"{i:02}.npz", **sample)
    return made


def test_head_and_tail_compute_what_the_model_computes(tmp_path):
    model, data, out = tmp_path / "d.onnx", tmp_path / "data", tmp_path / "out"
    data.mkdir()
    detector(model)
    made = samples(data)
    report = json.loads(mqq("calibrate", model, "-b", "onnxruntime", "--data", data, "--out-dir", out, "--json",
                            "--outputs", "boxes_raw,scores_raw"))
    result = report["results"][0]
    head, tail = session(result["output"], False), session(result["tail"], False)
    for file in (result["output"], result["tail"]):
        onnx.checker.check_model(file, full_check=True)
    assert [output.name for output in head.get_outputs()] == ["boxes_raw", "scores_raw"]
    # The raw scores are an output of the head already.
    assert [output.name for output in tail.get_outputs()] == ["joined"]
    assert {each.name for each in tail.get_inputs()} == {"boxes_raw", "scores_raw", "ratio"}
    float_head = tmp_path / "float.onnx"
    onnx.utils.extract_model(str(model), str(float_head), ["x"], ["boxes_raw", "scores_raw"])
    whole, float_head = session(model, False), session(float_head, False)
    found, expected = [], []
    for sample in made:
        raw = dict(zip(["boxes_raw", "scores_raw"], float_head.run(None, {"x": sample["x"]})))
        joined = whole.run(["joined"], sample)[0]
        np.testing.assert_array_equal(tail.run(None, {**raw, "ratio": sample["ratio"]})[0], joined)
        quantized = dict(zip(["boxes_raw", "scores_raw"], head.run(None, {"x": sample["x"]})))
        found.append(tail.run(None, {**quantized, "ratio": sample["ratio"]})[0])
        expected.append(joined)
    assert sqnr_db(np.stack(expected), np.stack(found)) > 25


def test_a_format_of_the_head_is_made_again_from_the_sidecar(tmp_path):
    out = tmp_path / "out"
    mqq("calibrate", ROOT / "fixtures/digits_cnn.onnx", "-b", "tvm", "--data", ROOT / "calib_data/calib", "--preprocess",
        "half", "--out-dir", out, "--emit", "deploy", "--outputs", "/Concat_output_0")
    mqq("export", out / "digits_cnn.tvm.json", "--format", "deploy", "--model", ROOT / "fixtures/digits_cnn.onnx",
        "-o", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (out / "digits_cnn.tvm.deploy.onnx").read_bytes()
    assert "cut at `/Concat_output_0`" in json.loads((out / "digits_cnn.tvm.json").read_text())["model"]["prepared"]


@pytest.mark.parametrize("outputs, expected", [
    ("boxes_row", "--outputs names `boxes_row`, but no node produces that tensor\nhint: did you mean `boxes_raw`?"),
    ("boxes_raw,boxes_raw", "--outputs names `boxes_raw` twice"),
    ("joined,scores_raw", "--outputs: no other output of the model is computed from `joined`, `scores_raw`"),
])
def test_a_cut_that_is_none_is_an_error(tmp_path, outputs, expected):
    detector(tmp_path / "d.onnx")
    (tmp_path / "data").mkdir()
    samples(tmp_path / "data", 2)
    ran = subprocess.run([MQQ, "calibrate", tmp_path / "d.onnx", "-b", "tvm", "--data", tmp_path / "data", "--outputs",
                          outputs, "--out-dir", tmp_path / "out"], capture_output=True, text=True)
    assert ran.returncode == 1 and expected in ran.stderr, ran.stderr
    assert not (tmp_path / "out").exists()


def test_inspect_says_where_to_cut_a_tail(tmp_path):
    detector(tmp_path / "d.onnx")
    tails = json.loads(mqq("inspect", tmp_path / "d.onnx", "-b", "tvm", "--json"))["placement"]["detector_tails"]
    assert [sorted(tail["cut"]) for tail in tails] == [["boxes_raw", "scores_raw"]]
    assert "cut it off with --outputs " in mqq("inspect", tmp_path / "d.onnx", "-b", "tvm")


def test_several_tails_are_cut_off_together(tmp_path):
    """Boxes and scores of two levels, each joined in a Concat of its own."""
    rng = np.random.default_rng(4)
    nodes, constants = [("Conv", ["x", "w"], "c", {}), ("MaxPool", ["c"], "d", {"kernel_shape": [2, 2], "strides": [2, 2]})], {}
    for name, n in (("boxes", 4), ("scores", 3)):
        constants |= {f"{name}_w": rng.standard_normal((n, 3, 1, 1)).astype(np.float32), f"{name}_shape": np.array([1, n, -1])}
        for level in "cd":
            nodes += [("Conv", [level, f"{name}_w"], f"{name}_{level}", {}),
                      ("Reshape", [f"{name}_{level}", f"{name}_shape"], f"{name}_{level}_flat", {})]
        nodes.append(("Concat", [f"{name}_{level}_flat" for level in "cd"], name, {"axis": 2}))
    constants["w"] = rng.standard_normal((3, 3, 1, 1)).astype(np.float32)
    save(tmp_path / "d.onnx", nodes, constants, {"x": (1, 3, 8, 8)}, outputs=("boxes", "scores"))
    tails = json.loads(mqq("inspect", tmp_path / "d.onnx", "-b", "tvm", "--json"))["placement"]["detector_tails"]
    assert [sorted(tail["cut"]) for tail in tails] == [["boxes_c", "boxes_d"], ["scores_c", "scores_d"]]
    text = mqq("inspect", tmp_path / "d.onnx", "-b", "tvm")
    cut = ",".join(tensor for tail in tails for tensor in tail["cut"])
    assert f"tensors where the tails begin (4):\n  cut all tails off with --outputs {cut}\n" in text
    assert text.count("--outputs") == 1
    np.save(tmp_path / "x.npy", rng.standard_normal((8, 3, 8, 8)).astype(np.float32))
    ran = subprocess.run([MQQ, "calibrate", tmp_path / "d.onnx", "-b", "tvm", "--data", tmp_path / "x.npy", "--effort", "0",
                          "--outputs", ",".join(tails[0]["cut"]), "-o", tmp_path / "out.onnx"], capture_output=True, text=True)
    assert "repeats 1 layer of the head, because it also reads `c`, `d`: add them to --outputs" in ran.stderr


def test_a_tail_that_repeats_layers_names_the_tensor_that_is_missing(tmp_path):
    rng = np.random.default_rng(3)
    nodes = [("Conv", ["x", "w"], "c", {}), ("Conv", ["c", "w"], "d", {}), ("ReduceMax", ["d"], "best", {"axes": [1]}),
             ("ArgMax", ["d"], "n_label", {"axis": 1}), ("Sqrt", ["best"], "score", {})]
    save(tmp_path / "d.onnx", nodes, {"w": rng.standard_normal((3, 3, 1, 1)).astype(np.float32)}, {"x": (1, 3, 8, 8)},
         outputs=("score", "n_label"))
    np.save(tmp_path / "x.npy", rng.standard_normal((8, 3, 8, 8)).astype(np.float32))
    cut = lambda names: subprocess.run(
        [MQQ, "calibrate", tmp_path / "d.onnx", "-b", "tvm", "--data", tmp_path / "x.npy", "--outputs", names, "--effort", "0",
         "-o", tmp_path / "out.onnx"], capture_output=True, text=True)
    expected = "--outputs: the tail repeats 2 layers of the head, because it also reads `d`: add that to --outputs"
    assert expected in cut("best").stderr
    assert "the tail repeats" not in cut("best,d").stderr


def test_a_tail_makes_outputs_of_a_cut_node_under_names_of_their_own(tmp_path):
    """The node at the cut has a second output, and an output of the model is an input."""
    weight = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32) / 5
    nodes = [("Conv", ["x", "w"], "c", {"pads": [1] * 4}), ("Sigmoid", ["p"], "y", {}), ("Exp", ["q"], "z", {})]
    save(tmp_path / "m.onnx", nodes, {"w": weight}, {"x": (1, 3, 8, 8)}, ("y", "z", "x"))
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.node.insert(1, helper.make_node("Split", ["c"], ["p", "q"], "split", axis=1))
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", RNG.standard_normal((16, 3, 8, 8)).astype(np.float32))
    mqq("calibrate", tmp_path / "m.onnx", "-b", "onnxruntime", "--data", tmp_path / "x.npy", "--outputs", "p", "--quiet",
        "-o", tmp_path / "q.onnx")
    x = {"x": np.load(tmp_path / "x.npy")[:1]}
    (head,) = session(tmp_path / "q.onnx", False).run(None, x)
    tail = session(tmp_path / "q.tail.onnx", False)
    found = tail.run(None, {"p": head, **x})
    for one, expected in zip(found, session(tmp_path / "m.onnx", False).run(None, x)):
        assert sqnr_db(expected, one) > 20
