"""Bare inference on one thread: mqq's engine with its own kernels, the engine without, and ONNX Runtime, in turns.

    inference.py [--models yolox_nano,st_ssd_mobilenet_v1_025] [--seconds 1] [--rounds 5]

One random sample per network. Each round takes the shortest run of each; a row has the medians over the rounds, in
milliseconds, and the medians of the ratios of the same round. MQQ_ZOO names the folder of real models.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

from accuracy import ZOO

BENCH = Path(__file__).resolve().parents[1] / "target" / "release" / "examples" / "inference"
# Sizes of open dimensions; the batch is 1.
SIZES = {"superres_subpixel": [224, 224], "ppocrv3_det": [320, 320], "deimv2_atto": [320, 320], "magika_v3_3": [2048],
         "st_ssd_mobilenet_v1_025": [256, 256], "silero_vad_op18_ifless": [512], "byte_bidi_lstm": [64]}
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
         "tensor(uint8)": np.uint8}


def sample(name, runner):
    """A random sample, and the shapes of open inputs as options of the bench."""
    rng, arrays, shapes, sizes = np.random.default_rng(0), {}, [], list(SIZES.get(name, []))
    for given in runner.get_inputs():
        dims = list(given.shape)
        for axis, dim in enumerate(dims):
            if not isinstance(dim, int):
                dims[axis] = sizes.pop(0) if axis > 0 and sizes else 1
        dtype = TYPES[given.type]
        arrays[given.name] = rng.normal(size=dims).astype(dtype) if dtype == np.float32 else np.ones(dims, dtype)
        if dims != given.shape:
            shapes.append(f"{given.name}={'x'.join(map(str, dims))}")
    return arrays, shapes


def shortest(runner, arrays, seconds):
    """Milliseconds of the shortest run."""
    start, best = time.perf_counter(), float("inf")
    while time.perf_counter() - start < seconds:
        before = time.perf_counter()
        runner.run(None, arrays)
        best = min(best, time.perf_counter() - before)
    return 1e3 * best


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", default="")
    options.add_argument("--seconds", type=float, default=1)
    options.add_argument("--rounds", type=int, default=5)
    options = options.parse_args()
    if not (ZOO / "models").is_dir():
        sys.exit(f"no real models at {ZOO}")
    paths = sorted((ZOO / "models").glob("*.onnx"))
    chosen = options.models.split(",") if options.models else [path.stem for path in paths]
    print("| network | mqq, ms | engine alone, ms | ONNX Runtime, ms | mqq / engine alone | mqq / ONNX Runtime |\n"
          "| --- | --- | --- | --- | --- | --- |")
    for path in (path for path in paths if path.stem in chosen):
        one_thread = onnxruntime.SessionOptions()
        one_thread.intra_op_num_threads = one_thread.inter_op_num_threads = 1
        runner = onnxruntime.InferenceSession(str(path), one_thread, providers=["CPUExecutionProvider"])
        arrays, shapes = sample(path.stem, runner)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "sample.npz"
            np.savez(file, **arrays)
            rows = []
            for _ in range(options.rounds):
                command = [BENCH, path, file, str(2 * options.seconds), *shapes]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    break
                rows.append([*map(float, done.stdout.split()), shortest(runner, arrays, options.seconds)])
        if not rows:
            print(f"| {path.stem} | {done.stderr.splitlines()[0]} | | | | |")
            continue
        ours, engine, theirs = map(statistics.median, zip(*rows))
        to_engine = statistics.median(row[0] / row[1] for row in rows)
        to_theirs = statistics.median(row[0] / row[2] for row in rows)
        print(f"| {path.stem} | {ours:.2f} | {engine:.2f} | {theirs:.2f} | {to_engine:.2f} | {to_theirs:.2f} |", flush=True)


main()
