"""Options: outputs that collide, contradictions, odd numbers, empty and broken text, and odd sets of models."""

import os
import shutil

from harness import IMAGES, MODEL, Trial, good

NUMBERS = ["", "-1", "0", "nan", "inf", "1e400", "99999999999999999999", "18446744073709551615", "1.5", "0x10", " 1", "1 ", "-0",
           "1e3", "\u00bd", "\x1b[31m", "1,5", "\u0661", "+1", "1_000", "9223372036854775807"]
WORDS = ["a", "max", "percentile:101", "percentile:", "ema:0:0", "ema:2:1", "shrink:-1", "percentile:99.99", "mse", "auto", "none",
         "bias,bias", "bias,nope", "*", "**", "[", "Conv", "x=1x3x32x32", "input=1x3x32x32", "input=0x0x0x0", "input=1x3x99999x99999",
         "input=-1x3x32x32", "input=1x3x32x32,input=2x3x32x32", "0/0", "5/2", "0/99999999", "1/3", "overlap=2", "overlap=0.5", "sqnr=nan",
         "detect", "classify", "yolox", "all", "logits", "input", "nope", "logits,logits", "trt-cache", "full-range-weights", "float", "8G",
         "1K", "99999999999G", "logits=1", "logits=9", "input=18446744073709551615x3x32x32", "input=", "=1", "sqnr=1", "overlap=0.99",
         "top1=50", "max-error=-1", "f1=.5", "agreement=0.99", "equal=100", "bash", "tensorrt", "half", "a\nerror: FORGED", "\u202e", ",", ",,"]
OPTIONS = ["--effort", "--limit", "--threads", "--keep-float", "--target-sqnr", "--target", "--max-drop", "--bits-budget", "--rescue", "--shard",
           "--keep-samples", "--shape", "--observer", "--weight-observer", "--methods", "--exclude", "--only", "--outputs", "--emit", "--task",
           "--head", "--for", "--switch", "--raise-to", "--channel-axis", "--memory", "--weights", "--scale", "--mean", "--std", "--resize",
           "--pad-value", "--crop", "--color", "--layout", "--filter", "--backend", "--data", "--set", "--preprocess"]
FLAGS = ["--until-stable", "--strict", "--skip-existing", "--keep-going", "--resume", "--static-shapes", "--no-insert", "--skip-bad-data",
         "-q", "-v", "--no-preprocess-check", "--json"]


def inputs(folder):
    """A folder with the files of a run, which no run may change."""
    quantized, sidecar, statistics = good(folder, "good.onnx", "good.json", "good.mqqs")
    model = folder / "m.onnx"
    shutil.copy(MODEL, model)
    images = folder / "images"
    images.mkdir()
    for image in sorted(IMAGES.iterdir())[:5]:
        shutil.copy(image, images / image.name)
    return model, quantized, sidecar, statistics, images


def unchanged(paths):
    """A check that these files have the same bytes after the run."""
    before = {path: path.read_bytes() for path in paths}
    return lambda code, printed, text: [f"{path.name} overwritten" for path, data in before.items() if path.read_bytes() != data]


