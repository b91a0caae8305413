"""How the cost of a run grows with the number of nodes: chains of small convolutions, effort 0.

Prints CPU seconds and peak memory for each number of nodes, and the ratio to the one before: 2 where the cost is linear.
Fails where a ratio is above 3.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper, save

ROOT = Path(__file__).resolve().parent.parent
MQQ = Path(os.environ.get("MQQ", ROOT / "target" / "release" / "mqq"))
NODES = [1250, 2500, 5000]
CHANNELS, SIDE, SAMPLES = 8, 8, 32


def chain(n_nodes, path):
    """Writes convolutions of 3x3, each with a Relu."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "input"
    for i in range(n_nodes // 2):
        weight = random.standard_normal((CHANNELS, CHANNELS if i else 3, 3, 3)) * np.sqrt(2 / (9 * CHANNELS))
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"weight{i}"))
        nodes.append(helper.make_node("Conv", [last, f"weight{i}"], [f"conv{i}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"]))
        last = f"relu{i}"
    value = lambda name, channels: helper.make_tensor_value_info(name, 1, [1, channels, SIDE, SIDE])
    graph = helper.make_graph(nodes, "chain", [value("input", 3)], [value(last, CHANNELS)], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def cost(*command):
    """CPU seconds and peak MiB of a command."""
    child = subprocess.Popen(list(map(str, command)))
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    before, grown = None, False
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(1)
        samples = random.standard_normal((SAMPLES, 3, SIDE, SIDE)).astype(np.float32)
        np.savez(f"{folder}/data.npz", input=samples)
        for n_nodes in NODES:
            chain(n_nodes, f"{folder}/chain.onnx")
            seconds, peak = cost(MQQ, "calibrate", f"{folder}/chain.onnx", "-b", "tensorrt", "--data",
                                 f"{folder}/data.npz", "--effort", "0", "-q", "-o", f"{folder}/quantized.onnx")
            ratio = seconds / before if before else None
            grown |= ratio is not None and ratio > 3
            print(f"{n_nodes} nodes: {seconds:.1f} s, {peak:.0f} MiB{f', {ratio:.1f} times' if ratio else ''}", flush=True)
            before = seconds
    sys.exit(int(grown))


if __name__ == "__main__":
    main()
