"""`mqq check` on what ONNX Runtime's own quantizer makes of the bundled model."""

import json
import subprocess

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as ortq
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization.shape_inference import quant_pre_process
from support import MQQ, ROOT, digits, mqq

U8, S8 = ortq.QuantType.QUInt8, ortq.QuantType.QInt8


class Reader(ortq.CalibrationDataReader):
    def __init__(self):
        self.samples = iter(digits("calib")[0][:20])

    def get_next(self):
        return next(self.samples, None)


def quantize_static(folder, activation, weight, per_channel=False, **extra):
    prepared, output = folder / "prepared.onnx", folder / "quantized.onnx"
    source = ROOT / "fixtures" / "digits_cnn.onnx"
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    ortq.quantize_static(
        str(prepared), str(output), Reader(), per_channel=per_channel,
        quant_format=extra.pop("quant_format", ortq.QuantFormat.QDQ),
        activation_type=activation, weight_type=weight, extra_options=extra)
    return output


def check(path, backend):
    done = subprocess.run(
        [MQQ, "check", path, "-b", backend, "--json"], capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr
    result = json.loads(done.stdout)["results"][0]
    errors = {f["rule"] for f in result["findings"] if f["severity"] == "error"}
    assert bool(errors) == (done.returncode == 4)
    return errors, result


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation, weight", [(U8, S8), (U8, U8), (S8, S8)])
def test_static_quantization_keeps_onnx_runtimes_rules(activation, weight, per_channel, tmp_path):
    symmetric = activation == S8
    path = quantize_static(
        tmp_path, activation, weight, per_channel, ActivationSymmetric=symmetric, WeightSymmetric=True)
    errors, result = check(path, "onnxruntime")
    assert not errors, result["findings"]
    assert result["n_quantize"] > 10
    errors, _ = check(path, "tensorrt")
    assert "bias" in errors
    assert ("dtypes" in errors) == (activation == U8)
    assert ("symmetric" in errors) == (activation == U8)


def test_symmetric_int8_without_quantized_biases_keeps_tensorrts_rules(tmp_path):
    path = quantize_static(
        tmp_path, S8, S8, True, ActivationSymmetric=True, WeightSymmetric=True,
        QuantizeBias=False, DedicatedQDQPair=True)
    errors, result = check(path, "tensorrt")
    assert not errors, result["findings"]


def test_operators_on_integers_break_tensorrts_rules(tmp_path):
    path = quantize_static(tmp_path, U8, U8, quant_format=ortq.QuantFormat.QOperator)
    errors, _ = check(path, "tensorrt")
    assert {"qdq_only", "paired"} <= errors


def test_a_scale_of_zero_is_found(tmp_path):
    path = quantize_static(tmp_path, S8, S8, ActivationSymmetric=True)
    model = onnx.load(path)
    name = next(n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear")
    scale = next(t for t in model.graph.initializer if t.name == name)
    scale.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scale) * 0, name))
    onnx.save(model, path)
    for backend in ("tensorrt", "onnxruntime"):
        assert "positive_scales" in check(path, backend)[0]


