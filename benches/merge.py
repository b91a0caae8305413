"""The cost of merging by number of shards: time, memory, and whether the file is that of one run.

    python benches/merge.py [--samples 2000] [--shards 1,2,8,64,1000] [--backends all]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from support import MQQ, ROOT  # noqa: E402


def run(*args):
    """Seconds, and the most memory in MiB."""
    start = time.perf_counter()
    child = subprocess.Popen([MQQ, *map(str, args)])
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0, args
    return time.perf_counter() - start, used.ru_maxrss / 1024


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--samples", type=int, default=2000)
    options.add_argument("--shards", default="1,2,8,64,1000")
    options.add_argument("--backends", default="all", help="for --for")
    options = options.parse_args()
    images = sorted((ROOT / "calib_data" / "calib").glob("*.png"))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        data = folder / "data"
        data.mkdir()
        for i in range(options.samples):
            (data / f"{i:07}.png").symlink_to(images[i % len(images)])
        collect = ["calibrate", ROOT / "fixtures" / "digits_cnn.onnx", "-b", "tensorrt", "--for", options.backends,
                   "--data", data, "--preprocess", "half", "--quiet", "--no-preprocess-check"]
        whole = None
        print("| shards | kB each | seconds to collect, one after the other | seconds to merge | MiB to merge |")
        print("| --- | --- | --- | --- | --- |")
        for n in map(int, options.shards.split(",")):
            parts = [folder / f"{i}.mqqs" for i in range(n)]
            seconds = sum(run(*collect, "--save-stats", part, "--shard", f"{i}/{n}")[0] for i, part in enumerate(parts))
            size = sum(part.stat().st_size for part in parts) / n / 1000
            merged = folder / "merged.mqqs"
            to_merge, memory = run("stats", "merge", *reversed(parts), "--output", merged)
            whole = whole or merged.read_bytes()
            assert merged.read_bytes() == whole, f"{n} shards differ from one"
            print(f"| {n} | {size:.0f} | {seconds:.1f} | {to_merge:.2f} | {memory:.0f} |", flush=True)
            for part in parts:
                part.unlink()


main()
