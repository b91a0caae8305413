"""What quantization leaves of real networks: output SQNR, agreement and top-1 on images not calibrated on.

    accuracy.py --models mobilenetv1_025_imagenet --backends tensorrt,onnxruntime --efforts 0,1,3
    accuracy.py --ablation --backends tensorrt
    accuracy.py --backends onnxruntime -- --set types.wgt8.bits=4 --set min_opset=21

Calibrates with mqq on the calibration images of the folder of real models (MQQ_ZOO, or ../shared/zoo), runs the
float and the quantized model in ONNX Runtime without its optimisations (the Q/DQ arithmetic), or with them
(`--kernels`), and prints per model, backend and effort: SQNR in dB over the whole output (one figure per output),
agreement with float and top-1 in percent where there are classes, wall seconds and peak memory of mqq.
Options behind `--` go to mqq.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python"))
from support import MQQ, ZOO, run, sqnr_db  # noqa: E402

IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
METHODS = ["equalize", "observer", "bias", "ranges", "rounding"]


class Case:
    """A model with its images: `fit` is `crop` (short side 256), `stretch` or `letterbox`."""

    def __init__(self, input_name, preset, images, size, fit="stretch", bgr=False, scale=1.0, mean=0.0, std=1.0,
                 luma=False, options=(), extra=None, n=(100, 300)):
        self.input_name, self.preset, self.images, self.size = input_name, preset, images, size
        self.fit, self.bgr, self.scale, self.mean, self.std, self.luma = fit, bgr, scale, mean, std, luma
        self.options, self.extra, self.n = list(options), extra or {}, n

    def sample(self, file):
        image = Image.open(file).convert("RGB")
        if self.luma:
            image = image.convert("YCbCr").getchannel(0)
        height, width = self.size
        if self.fit == "crop":
            image = image.resize([256 * n // min(image.size) for n in image.size], Image.BILINEAR)
            left, top = round((image.width - width) / 2), round((image.height - height) / 2)
            image = image.crop((left, top, left + width, top + height))
        elif self.fit == "letterbox":
            ratio = min(width / image.width, height / image.height)
            resized = image.resize([round(n * ratio) for n in image.size], Image.BILINEAR)
            image = Image.new("RGB", (width, height), (114, 114, 114))
            image.paste(resized)
        else:
            image = image.resize((width, height), Image.BILINEAR)
        x = np.asarray(image, np.float32)
        x = x[None] if self.luma else x[:, :, :: -1 if self.bgr else 1].transpose(2, 0, 1)
        column = lambda value: np.float32(value).reshape(-1, 1, 1)
        x = (x * np.float32(self.scale) - column(self.mean)) / column(self.std)
        return {self.input_name: np.ascontiguousarray(x[None], np.float32), **self.extra}

    def split(self, name):
        """Files and classes of `calib` or `eval`; where a folder has no splits, its first half calibrates."""
        folder = ZOO / self.images
        labels = {}
        if (folder / name).is_dir():
            files = sorted((folder / name).iterdir())
            if (table := folder / f"{name}.csv").exists():
                with open(table, newline="") as rows:
                    labels = {Path(row["file"]).name: int(row["class_index"]) for row in csv.DictReader(rows)}
        else:
            files = sorted(folder.iterdir())
            half = len(files) // 2
            if half > 6:
                files = files[:half] if name == "calib" else files[half:]
        return files[: self.n[name == "eval"]], labels


CASES = {
    "squeezenet1_1_logits_op13": Case("data_0", "imagenet-caffe", "imagenet", (224, 224), "crop", bgr=True,
                                      mean=(104, 117, 123)),
    "mobilenetv1_025_imagenet": Case("input", "imagenet", "imagenet", (224, 224), "crop", **IMAGENET),
    "mlperf_resnet8_cifar10": Case("input_1", "raw", "cifar10", (32, 32), n=(100, 400)),
    "ultraface_rfb320": Case("input", "ultraface", "faces", (240, 320), mean=127.0, std=128.0),
    "yolox_nano": Case("images", "yolox", "scenes", (416, 416), "letterbox", bgr=True),
    "superres_subpixel": Case("input", "unit", "scenes", (224, 224), scale=1 / 255, luma=True,
                              options=["--shape", "input=1x1x224x224", "--color", "y"]),
    "ppocrv3_det": Case("x", "paddleocr", "text", (320, 320), bgr=True,
                        options=["--shape", "x=1x3x320x320"], **IMAGENET),
    "deimv2_atto": Case("images", None, "scenes", (320, 320), scale=1 / 255,
                        options=["--shape", "images=1x3x320x320", "--shape", "orig_target_sizes=1x2"],
                        extra={"orig_target_sizes": np.array([[320, 320]], np.int64)}),
    "st_ssd_mobilenet_v1_025": Case("input_1", "half", "scenes", (256, 256), scale=1 / 127.5, mean=1.0,
                                    options=["--shape", "input_1=1x3x256x256"]),
    "squeezenet1_1_imagenet": Case("data_0", "imagenet-caffe", "imagenet", (224, 224), "crop", bgr=True,
                                   mean=(104, 117, 123)),
}
CLASSIFIERS = list(CASES)[:3]


class Zoo:
    """Models with samples and float outputs, each made once."""

    def __init__(self, scratch):
        self.scratch, self.known = Path(scratch), {}

    def get(self, name):
        if name not in self.known:
            case, path = CASES[name], ZOO / "models" / f"{name}.onnx"
            files, labels = case.split("eval")
            samples = [case.sample(file) for file in files]
            classes = np.array([labels.get(file.name, -1) for file in files])
            self.known[name] = (path, case, samples, classes, run(path, samples), self.data(name, case))
        return self.known[name]

    def data(self, name, case):
        return data_options(case, case.split("calib")[0], self.scratch / name)


def data_options(case, files, path):
    """mqq's options for calibration files; a folder of arrays or a list of images is written at `path`."""
    if not case.preset:
        path.mkdir()
        for k, file in enumerate(files):
            np.savez(path / f"{k:04}.npz", **case.sample(file))
        return ["--data", path]
    chosen = path.with_name(f"{path.name}.txt")
    chosen.write_text("".join(f"{file}\n" for file in files))
    return ["--data", chosen, "--preprocess", case.preset]


