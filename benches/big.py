"""Peak memory of each command on models of one and a half and of one GiB, in multiples of the model's size.

    big.py [COMMAND...] [--binary BINARY]

Makes two networks of random weights: `external`, 24 MatMuls of 4096x4096 whose weights are in a file beside the model, and
`single`, 15 Gemms of the same size in one file below protobuf's limit. Prints for each command the largest resident memory, the
largest part of it that is no file (`anonymous`), and the CPU seconds. Resident memory has the mapped pages of the model too, which
the system takes back where it needs them. FOLDER in the environment keeps the models for the next time; SIDE sets the side of a
weight, LAYERS the layers of the first.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save

ROOT = Path(__file__).resolve().parent.parent
SIDE = int(os.environ.get("SIDE", "4096"))
LAYERS = int(os.environ.get("LAYERS", "24"))
ROWS, SAMPLES = 4, 8


def weight(random):
    """A layer's weight that keeps the size of its input."""
    return random.standard_normal((SIDE, SIDE), dtype=np.float32) * np.float32(np.sqrt(2 / SIDE))


def network(path, op, n_layers, external):
    """Writes layers with a Relu between."""
    random = np.random.default_rng(0)
    data = open(path.with_suffix(".onnx.data"), "wb") if external else None
    nodes, weights, last = [], [], "input"
    for i in range(n_layers):
        raw = weight(random).tobytes()
        tensor = TensorProto(name=f"weight{i}", data_type=1, dims=[SIDE, SIDE])
        if data:
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": path.name + ".data", "offset": str(data.tell()), "length": str(len(raw))}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
            data.write(raw)
        else:
            tensor.raw_data = raw
        weights.append(tensor)
        options = {"transB": 1} if op == "Gemm" else {}
        nodes.append(helper.make_node(op, [last, f"weight{i}"], [f"layer{i}"], f"layer{i}", **options))
        last = f"layer{i}"
        if i + 1 < n_layers:
            nodes.append(helper.make_node("Relu", [last], [f"relu{i}"], f"relu{i}"))
            last = f"relu{i}"
    value = lambda name: helper.make_tensor_value_info(name, 1, [ROWS, SIDE])
    graph = helper.make_graph(nodes, "layers", [value("input")], [value(last)], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def peaks(command):
    """Largest resident and largest anonymous bytes of a command, and its CPU seconds."""
    largest, ended = {"VmRSS": 0, "RssAnon": 0}, 0
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    # Its `ru_maxrss` would begin with the memory of this process.
    while not ended:
        lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
        for key, text in (line.split(":", 1) for line in lines):
            if key in largest:
                largest[key] = max(largest[key], int(text.split()[0]) << 10)
        time.sleep(0.01)
        ended, status, usage = os.wait4(child.pid, os.WNOHANG)
    if status:
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return *largest.values(), usage.ru_utime + usage.ru_stime


def commands(folder, model):
    """The commands by their names, in an order in which each finds its files."""
    data, quantized = folder / "data.npz", folder / "quantized.onnx"
    run = ["calibrate", model, "-b", "tensorrt", "--data", data, "-q", "-o"]
    return {
        "inspect": ["inspect", model],
        "inspect -b": ["inspect", model, "-b", "tensorrt"],
        "prepare": ["prepare", model, "-b", "tensorrt", "-o", folder / "prepared.onnx"],
        "calibrate --effort 0": [*run, quantized, "--effort", "0"],
        "check": ["check", quantized, "-b", "tensorrt"],
        "compare": ["compare", model, quantized, "--data", data],
        "weights alone": ["calibrate", model, "-b", "weight-only-int4", "-q", "-o", folder / "alone.onnx"],
        "calibrate": [*run, folder / "default.onnx"],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("commands", nargs="*", help="names of commands; all without one")
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "mqq")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("FOLDER", temporary))
        samples = np.random.default_rng(1).standard_normal((SAMPLES * ROWS, SIDE), dtype=np.float32)
        np.savez(folder / "data.npz", input=samples)
        for name, op, n_layers, external in [("external", "MatMul", LAYERS, True), ("single", "Gemm", LAYERS * 5 // 8, False)]:
            model = folder / f"{name}.onnx"
            if not model.exists():
                network(model, op, n_layers, external)
            size = n_layers * SIDE * SIDE * 4
            for command, line in commands(folder, model).items():
                if options.commands and command not in options.commands:
                    continue
                resident, anonymous, seconds = peaks([options.binary, *line])
                print(f"{name}, {command}: {resident / size:.2f} times the model's {size / 2**30:.2f} GiB, "
                      f"anonymous {anonymous / size:.2f}, {seconds:.1f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
