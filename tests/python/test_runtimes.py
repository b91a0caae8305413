"""Quantized models in the runtimes that they are made for: OpenVINO, Qualcomm's HTP simulation, TVM, and
ONNX Runtime for every table. `make test-runtimes`; docs/runtimes.md says what is shown and what not."""

import functools
import importlib
import importlib.metadata
import json
import sys

import numpy as np
import onnx
import pytest
from packaging import tags
from support import ROOT, ZOO, digits, mqq, run, sqnr_db
from test_zoo import samples, shape_options

FIXTURES = ["digits_cnn", "digits_old"]
BACKENDS = [backend["name"] for backend in json.loads(mqq("backends", "--json"))]
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


def fixture(model):
    return ROOT / "fixtures" / f"{model}.onnx"


def calibrate(path, backend, folder, *extra):
    output = folder / f"{path.stem}.{backend}.onnx"
    mqq("calibrate", path, "-b", backend, "--data", ROOT / "calib_data" / "calib",
        "--preprocess", "half", "-o", output, "--quiet", *extra)
    return output


def fixed_batch(path, folder):
    """The model with 1 for its open dimensions."""
    model = onnx.load(path)
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 1
    output = folder / path.name
    onnx.save(model, output)
    return output


def agreement(a, b):
    return float(np.mean(a.argmax(1) == b.argmax(1)))


def quantized_convs(path):
    """Names of the convolutions whose input and weight come from DequantizeLinear."""
    model = onnx.load(path)
    made_by = {o: n.op_type for n in model.graph.node for o in n.output}
    dequantized = lambda name: made_by.get(name) == "DequantizeLinear"  # noqa: E731
    convs = [n for n in model.graph.node if n.op_type == "Conv"]
    return [n.name for n in convs if dequantized(n.input[0]) and dequantized(n.input[1])]


# --- ONNX Runtime ---


@pytest.mark.parametrize("model", FIXTURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_table_gives_a_model_that_onnx_runtime_runs(backend, model, tmp_path):
    output = calibrate(fixture(model), backend, tmp_path)
    onnx.checker.check_model(str(output), full_check=True)
    mqq("check", output, "-b", backend)
    data, _ = digits("eval")
    expected = run(fixture(model), data)[0]
    for optimized in (False, True):
        found = run(output, data, optimized)[0]
        assert sqnr_db(expected, found) > 10, f"optimized: {optimized}"
        assert agreement(expected, found) >= 0.95, f"optimized: {optimized}"


# --- OpenVINO ---


@functools.cache
def openvino_core():
    return runtime("openvino").Core()


def run_openvino(path, data):
    """Outputs as `support.run` gives them, and the executed (layer type, precision, names) triples."""
    core = openvino_core()
    model = core.read_model(str(path))
    model.reshape({k: v.shape for k, v in data[0].items()})
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
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


# Tables of integers of 8 bits with the layout of scales that OpenVINO's CPU kernels take.
OPENVINO = [b for b in ("openvino", "tensorrt", "onnxruntime") if b in BACKENDS]


@pytest.mark.parametrize("model", FIXTURES)
@pytest.mark.parametrize("backend", OPENVINO)
def test_openvino_runs_convolutions_on_integers(backend, model, tmp_path):
    output = calibrate(fixture(model), backend, tmp_path)
    data, _ = digits("eval")
    found, layers = run_openvino(output, data)
    assert_convolutions_are_int8(output, layers)
    assert sqnr_db(run(fixture(model), data)[0], found[0]) > 20
    assert agreement(run(fixture(model), data)[0], found[0]) >= 0.98
    # Against the Q/DQ arithmetic itself: the same scales are used.
    assert sqnr_db(run(output, data)[0], found[0]) > 30


def test_openvino_runs_the_float_model_in_float():
    data, _ = digits("eval")
    found, layers = run_openvino(fixture("digits_cnn"), data[:1])
    assert {p for t, p in layers if t == "Convolution"} == {"f32"}


ZOO_MODELS = [
    ZOO / "models" / f"{name}.onnx"
    for name in ("mlperf_resnet8_cifar10", "mobilenetv1_025_imagenet", "squeezenet1_1_logits_op13", "ultraface_rfb320")
]
ZOO_MODELS = [path for path in ZOO_MODELS if path.exists()]
needs_zoo = pytest.mark.skipif(not ZOO_MODELS, reason=f"no real models at {ZOO}")


def calibrate_zoo(path, backend, folder, n):
    data = samples(path, n, 1)
    arrays = {k: np.stack([s[k] for s in data]) for k in data[0]}
    np.savez(folder / "data.npz", **arrays)
    output = folder / f"{path.stem}.{backend}.onnx"
    mqq("calibrate", path, "-b", backend, "--data", folder / "data.npz", "-o", output, "--quiet", *shape_options(path))
    return output, data


@needs_zoo
@pytest.mark.parametrize("path", ZOO_MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", OPENVINO)
def test_openvino_runs_real_models_on_integers(backend, path, tmp_path):
    output, data = calibrate_zoo(path, backend, tmp_path, 6)
    found, layers = run_openvino(output, data)
    assert_convolutions_are_int8(output, layers)
    expected, reference = run(path, data), run(output, data)
    best = max(range(len(expected)), key=lambda k: sqnr_db(expected[k], reference[k]))
    # Engines round differently, and the difference spreads: it stays below that of quantization.
    assert sqnr_db(expected[best], found[best]) > sqnr_db(expected[best], reference[best]) - 3


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
    """First output; fails where a node would run on the CPU."""
    ort, devices, backend = htp()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(devices, backend)
    session = ort.InferenceSession(str(path), options)
    return np.stack([session.run(None, sample)[0].reshape(-1) for sample in data])


@pytest.mark.parametrize("model", FIXTURES)
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.startswith("qnn-htp")])
def test_the_htp_takes_every_node(backend, model, tmp_path):
    source = fixed_batch(fixture(model), tmp_path)
    output = calibrate(source, backend, tmp_path)
    data = digits("eval")[0][:20]
    expected, found = run(source, data)[0], run_htp(output, data)
    assert sqnr_db(expected, found) > 20
    assert agreement(expected, found) >= 0.95


def test_the_htp_refuses_an_open_batch_and_so_does_check(tmp_path):
    if "qnn-htp" not in BACKENDS:
        pytest.skip("no table qnn-htp")
    output = calibrate(fixture("digits_cnn"), "qnn-htp", tmp_path)
    report = json.loads(mqq_check_json(output, "qnn-htp"))
    assert "static_inputs" in {f["rule"] for f in report["results"][0]["findings"]}
    with pytest.raises(Exception, match="fallback to CPU EP has been explicitly disabled"):
        run_htp(output, digits("eval")[0][:1])


def mqq_check_json(path, backend):
    import subprocess

    from support import MQQ

    done = subprocess.run([MQQ, "check", path, "-b", backend, "--json"], capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    return done.stdout


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


@pytest.mark.parametrize("model", FIXTURES)
@pytest.mark.parametrize("backend", [b for b in ("tvm", "tensorrt", "onnxruntime") if b in BACKENDS])
def test_tvm_imports_and_computes_the_same(backend, model, tmp_path):
    output = calibrate(fixture(model), backend, tmp_path)
    data = digits("eval")[0][:10]
    assert sqnr_db(run(output, data)[0], run_tvm(output, data)) > 60
