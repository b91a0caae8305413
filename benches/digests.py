"""Whether two builds write the same bytes: SHA-256 of all that mqq writes and prints, over a matrix of cases.

    digests.py against OLD NEW [--quick]
    digests.py record --binary OLD --out old.json
    digests.py compare old.json new.json [--no-text]

The matrix: the bundled models in every table; five tables with every effort, observer, method and goal, weights stored
as float, ranges from files; every format by `calibrate` and by `export`; `inspect`, `check`, `compare`, `prepare`; real
models (MQQ_ZOO, or ../shared/zoo) in five tables; 1 and 2 threads, which must agree. About ten minutes on two cores;
`--quick` leaves the real models out and some options of the second bundled one: two minutes. `--only` takes
patterns of case names (`options/*/methods-*`).

A case is a few commands in a folder of its own, with relative paths. Digests are of the files that it leaves behind, of
what each command prints (seconds masked; of `--json` without the keys of times) and of exit codes. `--no-text` leaves
out what is there for people: text, and keys such as `reason` and `warnings` of JSON. `--keep FOLDER` keeps the
folders to look at what differs. The exit code is 1 where something differs.
"""

import argparse
import array
import concurrent.futures
import fnmatch
import hashlib
import json
import math
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ZOO = Path(os.environ.get("MQQ_ZOO", ROOT.parent / "shared" / "zoo"))

FIVE = ["tensorrt", "onnxruntime", "openvino", "qnn-htp", "xint8"]
MODELS = ["digits_cnn", "digits_old"]
OBSERVERS = ["max", "ema", "ema:0.5", "percentile", "percentile:99.9", "shrink", "entropy", "mse"]
METHODS = ["equalize", "equalize,bias", "observer", "clip", "bias", "bias-calibration", "ranges",
           "rounding", "none"]
GOALS = [["--keep-float", "0"], ["--keep-float", "2"], ["--target-sqnr", "45"], ["--target-sqnr", "200"],
         ["--max-drop", "1"], ["--bits-budget", "6"], ["--bits-budget", "12"]]
# Per table: what only it has.
OWN = {
    "tensorrt": [["--switch", "conv-transpose-per-channel"], ["--set", "types.wgt8.bits=4", "--set", "min_opset=21"]],
    "onnxruntime": [["--switch", "full-range-weights"], ["--target-sqnr", "45", "--raise-to", "int16"],
                    ["--set", "types.wgt8.bits=4", "--set", "min_opset=21"]],
    "openvino": [["--switch", "full-range-weights"],
                 ["--set", "types.wgt8.granularity=per_block", "--set", "types.wgt8.block_size=8", "--set",
                  "min_opset=21"]],
    "qnn-htp": [["--switch", "per-tensor-weights"], ["--static-shapes"]],
    "xint8": [["--set", "types.act8.pot_search=0"]],
}
# Tables that give single layers another precision.
MIXED = ["tensorrt", "onnxruntime", "openvino", "tvm"]
SELECTIONS = [["--exclude", "Conv"], ["--only", "Conv"], ["--shape", "input=2x3x32x32"], ["--weight-observer", "mse"],
              ["--weight-observer", "percentile"], ["--weights", "float"], ["--weights", "integer"]]
FORMATS = ["mqbench-tensorrt", "ppq", "trt-cache", "ort-json", "ort-cache", "ort-flatbuffers", "snpe",
           "encodings-0.6.1", "encodings-1.0.0", "encodings-2.0.0", "ppl", "pplcuda", "vitis", "nnie", "stpu", "tengine",
           "ncnn", "mnn", "tidl", "tidl-quant-params", "openvino-fq", "deploy"]
# Formats by `calibrate`: every format suits one of these.
FORMAT_TABLES = ["tensorrt", "mqbench-tensorrt", "onnxruntime", "qnn-htp", "vitis", "nnie", "stpu", "xint8"]
READABLE = {"sidecar": "out/digits_cnn.{}.json", "encodings-0.6.1": "e0", "encodings-1.0.0": "e1",
            "encodings-2.0.0": "e2", "trt-cache": "cache"}