def kernels(path, folder):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "optimized.onnx"), 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("backend, extra", [
    ("tensorrt", ()), ("onnxruntime", ()), ("openvino", ()), ("tvm", ()),
    ("onnxruntime", ("--set", "min_opset=21", "--set", "types.act8.bits=16")),
    ("onnxruntime", ("--set", "min_opset=21", "--set", "types.wgt8.bits=4")),
])
def test_onnx_runtime_runs_the_convolutions_that_are_no_finding(backend, extra, tmp_path):
    model = ROOT / "fixtures" / "digits_cnn.onnx"
    output = tmp_path / "quantized.onnx"
    subprocess.run(
        [MQQ, "calibrate", model, "-b", backend, "--data", ROOT / "calib_data" / "calib", "--preprocess", "half",
         "--effort", "0", "-o", output, "--quiet", *extra], check=True)
    _, result = check(output, "onnxruntime")
    rules = [finding["rule"] for finding in result["findings"] if finding.get("op_type", "Conv") == "Conv"]
    fused = kernels(output, tmp_path).count("QLinearConv")
    assert (fused == 0) == ("integer_operators" in rules)
    if fused:
        assert fused == 8 - rules.count("quantized_output")


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
@pytest.mark.parametrize("data_type", [np.int8, np.uint8])
def test_onnx_runtime_takes_a_constant_on_the_left_in_uint8_only(op_type, data_type, tmp_path):
    constant = lambda name, value, of: numpy_helper.from_array(np.array(value, of), name)
    linear = lambda kind, inputs, output: helper.make_node(kind + "Linear", inputs, [output])
    of_x, of_w, of_y = ["xs", "xz"], ["ws", "wz"], ["ys", "yz"]
    nodes = [
        linear("Quantize", ["x", *of_x], "x_q"), linear("Dequantize", ["x_q", *of_x], "x_dq"),
        linear("Dequantize", ["w", *of_w], "w_dq"), helper.make_node(op_type, ["w_dq", "x_dq"], ["y"]),
        linear("Quantize", ["y", *of_y], "y_q"), linear("Dequantize", ["y_q", *of_y], "y_dq"),
    ]
    weight = np.random.default_rng(0).integers(0, 100, (8, 8)).astype(data_type)
    tensors = [numpy_helper.from_array(weight, "w"), constant("ws", 0.01, np.float32), constant("wz", 0, data_type)]
    for name in "xy":
        tensors += [constant(name + "s", 0.02, np.float32), constant(name + "z", 128, np.uint8)]
    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8])
    graph = helper.make_graph(nodes, "left", [value("x")], [value("y_dq")], tensors)
    path = tmp_path / "left.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    errors, result = check(path, "onnxruntime")
    is_found = "left_constant" in [finding["rule"] for finding in result["findings"]]
    assert not errors and is_found == (op_type in kernels(path, tmp_path)) == (data_type == np.int8)


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime-vnni"])
def test_a_constant_on_the_left_is_quantized_so_that_onnx_runtime_takes_it(op_type, backend, tmp_path):
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, 1, (8, 8)).astype(np.float32), name) for name in "wv"]
    nodes = [helper.make_node(op_type, ["w", "x"], ["y"], "left"), helper.make_node("MatMul", ["y", "v"], ["z"], "right")]
    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8])
    graph = helper.make_graph(nodes, "left", [value("x")], [value("z")], weights)
    path, output = tmp_path / "left.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.save(tmp_path / "x.npy", rng.normal(0, 1, (20, 8, 8)).astype(np.float32))
    mqq("calibrate", path, "-b", backend, "--data", tmp_path / "x.npy", "-o", output)
    _, result = check(output, backend)
    assert not [finding for finding in result["findings"] if finding["rule"] == "left_constant"]
    assert op_type not in kernels(output, tmp_path)
    (figures, *_) = json.loads(mqq("compare", path, output, "--data", tmp_path / "x.npy", "--json"))["outputs"]
    assert figures["sqnr_db"] > 30


def test_sarif_holds_the_findings(tmp_path):
    sarif_pydantic = pytest.importorskip("sarif_pydantic")
    model = quantize_static(tmp_path, U8, U8)
    spaced = tmp_path / "a model.onnx"
    model.rename(spaced)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    command = [MQQ, "check", spaced, tmp_path / "bad.onnx", "-b", "tensorrt", "--keep-going", "--sarif", tmp_path / "c.sarif", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    findings = json.loads(done.stdout)["results"][0]["findings"]
    text = (tmp_path / "c.sarif").read_text()
    log = sarif_pydantic.Sarif.model_validate_json(text)
    [run] = log.runs
    assert done.returncode == 1 and len(run.results) == len(findings) > 10
    written = json.loads(text)["runs"][0]
    rules = {rule["id"] for rule in written["tool"]["driver"]["rules"]}
    for result, finding in zip(written["results"], findings, strict=True):
        assert (result["ruleId"], result["level"]) == (finding["rule"], finding["severity"]) and result["ruleId"] in rules
        assert finding["found"] in result["message"]["text"]
        [place] = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == spaced.as_uri()
        names = {entry["kind"]: entry["fullyQualifiedName"] for entry in place.get("logicalLocations", [])}
        assert names == {kind: finding[kind] for kind in ("node", "tensor") if finding.get(kind)}
    prints = [result["partialFingerprints"]["mqqFinding/v1"] for result in written["results"]]
    assert len(set(prints)) == len(prints)
    [invocation] = written["invocations"]
    # Without --keep-going the run ends there and leaves no file.
    (tmp_path / "c.sarif").unlink()
    command.remove("--keep-going")
    assert subprocess.run(command, capture_output=True).returncode == 1 and not (tmp_path / "c.sarif").exists()
    assert not invocation["executionSuccessful"] and "bad.onnx" in invocation["toolExecutionNotifications"][0]["message"]["text"]
