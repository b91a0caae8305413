"""Detectors for integer-only targets, whole and cut in front of their tail, in arithmetic and in Qualcomm's HTP simulation.

    cut.py --models st_ssd_mobilenet_v1_025,yolox_nano --options='--effort 0'

Quantizes each network with mqq as a whole, and with `--outputs` at the tensors that `mqq inspect` names. The cut model's
outputs go through the float tail, which ONNX Runtime runs on the CPU. Prints the figure of tasks.py (held-out images
against the float network) of each by Q/DQ arithmetic, and on the HTP simulation of the package onnxruntime-qnn, where
no node may fall back to the CPU. "refused" is a graph that the simulation does not build.
"""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import onnxruntime_qnn
from tasks import MQQ, Network, figure, known

onnxruntime.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())


def on_cpu(path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def on_htp(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "QNNExecutionProvider"]
    options.add_provider_for_devices(devices[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path()})
    return onnxruntime.InferenceSession(str(path), options)


def outputs(model, tail, samples, load):
    """Outputs of each sample as the float network has them: the model's on the target, then the tail's on the CPU."""
    first, then = load(model), tail and on_cpu(tail)
    names = [output.name for output in first.get_outputs()]
    found = []
    for sample in samples:
        values = first.run(None, sample)
        if then:
            known_values = sample | dict(zip(names, values, strict=True))
            values = then.run(None, {given.name: known_values[given.name] for given in then.get_inputs()})
        found.append(values)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="st_ssd_mobilenet_v1_025,yolox_nano")
    parser.add_argument("--backends", default="qnn-htp")
    parser.add_argument("--options", default="--effort 0", help="further options of mqq calibrate")
    parser.add_argument("--limit", type=int, default=None, help="number of held-out images")
    args = parser.parse_args()
    for name in known(args.models.split(","), None, True):
        with tempfile.TemporaryDirectory() as scratch:
            network = Network(name, scratch)
            samples = network.samples[: args.limit]
            expected = network.expected[: args.limit]
            for backend in args.backends.split(","):
                inspected = subprocess.run([MQQ, "inspect", network.path, "-b", backend, "--json"], capture_output=True, check=True)
                cut = json.loads(inspected.stdout)["placement"]["detector_tails"][0]["cut"]
                for title, extra in (("whole", []), ("cut", ["--outputs", ",".join(cut)])):
                    model = Path(scratch) / f"{title}.onnx"
                    tail = model.with_suffix(".tail.onnx") if extra else None
                    command = [MQQ, "calibrate", network.path, "-b", backend, *network.options, "-o", model, *extra]
                    subprocess.run([*command, *shlex.split(args.options), "--quiet"], check=True)
                    row = []
                    for engine, load in (("arithmetic", on_cpu), ("HTP simulation", on_htp)):
                        try:
                            figures = network.task(expected, outputs(model, tail, samples, load))
                            row.append(f"{engine} {figure(figures):.3f}")
                        except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
                            row.append(f"{engine} refused: {str(error).splitlines()[0][:120]}")
                    print(f"{name:24} {backend:12} {title:6} {network.unit} {', '.join(row)}", flush=True)


if __name__ == "__main__":
    main()
