"""Quantized models in the runtimes that they are made for: OpenVINO, Qualcomm's HTP simulation, TVM and ncnn.
`make test-runtimes`; docs/runtimes.md says what is shown and what not."""

import functools
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import ncnn_int8
import numpy as np
import onnx
import pytest
from expected import MARGIN, hold
from onnx import helper
from packaging import tags
from PIL import Image
from support import (MQQ, ROOT, ZOO, agreement_percent, calibrate, digits, fixture, float_digits, gated, mqq, output_names,
                     overflows, quantized, run, save, sqnr_db)
from test_backends import FORMS, quantized_products
from test_tables import calibrated as calibrated_in_blocks

FIXTURES = ["digits_cnn", "digits_old"]
BACKENDS = [backend["name"] for backend in json.loads(mqq("backends", "--json"))["backends"]]
# Newest platform tag that the runtimes' wheels ask for.
WHEELS = "manylinux_2_35_x86_64"


def runtime(module):
    """The module, or a skip where its package has no wheel for this platform."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if any(tag.platform == WHEELS for tag in tags.sys_tags()):
            raise
        pytest.skip(f"{module} has no wheel for {sys.platform} ({next(tags.sys_tags()).platform}): {error}")


def runtime_path(package):
    """The folder of a package that is not to be imported: pnnx imports PyTorch."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        runtime(package)
    return spec.submodule_search_locations[0]


def check_findings(path, backend):
    done = subprocess.run([MQQ, "check", path, "-b", backend, "--json"], capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr
    return json.loads(done.stdout)["results"][0]["findings"]


def assert_as_close(expected, reference, found):
    """Whether another runtime's outputs are as close to float as those of Q/DQ arithmetic, whose own closeness
    `test_backends` holds. Kernels that add in 16 bits lose up to a dB more."""
    margin = MARGIN + (1.0 if overflows() else 0.0)
    assert sqnr_db(expected, found) > sqnr_db(expected, reference) - margin
    assert agreement_percent(expected, found) >= agreement_percent(expected, reference) - MARGIN


def quantized_convs(path):
    """Names of the convolutions whose input and weight come from DequantizeLinear."""
    model = onnx.load(path)
    made_by = {o: n.op_type for n in model.graph.node for o in n.output}
    dequantized = lambda name: made_by.get(name) == "DequantizeLinear"  # noqa: E731
    convs = [n for n in model.graph.node if n.op_type == "Conv"]
    return [n.name for n in convs if dequantized(n.input[0]) and dequantized(n.input[1])]


# --- OpenVINO ---


def saturates(backend):
    """Whether sums of two products overflow 16 bits here: those with weights of 8."""
    bits = {t["bits"] for t in json.loads(mqq("backends", backend, "--json"))["types"].values()}
    return overflows() and 7 not in bits


@functools.cache
def openvino_core():
    return runtime("openvino").Core()


def run_openvino(path, data, integers=True):
    """Outputs as `support.run` gives them, and the executed (layer type, precision) pairs."""
    core = openvino_core()
    model = core.read_model(str(path))
    model.reshape({k: v.shape for k, v in data[0].items()})
    options = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": integers}
    compiled = core.compile_model(model, "CPU", options)
    layers = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        layers.append(tuple(info[key].astype(str) for key in ("layerType", "runtimePrecision")))
    results = [compiled(sample) for sample in data]
    outputs = [np.stack([np.asarray(r[k]).reshape(-1) for r in results]) for k in range(len(compiled.outputs))]
    return outputs, layers


def assert_convolutions_are_int8(path, layers):
    n_int8 = sum(layer in (("Convolution", "i8"), ("Convolution", "u8")) for layer in layers)
    n_quantized = len(quantized_convs(path))
    assert n_int8 == n_quantized > 0, layers


def signed_concat(path):
    """Two signed tensors, joined and read by a convolution, all on integers; nothing of it is mqq's."""
    rng = np.random.default_rng(0)
    pair = lambda name, scale, zero: [
        helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_d"]),
    ]
    nodes, constants = pair("x", "scale", "zero"), {"scale": np.float32(1 / 30), "zero": np.int8(0)}
    for name, read, shape in [("a", "x_d", (16, 3, 1, 1)), ("b", "x_d", (16, 3, 1, 1)), ("y", "ab_d", (32, 32, 1, 1))]:
        if name == "y":
            nodes += pair("a", "scale", "zero") + pair("b", "scale", "zero")
            nodes += [helper.make_node("Concat", ["a_d", "b_d"], ["ab"], axis=1)] + pair("ab", "scale", "zero")
        constants[f"{name}_w"] = rng.integers(-63, 64, shape).astype(np.int8)
        constants[f"{name}_s"] = np.full(shape[0], 0.02, np.float32)
        constants[f"{name}_z"] = np.zeros(shape[0], np.int8)
        weight = [f"{name}_w", f"{name}_s", f"{name}_z"]
        nodes.append(helper.make_node("DequantizeLinear", weight, [f"{name}_wd"], axis=0))
        nodes.append(helper.make_node("Conv", [read, f"{name}_wd"], [name]))
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    initializers = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(
        nodes, "joined", [value("x", [1, 3, 16, 16])], [value("y", [1, 32, 16, 16])], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)}]