SHORT = ["--json", "--limit", "50"]
DIGITS = ["--data", "calib_data/calib", "--preprocess", "half"]
IMAGENET = ["--data", "zoo/imagenet/calib", "--preprocess"]
# Real models: their data, and how many samples (equalization begins at 16).
REAL = {
    "superres_subpixel": (4, ["--data", "zoo/scenes", "--preprocess", "superres-y", "--shape", "input=1x1x224x224"]),
    "yolox_nano": (8, ["--data", "zoo/scenes", "--preprocess", "yolox"]),
    "deimv2_atto": (8, ["--data", "made/deimv2_atto.npz"]),
    "ppocrv3_det": (7, ["--data", "zoo/text", "--preprocess", "paddleocr", "--shape", "x=1x3x320x320"]),
    "squeezenet1_1_logits_op13": (16, [*IMAGENET, "imagenet-caffe"]),
    "squeezenet1_1_imagenet": (8, [*IMAGENET, "imagenet-caffe"]),
    "ultraface_rfb320": (8, ["--data", "zoo/faces", "--preprocess", "ultraface"]),
    "st_ssd_mobilenet_v1_025": (8, ["--data", "zoo/scenes", "--preprocess", "minus-one-to-one"]),
    "mobilenetv1_025_imagenet": (16, [*IMAGENET, "imagenet"]),
    "mobilenetv1_025_imagenet_bn": (8, [*IMAGENET, "imagenet"]),
    "mlperf_resnet8_cifar10": (32, ["--data", "zoo/cifar10/calib", "--preprocess", "raw"]),
    "byte_bidi_lstm": (8, ["--data", "made/byte_bidi_lstm.npz", "--shape", "input=1x512"]),
    "magika_v3_3": (8, ["--data", "made/magika_v3_3.npz"]),
    "silero_vad_op18_ifless": (8, ["--data", "made/silero_vad_op18_ifless.npz", "--shape", "input=1x512", "--shape",
                                   "state=2x1x128"]),
    "mnist_external": (32, ["--data", "zoo/cifar10/calib", "--preprocess", "mnist"]),
}
# Real models that are quick enough for two threads beside one.
TWICE = ["mlperf_resnet8_cifar10", "mobilenetv1_025_imagenet", "byte_bidi_lstm"]

# Keys of JSON that are there for people, or differ from run to run.
WORDS = {"reason", "warnings", "error", "where", "hint", "engine_error", "what", "found", "expected"}
TIMES = {"seconds"}
SECONDS = re.compile(rb"\d+\.\d+ s\b")


