"""What tables can ask for, in ONNX and ONNX Runtime: logarithmic codes, weights in 4 bits per block."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from expected import hold
from support import ROOT, fixture, mqq, quantized, run, save, sqnr_db


def test_logarithmic_codes_of_nnie():
    output = quantized("digits_cnn", "nnie")
    onnx.checker.check_model(str(output), full_check=True)
    model = onnx.load(output)
    assert not {node.op_type for node in model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    sidecar = json.loads(output.with_suffix(".json").read_text())
    encodings = sidecar["activation_encodings"] + sidecar["param_encodings"]
    assert {encoding["output_dtype"] for encoding in encodings} == {"nnie8"}
    for encoding in encodings:
        steps = 16 * np.log2(encoding["y_scale"])
        assert abs(steps - round(steps)) < 1e-4
        assert encoding["y_zero_point"] == -128
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for encoding in sidecar["param_encodings"]:
        values = numpy_helper.to_array(initializers[f"{encoding['name']}_rounded"])
        largest, nonzero = encoding["y_scale"], np.abs(values[values != 0])
        codes = 16 * np.log2(nonzero / largest) + 127
        assert np.abs(codes - codes.round()).max() < 1e-3
        assert codes.min() > -0.5 and codes.max() < 127.5
        assert len(np.unique(codes.round())) > 20


def test_logarithmic_codes_have_no_warning_at_the_default_effort(tmp_path):
    data = ("--data", ROOT / "calib_data" / "eval", "--limit", 16, "--preprocess", "half")
    text = mqq("calibrate", fixture("digits_cnn"), "-b", "nnie", *data, "-o", tmp_path / "q.onnx", "--strict")
    assert "not measured: logarithmic codes are not simulated" in text


TABLE = """
name: blocks
extends: onnxruntime
min_opset: 21
types:
  wgt8: null
  wgt8t: null
  wgt4: {{ bits: 4, signed: {signed}, symmetry: {symmetry}, granularity: per_block, block_size: {block} }}
switches: {{ full-range-weights: null }}
weight_storage: {storage}
ops:
  Conv: null
  ConvTranspose: null
  Gemm: {{ weight: {{ type: wgt4 }}, bias: float }}
  MatMul: {{ weight: {{ type: wgt4 }} }}
