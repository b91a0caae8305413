"""Collect once, decide many times: time of `mqq solve` against full runs, and size of the statistics.

    python benches/collect_once.py [MODEL.onnx DATA PREPROCESS ...]
    python benches/collect_once.py tables [N]

Without arguments, two networks of the zoo. Of each the table has the seconds of one pass that collects for all tables, of
full runs at effort 0 (the mean of five observers) and at effort 1, of `solve` for the same (at 1 with all samples kept), and
the bytes per tensor. All results are compared. With `tables`, every table is compared on both networks, with N images (24).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MQQ = Path(os.environ.get("MQQ", ROOT / "target" / "release" / "mqq"))
ZOO = Path(os.environ.get("MQQ_ZOO", ROOT.parent / "shared" / "zoo"))
OBSERVERS = ["max", "mse", "percentile:99.99", "entropy", "ema"]
BACKEND = "tensorrt"


def run(*args):
    start = time.monotonic()
    done = subprocess.run([MQQ, *map(str, args), "-q"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - start


def measure(model, data, preprocess, folder):
    statistics, kept = folder / "s.mqqs", folder / "kept.mqqs"
    calibrate = ["calibrate", model, "-b", BACKEND, "-d", data, "--preprocess", preprocess]
    collecting = run(*calibrate, "--save-stats", statistics, "--for", "all", "--shard", "0/1")
    run(*calibrate, "--save-stats", kept, "--keep-samples", "1000", "--shard", "0/1")
    shown = subprocess.run([MQQ, "stats", "show", statistics, "--json"], check=True, capture_output=True, text=True)
    shown = json.loads(shown.stdout)

    def compare(effort, source, observers):
        full, solved = [], []
        for observer in observers:
            one, other = folder / "full.onnx", folder / "solved.onnx"
            full.append(run(*calibrate, "--effort", effort, "--observer", observer, "-o", one))
            solve = ["solve", model, "-b", BACKEND, "--stats", source, "--effort", effort, "--observer", observer]
            solved.append(run(*solve, "-o", other))
            for ending in (".onnx", ".json"):
                assert one.with_suffix(ending).read_bytes() == other.with_suffix(ending).read_bytes(), observer
        full, solved = (sum(times) / len(times) for times in (full, solved))
        return f"{full:.2f} | {solved:.3f} | {full / solved:.0f}"

    # Observers that effort 0 takes, and with the samples kept the one that the table has.
    at_0, at_1 = compare(0, statistics, OBSERVERS), compare(1, kept, ["mse"])
    print(
        f"| {Path(model).stem} | {shown['n_samples']} | {collecting:.1f} | {at_0} | {at_1} | "
        f"{shown['bytes_per_tensor']} | {shown['n_bytes'] / 1e6:.2f} |",
        flush=True,
    )


def compare_tables(model, data, preprocess, n, folder):
    """`solve` against full runs at effort 0, in every table."""
    statistics, one, other = folder / "s.mqqs", folder / "full.onnx", folder / "solved.onnx"
    options = ["-d", data, "--preprocess", preprocess, "--limit", n]
    run("calibrate", model, "-b", BACKEND, *options, "--save-stats", statistics, "--for", "all", "--shard", "0/1")
    listed = json.loads(subprocess.run([MQQ, "backends", "--json"], check=True, capture_output=True, text=True).stdout)
    different, full, solved = [], 0, 0
    for backend in [table["name"] for table in listed["backends"]]:
        full += run("calibrate", model, "-b", backend, *options, "--effort", 0, "-o", one)
        solved += run("solve", model, "-b", backend, "--stats", statistics, "-o", other)
        pairs = [(one.with_suffix(ending), other.with_suffix(ending)) for ending in (".onnx", ".json")]
        if any(a.read_bytes() != b.read_bytes() for a, b in pairs):
            different.append(backend)
    print(f"{Path(model).stem}: {len(listed)} tables, {n} images: full runs {full:.1f} s, solve {solved:.1f} s; "
          f"different: {', '.join(different) or 'none'}", flush=True)


def main():
    given = sys.argv[1:]
    tables = given[0] == "tables" if given else False
    n = int(given[1]) if tables and len(given) > 1 else 24
    given = [] if tables else given
    cases = list(zip(given[::3], given[1::3], given[2::3])) or [
        (ZOO / "models" / "mobilenetv1_025_imagenet_bn.onnx", ZOO / "imagenet" / "calib", "imagenet"),
        (ZOO / "models" / "squeezenet1_1_logits_op13.onnx", ZOO / "imagenet" / "calib", "imagenet"),
    ]
    if tables:
        for model, data, preprocess in cases:
            with tempfile.TemporaryDirectory() as folder:
                compare_tables(model, data, preprocess, n, Path(folder))
        return
    print("| network | samples | collecting for all, s | full run at 0, s | solve, s | ratio | at 1, s | solve, s | ratio | bytes per tensor | MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for model, data, preprocess in cases:
        with tempfile.TemporaryDirectory() as folder:
            measure(model, data, preprocess, Path(folder))


if __name__ == "__main__":
    main()
