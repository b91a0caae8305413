"""Paths, preprocessing and sessions for the tests against the real runtimes."""

import csv
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
MQQ = Path(os.environ.get("MQQ", BUILT / "mqq"))
RESAVE = BUILT / "examples" / "resave"
ZOO = Path(os.environ.get("MQQ_ZOO", ROOT.parent / "shared" / "zoo"))

onnxruntime.set_default_logger_severity(3)


def mqq(*args):
    done = subprocess.run([MQQ, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def session(path, optimized):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path, samples, optimized=False):
    """The outputs of every sample, an array [n, values] per output."""
    runner = session(path, optimized)
    outputs = [runner.run(None, sample) for sample in samples]
    return [np.stack([o[k].reshape(-1) for o in outputs]) for k in range(len(outputs[0]))]


@functools.cache
def overflows():
    """Whether integer kernels add products of 8 bits in 16 here: on an x86 processor without VNNI."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx2" in flags and "vnni" not in flags


def sqnr_db(float_output, other):
    noise = np.square(float_output.astype(np.float64) - other).sum()
    return 10 * np.log10(np.square(float_output.astype(np.float64)).sum() / max(noise, 1e-30))


def agreement_percent(float_output, other):
    return 100 * np.mean(float_output.argmax(1) == other.argmax(1))


def output_names(path):
    return [value.name for value in onnx.load(path, load_external_data=False).graph.output]


@functools.cache
def digits(split):
    """Samples of calib_data as `--preprocess half` makes them, and their classes."""
    with open(ROOT / "calib_data" / f"{split}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    samples = []
    for row in rows:
        image = Image.open(ROOT / "calib_data" / row["file"]).convert("RGB")
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1)
        samples.append({"input": ((pixels / 255 - 0.5) / 0.5)[None]})
    return samples, np.array([int(row["class_index"]) for row in rows])


def fixture(model):
    return ROOT / "fixtures" / f"{model}.onnx"


@functools.cache
def float_digits(model):
    """The logits of a bundled model on the samples of `digits("eval")`."""
    return run(fixture(model), digits("eval")[0])[0]


def calibrate(path, backend, output, *extra):
    """A model with the input of the bundled ones, quantized on their images."""
    mqq("calibrate", path, "-b", backend, "--data", ROOT / "calib_data" / "calib", "--preprocess", "half",
        "-o", output, "--quiet", *extra)
    return output


FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def quantized(model, backend, *extra):
    """A bundled model quantized by `calibrate`, its sidecar beside it: once for all tests, which change neither."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
    return calibrate(fixture(model), backend, folder / f"{model}.{backend}.onnx", *extra)


def gated(path, n=16, seed=4):
    """Two convolutions with SiLU, the first with channels of unlike reach, and one behind them; and 24 samples."""
    rng = np.random.default_rng(seed)
    reach = np.exp2((np.arange(n) * 5 % 9 - 4) / 2).astype(np.float32)[:, None, None, None]
    constants = {
        "first": rng.normal(size=(n, 3, 3, 3)).astype(np.float32) * 2 * reach,
        "depthwise": rng.normal(size=(n, 1, 3, 3)).astype(np.float32) / reach,
        "last": (rng.normal(size=(4, n, 1, 1)) / n**0.5).astype(np.float32),
    }
    nodes = [
        ("Conv", ["x", "first"], "a", {"pads": [1] * 4}), ("Sigmoid", ["a"], "s", {}), ("Mul", ["a", "s"], "g", {}),
        ("Conv", ["g", "depthwise"], "b", {"group": n}), ("Sigmoid", ["b"], "t", {}), ("Mul", ["b", "t"], "r", {}),
        ("Conv", ["r", "last"], "y", {}),
    ]
    save(path, nodes, constants, {"x": (1, 3, 32, 32)})
    return [{"x": rng.normal(size=(1, 3, 32, 32)).astype(np.float32)} for _ in range(24)]


def save(path, nodes, constants, inputs, outputs=("y",), opset=17):
    """A graph of (operator, inputs, output or outputs, attributes); inputs and outputs are float or, named `n_…`, int64."""
    kind = lambda name: TensorProto.INT64 if name.startswith("n_") else TensorProto.FLOAT
    nodes = [helper.make_node(op, i, [o] if isinstance(o, str) else o, name=f"{op}_{k}", **a) for k, (op, i, o, a) in enumerate(nodes)]
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info(k, kind(k), shape) for k, shape in inputs.items()],
        [helper.make_tensor_value_info(k, kind(k), None) for k in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