"""


def linear_model(path, depth, rng):
    weights = {
        "w1": rng.normal(size=(depth, 24)).astype(np.float32),
        "w2": rng.normal(size=(32, 24)).astype(np.float32),
        "b2": rng.normal(size=32).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"]),
            helper.make_node("Gemm", ["a", "w2", "b2"], ["y"], transB=1),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)
    return weights


def dequantized(weight, axis, block, signed):
    """`weight` rounded to 4 bits in blocks along `axis`, as the table asks."""
    low, high = (-8, 7) if signed else (0, 15)
    out = np.empty_like(weight)
    for start in range(0, weight.shape[axis], block):
        part = tuple(slice(start, start + block) if k == axis else slice(None) for k in range(2))
        values = weight[part]
        if signed:
            scale = np.abs(values).max(axis, keepdims=True).astype(np.float64) / high
            zero = np.zeros_like(scale)
        else:
            lo = np.minimum(values.min(axis, keepdims=True), 0).astype(np.float64)
            hi = np.maximum(values.max(axis, keepdims=True), 0).astype(np.float64)
            scale = (hi - lo) / high
            zero = np.clip(np.round(-lo / scale.astype(np.float32)), low, high)
        scale = scale.astype(np.float32)
        q = np.clip(np.round(values / scale) + zero, low, high)
        out[part] = ((q - zero) * scale).astype(np.float32)
    return out


def calibrated(folder, depth, block, signed, storage, *options):
    """Weights, samples and the model of 4 bits in blocks."""
    rng = np.random.default_rng(0)
    weights = linear_model(folder / "float.onnx", depth, rng)
    samples = [{"x": rng.normal(size=(4, depth)).astype(np.float32)} for _ in range(8)]
    (folder / "data").mkdir()
    for i, sample in enumerate(samples):
        np.save(folder / "data" / f"{i}.npy", sample["x"])
    symmetry = "symmetric" if signed else "asymmetric"
    table = folder / "blocks.yaml"
    table.write_text(TABLE.format(signed=str(signed).lower(), symmetry=symmetry, block=block, storage=storage))
    output = folder / "q.onnx"
    mqq("calibrate", folder / "float.onnx", "-b", table, "--data", folder / "data", "-o", output, "--quiet",
        "--effort", "0", *options)
    return weights, samples, output


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("depth, block", [(64, 16), (48, 24), (40, 16)])
@pytest.mark.parametrize("storage", ["integer", "float"])
def test_weights_in_4_bits_per_block(signed, depth, block, storage, tmp_path):
    weights, samples, output = calibrated(tmp_path, depth, block, signed, storage)
    onnx.checker.check_model(str(output), full_check=True)
    model = onnx.load(output)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    expected_type = TensorProto.INT4 if signed else TensorProto.UINT4
    assert initializers["w1_zero_point"].data_type == expected_type
    assert list(initializers["w1_scale"].dims) == [-(-depth // block), 24]
    assert list(initializers["w2_scale"].dims) == [32, -(-24 // block)]
    if storage == "integer":
        assert len(initializers["w1_QuantizeLinear"].raw_data) == depth * 24 // 2

    # Activations read float: what is left is the weights' rounding, known exactly.
    for node in list(model.graph.node):
        if node.op_type == "QuantizeLinear" and node.input[0] in ("x", "a"):
            pair = next(n for n in model.graph.node if n.input[0] == node.output[0])
            for reader in model.graph.node:
                for k, name in enumerate(reader.input):
                    if name == pair.output[0]:
                        reader.input[k] = node.input[0]
            model.graph.node.remove(node)
            model.graph.node.remove(pair)
    onnx.save(model, tmp_path / "weights_only.onnx")
    w1 = dequantized(weights["w1"], 0, block, signed)
    w2 = dequantized(weights["w2"], 1, block, signed)
    expected = np.stack([(s["x"] @ w1 @ w2.T + weights["b2"]).reshape(-1) for s in samples])
    found = run(tmp_path / "weights_only.onnx", samples)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    sqnr = sqnr_db(run(tmp_path / "float.onnx", samples)[0], run(output, samples)[0])
    case = f"{'signed' if signed else 'unsigned'} {storage} block {block}"
    hold("graphs", (f"linear {depth}", "blocks", case, "y"), sqnr_db=sqnr)


def stored(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("signed", [True, False])
def test_formats_hold_scales_per_block(signed, tmp_path):
    formats = "encodings-1.0.0,encodings-2.0.0,deploy,openvino-fq"
    weights, _, output = calibrated(tmp_path, 48, 8, signed, "float", "--emit", formats)
    arrays = stored(onnx.load(output))
    read = lambda version: json.loads(output.with_name(f"q.{version}.encodings").read_text())
    of = lambda entries, name: next(entry for entry in entries if entry["name"] == name)
    deploy = stored(onnx.load(output.with_name("q.deploy.onnx")))
    fake = {node.input[0]: node for node in onnx.load(output.with_name("q.openvino.onnx")).graph.node}
    bounds = stored(onnx.load(output.with_name("q.openvino.onnx")))
    for name, axis in [("w1", 0), ("w2", 1)]:
        scale, zero = arrays[f"{name}_scale"], arrays[f"{name}_zero_point"].astype(int)
        new = of(read("2.0.0")["encodings"], name)
        assert (new["output_dtype"], new["axis"], new["block_size"]) == ("int4" if signed else "uint4", axis, 8)
        np.testing.assert_array_equal(np.float32(new["y_scale"]), scale)
        np.testing.assert_array_equal(new.get("y_zero_point", np.zeros_like(zero)), zero)
        old = of(read("1.0.0")["param_encodings"], name)
        assert (old["enc_type"], old["block_size"], old["bw"], old["is_sym"]) == ("PER_BLOCK", 8, 4, signed)
        rows = lambda values: (values.T if axis == 0 else values).reshape(-1)
        np.testing.assert_array_equal(np.float32(old["scale"]), rows(scale))
        np.testing.assert_array_equal(old["offset"], rows(-zero - (8 if signed else 0)))
        low, high = (-8, 7) if signed else (0, 15)
        ends = [np.repeat((end - zero) * scale, 8, axis) for end in (low, high)]
        np.testing.assert_allclose(deploy[name], np.clip(weights[name], *ends), rtol=1e-6)
        assert fake[name].op_type == "FakeQuantize" and fake[name].attribute[0].i == 16
        for end, bound in zip(ends, fake[name].input[1:3]):
            np.testing.assert_allclose(bounds[bound], end, rtol=1e-6)


def test_a_run_that_quantizes_no_product_warns(tmp_path):
    rng = np.random.default_rng(3)
    nodes = [("MatMul", ["x", "w"], "a", {}), ("Add", ["a", "x"], "b", {}), ("MatMul", ["b", "w"], "y", {})]
    save(tmp_path / "m.onnx", nodes, {"w": rng.standard_normal((32, 32)).astype(np.float32)}, {"x": (1, 24, 32)})
    np.save(tmp_path / "x.npy", rng.standard_normal((24, 24, 32)).astype(np.float32))
    report = json.loads(mqq("calibrate", tmp_path / "m.onnx", "-b", "onnx-qnn", "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx",
                            "--effort", 0, "--json"))
    [warning] = report["results"][0]["summary"]["warnings"]
    assert "only 0.0 % of the multiply-adds are in quantized nodes: 2 MatMul stay float" in warning
