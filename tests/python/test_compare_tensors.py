"""`mqq compare --tensors` on models of ONNX Runtime, NNCF and mqq: figures of outputs and of tensors against numpy on the
tensors of ONNX Runtime."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support import ROOT, agreement_percent, digits, fixture, float_digits, mqq, quantized, run, save, session, sqnr_db

N_SAMPLES = 8


class Reader:
    def __init__(self):
        self.samples = iter(digits("calib")[0])

    def get_next(self):
        return next(self.samples, None)


def of_onnxruntime(folder, quant_format):
    quantization = pytest.importorskip("onnxruntime.quantization")
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(str(fixture("digits_cnn")), str(folder / "pre.onnx"), skip_symbolic_shape=True)
    quantization.quantize_static(
        folder / "pre.onnx", folder / "q.onnx", Reader(), quant_format=getattr(quantization.QuantFormat, quant_format),
        per_channel=True, weight_type=quantization.QuantType.QInt8)


def of_nncf(folder):
    nncf = pytest.importorskip("nncf", reason="NNCF is not installed")
    model = nncf.quantize(onnx.load(fixture("digits_cnn")), nncf.Dataset(digits("calib")[0]), subset_size=100)
    onnx.save(model, folder / "q.onnx")


MAKERS = {
    "onnxruntime_qdq": lambda folder: of_onnxruntime(folder, "QDQ"),
    "onnxruntime_qoperator": lambda folder: of_onnxruntime(folder, "QOperator"),
    "nncf": of_nncf,
    "mqq": lambda folder: (folder / "q.onnx").write_bytes(quantized("digits_cnn", "onnxruntime", "--effort", 0).read_bytes()),
}


def tensors(path, names, samples):
    """Values of tensors inside of a model, an array of samples for each; a tensor of integers is dequantized by the scale
    of the node that makes it."""
    model = onnx.load(path)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    known = {value.name for value in model.graph.output}
    added = [name for name in names if name in makers and name not in known]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in added)
    onnx.save(model, path.with_suffix(".all.onnx"))
    runner = session(path.with_suffix(".all.onnx"), optimized=False)
    found = {}
    for name in names:
        if name not in makers:
            continue
        values = np.stack([runner.run([name], sample)[0] for sample in samples])
        if values.dtype != np.float32:
            maker = makers[name]
            while maker.op_type in ("MaxPool", "Flatten", "Reshape"):
                maker = makers[maker.input[0]]
            at = {"QLinearConv": 6, "QLinearMatMul": 6, "QGemm": 7, "QLinearAdd": 6, "QLinearGlobalAveragePool": 3,
                  "QLinearConcat": 0, "QuantizeLinear": 1}[maker.op_type]
            scale, zero_point = (constants[i] for i in maker.input[at:at + 2])
            values = (values.astype(np.float32) - zero_point) * scale
        found[name] = values
    return found


@pytest.mark.parametrize("maker", MAKERS)
def test_models_of_other_tools(maker, tmp_path):
    MAKERS[maker](tmp_path)
    path = tmp_path / "q.onnx"
    samples, classes = digits("eval")
    # The very values: each pixel lies half-way between two integers of the input.
    np.save(tmp_path / "eval.npy", np.concatenate([sample["input"] for sample in samples]))
    rows = [f"eval.npy[{i}],{label}" for i, label in enumerate(classes)]
    (tmp_path / "eval.csv").write_text("\n".join(["file,class_index", *rows]))
    data = ["--data", tmp_path / "eval.npy", "--labels", tmp_path / "eval.csv"]
    report = json.loads(mqq("compare", fixture("digits_cnn"), path, *data, "--tensors", "--json"))
    # Outputs: 0.1 dB, and one image.
    outputs = run(path, samples)[0]
    [output] = report["outputs"]
    one = 100 / len(samples)
    assert output["sqnr_db"] == pytest.approx(sqnr_db(float_digits("digits_cnn"), outputs), abs=0.1)
    assert output["agreement_percent"] == pytest.approx(agreement_percent(float_digits("digits_cnn"), outputs), abs=one + 1e-9)
    assert output["top1_percent"][1] == pytest.approx(100 * np.mean(outputs.argmax(1) == classes), abs=one + 1e-9)
    # Tensors.
    inside = report["tensors"]
    chosen = [samples[i * len(samples) // N_SAMPLES] for i in range(N_SAMPLES)]
    assert inside["n_samples"] == N_SAMPLES and "added_failed" not in inside
    rows = {row["tensor"]: row for row in inside["rows"]}
    # All that are left where batch normalization is folded, and an activation may be folded into the layer in front.
    n_layers = sum(node.op_type in ("Conv", "Gemm", "Add", "Concat") for node in onnx.load(fixture("digits_cnn")).graph.node)
    assert sum(1 for row in rows.values() if set(row["operators"]) & {"Conv", "Gemm", "Add", "Concat"}) == n_layers, rows
    floats = tensors(copy(fixture("digits_cnn"), tmp_path / "float.onnx"), list(rows), chosen)
    there = tensors(path, [row["quantized_tensor"] for row in rows.values()], chosen)
    n_checked = 0
    for name, row in rows.items():
        if name not in floats:
            continue  # An input of the graph.
        other = there[row["quantized_tensor"]]
        n_checked += 1
        assert row.get("sqnr_db", 200) == pytest.approx(min(sqnr_db(floats[name], other), 200), abs=0.1), row
        each = [(a.ravel().astype(np.float64), b.ravel().astype(np.float64)) for a, b in zip(floats[name], other)]
        cosine = np.mean([a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in each])
        assert row["cosine"] == pytest.approx(cosine, abs=1e-4), row
        assert row["max_difference"] == pytest.approx(np.abs(floats[name] - other).max(), rel=0.2), row
    assert n_checked >= 12



def changed(folder, tensor, factor):
    """A model of mqq's with another scale of one tensor, and the report on it."""
    model = onnx.load(quantized("digits_cnn", "onnxruntime", "--effort", 0))
    [scale] = [it for it in model.graph.initializer if it.name == f"{tensor}_scale"]
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(factor), scale.name))
    onnx.save(model, folder / "changed.onnx")
    data = ["--data", ROOT / "calib_data" / "eval", "--preprocess", "half", "--limit", 40, "--tensors"]
    command = ["compare", fixture("digits_cnn"), folder / "changed.onnx", *data]
    inside = json.loads(mqq(*command, "--json"))["tensors"]
    return inside, {row["tensor"]: row for row in inside["rows"]}, mqq(*command)


