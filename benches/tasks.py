"""What quantization leaves of the float network's own result: objects, faces, text, classes, neighbours.

    tasks.py --models yolox_nano,ultraface_rfb320 --backends tensorrt,onnxruntime
    tasks.py --variants 'none=--methods none;default=' --json rows.jsonl
    tasks.py --models minilm_l6,vit_s_focus --more FOLDER --slow
    tasks.py --variants 'default=;nncf=tool:nncf;ort=tool:onnxruntime'
    tasks.py --models minilm_l6 --more FOLDER --backends weight-only-int4 --variants 'alone=--no-data;data='

A variant with `--no-data` quantizes without calibration data, for the backends that need none.

Quantizes the networks of the folder of real models (MQQ_ZOO, or ../shared/zoo) with mqq, once per backend and variant
(a name and options of mqq), runs the float and the quantized model in ONNX Runtime without its optimisations, the
quantized one with them on `--kernels`, decodes both the same way and takes the float network's result as the truth.
A variant `tool:NAME` is another tool on the same samples, see other_tools.py; its seconds are those of its process.

| network | figure, 0 to 1 |
| --- | --- |
| yolox_nano, deimv2_atto, st_ssd_mobilenet_v1_025, ultraface_rfb320 | F1 of boxes of one class at an IoU of .5 |
| ppocrv3_det | IoU of the pixels above .3, mean over images |
| superres_subpixel | SSIM of the picture, mean over images |
| classifiers | samples of which the largest class is the same |
| minilm_l6 | of each sentence's 10 nearest neighbours, those that stay |
| vit_s_focus | IoU of the pixels above .5, mean over images |

No image is judged that was calibrated on: imagenet and cifar10 have `calib` and `eval`; of the 40 scenes the first half
in sorted order calibrates and the second is judged. All faces (12) and texts (7) are judged, as they are few, and the
first 20 scenes calibrate their networks. mnist_external takes the project's own digits, magika_v3_3 its texts, every
second of which is judged. minilm_l6 and vit_s_focus are in the folder that `--more` names, as `minilm_l6.onnx`,
`minilm_calib.npz`, `minilm_eval.npz` and `vit_s_focus.onnx`; vit_s_focus takes many minutes and runs only with
`--slow`.

Prints a row per network and backend: the figure of every variant, its difference to the first one's with the
standard deviation of that (200 paired bootstraps over the judged samples), then variant by variant the SQNR of every
output in dB (`-` where it has no say, see overlap.py), the overlap J and the lowest J, and mqq's seconds. `--json`
appends an object per network, backend and variant, a line each.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from accuracy import CASES, IMAGENET, MQQ, ZOO, Case, data_options
from overlap import overlap
from support import ROOT, session, sqnr_db
from PIL import Image

SLOW = {"vit_s_focus"}
MORE = {"minilm_l6", "vit_s_focus"}
VIT = Case("input_image", None, "scenes", (224, 224), options=["--shape", "input_image=1x3x224x224"], **IMAGENET)


# Detections are lists of (class, corners), best first.

def ious(box, boxes):
    """IoU of one box with others, as corners."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.clip(high - low, 0, None).prod(1)
    area = lambda b: np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1)
    return shared / np.maximum(area(box) + area(boxes) - shared, 1e-9)


def suppressed(boxes, scores, classes, least, iou=0.45):
    """Boxes of a score or above without those that a better one of their class covers."""
    found = []
    for i in np.argsort(-scores, kind="stable"):
        if not scores[i] >= least:
            break
        others = np.array([box for label, box in found if label == classes[i]]).reshape(-1, 4)
        if not (ious(boxes[i], others) > iou).any():
            found.append((classes[i], boxes[i]))
    return found


