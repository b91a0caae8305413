"""Figures of tasks: `mqq compare` against a second implementation in numpy, on the very values of both networks."""

import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support import MQQ, fixture, mqq, quantized, save

SIDE = 64


def lookup(path, outputs, shape=(1, 3, SIDE, SIDE), pixel=0):
    """A network of images whose outputs are those of the sample that a pixel names."""
    constants = {"from": np.array([0, 0, pixel, pixel]), "to": np.array([1, 1, pixel + 1, pixel + 1]), "axes": np.arange(4),
                 "flat": np.array([1])}
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axes"], ["pixel"]),
        helper.make_node("Reshape", ["pixel", "flat"], ["number"]),
        helper.make_node("Cast", ["number"], ["i"], to=TensorProto.INT64),
    ]
    values = []
    for name, rows in outputs.items():
        nodes.append(helper.make_node("Gather", [f"{name} of all", "i"], [name], axis=0))
        constants[f"{name} of all"] = rows.astype(np.float32)
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, *rows.shape[1:]]))
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "test", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], values, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def compare(folder, expected, found, *options):
    """Code, report and errors of `mqq compare` of networks with these outputs, an array [samples, ...] of each."""
    models = [lookup(folder / f"{name}.onnx", outputs) for name, outputs in (("float", expected), ("quantized", found))]
    n = len(next(iter(expected.values())))
    images = np.zeros((n, 3, SIDE, SIDE), np.float32)
    images[:, 0, 0, 0] = np.arange(n)
    np.savez(folder / "images.npz", x=images)
    command = [MQQ, "compare", *models, "--data", folder / "images.npz", "--json", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


# Heads: (outputs of a sample, boxes as corners, scores, classes), a second time and row by row.

def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cells(strides):
    """(column, row, stride) of every cell."""
    return [(x, y, s) for s in strides for y in range(-(-SIDE // s)) for x in range(-(-SIDE // s))]


def corners(boxes):
    """Of centre, width and height."""
    return np.array([[x - w / 2, y - h / 2, x + w / 2, y + h / 2] for x, y, w, h in boxes])


def best(scores):
    return scores.max(1), scores.argmax(1)


def yolox(o):
    (rows,) = o.values()
    boxes = [((r[0] + x) * s, (r[1] + y) * s, np.exp(r[2]) * s, np.exp(r[3]) * s)
             for r, (x, y, s) in zip(rows, cells([8, 16, 32]))]
    return corners(boxes), *best(rows[:, 4:5] * rows[:, 5:])


def decoded(o):
    (rows,) = o.values()
    return corners(rows[:, :4]), *best(rows[:, 4:5] * rows[:, 5:])


def yolov8(o):
    rows = next(iter(o.values())).T
    return corners(rows[:, :4]), *best(rows[:, 4:])


def yolov8_pose(o):
    rows = next(iter(o.values())).T
    return corners(rows[:, :4]), *best(rows[:, 4:5])


def yolov8_seg(o):
    rows, n_masks = o["output0"].T, len(o["output1"])
    return corners(rows[:, :4]), *best(rows[:, 4:-n_masks])


def yolo_nms(o):
    (rows,) = o.values()
    return rows[:, :4], rows[:, 4], rows[:, 5].astype(int)


COCO = {8: ((10, 13), (16, 30), (33, 23)), 16: ((30, 61), (62, 45), (59, 119)), 32: ((116, 90), (156, 198), (373, 326))}


def yolo_maps(o, move, centre, side, anchors=COCO):
    """Of the map of each stride; `move` brings rows and columns behind height and width."""
    rows = np.concatenate([move(o[f"m{s}"]).reshape(-1, 8) for s in anchors]).astype(np.float64)
    places = [(x, y, s, *sides) for x, y, s in cells(anchors) for sides in anchors[s]]
    boxes = [((x + centre(r[0])) * s, (y + centre(r[1])) * s, w * side(r[2]), h * side(r[3]))
             for r, (x, y, s, w, h) in zip(rows, places)]
    return corners(boxes), *best(sigmoid(rows[:, 4:5]) * sigmoid(rows[:, 5:]))


def yolov3(o):
    return yolo_maps(o, lambda x: x.transpose(1, 2, 0), sigmoid, np.exp)


def yolov5_raw(o):
    return yolo_maps(o, lambda x: x.transpose(1, 2, 0, 3), lambda t: 2 * sigmoid(t) - 0.5, lambda t: (2 * sigmoid(t)) ** 2)


def centernet(o, activation=lambda x: x):
    scores, (w, h), (dx, dy) = (o[name].reshape(len(o[name]), -1) for name in ("hm", "wh", "reg"))
    x, y, s = np.array(cells([4])).T
    return corners(np.stack([x + dx, y + dy, w, h], 1) * s[:, None]), *best(activation(scores.T))


def ssd(o):
    return o["boxes"], *best(o["scores"][:, 1:])


def of_levels(o, name):
    return np.concatenate([o[f"{name}_{s}"] for s in P5])


def yunet(o):
    boxes = [[(x + r[0]) * s, (y + r[1]) * s, np.exp(r[2]) * s, np.exp(r[3]) * s]
             for r, (x, y, s) in zip(of_levels(o, "bbox"), cells(P5))]
    scores, classes = best(of_levels(o, "cls"))
    return corners(boxes), np.sqrt(scores * of_levels(o, "obj")[:, 0]), classes


def scrfd(o):
    """Two rows of each cell; the distances are those from its upper left corner."""
    places = [cell for cell in cells(P5) for _ in range(2)]
    boxes = [[(x - r[0]) * s, (y - r[1]) * s, (x + r[2]) * s, (y + r[3]) * s]
             for r, (x, y, s) in zip(of_levels(o, "bbox"), places)]
    return np.array(boxes), *best(of_levels(o, "score"))


def st_ssd(o):
    scores, offsets, anchors = o.values()
    boxes = [[a[0] + d[0] * (a[2] - a[0]), a[1] + d[1] * (a[3] - a[1]), a[2] + d[2] * (a[2] - a[0]),
              a[3] + d[3] * (a[3] - a[1])] for a, d in zip(anchors, offsets)]
    return np.array(boxes), *best(scores[:, 1:])


SIZES = {8: (32, 40, 50), 16: (64, 80, 101), 32: (128, 161, 203), 64: (256, 322, 406), 128: (512, 645, 812)}


def anchors():
    """RetinaNet's, as torchvision's AnchorGenerator makes them."""
    found = []
    for x, y, s in cells(SIZES):
        for ratio in (0.5, 1.0, 2.0):
            for size in SIZES[s]:
                w, h = size / np.sqrt(ratio), size * np.sqrt(ratio)
                half = np.round(np.array([-w, -h, w, h], np.float32) / 2)
                found.append(half + np.array([x * s, y * s, x * s, y * s]))
    return np.array(found)


def retina(o):
    a, d = anchors(), o["boxes"]
    size, centre = a[:, 2:] - a[:, :2], (a[:, 2:] + a[:, :2]) / 2
    boxes = np.concatenate([centre + d[:, :2] * size, np.exp(d[:, 2:]) * size], 1)
    return corners(boxes), *best(sigmoid(o["logits"]))


def distances(rows, strides):
    boxes = [[(x + 0.5 - r[0]) * s, (y + 0.5 - r[1]) * s, (x + 0.5 + r[2]) * s, (y + 0.5 + r[3]) * s]
             for r, (x, y, s) in zip(rows, cells(strides))]
    return np.array(boxes)


def fcos(o):
    scores, classes = best(sigmoid(o["logits"]))
    return distances(o["boxes"], list(SIZES)), np.sqrt(scores * sigmoid(o["centerness"][:, 0])), classes


def ltrb_dfl(o):
    (rows,) = o.values()
    sides = softmax(rows[:, 80:].reshape(-1, 4, 8).astype(np.float64)) @ np.arange(8)
    return distances(sides, [8, 16, 32, 64]), *best(rows[:, :80])


def detr(o):
    return o["boxes"], o["scores"], o["labels"].astype(int)


def detr_logits(o):
    return corners(o["pred_boxes"]), *best(sigmoid(o["logits"]))


def detr_softmax(o):
    return corners(o["pred_boxes"]), *best(softmax(o["logits"])[:, :-1])


def efficient_nms(o):
    return o["det_boxes"], o["det_scores"], o["det_classes"].astype(int)


class Draw:
    """Random outputs as a network's: most rows find nothing, boxes lie in the image."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def scores(self, *shape):
        found = self.rng.random(shape) < 0.1
        return np.where(found, self.rng.uniform(0.2, 1, shape), self.rng.uniform(0, 0.1, shape))

    def logits(self, *shape):
        found = self.rng.random(shape) < 0.1
        return np.where(found, self.rng.uniform(-1, 3, shape), self.rng.uniform(-6, -3, shape))

    def maps(self):
        """Rows of three classes of the cells of each stride, [height, width, 3, 8], the largest stride first."""
        for s in reversed(COCO):
            n = (SIDE // s) ** 2 * 3
            rows = join(self.rng.normal(size=(n, 4)) * 0.5, self.logits(n, 1), self.rng.normal(size=(n, 3)) * 2)
            yield s, rows.reshape(SIDE // s, SIDE // s, 3, 8)

    def levels(self, per_cell, **parts):
        """An output of each part for each stride, all strides of the first part first; parts draw a number of rows."""
        return {f"{name}_{s}": draw(per_cell * (SIDE // s) ** 2) for name, draw in parts.items() for s in P5}

    def shares(self, n, n_classes):
        return softmax(self.rng.normal(size=(n, n_classes)) * 3)

    def centred(self, n, side=SIDE):
        return np.concatenate([self.rng.uniform(0.1, 0.9, (n, 2)), self.rng.uniform(0.1, 0.6, (n, 2))], 1) * side

    def corners(self, n, side=SIDE):
        return corners(self.centred(n, side))

    def points(self, n, n_points):
        """x, y in pixels and a score of each."""
        points = self.rng.uniform(0, 1, (n, n_points, 3)) * [SIDE, SIDE, 1]
        return points.reshape(n, -1)

    def whole(self, n, below=4):
        return self.rng.integers(0, below, n).astype(float)


def n_cells(strides):
    return len(cells(strides))


P5, P6, P7 = [8, 16, 32], [8, 16, 32, 64], [8, 16, 32, 64, 128]
join = lambda *parts: np.concatenate(parts, 1)
# Head: its outputs for a sample, their reading, the threshold, the IoU of suppression, what noise is added to.
HEADS = {
    "yolox": (lambda d: {"o": join(d.rng.uniform(0, 1, (84, 2)), np.log(d.rng.uniform(0.5, 3, (84, 2))), d.scores(84, 1) ** 0.2,
                                   d.scores(84, 3))}, yolox, 0.3, 0.45),
    "yolox-decoded": (lambda d: {"o": join(d.centred(84), d.scores(84, 1) ** 0.2, d.scores(84, 3))}, decoded, 0.3, 0.45),
    "yolov5": (lambda d: {"o": join(d.centred(252), d.scores(252, 1) ** 0.2, d.scores(252, 3))}, decoded, 0.25, 0.45),
    "yolov8": (lambda d: {"o": join(d.centred(84), d.scores(84, 3)).T}, yolov8, 0.25, 0.7),
    "yolov8-pose": (lambda d: {"o": join(d.centred(84), d.scores(84, 1), d.points(84, 5)).T}, yolov8_pose, 0.25, 0.7),
    "yolov8-seg": (lambda d: {"output0": join(d.centred(84), d.scores(84, 3), d.rng.normal(size=(84, 6))).T,
                              "output1": d.rng.normal(size=(6, 16, 16))}, yolov8_seg, 0.25, 0.7),
    "yolo-nms": (lambda d: {"o": join(d.corners(30), d.scores(30, 1), d.whole(30)[:, None])}, yolo_nms, 0.25, None),
    "yolov3": (lambda d: {f"m{s}": rows.reshape(*rows.shape[:2], 24).transpose(2, 0, 1) for s, rows in d.maps()},
               yolov3, 0.25, 0.45),
    "yolov5-raw": (lambda d: {f"m{s}": rows.transpose(2, 0, 1, 3) for s, rows in d.maps()}, yolov5_raw, 0.25, 0.45),
    "centernet": (lambda d: {"hm": d.scores(3, 16, 16), "wh": d.rng.uniform(1, 6, (2, 16, 16)), "reg": d.rng.random((2, 16, 16))},
                  centernet, 0.3, 0.3),
    "centernet-logits": (lambda d: {"hm": d.logits(3, 16, 16), "wh": d.rng.uniform(1, 6, (2, 16, 16)),
                                    "reg": d.rng.random((2, 16, 16))}, lambda o: centernet(o, sigmoid), 0.3, 0.3),
    "corners": (lambda d: {"b": d.corners(90), "s": d.scores(90, 3)}, lambda o: (o["b"], *best(o["s"])), 0.3, 0.5),
    "ppyoloe": (lambda d: {"b": d.corners(90), "s": d.scores(90, 3).T}, lambda o: (o["b"], *best(o["s"].T)), 0.3, 0.6),
    "ssd": (lambda d: {"scores": d.shares(90, 4), "boxes": d.corners(90, 1)}, ssd, 0.4, 0.45),
    "ultraface": (lambda d: {"scores": d.shares(90, 2), "boxes": d.corners(90, 1)}, ssd, 0.6, 0.3),
    "yunet": (lambda d: d.levels(
        1, cls=lambda n: d.scores(n, 1), obj=lambda n: d.scores(n, 1) ** 0.2,
        bbox=lambda n: join(d.rng.uniform(0, 1, (n, 2)), np.log(d.rng.uniform(0.5, 3, (n, 2)))),
        kps=lambda n: d.rng.normal(size=(n, 10))), yunet, 0.5, 0.3),
    "scrfd": (lambda d: d.levels(2, score=lambda n: d.scores(n, 1), bbox=lambda n: d.rng.uniform(0.2, 2, (n, 4)),
                                 kps=lambda n: d.rng.normal(size=(n, 10))), scrfd, 0.5, 0.4),
    "st-ssd": (lambda d: {"s": d.shares(90, 2), "b": d.rng.normal(size=(90, 4)) * 0.1, "a": d.corners(90, 1)}, st_ssd, 0.4, 0.45),
    "retina": (lambda d: {"logits": d.logits(9 * 86, 3), "boxes": d.rng.normal(size=(9 * 86, 4)) * 0.2}, retina, 0.3, 0.5),
    "fcos": (lambda d: {"logits": d.logits(86, 3), "boxes": d.rng.uniform(0.2, 2, (86, 4)), "centerness": d.logits(86, 1) + 3},
             fcos, 0.3, 0.6),
    "ltrb-dfl": (lambda d: {"o": join(d.scores(85, 80), d.rng.normal(size=(85, 32)))}, ltrb_dfl, 0.35, 0.6),
    "detr": (lambda d: {"labels": d.whole(30), "boxes": d.corners(30), "scores": d.scores(30)}, detr, 0.4, None),
    "detr-logits": (lambda d: {"logits": d.logits(30, 3), "pred_boxes": d.centred(30, 1)}, detr_logits, 0.4, None),
    "detr-softmax": (lambda d: {"logits": d.rng.normal(size=(30, 4)) * 3 + [0, 0, 0, 4], "pred_boxes": d.centred(30, 1)}, detr_softmax, 0.5, None),
    "efficient-nms": (lambda d: {"det_boxes": d.corners(30), "det_scores": d.scores(30), "det_classes": d.whole(30)},
                      efficient_nms, 0.25, None),
}


def samples(head, n=6):
    """Outputs of a float network and of one that is a little off, [samples, ...] of each."""
    draw = Draw(len(head))
    drawn = [HEADS[head][0](draw) for _ in range(n)]
    expected = {name: np.stack([one[name] for one in drawn]).astype(np.float32) for name in drawn[0]}
    found = {}
    for name, values in expected.items():
        noisy = values * (1 + draw.rng.normal(size=values.shape) * 0.08)
        is_class = name in ("labels", "det_classes", "a")
        found[name] = (values if is_class else noisy).astype(np.float32)
        if head == "yolo-nms":
            found[name][..., 5] = values[..., 5]
    return expected, found


def shared(a, b):
    """IoU of two boxes."""
    w, h = (max(0.0, min(a[k + 2], b[k + 2]) - max(a[k], b[k])) for k in (0, 1))
    area = lambda c: max(0.0, c[2] - c[0]) * max(0.0, c[3] - c[1])
    return w * h / max(area(a) + area(b) - w * h, 1e-9)


def detections(head, outputs):
    """(class, score, box) of one sample, the best first."""
    _, read, threshold, iou = HEADS[head]
    boxes, scores, classes = read(outputs)
    kept = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        if scores[i] < threshold:
            continue
        if iou is None or all(c != classes[i] or shared(b, boxes[i]) <= iou for c, _, b in kept):
            kept.append((classes[i], scores[i], boxes[i]))
    return kept


def right_by_hand(truth, found):
    """Right boxes of a sample: of the float network, of the other one, their IoU."""
    taken, right = set(), []
    for label, _, box in found:
        fits = [(shared(other, box), -i) for i, (c, _, other) in enumerate(truth) if c == label and i not in taken]
        if fits and max(fits)[0] >= 0.5:
            taken.add(-max(fits)[1])
            right.append((truth[-max(fits)[1]][2], box, max(fits)[0]))
    return right


def f1_by_hand(truths, founds):
    """F1, mean IoU of right boxes, and the numbers of boxes."""
    ious = [iou for truth, found in zip(truths, founds) for *_, iou in right_by_hand(truth, found)]
    n = [sum(map(len, all_)) for all_ in (truths, founds)]
    return 2 * len(ious) / sum(n), np.mean(ious), n


def mask(o, box):
    """Of a box of `yolov8-seg`: its coefficients times the prototypes, cut to the box."""
    rows, prototypes = o["output0"].T, o["output1"]
    (row,) = np.flatnonzero((corners(rows[:, :4]) == box).all(1))
    left, top, right, bottom = np.array(box) * prototypes.shape[2] / SIDE
    y, x = np.mgrid[:prototypes.shape[1], :prototypes.shape[2]]
    inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
    return inside & (sigmoid(np.einsum("k,kyx->yx", rows[row, -len(prototypes):].astype(float), prototypes)) > 0.5)


def masks_by_hand(outputs, boxes):
    """Mean IoU of the masks of right boxes."""
    ious = []
    for i, (truth, found) in enumerate(zip(*boxes)):
        for *pair, _ in right_by_hand(truth, found):
            a, b = (mask({name: values[i] for name, values in of.items()}, box) for of, box in zip(outputs, pair))
            if (a | b).any():
                ious.append((a & b).sum() / (a | b).sum())
    return np.mean(ious)


@pytest.mark.parametrize("head", HEADS)
def test_heads_follow_a_second_implementation(head, tmp_path):
    expected, found = samples(head)
    code, report, stderr = compare(tmp_path, expected, found, "--head", head)
    assert code == 0, stderr
    of_sample = lambda outputs, i: {name: values[i] for name, values in outputs.items()}
    n = len(next(iter(expected.values())))
    truths, founds = ([detections(head, of_sample(outputs, i)) for i in range(n)] for outputs in (expected, found))
    f1, iou, numbers = f1_by_hand(truths, founds)
    assert 0.3 < f1 < 1 and min(numbers) > 10
    task = report["task"]
    assert (task["task"], task["head"]) == ("detect", head) and "recognized_by" not in task
    by_hand = {"f1": pytest.approx(f1, abs=1e-9), "box-iou": pytest.approx(iou, abs=1e-5)}
    if head == "yolov8-seg":
        of_masks = masks_by_hand((expected, found), (truths, founds))
        assert 0.5 < of_masks < 0.99
        by_hand["mask-iou"] = pytest.approx(of_masks, abs=2e-3)
    assert task["metrics"] == by_hand
    assert [task["found"][network]["n_found"] for network in ("float", "quantized")] == numbers
    scores = np.concatenate([HEADS[head][1](of_sample(expected, i))[1] for i in range(n)])
    histogram = np.histogram(scores, np.linspace(0, 1, 11))[0]
    assert np.abs(np.array(task["found"]["float"]["scores"]) - histogram).sum() <= 2


@pytest.mark.parametrize(("head", "strides", "per_cell"), [
    ("yolov5", [16, 32], 3), ("yolov5", [8, 16, 32, 64], 3), ("yolov8", [4, 8, 16, 32], 1), ("yolox", [16, 32], 1),
    ("yolox", [8, 16, 32, 64], 1),
])
def test_strides_are_found_from_the_rows(head, strides, per_cell, tmp_path):
    """Tiny networks have two levels, those for large or small objects have a fourth."""
    draw, n = Draw(5), per_cell * n_cells(strides)
    scores = join(draw.scores(n, 1) ** 0.2, draw.scores(n, 3))
    rows = {
        "yolov5": lambda: join(draw.centred(n), scores),
        "yolov8": lambda: join(draw.centred(n), scores[:, 1:]).T,
        "yolox": lambda: join(draw.rng.uniform(0, 1, (n, 2)), np.log(draw.rng.uniform(0.5, 3, (n, 2))), scores),
    }[head]()
    outputs = {"o": rows[None].astype(np.float32)}
    code, report, stderr = compare(tmp_path, outputs, outputs)
    assert code == 0 and report["task"]["head"] == head, stderr
    assert f"{n} rows for the cells of strides {strides}" in report["task"]["recognized_by"]
    assert report["task"]["metrics"]["f1"] == 1
    if head == "yolox":
        short = {"o": outputs["o"][:, 2:]}
        code, _, stderr = compare(tmp_path, short, short, "--head", head)
        expected = f"found {n - 2} rows, expected 1 for each cell of levels with strides such as [8, 16, 32]"
        assert code == 1 and expected in stderr


@pytest.mark.parametrize("head", ["yolov3", "yolov5-raw"])
@pytest.mark.parametrize("layout", ["channels last", "rows behind the cells"])
def test_maps_have_any_order_of_axes(head, layout, tmp_path):
    """Two levels, as tiny networks have them, with anchors in a file of the user."""
    last = layout == "channels last"
    rows = {s: [] for s in (8, 16)}
    draw = Draw(6)
    for _ in range(4):
        for s, of_sample in draw.maps():
            if s in rows:
                rows[s].append(of_sample.reshape(*of_sample.shape[:2], 24) if last else of_sample)
    maps = {f"m{s}": np.stack(rows[s]).astype(np.float32) for s in rows}
    code, report, stderr = compare(tmp_path, maps, maps)
    # Four axes leave open which of both it is; the boxes are nearly the same.
    assert code == 0 and report["task"]["head"] == ("yolov3" if last else "yolov5-raw"), stderr
    assert "240 rows for the cells of strides [8, 16]" in report["task"]["recognized_by"]
    noisy = {name: (x * (1 + draw.rng.normal(size=x.shape) * 0.08)).astype(np.float32) for name, x in maps.items()}
    form = head.removesuffix("-raw")
    (tmp_path / "mine.yaml").write_text(f"""
task: detect
boxes: {{ output: [m8, m16], per_cell: 3, columns: [0, 4] }}
form: {form}
anchors: {{ sides: {{ 8: [[4, 8], [8, 4], [12, 12]], 16: [[20, 30], [30, 20], [40, 40]] }} }}
objectness: {{ output: [m8, m16], per_cell: 3, columns: [4, 5], activation: sigmoid }}
scores: {{ output: [m8, m16], per_cell: 3, columns: [5], activation: sigmoid }}
strides: [8, 16]
threshold: 0.25
nms: 0.45
""")
    code, report, stderr = compare(tmp_path, maps, noisy, "--head", tmp_path / "mine.yaml")
    assert code == 0, stderr
    anchors = {8: ((4, 8), (8, 4), (12, 12)), 16: ((20, 30), (30, 20), (40, 40))}
    centre, side = {"yolov3": (sigmoid, np.exp),
                    "yolov5": (lambda t: 2 * sigmoid(t) - 0.5, lambda t: (2 * sigmoid(t)) ** 2)}[form]
    HEADS["mine maps"] = (None, lambda o: yolo_maps(o, lambda x: x, centre, side, anchors), 0.25, 0.45)
    truths, founds = ([detections("mine maps", {name: x[i] for name, x in all_.items()}) for i in range(4)]
                      for all_ in (maps, noisy))
    f1, iou, _ = f1_by_hand(truths, founds)
    assert 0.3 < f1 < 1
    assert report["task"]["metrics"] == {"f1": pytest.approx(f1), "box-iou": pytest.approx(iou, abs=1e-5)}


def test_maps_of_features_are_no_boxes(tmp_path):
    rng = np.random.default_rng(11)
    maps = {f"m{s}": rng.normal(size=(2, 24, SIDE // s, SIDE // s)).astype(np.float32) for s in P5}
    code, report, stderr = compare(tmp_path, maps, maps)
    assert (code, "task" in report) == (0, False), stderr
    # Levels that are not halved, and a number of channels that is no multiple of the rows.
    for shapes in ([(24, 8, 8), (24, 6, 6)], [(25, 8, 8), (25, 4, 4)]):
        maps = {f"m{i}": rng.normal(size=(2, *shape)).astype(np.float32) - 4 for i, shape in enumerate(shapes)}
        code, _, stderr = compare(tmp_path, maps, maps, "--head", "yolov3")
        assert code == 1 and ("found 300 rows, expected 3 for each cell" in stderr or "has 25 columns, expected a multiple of 3" in stderr)


def test_a_head_whose_scores_are_none_is_refused(tmp_path):
    poses, boxes = samples("yolov8-pose")[0], samples("yolov8")[0]
    code, _, stderr = compare(tmp_path, poses, poses, "--head", "yolov8")
    assert code == 1 and "head `yolov8`: `scores`: output `o` [1, 20, 84]: column 5 holds " in stderr
    assert " expected 0 to 1" in stderr and "hint: head `yolov8-pose` fits these outputs" in stderr
    code, _, stderr = compare(tmp_path, boxes, boxes, "--head", "yolov8-pose")
    assert code == 1 and "head `yolov8-pose`: `points`: found 2 columns, expected 3 for each point: x, y, score" in stderr
    assert "hint: head `yolov8` fits these outputs" in stderr
    four = {"o": join(Draw(1).centred(84), Draw(1).scores(84, 4)).T[None]}
    code, _, stderr = compare(tmp_path, four, four, "--head", "yolov8-pose")
    assert code == 1 and "`points`: found 0 to 1, expected pixels" in stderr
    # Logits without an activation.
    logits = {"o": join(Draw(1).centred(50), Draw(1).logits(50, 4))[None]}
    (tmp_path / "mine.yaml").write_text("""
task: detect
boxes: { columns: [0, 4] }
form: cxcywh
scores: { columns: [4] }
threshold: 0.3
""")
    code, _, stderr = compare(tmp_path, logits, logits, "--head", tmp_path / "mine.yaml")
    assert code == 1 and "output `o` [1, 50, 8]: column 4 holds -" in stderr and "hint: docs/tasks.md lists the heads" in stderr
    # A semantic map is no prototypes: what would be coefficients has one sign.
    maps = boxes | {"maps": Draw(2).rng.normal(size=(6, 2, 16, 16)).astype(np.float32)}
    code, report, stderr = compare(tmp_path, maps, maps)
    assert (code, "task" in report) == (0, False), stderr
    # A row that stands for nothing.
    padded, _ = samples("detr")
    padded["scores"][:, -1] = -1
    assert compare(tmp_path, padded, padded, "--head", "detr")[0] == 0


def choose_rows(path):
    """Has the network of `labels`, `boxes` and `scores` choose its rows by TopK, the best score first."""
    model = onnx.load(path)
    n = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    for node in model.graph.node:
        if node.output[0] in ("labels", "boxes", "scores"):
            node.output[0] += " of all"
            node.input[0] = node.input[0].replace(" of all", " constant")
    for tensor in model.graph.initializer:
        tensor.name = tensor.name.replace(" of all", " constant")
    model.graph.initializer.append(numpy_helper.from_array(np.array([n]), "n"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    model.graph.node.extend([
        helper.make_node("TopK", ["scores of all", "n"], ["scores", "chosen"]),
        helper.make_node("Unsqueeze", ["chosen", "last"], ["rows"]),
        *(helper.make_node("GatherND", [f"{name} of all", "rows"], [name], batch_dims=1) for name in ("labels", "boxes")),
    ])
    onnx.save(model, path)


def overlap_by_hand(truths, founds, threshold):
    """Twice what both networks share of the weights of their boxes, over both networks' weights."""
    shared_weight, weights = 0.0, 0.0
    for truth, found in zip(truths, founds):
        weigh = lambda boxes: [(label, score - threshold / 4, box) for label, score, box in boxes if score > threshold / 4]
        truth, found = weigh(truth), weigh(found)
        weights += sum(weight for _, weight, _ in truth + found)
        for label, weight, box in found:
            fits = [(shared(other, box), -i) for i, (of, _, other) in enumerate(truth) if of == label]
            if fits and max(fits)[0] > 0.25:
                iou, i = max(fits)
                shared_weight += min(weight, truth.pop(-i)[1]) * min(1, (iou - 0.25) / 0.5)
    return 2 * shared_weight / weights


def test_boxes_that_the_network_chooses_have_no_order(tmp_path):
    expected, found = samples("detr")
    rng = np.random.default_rng(3)
    for i in range(len(found["scores"])):
        order = rng.permutation(found["scores"].shape[1])
        for rows in found.values():
            rows[i] = rows[i][order]
    code, report, stderr = compare(tmp_path, expected, found)
    assert code == 0 and "box-overlap" not in report["task"]["metrics"], stderr
    models = [tmp_path / f"{name}.onnx" for name in ("float", "quantized")]
    for path in models:
        choose_rows(path)
    command = [MQQ, "compare", *models, "--data", tmp_path / "images.npz", "--json", "--fail-under", "box-overlap=0.3"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    task = json.loads(done.stdout)["task"]
    of_sample = lambda outputs, i: sorted(zip(outputs["labels"][i], outputs["scores"][i], outputs["boxes"][i]),
                                          key=lambda row: -row[1])
    boxes = [[of_sample(outputs, i) for i in range(len(outputs["scores"]))] for outputs in (expected, found)]
    by_hand = overlap_by_hand(*boxes, threshold=0.4)
    assert 0.4 < by_hand < 0.99
    assert task["metrics"]["box-overlap"] == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_outputs_that_leave_no_doubt_tell_the_head(head, tmp_path):
    expected, found = samples(head)
    code, report, stderr = compare(tmp_path, expected, found)
    assert code == 0, stderr
    assert report["task"]["head"] == head
    assert f"`{next(iter(expected))}`" in report["task"]["recognized_by"] or head == "st-ssd"


def test_outputs_in_doubt_are_left_to_the_user(tmp_path):
    draw = Draw(1)
    # As many rows as no head knows, or boxes that lie nowhere.
    for rows in (join(draw.centred(50), draw.scores(50, 3)), join(draw.centred(84) * 40, draw.scores(84, 3))):
        outputs = {"o": rows[None].repeat(2, 0)}
        code, report, stderr = compare(tmp_path, outputs, outputs)
        assert (code, "task" in report) == (0, False)
        code, report, stderr = compare(tmp_path, outputs, outputs, "--task", "detect")
        assert code == 1 and "no built-in head of task detect fits the outputs `o` " in stderr and "--head" in stderr
        code, report, stderr = compare(tmp_path, outputs, outputs, "--fail-under", "f1=0.1")
        assert code == 3 and "F1 was not measured, expected 0.1 or more" in stderr
        assert report["missed"] == [{"metric": "f1", "bound": 0.1}]


def test_steps_of_a_text_recognizer_are_no_boxes(tmp_path):
    """Probabilities of characters, for as many steps as a detector would have cells."""
    logits = 8 * np.random.default_rng(19).standard_normal((8, 84, 30)).astype(np.float32)
    scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    code, report, stderr = compare(tmp_path, {"o": scores}, {"o": scores})
    assert code == 0 and report.get("task", {}).get("task") != "detect", stderr
    assert "finds no box" not in stderr


def test_gates_hold_the_figure_of_the_task(tmp_path):
    expected, found = samples("yolov8")
    code, report, _ = compare(tmp_path, expected, found, "--fail-under", "f1=0.999", "--fail-under", "box-iou=0.1")
    f1 = report["task"]["metrics"]["f1"]
    assert code == 3 and report["missed"] == [{"metric": "f1", "value": f1, "bound": 0.999}]
    code, report, stderr = compare(tmp_path, expected, found, "--fail-under", f"f1={f1 - 1e-6}", "--quiet")
    assert (code, report["missed"], stderr) == (0, [], "")


def test_values_that_are_no_numbers_pass_no_gate(tmp_path):
    expected, found = samples("yolov8")
    found["o"][0, 0, 0] = np.nan
    code, report, stderr = compare(tmp_path, expected, found, "--fail-under", "f1=0.01")
    assert code == 3 and report["missed"] == [{"metric": "f1", "bound": 0.01}]


def test_networks_that_find_nothing_have_no_figure(tmp_path):
    rows = {"o": join(Draw(1).centred(84), np.full((84, 3), 0.01)).T[None].repeat(2, 0)}
    code, report, stderr = compare(tmp_path, rows, rows, "--head", "yolov8", "--fail-under", "f1=0.5")
    assert code == 3 and "F1 was not measured" in stderr and report["task"]["metrics"] == {}
    [float_model, warning] = report["warnings"]
    assert "is not quantized" in float_model
    assert warning.startswith("the float network finds no box with a score of 0.25 or more in 2 samples: check --preprocess")
    evaluated = json.loads(mqq("eval", tmp_path / "float.onnx", "--data", tmp_path / "images.npz", "--json", "--head", "yolov8"))
    assert evaluated["task"]["n_found"] == 0 and evaluated["warnings"] == [warning]
    # A box of the quantized network alone gives the same warning.
    rows["o"][0, 4, 0] = 0.9
    code, report, _ = compare(tmp_path, {"o": rows["o"] * [[[1]] * 4 + [[0.1]] * 3]}, rows, "--head", "yolov8")
    assert code == 0 and report["task"]["found"]["float"]["n_found"] == 0 and report["warnings"] == [float_model, warning]


def test_doctor_warns_of_a_network_that_finds_nothing(tmp_path):
    rows = {"o": join(Draw(1).centred(84), np.full((84, 3), 0.01)).T[None].repeat(10, 0)}
    for score, expected in ((0.01, ["no box with a score of 0.25 or more in 10 samples"]), (0.9, [])):
        rows["o"][7, 4, 0] = score
        compare(tmp_path, rows, rows, "--head", "yolov8")
        command = [MQQ, "doctor", tmp_path / "float.onnx", "--data", tmp_path / "images.npz", "--json", "--head", "yolov8"]
        report = json.loads(subprocess.run(list(map(str, command)), capture_output=True, text=True).stdout)
        found = [finding for finding in report["findings"] if finding["rule"] == "preprocessing"]
        assert [(it["what"], it["found"], it["severity"]) for it in found] == [("the float network's result", it, "warning") for it in expected]


def test_a_head_is_a_file(tmp_path):
    """Levels apart, channels before rows, distributions: as networks for accelerators give them."""
    draw, outputs = Draw(3), {}
    for stride in P5:
        n = SIDE // stride
        outputs[f"sides{stride}"] = draw.rng.normal(size=(4, 64, n, n)).astype(np.float32)
        outputs[f"classes{stride}"] = draw.logits(4, 3, n, n).astype(np.float32)
    (tmp_path / "mine.yaml").write_text("""
task: detect
boxes: { output: [0, 2, 4], axis: 1 }
form: ltrb
bins: 16
scores: { output: [classes8, classes16, classes32], axis: 1, activation: sigmoid }
strides: [8, 16, 32]
threshold: 0.3
nms: 0.6
""")
    noisy = {name: (values * (1 + draw.rng.normal(size=values.shape) * 0.1)).astype(np.float32) for name, values in outputs.items()}
    code, report, stderr = compare(tmp_path, outputs, noisy, "--head", tmp_path / "mine.yaml")
    assert code == 0, stderr

    def read(o):
        levels = lambda name, n: np.concatenate([o[f"{name}{s}"].reshape(n, -1).T for s in P5])
        sides = softmax(levels("sides", 64).reshape(-1, 4, 16)) @ np.arange(16)
        return distances(sides, P5), *best(sigmoid(levels("classes", 3)))

    HEADS["mine"] = (None, read, 0.3, 0.6)
    truths, founds = ([detections("mine", {name: values[i] for name, values in all_.items()}) for i in range(4)]
                      for all_ in (outputs, noisy))
    f1, iou, _ = f1_by_hand(truths, founds)
    assert report["task"]["metrics"] == {"f1": pytest.approx(f1), "box-iou": pytest.approx(iou, abs=1e-5)}


def test_a_head_with_another_form_is_refused(tmp_path):
    outputs, _ = samples("yolov8")
    text = "task: detect\nboxes: {columns: [0, 4], axis: 1}\nscores: {columns: [4, 7], axis: 1}\nthreshold: 0.25\nform: "
    for form, code in (("cxcywh", 0), ("xyxy", 1)):
        (tmp_path / "mine.yaml").write_text(text + form)
        ended, _, stderr = compare(tmp_path, outputs, outputs, "--head", tmp_path / "mine.yaml")
        assert ended == code, stderr
    assert "`form`: " in stderr and "boxes with a score of 0.25 or more are empty, expected the right side beyond" in stderr
    assert "hint: head `yolov8` fits these outputs" in stderr


@pytest.mark.parametrize("text, message", [
    ("boxs: {}", "`mine.yaml`:2: unknown key `boxs`"),
    ("form: xywhs", "`mine.yaml`:2: `form`: unknown value `xywhs`"),
    ("form: xyxy\nthreshold: high", "`mine.yaml`:3: `threshold`: found the text"),
    ("form: xyxy\nboxes: {}\nscores: {}\nthreshold: 2", "`mine.yaml`: `threshold`: 2, expected 0 to 1"),
    ("form: cells\nboxes: {}\nscores: {}\nthreshold: 0.5", "`mine.yaml`: `strides`: absent, expected for this `form`"),
    ("form: anchors\nboxes: {}\nscores: {}\nthreshold: 0.5", "`mine.yaml`: `anchors`: expected with `form: anchors`"),
    ("form: xyxy\nboxes: {columns: [0, 4]}\nscores: {columns: [4, 9]}\nthreshold: 0.5", "has 7 columns, expected columns 4 to 9"),
    ("form: xyxy\nboxes: {output: 3}\nscores: {}\nthreshold: 0.5", "expected an output at position 3"),
])
def test_what_is_wrong_in_a_head_is_named(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"task: detect\n{text}\n")
    outputs = {"o": join(Draw(1).centred(84), Draw(1).scores(84, 3))[None]}
    code, _, stderr = compare(tmp_path, outputs, outputs, "--head", "mine.yaml")
    assert code == 1 and message in stderr


def figures(folder, expected, found, *options):
    """The head and the figures of the task."""
    code, report, stderr = compare(folder, expected, found, *options)
    assert code == 0, stderr
    return report["task"]["head"], report["task"]["metrics"]


def noisy(values, noise):
    return (values + np.random.default_rng(99).normal(size=values.shape) * noise).astype(np.float32)


@pytest.mark.parametrize("head", ["argmax", "argmax-last", "mask", "mask-logits"])
def test_segmentation(head, tmp_path):
    rng = np.random.default_rng(0)
    n_classes = 1 if head.startswith("mask") else 4
    scores = rng.normal(size=(5, n_classes, 12, 16)).astype(np.float32)
    if head == "mask":
        scores = sigmoid(scores)
    if head == "argmax":
        scores[:, 3] = -9  # A class that neither network finds.
    found = np.clip(noisy(scores, 0.3), *((0, 1) if head == "mask" else (-np.inf, np.inf)))
    least = {"mask": 0.5, "mask-logits": 0.0}.get(head)
    members = lambda x: x[:, 0] > least if least is not None else x.argmax(1)
    a, b = members(scores), members(found)
    classes = [True] if least is not None else range(4)
    ious = [((a == c) & (b == c)).sum() / ((a == c) | (b == c)).sum() for c in classes if ((a == c) | (b == c)).any()]
    move = (lambda x: x.transpose(0, 2, 3, 1)) if head == "argmax-last" else (lambda x: x)
    expected = {"miou": pytest.approx(np.mean(ious))}
    assert len(ious) == (3 if head == "argmax" else len(classes)) and 0.3 < np.mean(ious) < 0.95
    assert figures(tmp_path, {"o": move(scores)}, {"o": move(found)}, "--task", "segment") == (head, expected)
    assert figures(tmp_path, {"o": move(scores)}, {"o": move(found)}, "--head", head) == (head, expected)


@pytest.mark.parametrize("head", ["argmax", "argmax-last", "mask", "mask-logits"])
def test_segmentation_of_volumes(head, tmp_path):
    rng = np.random.default_rng(10)
    scores = rng.normal(size=(5, 1 if head.startswith("mask") else 4, 6, 7, 8)).astype(np.float32)
    if head == "mask":
        scores = sigmoid(scores)
    found = np.clip(noisy(scores, 0.3), *((0, 1) if head == "mask" else (-np.inf, np.inf)))
    least = {"mask": 0.5, "mask-logits": 0.0}.get(head)
    a, b = (x[:, 0] > least if least is not None else x.argmax(1) for x in (scores, found))
    classes = [True] if least is not None else range(4)
    ious = [((a == c) & (b == c)).sum() / ((a == c) | (b == c)).sum() for c in classes]
    move = (lambda x: np.moveaxis(x, 1, -1)) if head == "argmax-last" else (lambda x: x)
    expected = (head, {"miou": pytest.approx(np.mean(ious))})
    assert 0.3 < np.mean(ious) < 0.95
    assert figures(tmp_path, {"o": move(scores)}, {"o": move(found)}, "--task", "segment") == expected
    assert figures(tmp_path, {"o": move(scores)}, {"o": move(found)}, "--head", head) == expected


def test_embeddings_keep_their_neighbours(tmp_path):
    vectors = np.random.default_rng(1).normal(size=(40, 24)).astype(np.float32)
    found = noisy(vectors, 0.5)

    def nearest(x):
        x = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        cosines = x @ x.T
        np.fill_diagonal(cosines, -9)
        return np.argsort(-cosines, 1, kind="stable")[:, :10]

    kept = np.mean([len(np.intersect1d(a, b)) for a, b in zip(nearest(vectors), nearest(found))]) / 10
    assert 0.3 < kept < 0.95
    expected = ("embedding", {"neighbours": pytest.approx(kept)})
    assert figures(tmp_path, {"o": vectors}, {"o": found}, "--task", "embed") == expected
    assert figures(tmp_path, {"o": vectors}, {"o": found}, "--task", "embed", "--threads", "1") == expected
    # Of few samples all others are neighbours.
    few = {"o": vectors[:11]}
    code, report, stderr = compare(tmp_path, few, few, "--task", "embed", "--fail-under", "neighbours=0.1")
    assert code == 3 and report["task"]["metrics"] == {} and "neighbours kept was not measured" in stderr


def ssim(a, b, peak, side=7):
    """As scikit-image has it by default, window by window."""
    windows = lambda x: np.lib.stride_tricks.sliding_window_view(np.clip(x.astype(np.float64), 0, peak), (side, side))
    wa, wb = windows(a), windows(b)
    ma, mb = wa.mean((2, 3)), wb.mean((2, 3))
    unbiased = side**2 / (side**2 - 1)
    va, vb = (unbiased * w.var((2, 3)) for w in (wa, wb))
    both = unbiased * ((wa * wb).mean((2, 3)) - ma * mb)
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    return ((2 * ma * mb + c1) * (2 * both + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))).mean()


@pytest.mark.parametrize("head, peak, n_channels", [("picture", 1, 1), ("picture", 1, 3), ("picture-255", 255, 3), ("map", None, 2), ("map-flat", None, 1)])
def test_maps_and_pictures(head, peak, n_channels, tmp_path):
    rng = np.random.default_rng(2)
    maps = rng.uniform(0.05, 0.9, (4, n_channels, 11, 14)) * (peak or 1) - (0 if peak else 3)
    maps = maps.astype(np.float32)
    found = noisy(maps, 0.05 * (peak or 1)) + np.float32(0.04)
    centred = lambda x: x.astype(np.float64) - x.astype(np.float64).mean((2, 3), keepdims=True)
    error = centred(maps.astype(np.float64) - found.astype(np.float64))
    expected = {"map-sqnr": pytest.approx(10 * np.log10((centred(maps) ** 2).sum() / (error**2).sum()), abs=1e-6)}
    if peak:
        each = [ssim(a, b, peak) for x, y in zip(maps, found) for a, b in zip(x, y)]
        expected["ssim"] = pytest.approx(np.mean(each), abs=1e-9)
        assert 0.3 < np.mean(each) < 0.99
    if head == "map-flat":
        maps, found = maps[:, 0], found[:, 0]
    assert figures(tmp_path, {"o": maps}, {"o": found}, "--task", "map") == (head, expected)


def peaks(maps):
    flat = maps.reshape(*maps.shape[:2], -1).argmax(2)
    return np.stack([flat % maps.shape[3], flat // maps.shape[3]], 2)


@pytest.mark.parametrize("head", ["heatmap", "simcc", "points", "points-normalized"])
def test_points(head, tmp_path):
    rng = np.random.default_rng(3)
    if head == "heatmap":
        outputs, side = {"o": rng.normal(size=(6, 5, 60, 100)).astype(np.float32)}, 100
        read = lambda o: peaks(o["o"])
    elif head == "simcc":
        outputs = {name: rng.normal(size=(6, 5, n)).astype(np.float32) for name, n in (("simcc_x", 90), ("simcc_y", 120))}
        read, side = lambda o: np.stack([o["simcc_x"].argmax(2), o["simcc_y"].argmax(2)], 2), 120
    else:
        side = 1 if head == "points-normalized" else SIDE
        outputs = {"o": (rng.uniform(0.1, 0.9, (6, 5, 3)) * side).astype(np.float32)}
        read = lambda o: o["o"][..., :2]
    found = {name: noisy(values, 0.3 if len(outputs) == 2 or head == "heatmap" else 0.015 * side) for name, values in outputs.items()}
    distances = np.linalg.norm(read(outputs).astype(float) - read(found), axis=2)
    share = (distances <= 0.02 * side).mean()
    assert 0.2 < share < 0.95
    assert figures(tmp_path, outputs, found, "--task", "keypoints") == (head, {"pck": pytest.approx(share)})


@pytest.mark.parametrize("head", ["points-flat", "points-flat-3", "points-flat-normalized", "points-flat-3-normalized"])
def test_points_behind_each_other(head, tmp_path):
    rng = np.random.default_rng(9)
    n, side = (3 if "-3" in head else 2), (1 if "normalized" in head else SIDE)
    # As many values as both lengths allow: neighbouring points are near each other.
    points = 0.5 + np.cumsum(rng.normal(size=(6, 12, n)) * 0.02, 1) + rng.uniform(-0.3, 0.3, (6, 1, n))
    if n == 3:
        points[..., 2] = rng.uniform(0.9, 1, (6, 12)) / side
    points = (points * side).astype(np.float32)
    found = noisy(points, 0.015 * side)
    share = (np.linalg.norm(points[..., :2].astype(float) - found[..., :2], axis=2) <= 0.02 * side).mean()
    assert 0.2 < share < 0.95
    # The score that there is anything at all is no point.
    outputs = [{"o": values.reshape(6, -1), "presence": np.ones((6, 1), np.float32)} for values in (points, found)]
    expected = (head, {"pck": pytest.approx(share)})
    assert figures(tmp_path, *outputs, "--task", "keypoints") == expected
    assert figures(tmp_path, *outputs, "--head", head) == expected
    # Without such an order, the length of a point is told by the number alone.
    mixed = rng.uniform(0.1, 0.9, (6, 24)).astype(np.float32) * side
    code, _, stderr = compare(tmp_path, {"o": mixed}, {"o": mixed}, "--task", "keypoints")
    assert code == 1 and "no built-in head of task keypoints fits the outputs `o` [1, 24]" in stderr
    n_values = 10 if n == 2 else 9
    few = {"o": mixed[:, :n_values]}
    assert figures(tmp_path, few, few, "--task", "keypoints") == (head, {"pck": 1})
    code, _, stderr = compare(tmp_path, {"o": mixed[:, :7]}, {"o": mixed[:, :7]}, "--head", head)
    assert code == 1 and f"`points`: found 7 values, expected {n} for each point" in stderr


def distance(a, b):
    """Edits from one text to another."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, row[0] = row[0], i + 1
        for j, y in enumerate(b):
            last, row[j + 1] = row[j + 1], min(row[j] + 1, row[j + 1] + 1, last + (x != y))
    return row[-1]


@pytest.mark.parametrize("head", ["ctc", "ctc-last"])
def test_text(head, tmp_path):
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(6, 20, 9)).astype(np.float32)
    blank = 0 if head == "ctc" else 8
    scores[..., blank] += 1
    found = noisy(scores, 0.3)

    def text(rows):
        best = rows.argmax(1)
        return [c for c, before in zip(best, [-1, *best]) if c != before and c != blank]

    texts = [(text(a), text(b)) for a, b in zip(scores, found)]
    kept = 1 - sum(distance(a, b) for a, b in texts) / sum(max(len(a), len(b)) for a, b in texts)
    assert 0.3 < kept < 0.95
    expected = (head, {"characters": pytest.approx(kept)})
    assert figures(tmp_path, {"o": scores}, {"o": found}, "--task", "text") == expected
    assert figures(tmp_path, {"o": scores}, {"o": found}, "--head", head) == expected


def test_classes(tmp_path):
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(30, 20)).astype(np.float32)
    found = noisy(scores, 1)
    best = np.argsort(-found, 1, kind="stable")[:, :5]
    kept = 100 * np.mean([a in b for a, b in zip(scores.argmax(1), best)])
    assert 50 < kept < 99
    assert figures(tmp_path, {"o": scores}, {"o": found}, "--task", "classify") == ("class-scores", {"top5": pytest.approx(kept)})
    code, report, stderr = compare(tmp_path, {"o": scores}, {"o": found}, "--task", "classify", "--fail-under", "top5=100")
    assert code == 3 and "top-5 agreement is" in stderr
    few = {"o": scores[:, :5]}
    assert figures(tmp_path, few, few, "--task", "classify")[1] == {}


def test_classes_of_tokens(tmp_path):
    rng = np.random.default_rng(8)
    # Some classes are more frequent than others; the mean of a row stays where it is.
    scores = rng.normal(size=(6, 20, 4)) + [1, 0.5, -0.5, -1]
    scores = (scores - scores.mean(2, keepdims=True)).astype(np.float32)
    found = noisy(scores, 0.5)
    kept = 100 * np.mean(scores.argmax(2) == found.argmax(2))
    assert 50 < kept < 95
    options = ["--head", "token-scores"]
    expected = ("token-scores", {"row-agreement": pytest.approx(kept)})
    assert figures(tmp_path, {"o": scores}, {"o": found}, *options) == expected
    assert figures(tmp_path, {"o": scores}, {"o": found}, "--task", "classify") == expected
    classes_first = {"o": scores.transpose(0, 2, 1)}
    code, _, stderr = compare(tmp_path, classes_first, classes_first, "--task", "classify")
    assert code == 1 and "no built-in head of task classify fits the outputs `o` [1, 4, 20]" in stderr
    code, _, stderr = compare(tmp_path, {"o": scores}, {"o": found}, *options, "--fail-under", "row-agreement=99")
    assert code == 3 and "agreement of rows is" in stderr


def test_a_drop_of_top1_is_a_gate(tmp_path):
    rng = np.random.default_rng(6)
    scores = (rng.normal(size=(40, 6)) * 4).astype(np.float32)
    found = noisy(scores, 2)
    labels = scores.argmax(1)
    labels[:4] = (labels[:4] + 1) % 6
    rows = "".join(f"images.npz[{i}],{label}\n" for i, label in enumerate(labels))
    (tmp_path / "labels.csv").write_text("file,class_index\n" + rows)
    drop = 100 * (np.mean(scores.argmax(1) == labels) - np.mean(found.argmax(1) == labels))
    assert 2 < drop < 90
    options = ["--labels", tmp_path / "labels.csv", "--max-top1-drop"]
    assert compare(tmp_path, {"o": scores}, {"o": found}, *options, drop + 0.01)[0] == 0
    code, report, stderr = compare(tmp_path, {"o": scores}, {"o": found}, *options, drop - 0.01)
    assert code == 3 and f"drop of top-1 is {drop:.2f} %, expected" in stderr
    assert report["missed"] == [{"metric": "top1-drop", "tensor": "o", "value": pytest.approx(drop), "bound": pytest.approx(drop - 0.01)}]
    assert compare(tmp_path, {"o": scores}, {"o": found}, "--max-top1-drop", 1)[0] == 2


def instances(rng, sizes, found, n_classes=3):
    """Boxes of images as COCO's file has them: those found, moved, some left out, some more, some crowds."""
    annotations = []
    for image, ((width, height), boxes) in enumerate(zip(sizes, found)):
        drawn = [(c, b + rng.normal(size=4) * 0.01 * max(width, height)) for c, _, b in boxes if rng.random() < 0.7]
        drawn += [(int(rng.integers(n_classes)), np.array([0, 0, width / 3, height / 2]))]
        for label, (left, top, right, bottom) in drawn:
            w, h = max(right - left, 1.0), max(bottom - top, 1.0)
            crowd = int(rng.random() < 0.1)
            annotations.append({"id": len(annotations) + 1, "image_id": 100 + image, "category_id": 10 * int(label) + 7,
                                "bbox": [float(left), float(top), float(w), float(h)], "area": float(w * h), "iscrowd": crowd})
    return {
        "images": [{"id": 100 + i, "file_name": f"{i}.png", "width": w, "height": h} for i, (w, h) in enumerate(sizes)],
        "annotations": annotations,
        "categories": [{"id": 10 * k + 7, "name": f"class {k}"} for k in reversed(range(n_classes))],
    }


def coco_map(path, boxes):
    """pycocotools' mAP of boxes [(class, score, corners)] of each image."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
    truth = COCO(path)
    rows = [{"image_id": 100 + i, "category_id": 10 * int(label) + 7, "score": float(score),
             "bbox": [float(b[0]), float(b[1]), float(b[2] - b[0]), float(b[3] - b[1])]}
            for i, of_image in enumerate(boxes) for label, score, b in of_image]
    judged = COCOeval(truth, truth.loadRes(rows), "bbox")
    judged.evaluate()
    judged.accumulate()
    judged.summarize()
    return judged.stats[0]


# How (width, height) becomes 64x64: factors and the place of the upper left corner.
FITS = {
    "letterbox_centered": lambda w, h: (lambda r, nw, nh: (nw / w, nh / h, (SIDE - nw) // 2, (SIDE - nh) // 2))(
        SIDE / max(w, h), round(w * SIDE / max(w, h)), round(h * SIDE / max(w, h))),
    "letterbox": lambda w, h: (int(w * SIDE / max(w, h)) / w, int(h * SIDE / max(w, h)) / h, 0, 0),
    "exact": lambda w, h: (SIDE / w, SIDE / h, 0, 0),
    "short_side=80": lambda w, h: (lambda nw, nh: (nw / w, nh / h, -round((nw - SIDE) / 2), -round((nh - SIDE) / 2)))(
        w * 80 // min(w, h), h * 80 // min(w, h)),
}


@pytest.mark.parametrize("resize", FITS)
@pytest.mark.parametrize("head", ["yolov8", "ultraface"])
def test_map_is_that_of_pycocotools(head, resize, tmp_path):
    rng = np.random.default_rng(7)
    expected, found = (dict(outputs) for outputs in samples(head))
    sizes = [(100, 80), (64, 64), (90, 200), (37, 53), (128, 64), (70, 99)]
    (tmp_path / "images").mkdir()
    for i, size in enumerate(sizes):
        Image.new("RGB", size, (i, i, i)).save(tmp_path / "images" / f"{i}.png")

    def in_images(outputs):
        all_ = []
        for i, (w, h) in enumerate(sizes):
            x, y, left, top = FITS[resize](w, h)
            pixels = SIDE if head == "ultraface" else 1
            back = lambda b: np.clip((np.array(b, float) * pixels - [left, top, left, top]) / [x, y, x, y], 0, [w, h, w, h])
            boxes = detections(head, {name: values[i] for name, values in outputs.items()})
            all_.append([(label, score, back(box)) for label, score, box in boxes])
        return all_

    of_float, of_quantized = in_images(expected), in_images(found)
    (tmp_path / "instances.json").write_text(json.dumps(instances(rng, sizes, of_float)))
    maps = [coco_map(tmp_path / "instances.json", boxes) for boxes in (of_float, of_quantized)]
    models = [lookup(tmp_path / f"{name}.onnx", outputs, pixel=16 if resize == "letterbox" else 32) for name, outputs in (("f", expected), ("q", found))]
    command = [MQQ, "compare", *models, "--data", tmp_path / "images", "--resize", resize, "--scale", 1, "--head", head,
               "--labels", tmp_path / "instances.json", "--json"]
    report = json.loads(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout)
    assert report["task"]["coco_map"] == pytest.approx(maps, abs=1e-4) and 0.01 < maps[1] < maps[0] < 0.95
    assert report["task"]["metrics"]["coco-map"] == report["task"]["coco_map"][1]
    done = subprocess.run(list(map(str, [*command[:-1], "--fail-under", "coco-map=0.99"])), capture_output=True, text=True)
    assert done.returncode == 3 and "; mAP float {:.4f}, quantized {:.4f}".format(*report["task"]["coco_map"]) in done.stdout


def test_images_without_boxes_are_named(tmp_path):
    outputs = samples("yolov8")[0]
    model, other = (lookup(tmp_path / name, outputs) for name in ("f.onnx", "q.onnx"))
    (tmp_path / "images").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "images" / "a.png")
    np.savez(tmp_path / "images.npz", x=np.zeros((1, 3, SIDE, SIDE), np.float32))

    def stderr(instances, data):
        (tmp_path / "boxes.json").write_text(json.dumps(instances))
        command = [MQQ, "compare", model, other, "--data", tmp_path / data, "--labels", tmp_path / "boxes.json", "--head", "yolov8"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr

    empty = {"images": [], "annotations": [], "categories": []}
    assert "a.png` is not in `" in stderr(empty, "images")
    assert "is not an image, expected images for the boxes of" in stderr(empty, "images.npz")
    box = {"image_id": 1, "category_id": 2, "bbox": [0, 0, 1, 1]}
    assert "`annotations[0]`: image 1 is not in `images`" in stderr(empty | {"annotations": [box]}, "images")
    one = empty | {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [box]}
    assert "`annotations[0]`: category 2 is not in `categories`" in stderr(one, "images")
    known = one | {"categories": [{"id": 2, "name": "b"}]}
    thin = known | {"annotations": [box | {"bbox": [0, 0, -1, 1]}]}
    assert "`annotations[0]`: the box has width -1 and height 1, expected 0 or more" in stderr(thin, "images")
    twice = known | {"images": [*known["images"], {"id": 2, "file_name": "a.png"}]}
    assert "`images[1]`: an earlier image has the `file_name` `a.png`, too, expected each once" in stderr(twice, "images")
    for folder in ("images/b", "images/c"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / folder / "d.png")
    both = known | {"images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "d.png"}]}
    assert "c/d.png` both match the `file_name` `d.png` of `" in stderr(both, "images")


def detector(path, rng):
    """Two convolutions whose output [1, 7, cells] is boxes and scores of three classes."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2", "b2"], ["maps"], kernel_shape=[1, 1]),
        helper.make_node("Reshape", ["maps", "shape"], ["o"]),
    ]
    constants = {
        "w1": rng.normal(size=(16, 3, 8, 8)) / 8, "b1": rng.normal(size=16) / 4,
        "w2": rng.normal(size=(7, 16, 1, 1)) * np.array([4, 4, 2, 2, 2, 2, 2]).reshape(7, 1, 1, 1),
        "b2": np.array([32, 32, 24, 24, -6, -6, -6]),
    }
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()]
    tensors.append(numpy_helper.from_array(np.array([1, 7, 64]), "shape"))
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "test", [value("x", [1, 3, SIDE, SIDE])], [value("o", [1, 7, 64])], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_a_figure_of_the_task_is_a_goal_of_calibration(tmp_path):
    rng = np.random.default_rng(8)
    model = detector(tmp_path / "float.onnx", rng)
    np.savez(tmp_path / "images.npz", x=rng.normal(size=(24, 3, SIDE, SIDE)).astype(np.float32))
    head = tmp_path / "mine.yaml"
    head.write_text("""
task: detect
boxes: { axis: 1, columns: [0, 4] }
form: cxcywh
scores: { axis: 1, columns: [4], activation: sigmoid }
threshold: 0.3
nms: 0.5
""")

    def calibrate(name, *options):
        output = tmp_path / f"{name}.onnx"
        command = [MQQ, "calibrate", model, "--backend", "tensorrt", "--data", tmp_path / "images.npz", "-o", output,
                   "--set", "types.act8.storage_bits=8", "--set", "types.act8.bits=4", "--json", *options]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        return output, done

    def f1(output):
        command = [MQQ, "compare", model, output, "--data", tmp_path / "images.npz", "--head", head, "--json"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["task"]["metrics"]["f1"]

    plain, done = calibrate("plain", "--methods", "none")
    assert done.returncode == 0, done.stderr
    goal, done = calibrate("goal", "--target", "f1=0.86", "--head", head, "--methods", "none")
    assert done.returncode == 0, done.stderr
    assert f1(plain) < 0.85 < 0.87 < f1(goal)
    _, done = calibrate("wrong", "--target", "miou=0.9", "--head", head)
    assert done.returncode == 2 and "expected a goal of this task: --target NAME=VALUE with one of f1, box-iou, box-overlap" in done.stderr
    _, done = calibrate("other", "--target", "miou=0.9", "--methods", "none")
    assert done.returncode == 1 and "no built-in head of task segment fits the outputs `o` [1, 7, 64]" in done.stderr

    # Changes are evaluated by the task as well.
    judged, done = calibrate("judged", "--head", head)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["results"][0]["summary"]
    assert summary["task"] == {"task": "detect", "head": str(head)} == json.loads(judged.with_suffix(".json").read_text())["task"]
    figures = [method["judged"]["task"] for method in summary["methods"] if "judged" in method]
    assert figures and all(of["metric"] == "f1" for of in figures)
    before, after = summary["tuning"]["judged"]["task"]["figures"]
    assert 0 < before <= after <= 1
    output, done = calibrate("unfit", "--head", "ultraface")
    assert done.returncode == 1 and "head `ultraface`" in done.stderr and not output.exists()
    for options in (["--effort", "0"], ["--methods", "none"]):
        _, done = calibrate("unread", "--head", head, *options)
        assert done.returncode == 2 and "--task and --head have no effect, because nothing is evaluated" in done.stderr


def test_a_task_is_not_another(tmp_path):
    scores = {"o": np.random.default_rng(5).normal(size=(4, 3, 20, 20)).astype(np.float32)}
    for task in ("detect", "classify", "text"):
        code, _, stderr = compare(tmp_path, scores, scores, "--task", task)
        assert code == 1 and f"no built-in head of task {task} fits the outputs" in stderr
    code, _, stderr = compare(tmp_path, scores, scores, "--task", "segment", "--head", "picture")
    assert code == 2 and "--task is segment, but head `picture` is of task map" in stderr


def test_unknown_names_are_wrong_usage(tmp_path):
    outputs = {"o": np.ones((1, 4), np.float32)}
    code, _, stderr = compare(tmp_path, outputs, outputs, "--head", "yolox-decodet")
    assert code == 2 and "head `yolox-decodet` is unknown" in stderr and "did you mean `yolox-decoded`?" in stderr
    code, _, stderr = compare(tmp_path, outputs, outputs, "--task", "detct")
    assert code == 2 and "did you mean `detect`?" in stderr


def test_a_classifier_has_no_boxes():
    done = subprocess.run([MQQ, "compare", fixture("digits_cnn"), quantized("digits_cnn", "tensorrt"), "--data",
                           fixture("digits_cnn").parents[1] / "calib_data" / "eval", "--preprocess", "half", "--limit", "20"],
                          capture_output=True, text=True)
    assert done.returncode == 0 and "task" not in done.stdout, done.stderr


@pytest.mark.parametrize(("n_columns", "chooses"), [(6, True), (12, False)])
def test_rows_in_another_order_are_told(n_columns, chooses, tmp_path):
    """A TopK before rows of boxes; before other values, as in a mixture of experts, it may choose no rows."""
    rng = np.random.default_rng(31)
    draw = lambda *shape: (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
    nodes = [("MatMul", ["x", "w"], "h", {}), ("MatMul", ["h", "scores"], "s", {}), ("MatMul", ["h", "boxes"], "b", {}),
             ("Reshape", ["b", "shape"], "rows", {}), ("TopK", ["s", "k"], ["best", "index"], {}),
             ("Reshape", ["index", "flat"], "at", {}), ("Gather", ["rows", "at"], "y", {"axis": 1})]
    constants = {"w": draw(32, 32), "scores": draw(32, 40), "boxes": draw(32, 40 * n_columns), "shape": np.array([1, 40, n_columns]),
                 "k": np.array([10]), "flat": np.array([-1])}
    path, output, data = (tmp_path / name for name in ("m.onnx", "q.onnx", "x.npy"))
    save(path, nodes, constants, {"x": (1, 32)}, ("y",))
    np.save(data, rng.standard_normal((64, 32)).astype(np.float32))
    coarse = ["--set", "types.act8.storage_bits=8", "--set", "types.act8.bits=5", "--rescue", 0]
    mqq("calibrate", path, "-b", "onnxruntime", "--data", data, "-o", output, "--quiet", *coarse)
    warnings = json.loads(output.with_suffix(".json").read_text())["warnings"]
    assert any("output `y`: a TopK or NonMaxSuppression chooses its rows" in warning for warning in warnings) == chooses, warnings
    assert any("the quantized outputs differ from the float ones" in warning for warning in warnings) != chooses, warnings
    text = mqq("compare", path, output, "--data", data)
    assert ("rows in another order count as errors" in text) == chooses, text