def collisions(rng, folder):
    """Outputs that are inputs, folders, links, devices, of odd names, or twice the same."""
    model, quantized, sidecar, statistics, images = inputs(folder)
    os.symlink(model, folder / "link.onnx")
    os.symlink("nowhere/x.onnx", folder / "dangling.onnx")
    os.symlink("loop", folder / "loop")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    image = sorted(images.iterdir())[0]
    targets = [model, folder / "folder", folder / "link.onnx", folder / "dangling.onnx", folder / "loop", folder / "fifo", "/dev/null",
               "/dev/full", "/dev/stdout", "", ".", "/", "-", folder / "missing" / "x.onnx", folder / "a.onnx", folder / "a.json", folder / "x.txt",
               f"{folder}/images/../m.onnx", f"{folder}/./m.onnx", folder / ("n" * 255 + ".onnx"), folder / ("n" * 250 + ".onnx"),
               folder / "x\x1b[31m.onnx", f"{folder}/new/", folder / "a.html", image, folder / "m.json", os.fsencode(folder) + b"/\xff.onnx",
               "/proc/x.onnx", "/sys/x.onnx", "/nonexistent/x.onnx", model / "x.onnx"]
    target = lambda: rng.choice(targets)
    data = ["-b", "tensorrt", "--data", images, "--preprocess", "half", "--effort", "0"]
    # Each command, and the files that it reads.
    run, others = [model, image], [*targets, quantized, sidecar, statistics]
    other = lambda: rng.choice(others)
    commands = [
        (["calibrate", model, *data, "-o", target()], run),
        (["calibrate", model, *data, "-o", folder / "a.onnx", "--report", target()], run),
        (["calibrate", model, *data, "-o", target(), "--report", target(), "--save-stats", target()], run),
        (["calibrate", model, *data, "--save-stats", target(), "--out-dir", target()], run),
        (["calibrate", model, model, *data, "--out-dir", folder / "folder"], run),
        (["calibrate", model, folder / "link.onnx", *data, "--out-dir", folder / "folder"], run),
        (["prepare", model, "-b", "tensorrt", "-o", target()], [model]),
        (["check", quantized, "-b", "tensorrt", "--sarif", other()], [quantized, sidecar]),
        (["compare", model, quantized, "--data", images, "--preprocess", "half", "--report", other()], [*run, quantized]),
        (["doctor", model, "--data", images, "--preprocess", "half", "--report", target()], run),
        (["report", sidecar, "-o", other()], [sidecar]),
        (["export", sidecar, "--format", "trt-cache", "-o", other()], [sidecar]),
        (["solve", model, "--stats", statistics, "-b", "tensorrt", "-o", other(), "--effort", "0"], [model, statistics]),
        (["stats", "merge", statistics, "-o", other()], [statistics]),
        (["man", target()], run),
    ]
    args, kept = rng.choice(commands)
    args += ["--json"] if rng.random() < .4 else []
    statistics_may_stay = [args[k + 1] for k, it in enumerate(args) if it == "--save-stats"]
    return Trial(args, leaves=[path for path in statistics_may_stay if path], checks=unchanged(kept), partial=args[0] == "man")


def contradictions(rng, folder):
    """Options of calibrate with values of other options, twice, and flags that exclude each other."""
    model, *others, images = inputs(folder)
    backend = rng.choice(["tensorrt", "onnxruntime", "qnn-htp", "academic", "tensorrt,openvino", "nope", "", "tensorrt,", "weight-only-int4"])
    (folder / "out").mkdir()
    args = ["calibrate", model, "-b", backend, "--data", images, "--preprocess", "half", "--out-dir", folder / "out"]
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        args += [rng.choice(OPTIONS), rng.choice(NUMBERS + WORDS)]
    args += [flag for flag in FLAGS if rng.random() < .08]
    leaves = [folder / "z.mqqs"]
    if rng.random() < .1:
        args += ["--save-stats", leaves[0]]
    if "--effort" not in args:
        args += ["--effort", "0"]
    several = "," in backend or "--keep-going" in args
    return Trial(args, leaves=leaves, checks=unchanged([model, *others]), partial=several)


def other_commands(rng, folder):
    """Every command with options of others, odd values, or without what it needs."""
    model, quantized, sidecar, statistics, images = inputs(folder)
    data = ["--data", images, "--preprocess", "half"]
    args = rng.choice([
        ["compare", model, quantized, *data], ["eval", model, *data], ["compare", quantized, model, *data], ["stats", "show", statistics],
        ["stats", "diff", statistics, statistics], ["diff", model, quantized], ["diff", sidecar, quantized], ["inspect", model],
        ["check", quantized, "-b", "tensorrt"], ["doctor", model, *data], ["doctor", model], ["backends"], ["backends", "tensorrt"], ["presets"],
        ["presets", *data[:2]], ["completions"], ["completions", "bash"], ["man"], ["export"], ["export", "--list"], ["report"], ["report", sidecar],
        ["help"], [""], ["stats"], ["--version"], ["nope"], [], ["export", sidecar], ["solve", model], ["prepare", model], ["stats", "merge"],
        ["solve", model, "--stats", statistics, "-b", "tensorrt"]])
    options = ["--fail-under", "--min-sqnr", "--max-top1-drop", "--labels", "--limit", "--top", "--format", "--observer", "--threads",
               "--channel-axis", "--shape", "--set", "--switch", "--task", "--head", "-b", "--opset"]
    flags = ["-v", "-q", "--list", "--tensors", "--fail-on-difference", "--help", "--"]
    for _ in range(rng.choice([0, 1, 2, 3])):
        args = args + ([rng.choice(options), rng.choice(NUMBERS + WORDS)] if rng.random() < .7 else [rng.choice(flags + WORDS)])
    args = args + (["--json"] if rng.random() < .4 else [])
    changes = [folder / name for name in ("m.tensorrt.onnx", "m.tensorrt.json")]
    return Trial(args, changes=changes, checks=unchanged([model, quantized, sidecar, statistics]))