def yolox(outputs):
    (output,) = outputs
    square = lambda n: np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(-1, 2)
    grids = [(square(416 // s), s) for s in (8, 16, 32)]
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


# A task makes an array [samples, 2] of the float and the quantized outputs; the figure is the sum of its first column
# over that of its second.

def each(of_sample):
    """The task of a function of one sample's outputs, without the batch: float's and the quantized network's."""
    bare = lambda sample: [output[0] for output in sample]
    return lambda expected, found: np.array([of_sample(bare(a), bare(b)) for a, b in zip(expected, found)], float)


def detections(decode):
    """Right boxes of both networks, boxes of both: what F1 is made of."""

    def count(expected, found):
        truth, found = decode(expected), decode(found)
        free, right = list(truth), 0
        for label, box in found:
            same = [i for i, (other, _) in enumerate(free) if other == label]
            fits = ious(box, np.array([free[i][1] for i in same]).reshape(-1, 4))
            if len(same) and fits.max() >= 0.5:
                free.pop(same[int(fits.argmax())])
                right += 1
        return 2 * right, len(truth) + len(found)

    return each(count)


def mask(least):
    """IoU of the values above a threshold; a sample in which both networks have none does not count."""

    def iou(expected, found):
        a, b = expected[0] > least, found[0] > least
        return ((a & b).sum() / (a | b).sum(), 1) if (a | b).any() else (0, 0)

    return each(iou)


def box_mean(image, side):
    """Means of all squares of `side` pixels."""
    sums = np.pad(image, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    return (sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]) / side**2


def ssim(expected, found, side=7):
    """SSIM of two images [1, height, width] in 0..1, over squares of 7 pixels."""
    a, b = expected[0][0].astype(np.float64), np.clip(found[0][0].astype(np.float64), 0, 1)
    a = np.clip(a, 0, 1)
    mean = lambda image: box_mean(image, side)
    unbiased = side**2 / (side**2 - 1)
    ma, mb = mean(a), mean(b)
    va, vb, both = (unbiased * (mean(x * y) - mean(x) * mean(y)) for x, y in ((a, a), (b, b), (a, b)))
    c1, c2 = 0.01**2, 0.03**2
    return ((2 * ma * mb + c1) * (2 * both + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))).mean(), 1


def agreement(expected, found):
    return expected[0].argmax() == found[0].argmax(), 1


def neighbours(expected, found, n=10):
    """Of each sample's nearest neighbours by cosine those that stay."""

    def nearest(samples):
        vectors = np.stack([outputs[0].ravel() for outputs in samples]).astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, -9)
        return np.argsort(-cosines, 1, kind="stable")[:, :n]

    stay = [len(np.intersect1d(a, b)) for a, b in zip(nearest(expected), nearest(found))]
    return np.stack([np.array(stay, float), np.full(len(stay), float(n))], 1)


TASKS = {
    "yolox_nano": ("F1", detections(yolox)),
    "deimv2_atto": ("F1", detections(deimv2)),
    "st_ssd_mobilenet_v1_025": ("F1", detections(ssd)),
    "ultraface_rfb320": ("F1", detections(ultraface)),
    "ppocrv3_det": ("IoU", mask(0.3)),
    "superres_subpixel": ("SSIM", each(ssim)),
    "mlperf_resnet8_cifar10": ("top-1", each(agreement)),
    "mobilenetv1_025_imagenet": ("top-1", each(agreement)),
    "squeezenet1_1_logits_op13": ("top-1", each(agreement)),
    "squeezenet1_1_imagenet": ("top-1", each(agreement)),
    "mnist_external": ("top-1", each(agreement)),
    "magika_v3_3": ("top-1", each(agreement)),
    "minilm_l6": ("nearest", neighbours),
    "vit_s_focus": ("IoU", mask(0.5)),
}


def figure(contributions):
    """A task's figure; 1 where there is nothing to find."""
    good, all_ = contributions.sum(-2).T
    return np.where(all_ > 0, good / np.maximum(all_, 1e-9), 1.0)


def deviation(first, other, draws=200):
    """Standard deviation of the difference of two figures, by paired bootstraps over the samples."""
    chosen = np.random.default_rng(0).integers(0, len(first), (draws, len(first)))
    return float((figure(other[chosen]) - figure(first[chosen])).std())


def digit(file):
    """A digit of 32x32 as MNIST has them: 20x20 within 28x28, by mean and deviation."""
    image = Image.new("L", (28, 28))
    image.paste(Image.open(file).convert("L").resize((20, 20), Image.BILINEAR), (4, 4))
    x = (np.asarray(image, np.float32) / 255 - np.float32(0.1307)) / np.float32(0.3081)
    return {"input": x[None, None]}


def content(file):
    """The first and the last 1024 bytes of a file, without blanks around it, filled up with 256."""
    data = file.read_bytes()
    head, tail = data.lstrip()[:1024], data.rstrip()[-1024:]
    filling = [256] * (2048 - len(head) - len(tail))
    return {"bytes": np.array([[*head, *filling, *tail]], np.int32)}


def contents(most=30):
    """What files of the project hold: at most so many of one ending."""
    by_ending = {}
    folders = [ROOT / folder for folder in ("docs", "backends", "benches", "tests")]
    for file in sorted(file for folder in folders for file in folder.rglob("*")):
        if file.is_file() and file.suffix != ".pyc" and file.stat().st_size >= 32:
            by_ending.setdefault(file.suffix, []).append(file)
    return [content(file) for files in by_ending.values() for file in files[:most]]


def digits(split):
    return [digit(file) for file in sorted((ROOT / "calib_data" / split).iterdir())]


def entries(file):
    """The samples of an .npz with an array per input, each with a batch of 1."""
    arrays = dict(np.load(file))
    return [{name: array[k : k + 1] for name, array in arrays.items()} for k in range(len(next(iter(arrays.values()))))]


def save(file, samples):
    """An .npz with an array per input, a row per sample."""
    np.savez(file, **{name: np.concatenate([sample[name] for sample in samples]) for name in samples[0]})


def outputs(path, samples, kernels=False):
    """A list of samples, each the list of its outputs; with ONNX Runtime's optimisations on `kernels`."""
    runner = session(path, kernels)
    return [runner.run(None, sample) for sample in samples]


class Network:
    """A network's file, mqq's options for its data, the samples to judge it on and the float network's outputs."""

    def __init__(self, name, scratch, more=None):
        self.name, self.scratch = name, Path(scratch)
        self.path = (more if name in MORE else ZOO / "models") / f"{name}.onnx"
        self.unit, self.task = TASKS[name]
        if name == "minilm_l6":
            self.samples = entries(more / "minilm_eval.npz")
            shapes = [f"{input}={'x'.join(map(str, array.shape))}" for input, array in self.samples[0].items()]
            self.calibration = lambda: entries(more / "minilm_calib.npz")
            self.options = ["--data", more / "minilm_calib.npz", *(x for shape in shapes for x in ("--shape", shape))]
        elif name == "mnist_external":
            self.options, self.samples = self.arrays(digits("calib")), digits("eval")
        elif name == "magika_v3_3":
            files = contents()
            self.options, self.samples = [*self.arrays(files[::2]), "--shape", "bytes=1x2048"], files[1::2]
        else:
            case = VIT if name == "vit_s_focus" else CASES[name]
            few = case.images in ("faces", "text")
            files = sorted((ZOO / "scenes").iterdir())[:20] if few else case.split("calib")[0]
            self.options = [*data_options(case, files, self.scratch / name), *case.options]
            self.samples = [case.sample(file) for file in case.split("eval")[0]]
            self.calibration = lambda: [case.sample(file) for file in files]
        self.expected = outputs(self.path, self.samples)

    def arrays(self, samples):
        """mqq's options for samples of one input, which are written to a file."""
        file = self.scratch / f"{self.name}.npz"
        save(file, samples)
        self.calibration = lambda: samples
        return ["--data", file]

    def quantize(self, backend, options):
        """(file, seconds) of mqq, or of another tool; its message is raised."""
        path = self.scratch / "quantized.onnx"
        if options[:1] and options[0].startswith("tool:"):
            file = self.scratch / "calibration.npz"
            save(file, self.calibration())
            command = [sys.executable, Path(__file__).with_name("other_tools.py"), options[0][5:], self.path, file, path]
            return path, seconds_of([*command, *(["--transformer"] if self.name in MORE else [])])
        of_network = list(self.options)
        if "--no-data" in options:
            at = of_network.index("--data")
            del of_network[at:at + 2]
        options = [option for option in options if option != "--no-data"]
        command = [MQQ, "calibrate", self.path, "--backend", backend, *of_network, "-o", path, "--quiet", *options]
        return path, seconds_of(command)

    def measure(self, backend, options, kernels=False):
        """A row: `figure`, `contributions`, `sqnr_db` per output, `j`, `lowest_j`, `overlap` and mqq's `seconds`."""
        path, seconds = self.quantize(backend, options)
        found = outputs(path, self.samples, kernels)
        contributions = self.task(self.expected, found)
        j, lowest, described = overlap(self.expected, found)
        ratios = [None if "no_say" in output else ratio(*(np.stack([sample[k] for sample in all_])
                                                          for all_ in (self.expected, found)))
                  for k, output in enumerate(described)]
        return {"figure": float(figure(contributions)), "contributions": contributions.tolist(), "sqnr_db": ratios,
                "j": j, "lowest_j": lowest, "overlap": described, "seconds": round(seconds, 2)}


def seconds_of(command):
    """How long a command takes; its message is raised."""
    start = time.perf_counter()
    done = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] if "Traceback" in done.stderr else [done.stderr.strip()]
        raise RuntimeError("".join(last) or f"the command ended with {done.returncode}")
    return time.perf_counter() - start