def matrix(tables, quick, zoo):
    """Commands by case name; what comes first takes longest."""
    cases = {}
    add = lambda name, *commands: cases.update({name: list(commands)})
    calibrate = lambda model, table, *options: ["calibrate", model, "-b", table, "--out-dir", "out", *options]
    if zoo:
        real_models(add, calibrate)
    for model in MODELS:
        path = f"fixtures/{model}.onnx"
        digits = lambda table, *options: calibrate(path, table, *DIGITS, *options)
        all_options = model == MODELS[0] or not quick
        for table in FIVE if all_options else FIVE[:1]:
            options(lambda name, *commands: add(f"options/{table}/{name}/{model}", *commands), digits, table, model)
        for table in MIXED if all_options else MIXED[:1]:
            for goal in GOALS:
                add(f"goals/{table}/{spelled(goal)}/{model}", digits(table, "--threads", "1", *SHORT, *goal))
            add(f"goals/{table}/{spelled(GOALS[1])}/2-threads/{model}",
                digits(table, "--threads", "2", *SHORT, *GOALS[1]))
        for table in tables:
            quantized, sidecar = (f"out/{model}.{table}.{ending}" for ending in ("onnx", "json"))
            evaluated = ["--data", "calib_data/eval", "--preprocess", "half", "--threads", "1", "--limit", "60"]
            exports = [["export", sidecar, "-f", name, "-m", path, "-o", f"exported/{name}"] for name in FORMATS]
            add(f"tables/{table}/{model}", digits(table, "--threads", "1", "--json"),
                ["inspect", path, "-b", table], ["inspect", path, "-b", table, "--json"],
                ["check", quantized, "-b", table, "-v"], ["check", quantized, "-b", table, "--json"],
                ["prepare", path, "-b", table, "-o", "prepared.onnx"],
                ["compare", "prepared.onnx", quantized, *evaluated, "--json", "--labels", "calib_data/eval.csv"],
                ["compare", "prepared.onnx", quantized, *evaluated, "--min-sqnr", "30"],
                ["backends", table], ["backends", table, "--json"], ["mkdir", "exported"], *exports)
    for table in FORMAT_TABLES:
        plain = ["calibrate", "fixtures/digits_cnn.onnx", "-b", table, *DIGITS, "--effort", "0", "--limit", "16",
                 "--threads", "1", "-q"]
        add(f"formats/{table}", *([*plain, "--emit", name, "--out-dir", name] for name in FORMATS))
    quantized = "out/digits_cnn.onnxruntime.onnx"
    base = calibrate("fixtures/digits_cnn.onnx", "onnxruntime", *DIGITS, "--effort", "0", "-q")
    checks = [["check", quantized, "fixtures/digits_cnn.onnx", "-b", table, *options]
              for table in tables for options in ([], ["--json"])]
    add("check/by-every-table", base, *checks)
    commands = ["calibrate", "inspect", "backends", "prepare", "export", "compare", "check", "completions"]
    add("help", ["--version"], ["--help"], *([command, "--help"] for command in commands), ["backends"],
        ["backends", "--json"], ["export", "--list"], ["completions", "bash"], ["inspect", "fixtures/digits_old.onnx"])
    both = ["calibrate", *(f"fixtures/{model}.onnx" for model in MODELS), "-b", "tflite", "--out-dir", "out", *DIGITS,
            "--threads", "1"]
    add("many/json", [*both, "--json"], [*both, "--skip-existing"])
    add("many/text", [*both, "-v"], [*both, "--skip-existing", "--json"])
    missing = ["calibrate", "nowhere.onnx", "fixtures/digits_cnn.onnx", "-b", "tensorrt", "--out-dir", "out", *DIGITS]
    add("many/failing", [*missing, "--json"], [*missing, "--keep-going", "--json", "--threads", "1"], ["calibrate"],
        ["calibrate", "fixtures/digits_cnn.onnx", "-b", "nowhere", *DIGITS],
        ["calibrate", "fixtures/digits_cnn.onnx", "-b", "tensorrt", "--data", "nowhere"])
    return cases


def spelled(options):
    return " ".join(options).removeprefix("--").replace(" --", ", ")


def options(add, digits, table, model):
    """What options change, in one table."""
    json_ = ["--threads", "1", "--json"]
    short = ["--threads", "1", *SHORT]
    for effort in "0123":
        add(f"effort-{effort}", digits(table, *json_, "--effort", effort))
        if effort != "0":
            add(f"effort-{effort}/2-threads", digits(table, "--threads", "2", "--json", "--effort", effort))
    add("text", digits(table, "--threads", "1", "-v"), digits(table, "--threads", "1", "--keep-float", "2"))
    for observer in OBSERVERS:
        add(f"observer-{observer}", digits(table, *json_, "--effort", "0", "--observer", observer))
    for observer in ["mse", "auto"]:
        add(f"observer-{observer}-effort-1", digits(table, *short, "--observer", observer))
    for methods in METHODS:
        add(f"methods-{methods}", digits(table, *short, "--methods", methods))
    for own in OWN[table]:
        add(spelled(own), digits(table, *short, *own))
    for selection in SELECTIONS:
        add(spelled(selection), digits(table, *json_, "--effort", "0", *selection))
    sidecar = f"out/{model}.{table}.json"
    exports = [["export", sidecar, "-f", name, "-o", file] for name, file in READABLE.items() if name != "sidecar"]
    again = []
    for name, file in READABLE.items():
        given = ["--ranges-from", sidecar if name == "sidecar" else file, "--threads", "1", "--json", "-o"]
        again.append(["calibrate", f"fixtures/{model}.onnx", "-b", table, *given, f"{name}.onnx"])
    again.append([*again[0][:-1], "with-data.onnx", *DIGITS, "--limit", "50"])
    add("ranges-from", digits(table, *short, "--effort", "0"), *exports, *again)