def broken_text(rng, folder):
    """Arguments that are not UTF-8, or hold control characters, at every place."""
    model, quantized, sidecar, statistics, images = inputs(folder)
    odd = os.fsencode(folder) + rng.choice([b"/\xff\xfe.onnx", b"/\x1b[31m.onnx", b"/a\nerror: FORGED.onnx", b"/\xe2\x80\xaexnno.onnx", b"/\xc3.npy"])
    if rng.random() < .5:
        shutil.copy(model, odd)
    args = rng.choice([
        ["calibrate", odd, "-b", "tensorrt", "--data", images, "--preprocess", "half", "--effort", "0", "--out-dir", folder / "out"],
        ["calibrate", model, "-b", odd, "--data", images, "-o", folder / "o.onnx"], ["eval", model, "--data", odd], ["inspect", odd],
        ["compare", odd, odd, "--data", images, "--preprocess", "half"], ["presets", odd], ["backends", odd], ["check", odd, "-b", "tensorrt"],
        ["export", odd, "--format", "trt-cache"], ["stats", "show", odd], ["stats", "merge", odd, "-o", odd], ["report", odd], ["diff", odd, odd],
        ["doctor", odd, "--data", odd], [odd], [odd, odd], ["completions", odd], ["calibrate", model, "--zoo", odd],
        ["calibrate", model, "-b", "tensorrt", "--data", images, "--preprocess", odd, "-o", folder / "o.onnx"],
        ["prepare", model, "-o", odd], ["eval", model, "--data", images, "--preprocess", "half", "--labels", odd],
        ["calibrate", model, "-b", "tensorrt", "--ranges-from", odd, "-o", folder / "o.onnx"], ["--" + "x" * 10_000], [b"--\xff"]])
    args = args + (["--json"] if rng.random() < .5 else [])
    return Trial(args, checks=unchanged([model, quantized, sidecar, statistics]))


def several_models(rng, folder):
    """A bad model between good ones: with --keep-going, and in a zoo, the good ones are written."""
    model, *_, images = inputs(folder)
    second = folder / "second.onnx"
    shutil.copy(MODEL, second)
    bad = folder / "bad.onnx"
    data = model.read_bytes()
    way = rng.randrange(6)
    if way == 0:
        bad.write_bytes(data[: rng.randrange(len(data))])
    elif way == 1:
        bad.write_bytes(b"")
    elif way == 2:
        os.mkfifo(bad)
    elif way == 3:
        os.symlink("bad.onnx", bad)
    elif way == 4:
        bad.mkdir()
    options = ["-b", "tensorrt", "--data", images, "--preprocess", "half", "--effort", "0"]
    if rng.random() < .5:
        zoo = folder / "zoo.yaml"
        zoo.write_text("defaults: { backend: [tensorrt], data: images, preprocess: half, effort: 0 }\nmodels: {}\n")
        options = ["--zoo", zoo, *(["--junit", folder / "j.xml"] if rng.random() < .5 else [])]
    else:
        options.append("--keep-going")
    out = folder / "out"
    args = ["calibrate", model, bad, second, *options, "--out-dir", out, *(["--json"] if rng.random() < .5 else [])]

    def written(code, printed, text):
        return [f"{name} lost" for name in ("m", "second") if not (out / f"{name}.tensorrt.onnx").exists()]
    return Trial(args, must_fail=True, partial=True, checks=written)


OPTION_TRIALS = [collisions, contradictions, other_commands, broken_text, several_models]


def option_trial(kind, rng, folder):
    return kind(rng, folder)