def peak_megabytes(pid):
    """Peak resident memory; what `wait4` says of a child begins with that of this process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def measure(zoo, name, backend, options, kernels):
    """(SQNR per output, agreement, top-1 before and after, seconds, MB), or mqq's message."""
    path, case, samples, classes, expected, data = zoo.get(name)
    output = zoo.scratch / "quantized.onnx"
    command = [MQQ, "calibrate", path, "--backend", backend, *data, *case.options, "-o", output, "--quiet", *options]
    start, megabytes = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=errors)
        while child.poll() is None:
            megabytes = max(megabytes, peak_megabytes(child.pid))
            time.sleep(0.01)
        status = child.returncode
        errors.seek(0)
        message = errors.read().decode()
    seconds = time.perf_counter() - start
    if status:
        return message.strip()
    found = run(output, samples, kernels)
    agreement = tops = None
    if (classes >= 0).all():
        best = expected[0].argmax(1), found[0].argmax(1)
        agreement = 100 * (best[0] == best[1]).mean()
        tops = [100 * (b == classes).mean() for b in best]
    return [sqnr_db(a, b) for a, b in zip(expected, found)], agreement, tops, seconds, megabytes


def line(title, figures):
    if isinstance(figures, str):
        return f"{title}  {figures}"
    ratios, agreement, tops, seconds, megabytes = figures
    text = f"{title}  {', '.join(f'{ratio:.2f}' for ratio in ratios)} dB"
    if tops:
        text += f"  agreement {agreement:.1f}  top-1 {tops[0]:.2f} -> {tops[1]:.2f}"
    return f"{text}  {seconds:.1f} s  {megabytes:.0f} MB"


def ablation():
    """Option lists: nothing, each method alone, all, and all but each."""
    yield "none", ["--effort", 3, "--methods", "none"]
    for method in METHODS:
        yield f"only {method}", ["--effort", 3, "--methods", method]
    yield "all", ["--effort", 3, "--methods", ",".join(METHODS)]
    for method in METHODS:
        rest = [other for other in METHODS if other != method]
        yield f"without {method}", ["--effort", 3, "--methods", ",".join(rest)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    parser.add_argument("--models", type=split, default=CLASSIFIERS, help="names, comma-separated; default: classifiers")
    parser.add_argument("--backends", type=split, default=["tensorrt"])
    parser.add_argument("--efforts", type=split, default=["0", "1", "2", "3"])
    parser.add_argument("--ablation", action="store_true", help="each method alone and left out, at effort 3")
    parser.add_argument("--kernels", action="store_true", help="with ONNX Runtime's optimisations")
    parser.add_argument("options", nargs="*", help="for mqq, behind --")
    args = parser.parse_args()
    if not (ZOO / "models").is_dir():
        sys.exit(f"no real models at {ZOO}")
    levels = [(f"effort {level}", ["--effort", level]) for level in args.efforts]
    with tempfile.TemporaryDirectory() as scratch:
        zoo = Zoo(scratch)
        for name in args.models:
            for backend in args.backends:
                for title, options in ablation() if args.ablation else levels:
                    figures = measure(zoo, name, backend, [*options, *args.options], args.kernels)
                    print(line(f"{name:26} {backend:16} {title:16}", figures), flush=True)


if __name__ == "__main__":
    main()