def ratio(expected, found):
    """SQNR in dB; -200 where a value is NaN or infinite."""
    return float(sqnr_db(expected, found)) if np.isfinite(found).all() else -200.0


def row(title, unit, rows):
    """A line of text of the measured variants of a network in one backend, or mqq's message."""
    parts = []
    for name, measured in rows.items():
        if "error" in measured:
            parts.append(f"{name} failed: {measured['error'].splitlines()[0]}")
            continue
        text = f"{name} {measured['figure']:.3f}"
        if "difference" in measured:
            text += f" ({measured['difference']:+.3f} ± {measured['deviation']:.3f})"
        parts.append(text)
    good = [measured for measured in rows.values() if "error" not in measured]
    if good:
        ratios = lambda measured: ", ".join("-" if r is None else f"{r:.1f}" for r in measured["sqnr_db"])
        parts += [" | ".join(map(ratios, good)) + " dB",
                  "J " + " | ".join(f"{measured['j']:.3f} {measured['lowest_j']:.3f}" for measured in good),
                  " | ".join(f"{measured['seconds']:.1f}" for measured in good) + " s"]
    return f"{title} {unit:7} " + "  ".join(parts)


def variants(text):
    """Options of mqq by name, from `name=options;name=options`."""
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    return {name.strip(): shlex.split(options) for name, _, options in pairs}