@functools.cache
def openvino_loses_signs():
    """Whether OpenVINO's convolution behind a Concat of signed integers is wrong on this CPU: docs/runtimes.md."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "joined.onnx"
        data = signed_concat(path)
        return sqnr_db(run(path, data)[0], run_openvino(path, data)[0][0]) < 20


def is_wrong_in_openvino(path):
    """Whether the model joins signed tensors, and OpenVINO cannot do that here."""
    graph = onnx.load(path).graph
    signed = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT8}
    signed = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear" and signed.intersection(n.input[2:])}
    joins = any(n.op_type == "Concat" and signed.intersection(n.input) for n in graph.node)
    return joins and openvino_loses_signs()


# Tables of integers of 8 bits with the layout of scales that OpenVINO's CPU kernels take.
OPENVINO = ["openvino", "tensorrt", "onnxruntime"]


@pytest.mark.parametrize("model", FIXTURES)
@pytest.mark.parametrize("backend", OPENVINO)
def test_openvino_runs_convolutions_on_integers(backend, model):
    output = quantized(model, backend)
    data, _ = digits("eval")
    found, layers = run_openvino(output, data)
    assert_convolutions_are_int8(output, layers)
    reference = run(output, data)[0]
    if not saturates(backend) and not is_wrong_in_openvino(output):
        assert_as_close(float_digits(model), reference, found[0])
    # Against the Q/DQ arithmetic itself, in float: the same scales and zero points are read.
    in_float, _ = run_openvino(output, data, integers=False)
    assert sqnr_db(reference, in_float[0]) > 40


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", OPENVINO)
def test_openvino_multiplies_by_any_constant(backend, form, tmp_path):
    """On integers and in float, as ONNX Runtime does; on integers where sums of two products do not overflow."""
    _, output, samples = quantized_products(tmp_path, form, backend)
    expected = run(output, samples)
    for integers in [False] if overflows() else [False, True]:
        found, _ = run_openvino(output, samples, integers)
        assert all(sqnr_db(a, b) > 30 for a, b in zip(expected, found)), f"integers: {integers}"


def test_openvino_reads_zero_points_of_activations(tmp_path):
    """Two convolutions with a SiLU between them, whose values are from -0.28 on."""
    rng = np.random.default_rng(21)
    draw = lambda *shape: (rng.standard_normal(shape) / 4).astype(np.float32)
    nodes = [("Conv", ["x", "w1"], "a", {}), ("Sigmoid", ["a"], "s", {}), ("Mul", ["a", "s"], "m", {}), ("Conv", ["m", "w2"], "y", {})]
    path, output = tmp_path / "silu.onnx", tmp_path / "quantized.onnx"
    save(path, nodes, {"w1": draw(16, 16, 1, 1), "w2": draw(16, 16, 1, 1)}, {"x": (1, 16, 8, 8)})
    samples = [{"x": 4 * draw(1, 16, 8, 8)} for _ in range(16)]
    np.save(tmp_path / "x.npy", np.concatenate([sample["x"] for sample in samples]))
    mqq("calibrate", path, "-b", "openvino", "--switch", "asymmetric-activations", "--data", tmp_path / "x.npy", "-o", output,
        "--quiet")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(output).graph.initializer}
    assert any(array.dtype == np.uint8 and array.size == 1 and array > 0 for array in stored.values())
    expected = run(output, samples)[0]
    for integers in [False] if overflows() else [False, True]:
        assert sqnr_db(expected, run_openvino(output, samples, integers)[0][0]) > 30, f"integers: {integers}"


def test_openvino_runs_the_float_model_in_float():
    data, _ = digits("eval")
    found, layers = run_openvino(fixture("digits_cnn"), data[:1])
    assert {p for t, p in layers if t == "Convolution"} == {"f32"}


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("depth, block", [(64, 16), (40, 16)])
def test_openvino_computes_scales_per_block(signed, depth, block, tmp_path):
    _, samples, output = calibrated_in_blocks(tmp_path, depth, block, signed, "float", "--emit", "openvino-fq")
    (found,), _ = run_openvino(output.with_name("q.openvino.onnx"), samples)
    assert sqnr_db(run(output, samples)[0], found) > 60


# Classifiers of the zoo: images, `--preprocess`, and the same in numpy.
IMAGENET = ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 255)
CLASSIFIERS = {
    "mlperf_resnet8_cifar10": ("cifar10", "raw", (0, 0, 0), (1, 1, 1), 1, "RGB"),
    "mobilenetv1_025_imagenet": ("imagenet", *IMAGENET, "RGB"),
    "squeezenet1_1_logits_op13": ("imagenet", "imagenet-caffe", (104, 117, 123), (1, 1, 1), 1, "BGR"),
}


def needs_zoo(test):
    """Runs on real models; skipped where there are none."""
    missing = pytest.mark.skipif(not (ZOO / "models").is_dir(), reason=f"no real models at {ZOO}")
    return pytest.mark.real_models(missing(test))


def images(name, n):
    folder, _, mean, std, unit, order = CLASSIFIERS[name]
    made = []
    for file in sorted((ZOO / folder / "eval").iterdir())[:n]:
        image = Image.open(file).convert("RGB")
        if folder == "imagenet":
            image = image.resize([256 * side // min(image.size) for side in image.size], Image.BILINEAR)
            left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
            image = image.crop((left, top, left + 224, top + 224))
        pixels = np.asarray(image, np.float32)[:, :, :: -1 if order == "BGR" else 1]
        made.append(((pixels / unit - mean) / std).transpose(2, 0, 1)[None].astype(np.float32))
    return made


@needs_zoo
@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("backend", OPENVINO)
def test_openvino_runs_real_models_on_integers(backend, name, tmp_path):
    path, (folder, preset, *_) = ZOO / "models" / f"{name}.onnx", CLASSIFIERS[name]
    output = tmp_path / f"{name}.onnx"
    mqq("calibrate", path, "-b", backend, "--data", ZOO / folder / "calib", "--preprocess", preset,
        "-o", output, "--quiet")
    input_name = onnx.load(path, load_external_data=False).graph.input[0].name
    # Of small images many, as few of them say little about an output behind a Softmax.
    data = [{input_name: image} for image in images(name, 200 if folder == "cifar10" else 60)]
    found, layers = run_openvino(output, data)
    assert_convolutions_are_int8(output, layers)
    expected, reference = run(path, data)[0], run(output, data)[0]
    in_float, _ = run_openvino(output, data, integers=False)
    # Engines round differently, and the difference spreads: it stays below half of what quantization does.
    assert sqnr_db(expected, in_float[0]) > sqnr_db(expected, reference) - 1
    assert sqnr_db(reference, in_float[0]) > sqnr_db(expected, reference) + 3
    kernels_differ = saturates(backend) or is_wrong_in_openvino(output)
    assert kernels_differ or agreement_percent(expected, found[0]) >= agreement_percent(expected, reference) - 10


# --- Qualcomm's HTP, simulated ---


@functools.cache
def htp():
    """The devices and options of the simulation."""
    qnn, ort = runtime("onnxruntime_qnn"), importlib.import_module("onnxruntime")
    ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "QNNExecutionProvider"]
    assert devices
    return ort, devices[:1], {"backend_path": qnn.get_qnn_htp_path()}


def run_htp(path, data):
    """The outputs as `support.run` gives them; fails where a node would run on the CPU."""
    ort, devices, backend = htp()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(devices, backend)
    session = ort.InferenceSession(str(path), options)
    outputs = [session.run(None, sample) for sample in data]
    return [np.stack([o[k].reshape(-1) for o in outputs]) for k in range(len(outputs[0]))]


def hold_htp(case, expected, path, data):
    """Holds every output to its row, by Q/DQ arithmetic and on the HTP, which rounds otherwise."""
    for name, floats, *found in zip(output_names(path), expected, run(path, data), run_htp(path, data), strict=True):
        sqnr, kernels_sqnr = (sqnr_db(floats, values) for values in found)
        hold("htp", (*case, name), sqnr_db=sqnr, kernels_db=kernels_sqnr)


HTP = [backend for backend in BACKENDS if backend.startswith("qnn-htp")]


@pytest.mark.parametrize("model", FIXTURES)
@pytest.mark.parametrize("backend", HTP)
def test_the_htp_takes_every_node(backend, model):
    output = quantized(model, backend)
    assert not check_findings(output, backend)
    data = digits("eval")[0][:20]
    hold_htp((model, backend, ""), [float_digits(model)[:20]], output, data)


REFUSED = "fallback to CPU EP has been explicitly disabled"


def test_the_htp_refuses_what_check_warns_of(tmp_path):
    # On the grid of a Concat that reaches farther a Clip cannot go.
    table, output = tmp_path / "tied.yaml", tmp_path / "tied.onnx"
    table.write_text((ROOT / "backends" / "qnn-htp.yaml").read_text().replace("share_scales: { clips_apart: 1 }", "share_scales"))
    calibrate(fixture("digits_old"), table, output)
    assert {f["rule"] for f in check_findings(output, "qnn-htp")} == {"quantized_output"}
    with pytest.raises(Exception, match=REFUSED):
        run_htp(output, digits("eval")[0][:1])


def test_the_htp_refuses_an_open_batch_and_so_does_check():
    output = quantized("digits_cnn", "qnn-htp", "--set", "static_shapes=false")
    assert "static_inputs" in {f["rule"] for f in check_findings(output, "qnn-htp")}
    with pytest.raises(Exception, match=REFUSED):
        run_htp(output, digits("eval")[0][:1])


def test_the_htp_takes_16_bits_behind_products_and_sums(tmp_path):
    """A hard-swish that divides by 6, with a convolution behind it."""
    rng = np.random.default_rng(2)
    draw = lambda *shape: (rng.normal(size=shape) * 0.5).astype(np.float32)
    constants = {"w1": draw(8, 3, 3, 3), "w2": draw(8, 8, 1, 1)}
    constants.update({k: np.float32(v) for k, v in {"three": 3, "six": 6, "zero": 0}.items()})
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "three"], ["a"]),
        node("Clip", ["a", "zero", "six"], ["l"]),
        node("Mul", ["c", "l"], ["m"]),
        node("Div", ["m", "six"], ["h"]),
        node("Conv", ["h", "w2"], ["y"]),
    ]
    value = lambda name, *shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "swish", [value("x", 1, 3, 64, 64)], [value("y", 1, 8, 64, 64)],
                              [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    path, output = tmp_path / "swish.onnx", tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    data = [{"x": draw(1, 3, 64, 64)} for _ in range(4)]
    np.save(tmp_path / "x.npy", np.concatenate([sample["x"] for sample in data]))
    options = ["-b", "qnn-htp-a16", "--data", tmp_path / "x.npy", "-o", output, "--quiet"]
    mqq("calibrate", path, *options)
    hold_htp(("hard-swish", "qnn-htp-a16", ""), run(path, data), output, data)


def test_the_htp_converts_where_tensors_enter_and_leave_a_region_of_16_bits(tmp_path):
    path, output = tmp_path / "gated.onnx", tmp_path / "q.onnx"
    data = gated(path)
    np.savez(tmp_path / "x.npz", x=np.concatenate([sample["x"] for sample in data]))
    mqq("calibrate", path, "-b", "qnn-htp", "--methods", "keep-first", "--data", tmp_path / "x.npz", "-o", output, "--quiet")
    assert not check_findings(output, "qnn-htp")
    types = [node.input[2] for node in onnx.load(output).graph.node if node.op_type == "QuantizeLinear"]
    assert {"x_converted_zero_point", "r_converted_zero_point"} <= set(types)
    hold_htp(("gated", "qnn-htp", ""), run(path, data[:4]), output, data[:4])


def between_convolutions(*nodes, **constants):
    """A convolution, `nodes` from v to z as (operator, inputs, output, attributes), and another convolution."""
    rng = np.random.default_rng(5)
    weights = {name: (rng.normal(size=(8, n, 3, 3)) / (9 * n) ** 0.5).astype(np.float32) for name, n in (("w1", 3), ("w2", 8))}
    made = [helper.make_node("Conv", ["x", "w1"], ["v"], pads=[1] * 4),
            *(helper.make_node(op, inputs, [output], **attributes) for op, inputs, output, attributes in nodes),
            helper.make_node("Conv", ["z", "w2"], ["y"], pads=[1] * 4)]
    constants = {name: onnx.numpy_helper.from_array(np.asarray(values), name) for name, values in (weights | constants).items()}
    value = lambda name, n: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, n, 16, 16])
    graph = helper.make_graph(made, "between", [value("x", 3)], [value("y", 8)], list(constants.values()))
    data = [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(24)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), data


def calibrated_for_htp(model, data, backend, folder):
    onnx.save(model, folder / "model.onnx")
    np.save(folder / "x.npy", np.concatenate([sample["x"] for sample in data]))
    mqq("calibrate", folder / "model.onnx", "-b", backend, "--data", folder / "x.npy", "-o", folder / "q.onnx", "--quiet")
    return folder / "q.onnx"


F32 = np.float32
BETWEEN = {
    "instance normalization": between_convolutions(
        ("InstanceNormalization", ["v", "g", "b"], "z", {}), g=np.linspace(0.5, 1.5, 8, dtype=F32), b=np.linspace(-1, 1, 8, dtype=F32)),
    "group normalization": between_convolutions(
        ("Reshape", ["v", "groups"], "r", {}), ("InstanceNormalization", ["r", "g", "b"], "n", {}), ("Reshape", ["n", "whole"], "z", {}),
        groups=np.int64([1, 2, -1]), whole=np.int64([1, 8, 16, 16]), g=np.ones(2, F32), b=np.zeros(2, F32)),
    "gelu": between_convolutions(
        ("Div", ["v", "root"], "a", {}), ("Erf", ["a"], "b", {}), ("Add", ["b", "one"], "c", {}), ("Mul", ["v", "c"], "d", {}),
        ("Mul", ["d", "half"], "z", {}), root=F32(2**0.5), one=F32(1), half=F32(0.5)),
    "l2 normalization": between_convolutions(
        ("ReduceL2", ["v"], "n", {"axes": [1], "keepdims": 1}), ("Clip", ["n", "tiny"], "m", {}), ("Shape", ["v"], "s", {}),
        ("Expand", ["m", "s"], "e", {}), ("Div", ["v", "e"], "z", {}), tiny=F32(1e-12)),
    "choice": between_convolutions(
        ("Greater", ["v", "zero"], "c", {}), ("Mul", ["v", "tenth"], "n", {}), ("Where", ["c", "v", "n"], "z", {}),
        zero=F32(0), tenth=F32(0.1)),
    "guarded softmax": between_convolutions(
        ("Softmax", ["v"], "p", {"axis": 1}), ("IsNaN", ["p"], "c", {}), ("Where", ["c", "zero", "p"], "z", {}), zero=F32(0)),
    "reciprocal": between_convolutions(
        ("Mul", ["v", "v"], "s", {}), ("Add", ["s", "tenth"], "t", {}), ("Reciprocal", ["t"], "z", {}), tenth=F32(0.1)),
    "fixed grid": between_convolutions(
        ("GridSample", ["v", "grid"], "z", {}), grid=np.random.default_rng(6).uniform(-1, 1, (1, 16, 16, 2)).astype(F32)),
}


@pytest.mark.parametrize("backend", HTP)
@pytest.mark.parametrize("name", BETWEEN)
def test_the_htp_takes_operators_between_convolutions(name, backend, tmp_path):
    model, data = BETWEEN[name]
    output = calibrated_for_htp(model, data, backend, tmp_path)
    assert not check_findings(output, backend)
    [expected], [found] = run(output, data[:4]), run_htp(output, data[:4])
    assert sqnr_db(expected, found) > 25


@pytest.mark.parametrize("rule,network", [
    ("refused_operators", between_convolutions(("Selu", ["v"], "z", {}))),
    ("refused_operators", between_convolutions(("IsNaN", ["v"], "c", {}), ("Where", ["c", "zero", "v"], "z", {}), zero=F32(0))),
    ("max_rank", between_convolutions(("Reshape", ["v", "six"], "r", {}), ("Mul", ["r", "two"], "m", {}), ("Reshape", ["m", "four"], "z", {}),
                                      six=np.int64([1, 2, 4, 4, 4, 16]), four=np.int64([1, 8, 16, 16]), two=np.full((1, 2, 1, 1, 1, 1), 2, F32)))])
def test_the_htp_refuses_what_check_names(rule, network, tmp_path):
    model, data = network
    output = calibrated_for_htp(model, data, "qnn-htp", tmp_path)
    assert {f["rule"] for f in check_findings(output, "qnn-htp")} == {rule}
    with pytest.raises(Exception, match="Failed to finalize QNN graph|fallback to CPU EP has been explicitly disabled"):
        run_htp(output, data[:1])


def encoder():
    """A block of a transformer on token numbers: embedding table, masked attention, layer normalizations, GELU."""
    rng, width, tokens = np.random.default_rng(3), 32, 8
    constants, nodes = {}, []

    def constant(name, values):
        constants[name] = np.asarray(values)
        return name

    def op(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def linear(x, name, n_in=width, n_out=width):
        weight = constant(f"{name}_w", (rng.normal(size=(n_in, n_out)) / n_in**0.5).astype(np.float32))
        bias = constant(f"{name}_b", (rng.normal(size=n_out) * 0.1).astype(np.float32))
        return op("Add", [op("MatMul", [x, weight], f"{name}_product"), bias], name)

    def norm(x, name):
        gain = constant(f"{name}_g", (1 + rng.normal(size=width) * 0.1).astype(np.float32))
        offset = constant(f"{name}_o", (rng.normal(size=width) * 0.1).astype(np.float32))
        return op("LayerNormalization", [x, gain, offset], name, axis=-1)

    table = constant("table", rng.normal(size=(50, width)).astype(np.float32))
    x = norm(op("Gather", [table, "ids"], "looked_up"), "n1")
    keep, lowest = constant("keep", np.float32(0)), constant("lowest", np.float32(-3.4e38))
    mask = op("Where", [op("Cast", [op("Unsqueeze", ["mask", constant("axes", [1])], "row")], "is_token", to=9), keep,
                        lowest], "addend")
    q, k, v = (linear(x, name) for name in "qkv")
    scores = op("MatMul", [q, op("Transpose", [k], "kt", perm=[0, 2, 1])], "scores")
    scaled = op("Div", [scores, constant("root", np.float32(width**0.5))], "scaled")
    weights = op("Softmax", [op("Add", [scaled, mask], "masked")], "weights", axis=-1)
    mixed = linear(op("MatMul", [weights, v], "mixed"), "projected")
    n2 = norm(op("Add", [x, mixed], "r1"), "n2")
    gelu = op("Gelu", [linear(n2, "up", width, 2 * width)], "gelu")
    norm(op("Add", [n2, linear(gelu, "down", 2 * width)], "r2"), "y")
    value = helper.make_tensor_value_info
    inputs = [value(name, onnx.TensorProto.INT64, [1, tokens]) for name in ("ids", "mask")]
    graph = helper.make_graph(nodes, "encoder", inputs, [value("y", onnx.TensorProto.FLOAT, [1, tokens, width])],
                              [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()])
    data = [{"ids": rng.integers(0, 50, (1, tokens)), "mask": (np.arange(tokens) < 4 + k % 5).astype(np.int64)[None]}
            for k in range(24)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), data


def test_the_htp_takes_a_transformer_with_16_bits(tmp_path):
    path, output = tmp_path / "encoder.onnx", tmp_path / "q.onnx"
    model, data = encoder()
    onnx.save(model, path)
    np.savez(tmp_path / "data.npz", **{name: np.concatenate([sample[name] for sample in data]) for name in data[0]})
    mqq("calibrate", path, "-b", "qnn-htp-a16", "--data", tmp_path / "data.npz", "-o", output, "--quiet")
    hold_htp(("encoder", "qnn-htp-a16", ""), run(path, data[:4]), output, data[:4])


# Images, size of the input where the model leaves it open, mean and deviation of pixels 0 to 255, channels.
HTP_ZOO = {
    "mlperf_resnet8_cifar10": ("cifar10/eval", None, 0, 1, "RGB"),
    "squeezenet1_1_logits_op13": ("imagenet/eval", None, (104, 117, 123), 1, "BGR"),
    "mobilenetv1_025_imagenet": ("imagenet/eval", None, (124, 116, 104), (58, 57, 57), "RGB"),
    "ultraface_rfb320": ("faces", None, 127, 128, "RGB"),
    "yolox_nano": ("scenes", None, 0, 1, "BGR"),
    "ppocrv3_det": ("text", (320, 320), (124, 116, 104), (58, 57, 57), "BGR"),
    "deimv2_atto": ("scenes", None, 0, 255, "RGB"),
}


def squashed(name, n):
    """Samples of images of the zoo, squashed to the model's input."""
    folder, size, mean, std, order = HTP_ZOO[name]
    graph = onnx.load(ZOO / "models" / f"{name}.onnx", load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    first, *others = [value for value in graph.input if value.name not in constants]
    height, width = size or [dim.dim_value for dim in first.type.tensor_type.shape.dim[2:]]
    samples = []
    for file in [f for f in sorted((ZOO / folder).iterdir()) if f.suffix.lower() in (".jpg", ".jpeg", ".png")][:n]:
        image = Image.open(file).convert("RGB").resize((width, height), Image.BILINEAR)
        pixels = np.asarray(image, np.float32)[:, :, :: -1 if order == "BGR" else 1]
        sample = {first.name: ((pixels - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)}
        sample.update({value.name: np.array([[width, height]]) for value in others})
        samples.append(sample)
    return samples


@needs_zoo
@pytest.mark.parametrize("backend", ["qnn-htp", "qnn-htp-a16"])
@pytest.mark.parametrize("name", HTP_ZOO)
def test_the_htp_takes_real_models_whole(backend, name, tmp_path):
    path, samples = ZOO / "models" / f"{name}.onnx", squashed(name, 8)
    (tmp_path / "data").mkdir()
    for i, sample in enumerate(samples[4:]):
        np.savez(tmp_path / "data" / f"{i}.npz", **sample)
    output, shape = tmp_path / "q.onnx", []
    if HTP_ZOO[name][1]:
        input_name, image = next(iter(samples[0].items()))
        shape = ["--shape", f"{input_name}=" + "x".join(map(str, image.shape))]
    mqq("calibrate", path, "-b", backend, "--data", tmp_path / "data", "-o", output, "--quiet", "--effort", 0, *shape)
    onnx.checker.check_model(str(output), full_check=True)
    data = samples[:4]
    hold_htp((path.stem, backend, "--effort 0"), run(path, data), output, data)


# --- TVM ---


def run_tvm(path, data):
    tvm = runtime("tvm")
    relax = tvm.relax
    onnx_frontend = importlib.import_module("tvm.relax.frontend.onnx")
    shapes = {k: list(v.shape) for k, v in data[0].items()}
    module = onnx_frontend.from_onnx(onnx.load(path), shape_dict=shapes, keep_params_in_input=False)
    machine = relax.VirtualMachine(tvm.compile(module, tvm.target.Target("llvm")), tvm.cpu())
    outputs = []
    for sample in data:
        result = machine["main"](*[tvm.runtime.tensor(v) for v in sample.values()])
        result = result if hasattr(result, "numpy") else result[0]
        outputs.append(result.numpy().reshape(-1))
    return np.stack(outputs)


def part_ways_at_a_tie(path, sample, tmp_path):
    """Whether the first values that the runtimes quantize to other integers are the same up to float rounding, and so
    lie half-way between two: sums in another order then move a value by a step, and all that follows from it."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    known = {value.name for value in model.graph.value_info}
    extractor = onnx.utils.Extractor(model)
    for node in model.graph.node:
        if node.op_type != "QuantizeLinear" or node.input[0] not in known:
            continue
        part = tmp_path / "part.onnx"
        inputs = [value.name for value in model.graph.input]
        onnx.save(extractor.extract_model(inputs, [node.input[0]]), part)
        steps = constants[node.input[1]]
        a, b = (np.ravel(found) / steps for found in (run(part, [sample])[0], run_tvm(part, [sample])))
        moved = np.rint(a) != np.rint(b)
        if moved.any():
            # Sums of values as large as these round by as much.
            return np.abs(a - b)[moved].max() <= 1e-6 * np.abs(a).max()
    return False


@pytest.mark.parametrize("model", FIXTURES)
@pytest.mark.parametrize("backend", ["tvm", "tensorrt", "onnxruntime"])
def test_tvm_imports_and_computes_the_same(backend, model, tmp_path):
    output = quantized(model, backend)
    data = digits("eval")[0][:10]
    pairs = list(zip(run(output, data)[0], run_tvm(output, data)))
    same = [sqnr_db(a, b) > 60 or part_ways_at_a_tie(output, x, tmp_path) for x, (a, b) in zip(data, pairs)]
    assert all(same), [sqnr_db(a, b) for a, b in pairs]


# --- ncnn ---


def run_ncnn(param, binary, data):
    ncnn = runtime("ncnn")
    net = ncnn.Net()
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, False)
    assert net.load_param(str(param)) == 0 and net.load_model(str(binary)) == 0
    outputs = []
    for sample in data:
        # The extractor keeps no reference to its input.
        values = np.ascontiguousarray(next(iter(sample.values()))[0])
        mat = ncnn.Mat(values).clone()
        extractor = net.create_extractor()
        extractor.input("in0", mat)
        code, result = extractor.extract("out0")
        assert code == 0
        outputs.append(np.array(result).reshape(-1).copy())
    return np.stack(outputs)


def test_ncnn_computes_with_the_table_what_the_model_says(tmp_path):
    runtime("ncnn")
    pnnx = Path(runtime_path("pnnx")) / "pnnx"
    output = calibrate(fixture("digits_cnn"), "ncnn", tmp_path / "q.onnx", "--emit", "ncnn,deploy")
    table = next(tmp_path.glob("*.ncnn.table"))
    # The float model with equalized channels and corrected biases, which ncnn's tools take along.
    next(tmp_path.glob("*.deploy.onnx")).rename(tmp_path / "float.onnx")
    subprocess.run(
        [pnnx, "float.onnx", "fp16=0", "inputshape=[1,3,32,32]"], cwd=tmp_path, check=True, capture_output=True)
    param, binary = tmp_path / "float.ncnn.param", tmp_path / "float.ncnn.bin"
    layers = ncnn_int8.quantize(param, binary, table, tmp_path / "float.onnx", tmp_path)
    assert set(quantized_convs(output)) <= set(layers) and len(layers) == 9
    data, _ = digits("eval")
    expected, reference = float_digits("digits_cnn"), run(output, data)[0]
    in_float = run(tmp_path / "float.onnx", data)[0]
    assert sqnr_db(in_float, run_ncnn(param, binary, data)) > 80
    found = run_ncnn(tmp_path / "int8.param", tmp_path / "int8.bin", data)
    # Nearer to the Q/DQ model than that is to float: ncnn computes on the table's integers.
    assert sqnr_db(reference, found) > sqnr_db(expected, reference) + 10
    assert_as_close(expected, reference, found)