def real_models(add, calibrate):
    for model, (n, data) in REAL.items():
        path = f"zoo/models/{model}.onnx"
        shapes = [data[k + d] for k, option in enumerate(data) if option == "--shape" for d in (0, 1)]
        quantize = lambda table, threads, *more: calibrate(
            path, table, *data, "--limit", str(n), "--threads", threads, "--json", *more)
        for table in FIVE:
            quantized = f"out/{model}.{table}.onnx"
            add(f"real/{model}/{table}", quantize(table, "1"), ["check", quantized, "-b", table, "--json"],
                ["inspect", path, "-b", table, "--json", *shapes],
                ["prepare", path, "-b", table, "-o", "prepared.onnx", *shapes])
            if model in TWICE:
                add(f"real/{model}/{table}/2-threads", quantize(table, "2"))
        add(f"real/{model}/effort-3", quantize(FIVE[0], "1", "--effort", "3"),
            ["compare", path, f"out/{model}.{FIVE[0]}.onnx", *data, "--limit", "4", "--threads", "1", "--json"],
            ["inspect", path, "--json"])
    for path in sorted((ZOO / "models_bad").glob("*.onnx")):
        add(f"bad/{path.stem}", *(calibrate(f"zoo/models_bad/{path.name}", table, *IMAGENET, "imagenet", "--json")
                                  for table in FIVE), ["inspect", f"zoo/models_bad/{path.name}", "--json"])


