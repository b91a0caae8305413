"""`mqq check` on what ONNX Runtime's own quantizer makes of the bundled model."""

import json
import subprocess

import onnx
import onnxruntime.quantization as ortq
import pytest
from onnxruntime.quantization.shape_inference import quant_pre_process
from support import MQQ, ROOT, digits

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
