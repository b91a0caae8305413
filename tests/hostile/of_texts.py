"""Hostile files that people and tools write: tables, preprocessing, heads, zoos, sidecars, statistics, caches, labels."""

import copy
import json
import os
import re
import shutil
import struct

import numpy as np
import yaml
from harness import EVIL, IMAGES, MODEL, ROOT, Trial, flipped, good, write
from onnx import TensorProto, helper, numpy_helper


def yaml_text(rng, good):
    level = rng.choice([70, 3000, 100_000])
    alias = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 10))
    return rng.choice([
        lambda: flipped(rng, good.encode(), rng.randrange(1, 9)), lambda: good[: rng.randrange(len(good))],
        lambda: "x: " + "[" * level, lambda: "x: " + "{a: " * level, lambda: "- " * level + "x", lambda: alias + good,
        lambda: good + "\n%s: 1\n" % json.dumps(EVIL), lambda: good + '\n"a\\nerror: FORGED": 2\n',
        lambda: good.replace("8", str(rng.choice([0, -1, 1 << 40, 99]))), lambda: good + "\n" + "y" * 2_000_000 + ": 1\n",
        lambda: "x", lambda: "", lambda: "%s\n" % good.replace(": ", ": !!python/object ", 1),
    ])()


def table_trial(kind, rng, folder):
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    if kind in SAVED:
        return SAVED[kind](rng, folder, out)
    backend, preprocess, head, more = "onnxruntime", "half", [], []
    if kind == "table":
        good = (ROOT / "backends" / f"{rng.choice(['tvm', 'tensorrt', 'onnxruntime'])}.yaml").read_text()
        backend = write(folder / "t.yaml", yaml_text(rng, good))
    elif kind == "preprocessing":
        preprocess = write(folder / "p.yaml", yaml_text(rng, "preset: half\nresize: exact\nscale: 1/255\nmean: [0.5]\nstd: [0.5]\n"))
    elif kind == "head":
        good = (ROOT / "src" / "heads" / f"{rng.choice(['yolox', 'ssd', 'argmax'])}.yaml").read_text()
        head = ["--head", write(folder / "h.yaml", yaml_text(rng, good))]
        more = ["--effort", "1"]
    elif kind == "special":
        path = folder / "t.yaml"
        os.mkfifo(path) if rng.random() < .5 else os.symlink("/dev/zero", path)
        if rng.random() < .5:
            backend = path
        else:
            preprocess = path
        return Trial(["calibrate", MODEL, "-b", backend, "--data", folder.parent / "good.npy", "--preprocess", preprocess, "-o", out],
                     out, must_fail=True)
    else:
        text = (folder.parent / "good.json").read_text()
        value = rng.choice(['"\\u001b[31m"', "1e999", "[" * 9000, "null", "-1", '"' + "n" * 2_000_000 + '"', '"a\\nerror: FORGED"'])
        places = [m.start() for m in re.finditer(r": ", text)]
        at = rng.choice(places[:400]) + 2
        end = text.index("\n", at)
        path = folder / "s.json"
        write(path, rng.choice([lambda: text[:at] + value + text[end:].replace("", "", 1), lambda: flipped(rng, text.encode(), 5),
                                lambda: text[: rng.randrange(len(text))]])())
        if rng.random() < .5:
            return Trial(["export", path, "--format", rng.choice(["aimet", "openvino", "trt-cache"]), "-o", folder / "e.x"])
        return Trial(["calibrate", MODEL, "-b", "onnxruntime", "--ranges-from", path, "-o", out], out)
    args = ["calibrate", MODEL, "-b", backend, "--data", folder.parent / "good.npy", "--preprocess", preprocess, *head]
    return Trial([*args, *(more or ["--effort", "0"]), "-o", out], out)


# Texts that no YAML of mqq is: loops, expansion, tags, several documents, other encodings, numbers as text.
YAMLS = [
    "&a [*a]", "a: 1\na: 2\n", "\t- x", "!!python/object:os.system 'id'", "%YAML 9.9\n---\na", "--- 1\n--- 2", "\0", "\ufeffname: x",
    "a: " + "9" * 5000, "null", "- 1\n- 2", "'", "extends: ./t.yaml", "extends: /etc/passwd", "extends: nope", "<<: {a: 1}",
    "? [a]\n: b", 'name: "\\u202e\\x1b"', "name: 'a\n\n  FORGED'", "x: 0x7fffffffffffffffff", "a: *b", "!!binary x", "# only comment",
    "name: 'x'".encode("utf-16"), "name: x\xff".encode("latin-1"), "defaults: {<<: *x}", "x: !!float 1,5", "a: [1, 2", "...", "? ",
    "name: |\n  FORGED\n", "x: &x {y: *x}", "{" * 3000, "name: !!str 5", "a: 1e999", "a: .nan", "-", ": :", "\r\r\r",
]
VALUES = [None, "", [], {}, -1, 0, 1e308, 2**70, "nan", True, "x" * 100_000, ["a"] * 3, {"a": {"b": 1}}, "\x1b[31m", "a\nFORGED",
          float("nan"), float("inf"), -5.5, "1/0", [[[[]]]], "1,5", "0x10", "\u0661", 2**63, -2**63, [None], {"": None}, 1e-320]


