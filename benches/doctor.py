"""Wrong preprocessing that `mqq doctor` finds, and false alarms on the right one.

    MQQ_ZOO=… doctor.py [--models NAME,…]

Each network gets ten pixel values: RGB and BGR, each as 0..255, /255, -1..1, with ImageNet's mean and standard deviation, and with
Caffe's means. Prints for each network how many wrong ones are found, by the mistake (scale, order of the channels, both), how often the
right one is the first that is named, and the findings on the right one; and the same of hints, where pixel values cannot be told.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MQQ = Path(os.environ.get("MQQ", ROOT / "target" / "release" / "mqq"))
ZOO = Path(os.environ.get("MQQ_ZOO", ROOT.parent / "shared" / "zoo"))

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALES = {
    "0..255": ("1", (0, 0, 0), (1, 1, 1)),
    "/255": ("1/255", (0, 0, 0), (1, 1, 1)),
    "-1..1": ("1/255", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ("1/255", MEAN, STD),
    "caffe": ("1", (123, 117, 104), (1, 1, 1)),
}
# Model, images, the preset that is right but for the pixel values, these, and further options.
NETWORKS = {
    "digits_cnn": (ROOT / "fixtures/digits_cnn.onnx", ROOT / "calib_data/calib", "half", ("rgb", "-1..1"), []),
    "digits_old": (ROOT / "fixtures/digits_old.onnx", ROOT / "calib_data/calib", "half", ("rgb", "-1..1"), []),
    "squeezenet1_1": (ZOO / "models/squeezenet1_1_imagenet.onnx", ZOO / "imagenet/calib", "imagenet-caffe", ("bgr", "caffe"), []),
    "squeezenet1_1_logits": (
        ZOO / "models/squeezenet1_1_logits_op13.onnx", ZOO / "imagenet/calib", "imagenet-caffe", ("bgr", "caffe"), []),
    "mobilenetv1_025": (ZOO / "models/mobilenetv1_025_imagenet.onnx", ZOO / "imagenet/calib", "imagenet", ("rgb", "imagenet"), []),
    "mobilenetv1_025_bn": (
        ZOO / "models/mobilenetv1_025_imagenet_bn.onnx", ZOO / "imagenet/calib", "imagenet", ("rgb", "imagenet"), []),
    "mlperf_resnet8": (ZOO / "models/mlperf_resnet8_cifar10.onnx", ZOO / "cifar10/calib", "raw", ("rgb", "0..255"), []),
    "ultraface": (ZOO / "models/ultraface_rfb320.onnx", ZOO / "faces", "ultraface", ("rgb", "-1..1"), []),
    "ppocrv3_det": (
        ZOO / "models/ppocrv3_det.onnx", ZOO / "scenes", "paddleocr", ("bgr", "imagenet"), ["--shape", "x=1x3x320x320"]),
    "yolox_nano": (ZOO / "models/yolox_nano.onnx", ZOO / "scenes", "yolox", ("bgr", "0..255"), []),
    "st_ssd_mobilenet": (
        ZOO / "models/st_ssd_mobilenet_v1_025.onnx", ZOO / "scenes", "minus-one-to-one", ("rgb", "-1..1"), []),
}


def pixels(color, scale):
    factor, mean, std = SCALES[scale]
    # ImageNet's values stay with their positions, as in PaddleOCR; Caffe's means go with the colors.
    if scale == "caffe" and color == "bgr":
        mean = mean[::-1]
    listed = [",".join(map(str, values)) for values in (mean, std)]
    return ["--color", color, "--scale", factor, f"--mean={listed[0]}", f"--std={listed[1]}"]


def look(model, data, preset, options):
    """The findings, and the hint where pixel values cannot be told."""
    command = [MQQ, "doctor", model, "--data", data, "--preprocess", preset, "--limit", "100", "--json", "--quiet", *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    report = json.loads(done.stdout)
    if "error" in report:
        raise SystemExit(f"{model}: {report['error']}")
    return report["findings"], next((examined["hint"] for examined in report["examined"] if "hint" in examined), None)


def mistake(given, right):
    wrong = [what for what, a, b in zip(("order", "scale"), given, right) if a != b]
    return " and ".join(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    for name in parser.parse_args().models.split(","):
        model, data, preset, right, more = NETWORKS[name]
        if not model.exists():
            print(f"{name}: no model at {model}")
            continue
        # The right pixel values: those of the preset.
        found, false_hint = look(model, data, preset, more)
        alarms = [finding for finding in found if finding["severity"] == "error"]
        named = sorted({finding["rule"] for finding in found})
        seen, n_named, of_mistake, n_hints, n_right_hints = 0, 0, {}, 0, 0
        right_one = f"--color {right[0]} --scale {pixels(*right)[3]} "
        for color in ("rgb", "bgr"):
            for scale in SCALES:
                if (color, scale) == right:
                    continue
                found, hint = look(model, data, preset, [*pixels(color, scale), *more])
                found = [f for f in found if f["rule"] == "preprocessing"]
                n_hints += hint is not None
                n_right_hints += right_one in (hint or "")
                counts = of_mistake.setdefault(mistake((color, scale), right), [0, 0])
                counts[0] += bool(found)
                counts[1] += 1
                seen += bool(found)
                n_named += any(right_one in f["expected"] for f in found)
        by_mistake = ", ".join(f"{what} {found} of {n}" for what, (found, n) in sorted(of_mistake.items()))
        print(f"{name}: found {seen} of 9 ({by_mistake}), right one named {n_named}; on the right one: "
              f"{len(alarms)} errors, findings {', '.join(named) or 'none'}; hints {n_hints} of 9, right one named {n_right_hints}; "
              f"on the right one: {'a hint' if false_hint else 'none'}", flush=True)


if __name__ == "__main__":
    main()
