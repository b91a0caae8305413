"""Whole runs against ONNX Runtime's own static quantization: same model, same images, in turns.

Prints, per model and run: median wall seconds and peak memory of both processes, and the median of
the ratios of each pair. MQQ_ZOO names the folder of real models; without it the bundled model is used.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MQQ = ROOT / "target" / "release" / "mqq"
ZOO = Path(os.environ.get("MQQ_ZOO", ROOT.parent / "shared" / "zoo"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))

# What mqq does, and the calibration method of the other tool.
RUNS = [
    ("entropy", ["--effort", "0", "--observer", "entropy"], "Entropy"),
    ("max", ["--effort", "0", "--observer", "max"], "MinMax"),
    ("default", [], "Entropy"),
]

CHILD = """
import sys
import numpy as np, onnxruntime
from pathlib import Path
from PIL import Image
from onnxruntime.quantization import (
    CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static)
model, images, preset, method, output = sys.argv[1:]
SIZES = {"half": 32, "imagenet": 224, "imagenet-caffe": 224}

def load(path):
    image = Image.open(path).convert("RGB")
    size = SIZES[preset]
    if preset != "half":
        image = image.resize([256 * n // min(image.size) for n in image.size], Image.BILINEAR)
        left, top = [round((n - size) / 2) for n in image.size]
        image = image.crop((left, top, left + size, top + size))
    x = np.asarray(image, np.float32)
    if preset == "imagenet-caffe":
        x = x[:, :, ::-1] - np.float32((104, 117, 123))
    elif preset == "imagenet":
        x = (x / 255 - np.float32((.485, .456, .406))) / np.float32((.229, .224, .225))
    else:
        x = (x / 255 - np.float32(.5)) / np.float32(.5)
    return x.transpose(2, 0, 1)[None]

class Reader(CalibrationDataReader):
    def __init__(self):
        self.files = iter(sorted(Path(images).iterdir()))
        self.name = onnxruntime.InferenceSession(model).get_inputs()[0].name
    def get_next(self):
        file = next(self.files, None)
        return None if file is None else {self.name: load(file)}

quantize_static(model, output, Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                calibrate_method=getattr(CalibrationMethod, method))
"""


def measure(command):
    """Wall seconds and peak resident MiB of a child process."""
    start = time.perf_counter()
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main():
    cases = [(ROOT / "fixtures/digits_cnn.onnx", ROOT / "calib_data/calib", "half")]
    if (ZOO / "models").is_dir():
        images = ZOO / "imagenet/calib"
        cases += [(ZOO / "models/mobilenetv1_025_imagenet.onnx", images, "imagenet"),
                  (ZOO / "models/squeezenet1_1_logits_op13.onnx", images, "imagenet-caffe")]
    with tempfile.TemporaryDirectory() as folder:
        for model, images, preset in cases:
            for title, options, method in RUNS:
                ours, theirs = [], []
                for _ in range(ROUNDS):
                    ours.append(measure([
                        MQQ, "calibrate", model, "-b", "onnxruntime", "--data", images, "--preprocess", preset,
                        *options, "-q", "-o", f"{folder}/ours.onnx"]))
                    theirs.append(measure([
                        sys.executable, "-c", CHILD, model, images, preset, method,
                        f"{folder}/theirs.onnx"]))
                ratio = statistics.median(b[0] / a[0] for a, b in zip(ours, theirs))
                wall = [statistics.median(x[0] for x in runs) for runs in (ours, theirs)]
                peak = [statistics.median(x[1] for x in runs) for runs in (ours, theirs)]
                print(f"{model.stem}, {title} against {method}: mqq {wall[0]:.2f} s, {peak[0]:.0f} MiB; "
                      f"onnxruntime {wall[1]:.2f} s, {peak[1]:.0f} MiB; {ratio:.1f}x faster", flush=True)


if __name__ == "__main__":
    main()
