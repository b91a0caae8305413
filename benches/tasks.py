"""What quantization leaves of the float network's own result: detections, faces, text.

    tasks.py --models yolox_nano,ultraface_rfb320 --backends tensorrt,onnxruntime,openvino
    tasks.py --models yolox_nano -- --methods none

Calibrates with mqq on the calibration images of the folder of real models (MQQ_ZOO, or ../shared/zoo), runs the
float and the quantized model in ONNX Runtime without its optimisations, decodes both the same way and takes the
float network's result as the truth. Prints F1 of boxes of one class at an IoU of .5 (detectors), or the mean IoU of
the thresholded map (text), the SQNR per output in dB, and mqq's seconds. Options behind `--` go to mqq.
"""

import argparse
import sys
import tempfile

import numpy as np
from accuracy import CASES, Zoo, measure
from support import ZOO, session


def overlaps(box, boxes):
    """IoU of one box with others, as corners."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.clip(high - low, 0, None).prod(1)
    area = lambda b: np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1)
    return shared / np.maximum(area(box) + area(boxes) - shared, 1e-9)


def suppressed(boxes, scores, classes, least, iou=0.45):
    """Boxes above a score without those that a better one of their class covers: [(class, box)], best first."""
    kept = []
    for i in np.argsort(-scores, kind="stable"):
        if scores[i] < least:
            break
        others = np.array([box for label, box in kept if label == classes[i]]).reshape(-1, 4)
        if not (overlaps(boxes[i], others) > iou).any():
            kept.append((classes[i], boxes[i]))
    return kept


def yolox(outputs):
    (output,) = outputs
    grids = [(np.stack(np.meshgrid(np.arange(416 // s), np.arange(416 // s)), -1).reshape(-1, 2), s) for s in (8, 16, 32)]
    cells = np.concatenate([grid for grid, _ in grids])
    strides = np.concatenate([np.full((len(grid), 1), s) for grid, s in grids])
    centre, size = (output[:, :2] + cells) * strides, np.exp(np.minimum(output[:, 2:4], 20)) * strides
    scores = output[:, 4:5] * output[:, 5:]
    boxes = np.concatenate([centre - size / 2, centre + size / 2], 1)
    return suppressed(boxes, scores.max(1), scores.argmax(1), 0.3)


def deimv2(outputs):
    labels, boxes, scores = outputs
    return [(label, box) for label, box, score in zip(labels, boxes, scores) if score > 0.4]


def ssd(outputs):
    scores, offsets, anchors = outputs
    size = np.tile(anchors[:, 2:] - anchors[:, :2], 2)
    return suppressed(anchors + offsets * size, scores[:, 1:].max(1), scores[:, 1:].argmax(1), 0.4)


def ultraface(outputs):
    scores, boxes = outputs
    return suppressed(boxes, scores[:, 1], np.zeros(len(scores), int), 0.6, 0.3)


def detections(decode):
    """Right boxes, boxes of both networks: what F1 is made of."""

    def count(float_outputs, outputs):
        truth, found = decode(float_outputs), decode(outputs)
        free, right = list(truth), 0
        for label, box in found:
            same = [i for i, (other, _) in enumerate(free) if other == label]
            ious = overlaps(box, np.array([free[i][1] for i in same]).reshape(-1, 4))
            if len(same) and ious.max() >= 0.5:
                free.pop(same[int(ious.argmax())])
                right += 1
        return 2 * right, len(truth) + len(found)

    return count


def mask(float_outputs, outputs):
    a, b = float_outputs[0] > 0.3, outputs[0] > 0.3
    return (a & b).sum(), (a | b).sum()


TASKS = {
    "yolox_nano": detections(yolox),
    "deimv2_atto": detections(deimv2),
    "st_ssd_mobilenet_v1_025": detections(ssd),
    "ultraface_rfb320": detections(ultraface),
    "ppocrv3_det": mask,
}


def outputs(path, samples):
    """The outputs of every sample, without the batch."""
    runner = session(path, False)
    return [[output[0] for output in runner.run(None, sample)] for sample in samples]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    parser.add_argument("--models", type=split, default=list(TASKS), help="names, comma-separated; default: all")
    parser.add_argument("--backends", type=split, default=["tensorrt", "onnxruntime", "openvino"])
    parser.add_argument("options", nargs="*", help="for mqq, behind --")
    args = parser.parse_args()
    if not (ZOO / "models").is_dir():
        sys.exit(f"no real models at {ZOO}")
    with tempfile.TemporaryDirectory() as scratch:
        zoo, expected = Zoo(scratch), {}
        for name in args.models:
            for backend in args.backends:
                figures = measure(zoo, name, backend, args.options, False)
                title = f"{name:24} {backend:16}"
                if isinstance(figures, str):
                    print(f"{title} {figures}", flush=True)
                    continue
                path, _, samples, *_ = zoo.get(name)
                if name not in expected:
                    expected[name] = outputs(path, samples)
                found = outputs(zoo.scratch / "quantized.onnx", samples)
                good, all_ = np.sum([TASKS[name](*pair) for pair in zip(expected[name], found)], 0)
                ratios = ", ".join(f"{ratio:.1f}" for ratio in figures[0])
                print(f"{title} {good / max(all_, 1):.3f} of {all_:.0f}  {ratios} dB  {figures[3]:.1f} s", flush=True)


if __name__ == "__main__":
    main()
