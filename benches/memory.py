"""Peak memory by the number of images: the bundled model on 100 images and on 100,000, the same ones again and again.

Prints the peaks of both and their ratio, per backend, and fails where it is above 1.10. IMAGES sets the larger number.
The peak of the short run is the median of several: what the allocator keeps for each thread differs by a few MiB.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MQQ = Path(os.environ.get("MQQ", ROOT / "target" / "release" / "mqq"))
N_IMAGES = int(os.environ.get("IMAGES", "100000"))
# A table whose range finder reads histograms, and one with a moving average.
BACKENDS = ["tensorrt", "snpe"]


def peak_mib(*command):
    """Peak resident MiB of a child process, and its wall seconds."""
    start = time.perf_counter()
    child = subprocess.Popen(list(map(str, command)))
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return usage.ru_maxrss / 1024, time.perf_counter() - start


def main():
    images = sorted((ROOT / "calib_data/calib").iterdir())
    grown = False
    with tempfile.TemporaryDirectory() as folder:
        folders = {n: Path(folder) / str(n) for n in (100, N_IMAGES)}
        for n, path in folders.items():
            path.mkdir()
            for i in range(n):
                (path / f"image_{i:08}.png").symlink_to(images[i % len(images)])
        for backend in BACKENDS:
            peaks = []
            for n, path in folders.items():
                runs = [peak_mib(
                    MQQ, "calibrate", ROOT / "fixtures/digits_cnn.onnx", "-b", backend, "--data", path,
                    "--preprocess", "half", "--effort", "0", "-q", "-o", f"{folder}/quantized.onnx")
                    for _ in range(9 if n == 100 else 1)]
                peak, seconds = (statistics.median(figures) for figures in zip(*runs))
                peaks.append(peak)
                print(f"{backend}: {n} images, {peak:.1f} MiB, {seconds:.1f} s", flush=True)
            ratio = peaks[1] / peaks[0]
            grown |= ratio > 1.10
            print(f"{backend}: {ratio:.3f} times", flush=True)
    sys.exit(int(grown))


if __name__ == "__main__":
    main()
