"""Memory of models whose weights are most of it."""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save
from support import MQQ

SIDE, LAYERS, ROWS = 2048, 12, 2
SIZE = SIDE * SIDE * 4 * LAYERS


def network(path, external):
    """Writes MatMuls of random weights, 192 MiB; with `external` in a file beside the model."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((SIDE, SIDE), dtype=np.float32) / 32 for _ in range(LAYERS)]
    tensors = [TensorProto(name=f"weight{i}", data_type=1, dims=[SIDE, SIDE]) for i in range(LAYERS)]
    for i, (tensor, weight) in enumerate(zip(tensors, weights)):
        if not external:
            tensor.raw_data = weight.tobytes()
            continue
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": f"{path.name}.data", "offset": i * weight.nbytes, "length": weight.nbytes}.items():
            tensor.external_data.add(key=key, value=str(value))
    if external:
        path.with_name(f"{path.name}.data").write_bytes(b"".join(weight.tobytes() for weight in weights))
    names = ["input", *(f"layer{i}" for i in range(LAYERS))]
    nodes = [helper.make_node("MatMul", [names[i], f"weight{i}"], [names[i + 1]]) for i in range(LAYERS)]
    value = lambda name: helper.make_tensor_value_info(name, 1, [ROWS, SIDE])
    graph = helper.make_graph(nodes, "layers", [value("input")], [value(names[-1])], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def peak(*command):
    """Largest resident bytes of a run."""
    largest = 0
    child = subprocess.Popen([MQQ, *map(str, command)], stdout=subprocess.DEVNULL)
    while child.poll() is None:
        lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
        largest = max([largest, *(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))])
        time.sleep(0.005)
    assert child.returncode == 0
    return largest


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("external", [True, False])
def test_weights_are_in_memory_once(tmp_path, external):
    model, data, quantized = tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "quantized.onnx"
    network(model, external)
    np.savez(data, input=np.random.default_rng(1).standard_normal((4 * ROWS, SIDE), dtype=np.float32))
    # What a small model takes, and a piece of this one.
    others = 120 << 20
    assert peak("inspect", model, "-b", "tensorrt") < others
    assert peak("prepare", model, "-b", "tensorrt", "-o", tmp_path / "prepared.onnx") < others
    # Each further thread may hold copies of a layer at the same time.
    run = ["calibrate", model, "-b", "tensorrt", "--data", data, "--effort", "0", "-q", "--threads", "1", "-o", quantized]
    assert peak(*run) < 1.3 * SIZE + others
    assert peak("check", quantized, "-b", "tensorrt") < others