def known(names, more, slow):
    """Those networks of a list that can be measured here; says which cannot."""
    for name in names:
        if name not in TASKS:
            sys.exit(f"no task for {name}; there is one for {', '.join(TASKS)}")
        if name in SLOW and not slow:
            print(f"{name}: skipped, as it takes many minutes; --slow")
        elif name in MORE and not (more and (more / f"{name}.onnx").exists()):
            print(f"{name}: skipped, as --more names no folder that holds it")
        else:
            yield name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    parser.add_argument("--models", type=split, default=list(TASKS), help="names, comma-separated; default: all")
    parser.add_argument("--backends", type=split, default=["tensorrt", "onnxruntime", "openvino", "qnn-htp"])
    parser.add_argument("--variants", type=variants, default=variants("none=--methods none;default="),
                        help="name=OPTIONS;name=OPTIONS, the first one is compared with")
    parser.add_argument("--more", type=Path, help="folder of minilm_l6 and vit_s_focus")
    parser.add_argument("--slow", action="store_true", help="vit_s_focus too")
    parser.add_argument("--kernels", action="store_true", help="run quantized models with ONNX Runtime's optimisations")
    parser.add_argument("--json", type=Path, help="file to which rows are appended, one object a line")
    args = parser.parse_args()
    if not (ZOO / "models").is_dir():
        sys.exit(f"no real models at {ZOO}")
    first, *others = args.variants
    compared = []
    for name in known(args.models, args.more, args.slow):
        with tempfile.TemporaryDirectory() as scratch:
            network = Network(name, scratch, args.more)
            for backend in args.backends:
                rows = {}
                for variant, options in args.variants.items():
                    try:
                        rows[variant] = network.measure(backend, options, args.kernels)
                    except RuntimeError as error:
                        rows[variant] = {"error": str(error)}
                for variant in others:
                    if "error" not in rows[first] and "error" not in rows[variant]:
                        pair = [np.array(rows[v]["contributions"]) for v in (first, variant)]
                        rows[variant]["difference"] = rows[variant]["figure"] - rows[first]["figure"]
                        rows[variant]["deviation"] = deviation(*pair)
                        compared.append((*(rows[variant][key] for key in ("difference", "deviation")),
                                         name, backend, variant))
                print(row(f"{name:24} {backend:12}", network.unit, rows), flush=True)
                if args.json:
                    with open(args.json, "a") as file:
                        for variant, measured in rows.items():
                            about = {"network": name, "backend": backend, "variant": variant, "task": network.unit}
                            file.write(json.dumps(about | measured) + "\n")
    if compared:
        worse = sum(difference < -2 * chance for difference, chance, *_ in compared)
        least, chance, *where = min(compared)
        print(f"{worse} of {len(compared)} below {first} by more than two standard deviations; "
              f"the largest loss {least:+.3f} ± {chance:.3f} ({' '.join(where)})")


if __name__ == "__main__":
    main()