def places(tree, at=()):
    """The keys that lead to every value of a tree."""
    if at:
        yield at
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else []
    for key, value in items:
        yield from places(value, (*at, key))


def changed(rng, tree):
    """A copy of the tree in which one or two values are others, missing, lists, or keys unknown."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 2])):
        found = list(places(tree))
        if not found:
            break
        *path, last = rng.choice(found)
        parent = tree
        for key in path:
            parent = parent[key]
        way = rng.randrange(4)
        if way == 0:
            parent[last] = rng.choice(VALUES)
        elif way == 1:
            del parent[last]
        elif way == 2 and isinstance(parent, dict):
            parent[rng.choice(["unknown", "\x1b[1m", "", "a\nFORGED"])] = rng.choice(VALUES)
        else:
            parent[last] = [parent[last]] * 2
    return tree


def yaml_of(rng, tree):
    return rng.choice(YAMLS) if rng.random() < .35 else yaml.safe_dump(changed(rng, tree))


def json_of(rng, tree):
    text = json.dumps(tree)
    raw = ["", "{", "[]", "null", "1e999", "[" * 100_000, '{"a":1,"a":2}', "\ufeff" + text, text.encode("utf-16"), text + "x", text.replace("0.", "NaN", 1),
           text[: rng.randrange(len(text))], re.sub(r'"schema_version": "[^"]*"', '"schema_version": "99.0"', text),
           re.sub(r'"schema_version": "[^"]*"', '"schema_version": 3', text), '{"x":"' + "y" * 3_000_000 + '"}']
    return rng.choice(raw) if rng.random() < .3 else json.dumps(changed(rng, tree))


def with_json(rng, args):
    return [*args, "--json"] if rng.random() < .4 else args


def data(folder):
    return ["--data", folder.parent / "good.npy", "--effort", "0"]


def own_tables(rng, folder, out):
    tree = yaml.safe_load(rng.choice(sorted((ROOT / "backends").glob("*.yaml"))).read_text())
    if rng.random() < .4:
        tree = {"extends": "tensorrt", "name": "mine", **{key: tree[key] for key in rng.sample(sorted(tree), min(3, len(tree)))}}
    table = write(folder / "t.yaml", yaml_of(rng, tree))
    quantized, _ = good(folder, "good.onnx", "good.json")
    return Trial(with_json(rng, rng.choice([
        ["calibrate", MODEL, "-b", table, *data(folder), "-o", out], ["inspect", MODEL, "-b", table], ["backends", table],
        ["check", quantized, "-b", table], ["prepare", MODEL, "-b", table, "-o", out]])), out)


def zoos(rng, folder, out):
    tree = {
        "defaults": {"backend": ["tensorrt"], "data": str(IMAGES), "preprocess": "half", "effort": 0, "limit": 4},
        "models": {"digits_*": {"gates": ["overlap=0.1"], "eval": str(IMAGES), "exclude": ["Gemm"]}, "m*": {"limit": 2}}}
    zoo = write(folder / "zoo.yaml", yaml_of(rng, tree))
    shutil.copy(MODEL, folder / "m.onnx")
    options = ["--junit", folder / "j.xml"] if rng.random() < .4 else []
    return Trial(with_json(rng, ["calibrate", MODEL, folder / "m.onnx", "--zoo", zoo, "--out-dir", out.parent, *options]), partial=True)


def own_heads(rng, folder, out):
    tree = rng.choice([
        {"task": "detect", "boxes": {"output": 0, "axis": 1, "columns": [0, 4]}, "form": "cxcywh",
         "scores": {"output": 0, "axis": 1, "columns": [4, 6]}, "threshold": .5, "nms": .6},
        {"task": "segment", "scores": {"output": 0, "axis": 1}}, {"task": "classify", "scores": {"output": 0}},
        {"task": "embed", "embedding": {"output": 0}}])
    head = write(folder / "head.yaml", yaml_of(rng, tree))
    options = ["--data", IMAGES, "--limit", "4", "--preprocess", "half", "--head", head]
    detector, network = folder.parent / "detector.onnx", rng.choice([MODEL, folder.parent / "detector.onnx"])
    return Trial(with_json(rng, rng.choice([
        ["compare", network, network, *options, "--fail-under", "f1=0.1"], ["eval", network, *options],
        ["calibrate", detector, "-b", "onnxruntime", *options, "--effort", "1", "-o", out]])), out)


def sidecars(rng, folder, out):
    quantized, sidecar = good(folder, "good.onnx", "good.json")
    write(sidecar, json_of(rng, json.loads(sidecar.read_text())))
    report = folder / f"r.{rng.choice(['html', 'md', 'txt', 'json'])}"
    form = rng.choice(["trt-cache", "trt-ranges", "aimet", "encodings-1.0.0", "openvino", "ncnn", "aimet"])
    return Trial(with_json(rng, rng.choice([
        ["report", sidecar], ["report", sidecar, "-o", report], ["export", sidecar, "--format", form, "-o", folder / "e.x"],
        ["export", sidecar, "--format", form, "--model", MODEL, "-o", folder / "e.x"], ["diff", sidecar, folder.parent / "good.onnx"], ["diff", sidecar, sidecar],
        ["check", quantized, "-b", "tensorrt"], ["compare", MODEL, quantized, "--data", folder.parent / "good.npy", "--tensors"],
        ["calibrate", MODEL, "-b", "tensorrt", "--ranges-from", sidecar, "-o", out]])), out)


def statistics(rng, folder, out):
    path, = good(folder, "good.mqqs")
    content = bytearray(path.read_bytes())
    length, = struct.unpack("<Q", content[:8])
    way = rng.randrange(8)
    if way == 0:
        content = content[: rng.randrange(len(content))]
    elif way == 1:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif way == 2:
        content[:8] = struct.pack("<Q", rng.choice([0, 2**63, 2**64 - 1, 10**9, length + 1, length - 1]))
    elif way == 3:
        header = json.dumps(changed(rng, json.loads(content[8:8 + length]))).encode()
        content = struct.pack("<Q", len(header)) + header + content[8 + length:]
    elif way == 4:
        content = content + b"x"
    elif way == 5:
        content = rng.choice([b"", rng.randbytes(500)])
    elif way == 6:
        header = content[8:8 + length].replace(b"F32", b"F64", 1).replace(b"data_offsets", b"data_offsets", 1)
        content = content[:8] + header + content[8 + length:]
    write(path, bytes(content))
    whole = folder.parent / "good.mqqs"
    return Trial(with_json(rng, rng.choice([
        ["solve", MODEL, "--stats", path, "-b", "tensorrt", "--effort", "0", "-o", out], ["stats", "show", path],
        ["solve", folder.parent / "good.onnx", "--stats", path, "-b", "tensorrt", "-o", out],
        ["stats", "diff", path, whole], ["stats", "diff", whole, path], ["stats", "merge", path, whole, "-o", folder / "m.mqqs"],
        ["calibrate", MODEL, "-b", "tensorrt", *data(folder), "--save-stats", path, "--resume", "-o", out]])), out, changes=[path])


def caches(rng, folder, out):
    head = "TRT-8601-EntropyCalibration2\n"
    text = rng.choice([
        "", "TRT-1000-EntropyCalibration2\n", "TRT-8601-MinMaxCalibration\ninput: 3c010a14\n", head + "input: zzzz\n", "\xff\xfe",
        head + "input: 7fc00000\n", head + "input: 00000000\n", head + "input: bc010a14\n", head + "input: 3c010a14\n" * 3,
        head + "\x1b[31m: 3c010a14\n", head + "(Unnamed Layer* 3) [Convolution]_output: 3c010a14\ninput: 3c010a14", "garbage",
        head + "input 3c010a14", head + "input: 3c010a141\n", head + "nothing: 3c010a14\n", head + ": 3c010a14\n", head * 2,
        head + "input: " + "3" * 1_000_000, head.replace("\n", "\r\n") + "input: 3c010a14\r\n", head + "input: 7f7fffff\n", head + "input: 00000001\n"])
    path = write(folder / "c.cache", text.encode("latin-1"))
    return Trial(with_json(rng, ["calibrate", MODEL, "-b", "tensorrt", "--ranges-from", path, "-o", out]), out)


def encodings(rng, folder, out):
    path = write(folder / "e.encodings", json_of(rng, json.loads((folder.parent / "good.encodings").read_text())))
    return Trial(with_json(rng, ["calibrate", MODEL, "-b", "tensorrt", "--ranges-from", path, "-o", out]), out)


def detector(path):
    """Writes a small detector: boxes and two scores for 64 cells."""
    random = np.random.default_rng(0)
    constants = {"w": .3 * random.standard_normal((6, 3, 3, 3)), "s": np.array([9, 9, 9, 9, 1, 1]).reshape(1, 6, 1, 1)}
    nodes = [helper.make_node("Conv", ["image", "w"], ["a"], "conv", strides=[4, 4], pads=[1] * 4), helper.make_node("Sigmoid", ["a"], ["b"], "sigmoid"),
             helper.make_node("Mul", ["b", "s"], ["y"], "scale")]
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "detector", [value("image", [1, 3, 32, 32])], [value("y", [1, 6, 8, 8])],
                              [numpy_helper.from_array(np.float32(array), name) for name, array in constants.items()])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def class_labels(rng, folder, out):
    names = [image.name for image in sorted(IMAGES.iterdir())[:4]]
    cell = rng.choice(["0", "-1", "10", "1" + "0" * 30, "x", "1.5", "nan", "", " 1 ", "1,5", "\u0661", "+1", "1e0", "0x1", "\x1b[31m"])
    rows = "".join(f"{name},{cell}\n" for name in names)
    text = rng.choice([
        "file,class_index\n" + rows, "file,class_index\n", "class_index,file\n" + rows, "", "file\n" + names[0], "\0\0",
        "file,class_index\n" + rows + rows, "\ufefffile,class_index\r\n" + rows.replace("\n", "\r\n"), "FILE,CLASS_INDEX\n" + rows,
        "file,class_index,extra\n" + rows, "file,class_index\n" + rows.replace(",", ";"), "file,class_index\n" + ",1\n" * 3,
        ("file,class_index\n" + rows).encode("utf-16"), "file,class_index\n" + "x" * 2_000_000, "file,class_index" + ",a" * 1_000_000 + "\n" + rows])
    path = write(folder / "l.csv", text)
    return labelled(rng, folder, path)


def boxes(rng, folder, out):
    names = [image.name for image in sorted(IMAGES.iterdir())[:4]]
    tree = {
        "images": [{"id": k, "file_name": name, "width": 32, "height": 32} for k, name in enumerate(names)],
        "categories": [{"id": 1, "name": "a"}, {"id": 7, "name": "b"}],
        "annotations": [{"id": k, "image_id": k % 4, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0} for k in range(5)]}
    return labelled(rng, folder, write(folder / "l.json", json_of(rng, tree)))


def labelled(rng, folder, labels):
    options = ["--data", IMAGES, "--limit", "4", "--preprocess", "half", "--labels", labels]
    detector = folder.parent / "detector.onnx"
    head = ["--head", write(folder / "head.yaml", "task: detect\nboxes: { output: 0, axis: 1, columns: [0, 4] }\nform: cxcywh\n"
                            "scores: { output: 0, axis: 1, columns: [4, 6] }\nthreshold: 0.5\nnms: 0.6\n")]
    return Trial(with_json(rng, rng.choice([
        ["compare", MODEL, folder.parent / "good.onnx", *options], ["eval", MODEL, *options], ["eval", detector, *options, *head],
        ["compare", detector, detector, *options, *head, "--fail-under", "coco-map=0"],
        ["compare", MODEL, folder.parent / "good.onnx", *options, "--fail-under", "top1=0"]])))


def settings(rng, folder, out):
    key = rng.choice(["types.wgt.bits", "types.act.bits", "min_opset", "observers.activation", "name", "extends", "rules", "check",
                      "types", "a.b.c", "", "types.wgt.bits.x", "mixed", "types.act.dtype", "placement", "switches", "bias", ".", "types..bits"])
    value = rng.choice(["", "null", "0", "-1", "999999999999", "nan", "[", "{a: 1}", "'\x1b[31m'", "true", "1e400", "64", "3", "[[[[]]]]",
                        "a\nFORGED", "16", "17", "&a [*a]", "1,5", "!!int x", "18446744073709551616"])
    backend = rng.choice(["tensorrt", "onnxruntime", "academic", "qnn-htp"])
    args = ["--set", key + rng.choice(["=", "=", "=", "", "=="]) + value, "-b", backend]
    return Trial(with_json(rng, rng.choice([
        ["inspect", MODEL, *args], ["calibrate", MODEL, *data(folder), *args, "-o", out]])), out)


def preparations(rng, folder, out):
    tree = {"preset": "half", "resize": "letterbox", "filter": "bilinear", "crop": "none", "pad_value": 0, "color": "rgb", "scale": "1/255",
            "mean": [.5], "std": [.5], "layout": "nchw"}
    path = write(folder / "p.yaml", yaml_of(rng, tree))
    options = ["--data", IMAGES, "--limit", "4", "--preprocess", path]
    return Trial(with_json(rng, rng.choice([
        ["calibrate", MODEL, "-b", "tensorrt", *options, "--effort", "0", "-o", out], ["eval", MODEL, *options], ["doctor", MODEL, *options]])), out)


SAVED = {
    "own tables": own_tables, "zoos": zoos, "own heads": own_heads, "sidecars": sidecars, "statistics": statistics, "caches": caches,
    "encodings": encodings, "class labels": class_labels, "boxes": boxes, "settings": settings, "preparations": preparations}
TABLES = ["table", "preprocessing", "head", "special", "sidecar", *SAVED]