def test_a_range_that_is_too_narrow_is_told(tmp_path):
    inside, rows, printed = changed(tmp_path, "/Relu_1_output_0", 0.25)
    assert inside["look_first"][0] == "/Relu_1_output_0"
    row = rows["/Relu_1_output_0"]
    assert row["saturated_percent"] > 1 and row["added_sqnr_db"] < 20
    assert row["saturated_percent"] == max(it.get("saturated_percent", 0) for it in rows.values())
    assert (inside["advice"]["option"], inside["advice"]["value"]) == ("--observer", "max")
    assert printed.splitlines()[-1].startswith("try: mqq calibrate --observer max (") and len(printed.splitlines()) < 12


def test_weights_that_are_wrong_are_told_with_their_layer(tmp_path):
    inside, rows, _ = changed(tmp_path, "residual_1.0.weight", 1.5)
    assert rows[inside["look_first"][0]]["layer"] == "/residual_1/residual_1.0/Conv"
    assert inside["advice"]["option"] == "--exclude" and inside["advice"]["value"] == "/residual_1/residual_1.0/Conv"
    # Layers behind it have its error, and add none of their own.
    behind = rows["/Relu_2_output_0"]
    assert behind["added_sqnr_db"] > behind["sqnr_db"] + 10


def test_a_target_of_integers_is_told_a_backend_with_wider_types(tmp_path):
    three_bits = ["--set", "types.wgtc.bits=3", "--set", "types.wgtc.storage_bits=8", "--effort", 0]
    calib, data = ([ROOT / "calib_data" / folder, "--preprocess", "half"] for folder in ("calib", "eval"))
    mqq("calibrate", fixture("digits_cnn"), "-b", "qnn-htp", *three_bits, "--data", *calib, "-o", tmp_path / "q.onnx")
    compared = mqq("compare", fixture("digits_cnn"), tmp_path / "q.onnx", "--data", *data, "--limit", 40, "--tensors", "--json")
    advice = json.loads(compared)["tensors"]["advice"]
    assert (advice["option"], advice["value"]) == ("--backend", "qnn-htp-a16"), advice


def test_channels_without_values_are_counted(tmp_path):
    inside, rows, printed = changed(tmp_path, "/Relu_1_output_0", 1000)
    row = rows["/Relu_1_output_0"]
    assert row["n_channels"] == 32 and 16 < row["dead_channels"] <= 32
    assert rows["/Relu_output_0"]["dead_channels"] == 0
    # The range is far wider than the values.
    assert inside["advice"]["option"] == "--data" and "try: mqq calibrate --data DATA (the range of `" in printed


@pytest.mark.parametrize("backend", ["tensorrt", "onnxruntime"])
def test_channel_scales_are_no_error(backend, tmp_path):
    path = quantized("digits_cnn", backend)
    assert [edit for edit in json.loads(path.with_suffix(".json").read_text())["edits"] if "scale_channels" in edit]
    data = ["--data", ROOT / "calib_data" / "eval", "--preprocess", "half", "--limit", 40, "--tensors", "--json"]
    inside = json.loads(mqq("compare", fixture("digits_cnn"), path, *data))["tensors"]
    figures = [row[key] for row in inside["rows"] for key in ("sqnr_db", "added_sqnr_db") if key in row]
    assert len(figures) > 20 and min(figures) > 20


