"""Objects of `--json` and written files against docs/schemas, whose properties all occur in some object here."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import test_doctor
import test_masks
import test_shapes
import test_tails
import test_tasks
import test_weights_alone
import transformers
import yaml
from jsonschema import Draft202012Validator, validators
from PIL import Image
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from support import MQQ, ROOT, fixture, gated, mqq, save

SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "schemas").glob("*.json"))}
REGISTRY = Registry().with_resources((f"{name}.json", Resource(schema, DRAFT202012)) for name, schema in SCHEMAS.items())
CNN, OLD = fixture("digits_cnn"), fixture("digits_old")
CALIB, EVAL = ROOT / "calib_data" / "calib", ROOT / "calib_data" / "eval"
DIGITS = ["--data", CALIB, "--preprocess", "half"]
FAST = ["--effort", 0]
# Properties that no object here has, with the reason.
ABSENT = {
    "compare/tensors/added_failed": "every layer here runs by itself",
    "stats-show/n_done": "of a run that was killed: test_statistics.py has one",
}


class Objects:
    """Runs commands in a folder and keeps what they print and write, by the name of its schema."""

    def __init__(self, folder):
        self.folder, self.found = folder, {name: [] for name in SCHEMAS}

    def add(self, schema, of, found):
        self.found[schema].append((of, found))

    def run(self, schema, *args, code=0):
        command = [MQQ, *map(str, args), *([] if "--json" in args else ["--json"])]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == code, f"{command}\n{done.stderr}"
        found = json.loads(done.stdout)
        self.add(schema, " ".join(command[1:]), found)
        for result in found.get("results", []) if isinstance(found, dict) else []:
            if "sidecar" in result and result["status"] == "ok":
                self.file("sidecar", result["sidecar"])
        return found

    def file(self, schema, path):
        self.add(schema, str(path), json.loads((self.folder / path).read_text()))

    def calibrate(self, *args, code=0):
        return self.run("calibrate", "calibrate", *args, code=code)


def calibrated(objects):
    """One model and several, effort 0 and 1, with goals, tails, reports, files of other tools; results that exist."""
    objects.calibrate(CNN, OLD, "-b", "tensorrt", *DIGITS, *FAST, "--out-dir", "zero", "--skip-existing")
    objects.calibrate(CNN, OLD, "-b", "tensorrt", *DIGITS, *FAST, "--out-dir", "zero", "--skip-existing")
    objects.file("origin", "zero/digits_cnn.tensorrt.origin")
    objects.calibrate(CNN, "-b", "tensorrt,xint8", *DIGITS, "--out-dir", "several")
    objects.calibrate(CNN, "-b", "tensorrt", *DIGITS, "--keep-float", 1, "--out-dir", "goal", "--report", "goal.json")
    objects.calibrate(CNN, "-b", "tensorrt", *DIGITS, "--limit", 8, "--out-dir", "report", "--report", "report.json")
    objects.file("report", "goal.json")
    objects.calibrate(CNN, "-b", "tensorrt", *DIGITS, "--target-sqnr", 80, "--methods", "none", "--out-dir", "missed", code=3)
    objects.calibrate(CNN, "-b", "tensorrt", *DIGITS, "--max-drop", 1, "--methods", "none", "--out-dir", "drop")
    objects.calibrate(CNN, "-b", "onnxruntime", *DIGITS, *FAST, "--bits-budget", 8.5, "--out-dir", "bits")
    objects.calibrate(OLD, "-b", "academic", *DIGITS, "--methods", "rounding", "--set", "types.wgt.bits=4", "--out-dir", "four")
    objects.calibrate(CNN, "-b", "qnn-htp", *DIGITS, *FAST, "--outputs", "/Concat_output_0", "--emit", "deploy",
                      "--static-shapes", "--out-dir", "cut")
    objects.calibrate(CNN, "-b", "tensorrt", *DIGITS, *FAST, "--until-stable", "--out-dir", "stable")
    objects.calibrate(CNN, "-b", "nnie", *DIGITS, *FAST, "--out-dir", "nnie")
    given = ["--ranges-from", "zero/digits_cnn.tensorrt.json", "--out-dir", "given"]
    objects.calibrate(CNN, "-b", "tensorrt", *given)
    objects.calibrate(CNN, "-b", "openvino", *given, code=1)
    objects.calibrate("absent.onnx", CNN, "-b", "tensorrt", *DIGITS, *FAST, "--keep-going", "--out-dir", "going", code=1)
    objects.run("report", "report", "several/digits_cnn.tensorrt.json")
    objects.run("error", "calibrate", CNN, "-b", "tensorrrt", *DIGITS, code=2)
    objects.run("error", "calibrate", CNN, "-b", "tensorrt", "--no-such-option", code=2)
    objects.run("error", "inspect", "absent.onnx", code=1)


def networks(objects):
    """Transformers, detectors, masks, samples of several shapes, weights alone, values that are no numbers."""
    folder = objects.folder
    transformers.vit(folder / "vit.onnx", 20, "operator", "operator", True)
    np.savez(folder / "vit.npz", **transformers.images(40))
    objects.calibrate("vit.onnx", "-b", "tensorrt", "--data", "vit.npz", "--shape", "pixels=1x3x16x16", "--out-dir", "vit")
    save(folder / "open.onnx", [("Relu", ["x"], "y", {})], {}, {"x": (1, 3, "h", "w")})
    objects.run("inspect", "inspect", "open.onnx", "-b", "openvino")
    save(folder / "no_engine.onnx", [("FusedGemm", ["x"], "y", {})], {}, {"x": (1, 3, 4, 4)})
    objects.run("inspect", "inspect", "no_engine.onnx")
    (folder / "masks").mkdir()
    for k, sample in enumerate(test_masks.attention(folder / "attention.onnx", test_masks.LOWEST, "added")):
        np.savez(folder / "masks" / f"{k}.npz", **sample)
    objects.calibrate("attention.onnx", "-b", "tflite", "--data", "masks", *FAST, "--out-dir", "attention")
    objects.run("inspect", "inspect", "attention.onnx", "-b", "tflite")
    objects.run("check", "check", "attention/attention.tflite.onnx", "-b", "tflite")
    model, data, _ = test_shapes.pictures(folder / "pictures")
    objects.calibrate(model, "-b", "openvino", "--data", data, *FAST, "--out-dir", "shapes")
    np.savez(folder / "gated.npz", x=np.concatenate([sample["x"] for sample in gated(folder / "gated.onnx")]))
    objects.calibrate("gated.onnx", "-b", "qnn-htp", "--data", "gated.npz", "--out-dir", "gated")
    test_weights_alone.network_of(folder, 72, 48)
    objects.calibrate("float.onnx", "-b", "onnxruntime-nbits", "--out-dir", "alone")
    test_tails.detector(folder / "tail.onnx")
    objects.run("inspect", "inspect", "tail.onnx", "-b", "tvm")
    images = np.random.default_rng(8).normal(size=(24, 3, test_tasks.SIDE, test_tasks.SIDE)).astype(np.float32)
    test_tasks.detector(folder / "detector.onnx", np.random.default_rng(8))
    np.savez(folder / "images.npz", x=images)
    head = {"task": "detect", "boxes": {"axis": 1, "columns": [0, 4]}, "form": "cxcywh", "threshold": 0.3, "nms": 0.5,
            "scores": {"axis": 1, "columns": [4], "activation": "sigmoid"}}
    (folder / "head.yaml").write_text(yaml.safe_dump(head))
    objects.calibrate("detector.onnx", "-b", "tensorrt", "--data", "images.npz", "--head", "head.yaml", "--out-dir", "task")
    # The square root of what is negative is no number.
    save(folder / "root.onnx", [("Sqrt", ["x"], "r", {}), ("MatMul", ["r", "w"], "y", {})],
         {"w": np.eye(8, dtype=np.float32)}, {"x": (1, 8)})
    np.save(folder / "root.npy", np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32))
    objects.calibrate("root.onnx", "-b", "openvino", "--data", "root.npy", *FAST, "--out-dir", "root")


def compared(objects):
    """Labels of classes and of boxes, gates, values that are no numbers in either network."""
    folder = objects.folder
    objects.run("compare", "compare", CNN, "several/digits_cnn.tensorrt.onnx", "--data", EVAL, "--preprocess", "half",
                "--labels", ROOT / "calib_data/eval.csv", "--fail-under", "overlap=1", "--fail-under", "f1=1",
                "--report", "compared.json", code=3)
    objects.file("report", "compared.json")
    expected, found = (dict(outputs) for outputs in test_tasks.samples("yolov8"))
    rng, n = np.random.default_rng(7), len(next(iter(expected.values())))
    (folder / "images").mkdir()
    for i in range(n):
        Image.new("RGB", (64, 64), (i, i, i)).save(folder / "images" / f"{i}.png")
    boxes = [test_tasks.detections("yolov8", {name: values[i] for name, values in expected.items()}) for i in range(n)]
    labels = test_tasks.instances(rng, [(64, 64)] * n, [[(c, s, np.array(b)) for c, s, b in found] for found in boxes])
    (folder / "instances.json").write_text(json.dumps(labels))
    models = [test_tasks.lookup(folder / f"{name}.onnx", outputs) for name, outputs in (("yes", expected), ("no", found))]
    data = ["--data", "images", "--scale", 1]
    objects.run("compare", "compare", *models, *data, "--head", "yolov8", "--labels", "instances.json")
    objects.run("compare", "compare", "yes.onnx", "yes.onnx", *data)
    zero = test_tasks.lookup(folder / "zero.onnx", {"o": np.zeros((n, 4), np.float32)})
    none = test_tasks.lookup(folder / "none.onnx", {"o": np.full((n, 4), np.nan, np.float32)})
    objects.run("compare", "compare", zero, none, *data)
    objects.run("compare", "compare", none, zero, *data)
    # Weights of 4 bits leave little.
    objects.run("compare", "compare", OLD, "four/digits_old.academic.onnx", "--data", EVAL, "--preprocess", "half", "--tensors")
    objects.run("eval", "eval", CNN, "--data", EVAL, "--preprocess", "half", "--labels", ROOT / "calib_data/eval.csv",
                "--fail-under", "top1=100", code=3)
    objects.run("eval", "eval", "no.onnx", *data, "--head", "yolov8", "--labels", "instances.json")
    objects.run("eval", "eval", "yes.onnx", *data)
    objects.run("eval", "eval", none, *data)
    objects.run("diff", "diff", "several/digits_cnn.tensorrt.onnx", "several/digits_cnn.xint8.json")


def statistics(objects):
    """Shards, their merging, an interrupted run, values that are no numbers."""
    command = ["calibrate", CNN, "-b", "tensorrt", *DIGITS, *FAST, "--save-stats"]
    for i in range(2):
        objects.run("calibrate", *command, f"{i}.mqqs", "--shard", f"{i}/2")
    objects.run("stats-merge", "stats", "merge", "0.mqqs", "1.mqqs", "-o", "all.mqqs")
    objects.run("calibrate", "solve", CNN, "--stats", "all.mqqs", "-b", "tensorrt", "--out-dir", "solved")
    objects.run("calibrate", *command, "kept.mqqs", "--limit", 24, "--keep-samples", 24, "--out-dir", "kept")
    objects.run("calibrate", "solve", CNN, "--stats", "kept.mqqs", "-b", "tensorrt,openvino", "--out-dir", "solved")
    objects.run("stats-show", "stats", "show", "0.mqqs")
    objects.run("stats-diff", "stats", "diff", "0.mqqs", "1.mqqs")


def zoo(objects):
    """Results that pass and miss their gates, exist, or fail by themselves, with their options or in their comparison."""
    of = lambda gate, **more: {"gates": [gate], **more}
    models = {"digits_cnn": of("overlap=0.99999"), "digits_old": of("cosine=0.5"), "attention": {"data": "masks"},
              "detector": of("f1=0.5", data="images.npz", eval="turned.npz"), "tail": of("cosine=0", data="absent")}
    options = {"backend": ["tensorrt", "openvino"], "data": str(CALIB), "preprocess": "half", "effort": 0}
    np.savez(objects.folder / "turned.npz", x=np.zeros((2, test_tasks.SIDE, test_tasks.SIDE, 3), np.float32))
    (objects.folder / "zoo.yaml").write_text(yaml.safe_dump({"defaults": options, "models": models}))
    paths = [CNN, OLD, "attention.onnx", "detector.onnx", "tail.onnx"]
    for _ in range(2):
        objects.run("zoo", "calibrate", *paths, "--zoo", "zoo.yaml", "--skip-existing", "--out-dir", "zoo", code=1)


def others(objects):
    objects.run("inspect", "inspect", CNN)
    objects.run("inspect", "inspect", CNN, "-b", "tensorrt")
    objects.run("prepare", "prepare", OLD, "-b", "tensorrt", "--output", "prepared.onnx")
    objects.run("export", "export", "several/digits_cnn.tensorrt.json", "--format", "trt-cache", "--output", "cache")
    objects.run("export-list", "export", "--list")
    objects.run("error", "export", "several/digits_cnn.tensorrt.json", "--format", "no-such", code=2)
    objects.run("error", "prepare", "absent.onnx", "-b", "tensorrt", "--output", "prepared.onnx", code=1)
    objects.run("doctor", "doctor", CNN, "-b", "tensorrt", *DIGITS)
    objects.run("doctor", "doctor", CNN, "-b", "tensorrt", *DIGITS, "--until-stable")
    objects.run("doctor", "doctor", CNN)
    objects.run("doctor", "doctor", CNN, "--data", CALIB, "--preprocess", "raw", "--report", "doctor.json", code=3)
    objects.file("report", "doctor.json")
    test_doctor.detector_of_digits(objects.folder / "scores.onnx")
    objects.run("doctor", "doctor", "scores.onnx", "--data", CALIB, "--preprocess", "raw")
    objects.run("presets", "presets")
    objects.run("completions", "completions", "bash")
    for backend in objects.run("backends", "backends")["backends"]:
        objects.run("table", "backends", backend["name"])
    objects.run("table", "backends", "onnxruntime", "--switch", "full-range-weights")
    objects.run("check", "check", "several/digits_cnn.tensorrt.onnx", "several/digits_cnn.xint8.onnx", "absent.onnx", CNN,
                "-b", "tensorrt", "--keep-going", code=1)


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    made = Objects(tmp_path_factory.mktemp("schemas"))
    for cases in (calibrated, networks, compared, statistics, zoo, others):
        cases(made)
    return made.found


def parts(schema, path):
    """(path, schema, whether it is a property) of all parts of a schema but of conditions."""
    if isinstance(schema, list):
        for part in schema:
            yield from parts(part, path)
    if isinstance(schema, dict):
        yield path, schema, False
        for key in schema.keys() - {"if", "then", "else"}:
            named = key in ("properties", "patternProperties", "$defs")
            for name, part in schema[key].items() if named else [("", schema[key])]:
                below = f"{path}/{name}" if named else path
                if named and key != "$defs":
                    yield below, part, True
                yield from parts(part, below)


PARTS = [part for name, schema in SCHEMAS.items() for part in parts(schema, name)]
PROPERTIES = [(path, schema) for path, schema, is_property in PARTS if is_property]
SEEN = set()
IS_OF = {"properties": lambda name, key: name == key, "patternProperties": re.search}


def noting(keyword):
    """The keyword, which notes the properties that an object has."""
    def check(validator, named, instance, schema):
        if isinstance(instance, dict):
            SEEN.update(id(below) for name, below in named.items() if any(IS_OF[keyword](name, key) for key in instance))
        yield from Draft202012Validator.VALIDATORS[keyword](validator, named, instance, schema)
    return check


Noting = validators.extend(Draft202012Validator, {keyword: noting(keyword) for keyword in IS_OF})


def wrong(name, found):
    errors = Noting(SCHEMAS[name], registry=REGISTRY).iter_errors(found)
    return [f"{error.json_path}: {error.message}" for error in errors]


@pytest.mark.parametrize("name", SCHEMAS)
def test_objects_are_as_their_schema_says(name, objects):
    for of, found in objects[name]:
        assert not (errors := wrong(name, found)), f"{of}: {errors}"


def test_every_property_occurs(objects):
    for name, of_schema in objects.items():
        for _, found in of_schema:
            wrong(name, found)
    assert sorted(path for path, schema in PROPERTIES if id(schema) not in SEEN) == sorted(ABSENT)


def referred(path, schema):
    """The definition that a part of a schema refers to."""
    file, _, name = schema["$ref"].partition("#/$defs/")
    whole = SCHEMAS[Path(file).stem if file else path.split("/")[0]]
    return whole["$defs"][name] if name else whole


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_valid(name):
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["title"] and SCHEMAS[name]["description"]


def test_properties_are_described():
    described = lambda path, schema: "description" in (schema if "$ref" not in schema else referred(path, schema) | schema)
    assert [path for path, schema in PROPERTIES if not described(path, schema)] == []


def test_objects_take_no_other_keys():
    closed = lambda schema: False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties"))
    definitions = {id(schema) for whole in SCHEMAS.values() for schema in whole.get("$defs", {}).values()}
    for path, schema, _ in PARTS:
        if "properties" in schema:
            assert closed(schema) or id(schema) in definitions, path
        elif "properties" in (other := referred(path, schema) if "$ref" in schema else {}):
            assert closed(schema) or closed(other), path
    assert len(wrong("error", {"schema_version": "3.0", "error": "", "other": ""})) == 1


def test_the_guide_has_the_schema_of_every_command():
    section = (ROOT / "docs/guide.md").read_text().split("\n## Use JSON\n")[1].split("\n## ")[0]
    assert set(re.findall(r"\(schemas/([\w-]+)\.json\)", section)) == set(SCHEMAS)
    commands = lambda *of: [(*of, name) for name in re.findall(r"^  ([\w-]+)  ", mqq(*of, "--help"), re.M) if name != "help"]
    for command in commands() + commands("stats"):
        if "--json" in mqq(*command, "--help"):
            assert f"`mqq {' '.join(command)}`" in section
