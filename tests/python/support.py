"""Paths, preprocessing and sessions for the tests against the real runtimes."""

import csv
import functools
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
MQQ = Path(os.environ.get("MQQ", ROOT / "target" / "release" / "mqq"))
RESAVE = ROOT / "target" / "release" / "examples" / "resave"
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


def sqnr_db(float_output, other):
    noise = np.square(float_output.astype(np.float64) - other).sum()
    return 10 * np.log10(np.square(float_output.astype(np.float64)).sum() / max(noise, 1e-30))


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


def save(path, nodes, constants, inputs, outputs=("y",)):
    """A graph of (operator, inputs, output, attributes); inputs and outputs are float or, named `n_…`, int64."""
    kind = lambda name: TensorProto.INT64 if name.startswith("n_") else TensorProto.FLOAT
    nodes = [helper.make_node(op, i, [o], name=f"{op}_{k}", **a) for k, (op, i, o, a) in enumerate(nodes)]
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info(k, kind(k), shape) for k, shape in inputs.items()],
        [helper.make_tensor_value_info(k, kind(k), None) for k in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