def test_a_report_has_all_tensors(tmp_path):
    path = quantized("digits_cnn", "onnxruntime", "--effort", 0)
    data = ["--data", ROOT / "calib_data" / "eval", "--preprocess", "half", "--limit", 8]
    printed = mqq("compare", fixture("digits_cnn"), path, *data, "--report", tmp_path / "report.json")
    assert len(printed.splitlines()) == 1
    sections = {section["id"]: section for section in json.loads((tmp_path / "report.json").read_text())["sections"]}
    assert {"first", "errors", "tensors", "unmatched"} <= set(sections)
    assert len(sections["tensors"]["table"]["rows"]) >= 20
    assert len(sections["errors"]["chart"]["series"]) == 2



def test_integers_that_only_move_stay_integers(tmp_path):
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(48, 5)).astype(np.float32), "shape": np.array([1, 48])}
    grid = {"s": np.float32(0.02), "z": np.uint8(0)}
    inputs = {"x": [1, 3, 4, 4]}
    move = lambda name, suffix: [
        ("Transpose", [name], "t" + suffix, {"perm": [0, 2, 3, 1]}), ("Reshape", ["t" + suffix, "shape"], "r" + suffix, {})]
    begin, end = [("Relu", ["x"], "a", {})], [("MatMul", ["r", "w"], "y", {})]
    save(tmp_path / "float.onnx", begin + move("a", "") + end, constants, inputs)
    quantize, dequantize = ("QuantizeLinear", ["a", "s", "z"], "a_q", {}), ("DequantizeLinear", ["r_q", "s", "z"], "r", {})
    save(tmp_path / "q.onnx", [*begin, quantize, *move("a_q", "_q"), dequantize, *end], {**constants, **grid}, inputs)
    np.save(tmp_path / "x.npy", rng.normal(size=(8, 3, 4, 4)).astype(np.float32))
    command = ["compare", tmp_path / "float.onnx", tmp_path / "q.onnx", "--data", tmp_path / "x.npy", "--tensors", "--json"]
    inside = json.loads(mqq(*command))["tensors"]
    rows = {row["tensor"]: row for row in inside["rows"]}
    assert "added_failed" not in inside and set(rows) == {"x", "a", "r", "y"} and inside["unmatched"] == ["t"]
    # The QuantizeLinear is that of the Relu's tensor; all behind it only pass the error on.
    assert rows["a"]["quantized_tensor"] == "a_q" and 20 < rows["a"]["sqnr_db"] < 50
    assert rows["r"]["sqnr_db"] == pytest.approx(rows["a"]["sqnr_db"], abs=1e-6)
    assert "added_sqnr_db" not in rows["y"]


def test_a_layer_with_arithmetic_folded_into_it_stands_for_the_result(tmp_path):
    """Of the Conv's own output and the tensors up to the sum nothing is left; the Transpose of the first pair stays."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(np.float32)
    nodes = [("Conv", ["x", "w"], "a", {}), ("Transpose", ["a"], "b", {"perm": [0, 2, 3, 1]}), ("Sub", ["b", "c"], "d", {}),
             ("Mul", ["d", "e"], "f", {}), ("Relu", ["f"], "g", {}), ("Reshape", ["g", "shape"], "h", {}),
             ("Relu", ["x"], "n", {}), ("Conv", ["n", "v"], "i", {}), ("Mul", ["i", "k"], "j", {}), ("Reshape", ["j", "shape"], "l", {}),
             ("Add", ["h", "l"], "m", {}), ("MatMul", ["m", "u"], "y", {})]
    constants = {"w": draw(8, 3, 1, 1), "c": draw(8), "e": 30 * draw(8), "shape": np.array([1, 128]), "v": draw(8, 3, 1, 1),
                 "k": 30 * draw(8, 1, 1), "u": draw(128, 5)}
    save(tmp_path / "float.onnx", nodes, constants, {"x": [1, 3, 4, 4]})
    np.save(tmp_path / "x.npy", rng.normal(size=(16, 3, 4, 4)).astype(np.float32))
    data = ["--data", tmp_path / "x.npy"]
    mqq("calibrate", tmp_path / "float.onnx", "-b", "onnxruntime", *data, "--methods", "none", "-o", tmp_path / "q.onnx")
    inside = json.loads(mqq("compare", tmp_path / "float.onnx", tmp_path / "q.onnx", *data, "--tensors", "--json"))["tensors"]
    rows = {row["tensor"]: row for row in inside["rows"]}
    assert {"x", "f", "j", "y"} <= set(rows) and not {"a", "b", "d", "i"} & set(rows)
    assert all(row["sqnr_db"] > 20 for row in rows.values())


def copy(source, target):
    target.write_bytes(source.read_bytes())
    return target