def make_data(folder):
    """Inputs that are no images, of plausible values."""
    rng = random.Random(1)
    n = 8

    def smooth(channels, size):
        """Noise of 8x8 blocks."""
        for _ in range(channels * size // 8):
            row = [v for _ in range(size // 8) for v in [0.5 + 0.2 * rng.gauss(0, 1)] * 8]
            yield from row * 8

    whole = lambda count: (rng.randrange(256) for _ in range(count))
    floats = lambda count: (rng.gauss(0, 1) for _ in range(count))
    made = {
        "deimv2_atto": {"images": ("f", (n, 1, 3, 320, 320), smooth(n * 3, 320)),
                        "orig_target_sizes": ("q", (n, 1, 2), [320] * (2 * n))},
        "magika_v3_3": {"bytes": ("i", (n, 1, 2048), whole(n * 2048))},
        "byte_bidi_lstm": {"input": ("B", (n, 1, 512), whole(n * 512))},
        "silero_vad_op18_ifless": {"input": ("f", (n, 1, 512), floats(n * 512)),
                                   "state": ("f", (n, 2, 1, 128), floats(n * 256)),
                                   "sr": ("q", (n,), [16000] * n)},
    }
    folder.mkdir()
    for name, arrays in made.items():
        with zipfile.ZipFile(folder / f"{name}.npz", "w") as archive:
            for key, (code, shape, values) in arrays.items():
                values = array.array(code, values)
                assert len(values) == math.prod(shape)
                kind = {"f": "<f4", "q": "<i8", "i": "<i4", "B": "|u1"}[code]
                header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
                header += b" " * (-(len(header) + 11) % 64) + b"\n"
                start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
                archive.writestr(zipfile.ZipInfo(f"{key}.npy"), start + header + values.tobytes())


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def digest(data):
    return hashlib.sha256(data).hexdigest()


def without(value, keys):
    if isinstance(value, dict):
        return {key: without(item, keys) for key, item in value.items() if key not in keys}
    return [without(item, keys) for item in value] if isinstance(value, list) else value


def digests_of(data, is_text):
    """Its kind and digest; of JSON with another one for what is no text for people."""
    try:
        # Numbers as they are spelled.
        value = json.loads(data, parse_float=str, parse_int=str)
    except ValueError:
        return {"kind": "text", "digest": digest(SECONDS.sub(b"_ s", data))} if is_text else \
            {"kind": "file", "digest": digest(data)}
    dump = lambda keys: json.dumps(without(value, keys), ensure_ascii=True).encode()
    return {"kind": "json" if is_text else "file", "digest": digest(dump(TIMES) if is_text else data),
            "without_words": digest(dump(TIMES | WORDS))}


def run_case(binary, name, commands, inputs, cases_folder):
    """Digests of all that the commands write and print, by name; what each command took."""
    folder = cases_folder / re.sub(r"[^\w.=-]+", "+", name)
    folder.mkdir(parents=True)
    for source in inputs.iterdir():
        (folder / source.name).symlink_to(source)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "COLUMNS": "100", "HOME": str(folder)}
    found = {}
    for k, command in enumerate(commands):
        if command[0] == "mkdir":
            (folder / command[1]).mkdir()
            continue
        label = f"{k + 1} mqq {' '.join(command)}"
        try:
            done = subprocess.run([binary, *command], cwd=folder, env=environment, capture_output=True, timeout=900)
            code, streams = done.returncode, {"stdout": done.stdout, "stderr": done.stderr}
        except subprocess.TimeoutExpired:
            code, streams = "timeout", {}
        found[f"{label}: exit code"] = {"kind": "exit code", "digest": str(code)}
        for stream, data in streams.items():
            if data:
                found[f"{label}: {stream}"] = digests_of(data, True)
                (folder / f"{k + 1}.{stream}").write_bytes(data)
    printed = {folder / f"{k + 1}.{stream}" for k in range(len(commands)) for stream in ("stdout", "stderr")}
    for parent, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not Path(parent, f).is_symlink()]
        for file in map(Path(parent).joinpath, files):
            if not file.is_symlink() and file not in printed:
                found[str(file.relative_to(folder))] = digests_of(file.read_bytes(), False)
    return found


def record(binary, options, keep):
    binary = Path(binary).resolve()
    start, cpu_start = time.monotonic(), cpu_seconds()
    listed = subprocess.run([binary, "backends", "--json"], capture_output=True, check=True).stdout
    tables = [table["name"] for table in json.loads(listed)["backends"]]
    zoo = not options.quick and (ZOO / "models").is_dir()
    if not zoo and not options.quick:
        print(f"no real models at {ZOO}: left out", file=sys.stderr)
    cases = matrix(tables, options.quick, zoo)
    wanted = lambda name: not options.only or any(fnmatch.fnmatch(name, p) for p in options.only)
    cases = {name: commands for name, commands in cases.items() if wanted(name)}
    with tempfile.TemporaryDirectory() as scratch:
        inputs = Path(scratch, "inputs")
        inputs.mkdir()
        for name in ["fixtures", "calib_data"]:
            (inputs / name).symlink_to(ROOT / name)
        if zoo:
            (inputs / "zoo").symlink_to(ZOO.resolve())
            make_data(inputs / "made")
        found, n_done = {}, 0

        def one(name):
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                return name, run_case(binary, name, cases[name], inputs, keep or Path(folder))

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for future in concurrent.futures.as_completed([pool.submit(one, name) for name in cases]):
                name, digests = future.result()
                found[name], n_done = digests, n_done + 1
                if n_done % 50 == 0:
                    print(f"{n_done} of {len(cases)} cases, {time.monotonic() - start:.0f} s", file=sys.stderr)
    result = {"binary": digest(binary.read_bytes()), "quick": options.quick, "only": options.only, "zoo": zoo,
              "seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(cpu_seconds() - cpu_start, 1),
              "cases": {name: found[name] for name in cases}}
    result["threads"] = threads_agree(result["cases"])
    return result


def threads_agree(cases):
    """Files of cases with 2 threads that differ from those with 1."""
    pairs = [(name, name.removesuffix("/2-threads")) for name in cases]
    pairs = [(two, one) for two, one in pairs if two != one and one in cases]
    # With options the model's name comes last.
    pairs += [(two, two.replace("/2-threads/", "/")) for two in cases if "/2-threads/" in two]
    differing, n = [], 0
    for two, one in pairs:
        for file in cases[two].keys() & cases.get(one, {}).keys():
            n += 1
            if cases[two][file]["digest"] != cases[one][file]["digest"]:
                differing.append(f"{two}: {file}")
    return {"compared": n, "differing": sorted(differing)}


def summary(result):
    counts = {}
    for digests in result["cases"].values():
        for entry in digests.values():
            counts[entry["kind"]] = counts.get(entry["kind"], 0) + 1
    threads = result["threads"]
    for line in threads["differing"]:
        print(f"1 and 2 threads differ: {line}")
    shown = ", ".join(f"{n} of {kind}" if kind != "file" else f"{n} files" for kind, n in sorted(counts.items()))
    print(f"{len(result['cases'])} cases in {result['seconds']:.0f} s ({result['cpu_seconds']:.0f} s of CPU): {shown}\n"
          f"1 and 2 threads: {threads['compared']} files compared, {len(threads['differing'])} differences")


def compare(old, new, no_text):
    """Prints what differs; whether nothing does."""
    names = old["cases"].keys() | new["cases"].keys()
    if old["only"] != new["only"]:
        names = old["cases"].keys() & new["cases"].keys()
        print(f"recorded with different --only: {len(names)} cases that both have")
    compared, differences = {}, []
    for name in sorted(names):
        a, b = (record["cases"].get(name) for record in (old, new))
        if a is None or b is None:
            differences.append(f"{name}: only in the {'old' if b is None else 'new'} record")
            continue
        for file in sorted(a.keys() | b.keys()):
            one, other = a.get(file), b.get(file)
            kind = (one or other)["kind"]
            if no_text and all(entry is None or entry["kind"] == "text" for entry in (one, other)):
                continue
            compared[kind] = compared.get(kind, 0) + 1
            key = "without_words" if no_text and one and other and "without_words" in one else "digest"
            if not one or not other:
                differences.append(f"{name}: {file}: only with the {'old' if one else 'new'} binary")
            elif one.get(key) != other.get(key):
                codes = f" ({one['digest']} -> {other['digest']})" if kind == "exit code" else ""
                differences.append(f"{name}: {file}: differs{codes}")
    for line in differences:
        print(line)
    counts = ", ".join(f"{n} of {kind}" if kind != "file" else f"{n} written" for kind, n in sorted(compared.items()))
    print(f"{sum(compared.values())} files compared ({counts}) in {len(names)} cases, {len(differences)} differences")
    return not differences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = argparse.ArgumentParser(add_help=False)
    recording.add_argument("--quick", action="store_true", help="bundled models only")
    recording.add_argument("--only", action="append", metavar="PATTERN", help="cases of such names; repeatable")
    recording.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time")
    recording.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what the cases write there")
    comparing = argparse.ArgumentParser(add_help=False)
    comparing.add_argument("--no-text", action="store_true", help="leave out what is printed for people")
    command = commands.add_parser("record", parents=[recording], help="digests of one binary into a file")
    command.add_argument("--binary", required=True)
    command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("compare", parents=[comparing], help="two such files")
    command.add_argument("old", type=Path)
    command.add_argument("new", type=Path)
    command = commands.add_parser("against", parents=[recording, comparing], help="two binaries")
    command.add_argument("old")
    command.add_argument("new")
    args = parser.parse_args()
    if args.command != "compare" and args.keep and args.keep.exists():
        parser.error(f"--keep: `{args.keep}` exists, expected a new folder")
    if args.command == "compare":
        records = [json.loads(path.read_text()) for path in (args.old, args.new)]
    elif args.command == "record":
        records = [record(args.binary, args, args.keep)]
        args.out.write_text(json.dumps(records[0], indent=1) + "\n")
        summary(records[0])
    else:
        records = [record(binary, args, args.keep and args.keep / name)
                   for name, binary in (("old", args.old), ("new", args.new))]
        summary(records[1])
    agree = all(not record["threads"]["differing"] for record in records)
    if len(records) == 2:
        agree &= compare(*records, args.no_text)
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
