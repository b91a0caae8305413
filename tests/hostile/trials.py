"""Hostile models, data, tables and faults, by seed: counts what a program does that it must not.

    python tests/hostile/trials.py target/release/mqq --trials 1600

Violations: a signal or a panic; over 20 s; over 4 GB; an escape sequence, a forged line or a line of over 20,000 letters in
the output; exit code 0 with a model that ONNX's checker refuses, or that differs from that of the same run without a fault;
an error that names no place, has no hint or is in words of the engine's code; files left behind; a model beside the sidecar
of another run that nothing tells.
Needs numpy, onnx and Pillow.
"""

import argparse
import collections
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "fixtures" / "digits_cnn.onnx"
MEMORY = 4 << 30
limit = {"seconds": 20}
EVIL = "\x1b[2J\x1b]0;title\x07\nerror: FORGED: all is well\r\x9b31m\u202e"
FORGED = re.compile(r"^(error: )?FORGED", re.M)
OF_ENGINE = re.compile(r"Failed analyse|Translating node|to unify|out of bounds|stopped unexpectedly|DatumType|TDim|Val\(")
BACKENDS = ["tensorrt", "onnxruntime", "openvino", "qnn-htp", "tflite", "weight-only-int4", "onnxruntime-dynamic"]


def run(args, folder, limits=(), kill=None, stdout=None, user=None):
    """Exit code, output, seconds, memory in bytes; the code is None after a hang."""
    def prepare():
        for what, value in limits:
            resource.setrlimit(what, (value, value))
        if user:
            os.setuid(user)
    with open(folder / "stderr", "wb") as err, open(folder / "stdout", "wb") as out:
        start = time.monotonic()
        environment = dict(os.environ, RUST_BACKTRACE="0", COLUMNS="120")
        child = subprocess.Popen([str(a) for a in args], stdout=stdout or out, stderr=err, stdin=subprocess.DEVNULL,
                                 preexec_fn=prepare, cwd=folder, env=environment)
        timers = [threading.Timer(limit["seconds"], child.kill)]
        if kill:
            timers.append(threading.Timer(kill[0], lambda: child.send_signal(kill[1])))
        for timer in timers:
            timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = 0
        for timer in timers:
            timer.cancel()
        seconds = time.monotonic() - start
    code = os.waitstatus_to_exitcode(status)
    text = ((folder / "stdout").read_bytes() + b"\n" + (folder / "stderr").read_bytes()).decode("utf-8", "replace")
    return (None if seconds >= limit["seconds"] else code), text, seconds, usage.ru_maxrss * 1024


class Trial:
    """A command, and what is known about it."""

    def __init__(self, args, out=None, must_fail=False, node=False, limits=(), kill=None, same=False, stdout=None, says="",
                 beside=None, mount=None, user=None):
        self.args, self.out, self.must_fail, self.node = args, out, must_fail, node
        self.limits, self.kill, self.same, self.stdout, self.says = limits, kill, same, stdout, says
        # Another command at the same time; arguments of mount; the user to run as.
        self.beside, self.mount, self.user = beside, mount, user


def violations(trial, program, folder):
    if trial.mount:
        subprocess.run(["mount", *trial.mount], check=True)
    try:
        return violations_of(trial, program, folder)
    finally:
        if trial.mount:
            subprocess.run(["umount", "-l", trial.mount[-1]], check=True)


def violations_of(trial, program, folder):
    found = []
    if trial.beside:
        other = [str(part) for part in [program, *trial.beside]]
        second = subprocess.Popen(other, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    before = set(trial.out.parent.iterdir()) if trial.out else set()
    code, text, seconds, memory = run(
        [program, *trial.args], folder, trial.limits, trial.kill, trial.stdout, trial.user)
    if trial.beside and second.wait() != 0:
        found.append("the other run failed")
    killed = trial.kill and code is not None and code < 0
    if code is None:
        found.append("hang")
    elif code < 0 and not killed:
        found.append("signal")
    if code == 101 or "panicked at" in text:
        found.append("panic")
    if memory > MEMORY:
        found.append("memory")
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text):
        found.append("escape")
    if FORGED.search(text):
        found.append("forged line")
    if max(map(len, text.split("\n"))) > 20_000:
        found.append("long line")
    model = trial.out
    if code == 0 and model and model.exists():
        try:
            onnx.checker.check_model(str(model))
        except Exception:
            found.append("invalid model")
        if trial.same and hashlib.sha256(model.read_bytes()).hexdigest() != trial.same:
            found.append("another model")
    if trial.says not in text:
        found.append("not told")
    if code == 0 and trial.must_fail:
        found.append("accepted")
    if code == 1:
        errors = [line for line in text.split("\n") if line.startswith("error: ")]
        names = re.findall(r"`([^`]*)`", " ".join(errors))
        names = [name for name in names if trial.node is False or not name.endswith((".onnx", ".npy", ".npz", ".png"))]
        if not names and not any(word in " ".join(errors) for word in ("stdout", "--", "out of memory")):
            found.append("no place")
        if "\nhint: " not in text and "error: out of memory" not in text:
            found.append("no hint")
        if OF_ENGINE.search(text):
            found.append("words of the engine")
    if code and not (killed and trial.kill[1] == signal.SIGKILL) and model:
        if set(model.parent.iterdir()) - before:
            found.append("left behind")
    has_fault = killed or trial.limits or trial.beside or trial.mount
    if model and has_fault and model.exists() and model.with_suffix(".json").exists():
        found.extend(mixed(model, program, folder))
    return found, (code, text, seconds, memory)


def mixed(model, program, folder):
    """Whether a model stands beside the sidecar of another run, and `check` does not tell."""
    known = Path(folder).parent / "pairs"
    pair = hashlib.sha256(model.read_bytes()).hexdigest() + hashlib.sha256(model.with_suffix(".json").read_bytes()).hexdigest()
    if (known / pair).exists():
        return []
    code, text, _, _ = run([program, "check", model, "-b", "tensorrt"], folder)
    return [] if "[sidecar]" in text else ["mixed pair"]


# Models

def save(model, folder):
    path = folder / "m.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def base():
    return onnx.load(MODEL)


def small(rng, nodes=None, tensors=(), opset=17, domains=()):
    """A convolution with further nodes behind; the last one gives `y`."""
    weight = numpy_helper.from_array(np.random.default_rng(rng.randrange(99)).normal(0, .3, (4, 3, 3, 3)).astype(np.float32), "w")
    nodes = nodes or []
    conv = helper.make_node("Conv", ["input", "w"], ["a" if nodes else "y"], "conv")
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph([conv, *nodes], "g", [value("input", [1, 3, 32, 32])], [value("y", ["p", "q", "r", "s"])], [weight, *tensors])
    imports = [helper.make_opsetid("", opset), *domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def ints(name, values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def flipped(rng, data, n=None):
    data = bytearray(data)
    for _ in range(n or rng.randrange(1, 12)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def model_bytes(rng, folder):
    data = MODEL.read_bytes()
    # Behind the weights, where the graph's structure is, and anywhere.
    way = rng.randrange(4)
    if way == 0:
        data = flipped(rng, data)
    elif way == 1:
        data = data[: rng.randrange(len(data))]
    elif way == 2:
        a, b = sorted(rng.randrange(len(data)) for _ in range(2))
        data = data[:a] + data[b:] if rng.random() < .5 else data[:b] + data[a:b][:5000] + data[b:]
    else:
        data = data[:-3000] + flipped(rng, data[-3000:])
    return save(data, folder), {}


def attribute_faults(rng, folder):
    model = base()
    node = rng.choice([node for node in model.graph.node if node.attribute])
    way = rng.randrange(6)
    must_fail = way < 3
    if way == 0:
        node.attribute.append(helper.make_attribute(rng.choice(["alpha_", "padz", "colour", EVIL]), rng.choice([1, 2.5, "x"])))
    elif way == 1:
        node.attribute.append(rng.choice(list(node.attribute)))
    elif way == 2:
        attribute = rng.choice(list(node.attribute))
        attribute.CopyFrom(helper.make_attribute(attribute.name, "text" if attribute.type != 3 else 7))
    else:
        number = rng.choice([0, -1, 7, 1 << 20, 1 << 40, -(1 << 62), (1 << 63) - 1])
        conv = rng.choice([node for node in model.graph.node if node.op_type == "Conv"])
        attribute = rng.choice(list(conv.attribute))
        if attribute.type == 7:
            attribute.ints[rng.randrange(len(attribute.ints))] = number
        else:
            attribute.i = number
    return save(model, folder), {"must_fail": must_fail, "node": True}


def opsets(rng, folder):
    model = base()
    way = rng.randrange(3)
    if way == 0:
        model.opset_import.append(helper.make_opsetid(rng.choice(["", "ai.onnx"]), rng.choice([7, 11, 17])))
    elif way == 1:
        rng.choice(list(model.graph.node)).domain = rng.choice(["made.up", "com.microsoft", EVIL])
    else:
        model.opset_import[0].version = rng.choice([-1, 0, 1, 5, 99, 1 << 40])
    return save(model, folder), {"must_fail": True}


def sparse(rng, folder):
    n = rng.choice([-1, 27, 1 << 40, 10**12])
    values = numpy_helper.from_array(np.ones(2, np.float32), "sp")
    tensor = helper.make_sparse_tensor(values, ints("i", [1, n]), [3, 3, 3])
    model = small(rng, [helper.make_node("Relu", ["a"], ["y"], "relu")])
    model.graph.sparse_initializer.append(tensor)
    return save(model, folder), {"must_fail": True}


def hostile_names(rng, folder):
    model = base()
    names = [EVIL, "x" * rng.choice([5_000, 3_000_000]), "`", "a\nerror: FORGED", "\x9b1m", "", "../../x", "\x00", "%s%n", "é" * 300]
    way = rng.randrange(4)
    name = rng.choice(names)
    node = rng.choice(list(model.graph.node))
    if way == 0:
        node.name = name
    elif way == 1:
        node.op_type = name
    elif way == 2 and node.input:
        node.input[0] = name
    else:
        old, target = model.graph.output[0].name, model.graph.output[0]
        target.name = name
        for other in model.graph.node:
            for k, output in enumerate(other.output):
                if output == old:
                    other.output[k] = name
    return save(model, folder), {}


def wiring(rng, folder):
    model = base()
    names = [o for n in model.graph.node for o in n.output] + [t.name for t in model.graph.initializer]
    for _ in range(rng.randrange(1, 3)):
        node = rng.choice(list(model.graph.node))
        way = rng.randrange(5)
        if way == 0 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif way == 1:
            node.op_type = rng.choice(["Relu", "Conv", "Add", "Gather", "Reshape", "Concat", "Split", "LSTM", "Transpose", "MatMul"])
        elif way == 2 and node.input:
            del node.input[rng.randrange(len(node.input))]
        elif way == 3:
            node.output.append(rng.choice(names))
        else:
            model.graph.node.remove(node)
    return save(model, folder), {"node": True}


def initializers(rng, folder):
    model = base()
    tensor = rng.choice(list(model.graph.initializer))
    way = rng.randrange(4)
    if way == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([0, -5, 3, 1 << 33, 1 << 62])
    elif way == 1:
        tensor.data_type = rng.choice([0, 2, 7, 8, 10, 11, 16, 23, 99])
    elif way == 2:
        tensor.raw_data = tensor.raw_data[: rng.randrange(1 + len(tensor.raw_data))]
    else:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(array.reshape(-1), tensor.name))
    return save(model, folder), {"node": True}


def declared_sizes(rng, folder):
    big = rng.choice([1 << 20, 1 << 31, 1 << 40])
    node = lambda op, inputs, **more: [helper.make_node(op, ["a", *inputs], ["y"], "huge", **more)]
    way = rng.randrange(9)
    if way == 0:
        model = small(rng, [helper.make_node("ConstantOfShape", ["s"], ["c"], "huge"), helper.make_node("Add", ["a", "c"], ["y"], "add")],
                      [ints("s", [big, big])])
    elif way == 1:
        model = small(rng, node("Expand", ["s"]), [ints("s", [big, 4, 30, 30])])
    elif way == 2:
        model = small(rng, node("Pad", ["s"]), [ints("s", [0, 0, big, big, 0, 0, big, big])])
    elif way == 3:
        model = small(rng, node("Tile", ["s"]), [ints("s", [1, big, big, 1])])
    elif way == 4:
        model = small(rng, [helper.make_node("Range", ["p", "q", "r"], ["c"], "huge"), helper.make_node("Cast", ["c"], ["d"], "cast", to=1),
                            helper.make_node("Add", ["a", "d"], ["y"], "add")], [ints("p", 0), ints("q", big * 64), ints("r", 1)])
    elif way == 5:
        model = small(rng, node("Resize", ["", "s"]), [numpy_helper.from_array(np.array([1, 1, big, big], np.float32), "s")])
    elif way == 6:
        model = small(rng)
        model.graph.node[0].attribute.append(helper.make_attribute("pads", [big] * 4))
    elif way == 7:
        body = helper.make_graph([], "body", [], [])
        model = small(rng, [helper.make_node("Scan", [], ["c"], "huge", body=body, num_scan_inputs=0), *node("Relu", [])])
    else:
        model = small(rng, node("MaxPool", [], kernel_shape=[2, 2], pads=[0, 0, big, big]))
    return save(model, folder), {"must_fail": True, "node": True}


def shapes(rng, folder):
    """Shapes and axes that do not fit."""
    make = lambda op, inputs, **more: helper.make_node(op, inputs, ["y"], "odd", **more)
    number = rng.choice([5, 7, 9, 500, -9, 1 << 40])
    nodes, tensors = rng.choice([
        ([make("Gather", ["a", "i"], axis=1)], [ints("i", number)]), ([make("Gather", ["a", "i"], axis=number)], [ints("i", 0)]),
        ([make("Transpose", ["a"], perm=[0, 1, number, 2])], []), ([make("Reshape", ["a", "i"])], [ints("i", [number, -1, 7])]),
        ([make("Concat", ["a", "input"], axis=number)], []), ([make("Concat", ["a", "input"], axis=1)], []),
        ([make("Slice", ["a", "i", "j", "k"])], [ints("i", [5]), ints("j", [number]), ints("k", [number])]),
        ([helper.make_node("Split", ["a", "i"], ["y", "z"], "odd", axis=1)], [ints("i", [number, 3])]),
        ([make("Add", ["a", "i"])], [numpy_helper.from_array(np.ones((1, 5, 1, 1), np.float32), "i")]),
        ([make("MatMul", ["a", "i"])], [numpy_helper.from_array(np.ones((7, 3), np.float32), "i")]),
        ([make("Conv", ["a", "i"])], [numpy_helper.from_array(np.ones((4, 9, 3, 3), np.float32), "i")]),
        ([make("Conv", ["a", "i"], strides=[0, 0])], [numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "i")]),
        ([make("Conv", ["a", "i"], group=3)], [numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "i")]),
        ([make("Squeeze", ["a", "i"])], [ints("i", [number])]), ([make("Softmax", ["a"], axis=number)], []),
        ([make("ReduceMean", ["a"], axes=[number])], []), ([make("Flatten", ["a"], axis=number)], []),
    ])
    return save(small(rng, nodes, tensors), folder), {"node": True}


def external(rng, folder):
    model = small(rng)
    tensor = model.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    outside = folder.parent / "outside.bin"
    outside.write_bytes(data)
    way = rng.randrange(6)
    name, more, must_fail = "w.bin", {}, True
    if way == 0:
        os.symlink(outside, folder / name)
    elif way == 1:
        name = rng.choice(["../outside.bin", str(outside), "/dev/zero", EVIL])
    elif way == 2:
        os.mkfifo(folder / name)
    elif way == 3:
        (folder / name).write_bytes(data[: rng.randrange(len(data))])
    elif way == 4:
        (folder / name).write_bytes(data)
        more = {"offset": rng.choice(["-1", "99999999", "x" + EVIL, str(1 << 63)])}
    else:
        (folder / name).write_bytes(data)
        must_fail = False
    tensor.data_location = 1
    for key, value in {"location": name, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return save(model, folder), {"must_fail": must_fail, "node": True}


MODELS = [model_bytes, attribute_faults, opsets, sparse, hostile_names, wiring, initializers, declared_sizes, shapes, external]


def model_trial(kind, rng, folder):
    path, known = kind(rng, folder)
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    backend = rng.choice(BACKENDS)
    way = rng.choice(["calibrate"] * 6 + ["inspect", "prepare", "check"])
    data = ["--data", folder.parent / "good.npy", "--effort", rng.choice("001"), "--threads", "2"]
    if way == "calibrate":
        return Trial([way, path, "-b", backend, *data, "-o", out], out, **known)
    if way == "prepare":
        return Trial([way, path, "-o", out], out, **known)
    # These need not look at all, and exit 0 of `inspect` writes nothing.
    return Trial([way, path, "-b", backend], None, node=False)


# Data

def npy(header, data=b"", version=1):
    text = header.encode("latin-1", "replace") + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def npy_files(rng, folder):
    path = folder / "d.npy"
    good = (folder.parent / "good.npy").read_bytes()
    shape = rng.choice(["(1, 3, 32, 32)", "(99999999999, 3, 32, 32)", "(-1, 3, 32, 32)", "(1, 3, 32, 32, )", "(1 << 3,)", "()", "(3, 32)"])
    level = rng.randrange(5, 30)
    nested = "[" * level + "('a', '<f4')" + "]" * level
    path.write_bytes(rng.choice([
        lambda: flipped(rng, good[:128], 2) + good[128:], lambda: good[: rng.randrange(len(good))],
        lambda: npy("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % shape, good[128:]),
        lambda: npy("{'descr': %s, 'fortran_order': False, 'shape': (1, 3, 32, 32), }" % nested, good[128:]),
        lambda: npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"c" * 99),
        lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", rng.choice([1 << 31, (1 << 32) - 1])) + good[10:200],
        lambda: npy("{'descr': '%s', 'fortran_order': False, 'shape': (1, 3, 32, 32), }" % EVIL.replace("\n", " "), good[128:]),
        lambda: b"", lambda: os.urandom(200),
    ])())
    return path, {}


def archives(rng, folder):
    path = folder / "d.npz"
    array = np.random.default_rng(1).normal(0, 1, (4, 3, 32, 32)).astype(np.float32)
    pack = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    text = io.BytesIO()
    np.save(text, array)
    with zipfile.ZipFile(path, "w", pack) as archive:
        archive.writestr("input.npy", text.getvalue())
    data = bytearray(path.read_bytes())
    way = rng.randrange(4)
    if way < 2:
        # Inside of the values: only the checksum tells.
        at = rng.randrange(400, len(data) - 400)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return path, {"must_fail": True}
    if way == 2:
        path.write_bytes(flipped(rng, bytes(data[-150:]), 4) if rng.random() < .1 else bytes(data[:-150]) + flipped(rng, bytes(data[-150:]), 4))
        return path, {}
    shutil.copy(bomb(folder.parent), path)
    return path, {"must_fail": True}


def bomb(folder):
    """An archive of 5 GiB of zeros, in some megabytes."""
    path = folder / "bomb.npz"
    if not path.exists():
        n = (5 << 30) // (3 * 32 * 32 * 4)
        header = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 3, 32, 32), }" % n)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("input.npy", "w", force_zip64=True) as member:
            member.write(header)
            part = bytes(1 << 24)
            for _ in range(n * 3 * 32 * 32 * 4 // len(part)):
                member.write(part)
            member.write(bytes(n * 3 * 32 * 32 * 4 % len(part)))
    return path


def images(rng, folder):
    kind = rng.choice(["png", "jpeg", "bmp", "gif", "webp", "tiff"])
    path = folder / f"d.{kind}"
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(2).integers(0, 255, (32, 32, 3), np.uint8)).save(stream, kind)
    data = stream.getvalue()
    way = rng.randrange(3)
    if way == 0:
        path.write_bytes(flipped(rng, data, 3))
    elif way == 1:
        path.write_bytes(data[: rng.randrange(len(data))])
    else:
        size = rng.choice([(1 << 31) - 1, 70_000, 0])
        chunk = b"IHDR" + struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
        path = folder / "d.png"
        path.write_bytes(png + data[33:])
    return path, {}


def specials(rng, folder):
    name = rng.choice(["d.npy", "d.png", "d.npz", "d.pb", "d.txt", "d.csv"])
    path = folder / name
    if rng.random() < .5:
        os.mkfifo(path)
    else:
        os.symlink(rng.choice(["/dev/zero", "/dev/random", "/dev/full", "/dev/tty"]), path)
    return path, {"must_fail": True}


def lists(rng, folder):
    path = folder / rng.choice(["d.txt", "d.csv"])
    lines = ["file"] if path.suffix == ".csv" else []
    lines += [rng.choice([EVIL, "nothing.png", str(folder.parent / "good.npy"), "x" * 100_000, "../" * 999, "\x00"])]
    path.write_text("\n".join(lines))
    return path, {}


def pb_files(rng, folder):
    path = folder / "input_0.pb"
    tensor = numpy_helper.from_array(np.ones((1, 3, 32, 32), np.float32), rng.choice(["input", EVIL]))
    if rng.random() < .5:
        tensor.dims[rng.randrange(4)] = rng.choice([-1, 1 << 40, 7])
    data = tensor.SerializeToString()
    path.write_bytes(rng.choice([data, flipped(rng, data, 5), data[: len(data) // 2]]))
    return path, {}


DATA = [npy_files, archives, images, specials, lists, pb_files]


def data_trial(kind, rng, folder):
    path, known = kind(rng, folder)
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    more = ["--threads", rng.choice(["2", "100000"]), "--effort", "0"]
    return Trial(["calibrate", MODEL, "-b", "onnxruntime", "--data", path, "--preprocess", "half", *more, "-o", out], out, **known)


# Tables and other texts

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


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    return path


def table_trial(kind, rng, folder):
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
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
            return Trial(["export", path, "--format", rng.choice(["aimet", "openvino", "trt-cache"]), "-o", out], out)
        return Trial(["calibrate", MODEL, "-b", "onnxruntime", "--ranges-from", path, "-o", out], out)
    args = ["calibrate", MODEL, "-b", backend, "--data", folder.parent / "good.npy", "--preprocess", preprocess, *head]
    return Trial([*args, *(more or ["--effort", "0"]), "-o", out], out)


TABLES = ["table", "preprocessing", "head", "special", "sidecar"]


# Faults

def fault_trial(kind, rng, folder):
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    args = ["calibrate", MODEL, "-b", "tensorrt", "--data", folder.parent / "good.npy", "--effort", rng.choice("01"),
            "--threads", "2", "-o", out]
    effort = args[args.index("--effort") + 1]
    same = (folder.parent / f"same{effort}").read_text()
    if kind == "file size":
        return Trial(args, out, limits=[(resource.RLIMIT_FSIZE, rng.choice([4096, 10_000, 30_000, 70_000, 100_000]))], same=same)
    if kind == "memory":
        # With less the system cannot even map the program.
        return Trial(args, out, limits=[(resource.RLIMIT_AS, rng.randrange(64, 700) << 20)], same=same)
    if kind == "file handles":
        return Trial(args, out, limits=[(resource.RLIMIT_NOFILE, rng.randrange(3, 12))], same=same)
    if kind == "closed pipe":
        read, wrote = os.pipe()
        os.close(read)
        return Trial(args, out, stdout=wrote)
    if kind == "kill":
        # Beside results of another run.
        shutil.copy(folder.parent / "other.onnx", out)
        shutil.copy(folder.parent / "other.json", out.with_suffix(".json"))
        how = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        return Trial(args, out, kill=(rng.random() * .5, how), same=None)
    if kind == "mixed pair":
        # As a kill between two renames leaves it.
        shutil.copy(folder.parent / "other.onnx", out)
        shutil.copy(folder.parent / "good.json", out.with_suffix(".json"))
        return Trial(["check", out, "-b", "tensorrt"], None, says="[sidecar]")
    if kind == "two runs":
        # Into one folder, with other samples. Files may be of one run each, where the program tells it.
        other = [*args[:-1], out]
        other += ["--limit", "2"]
        return Trial(args, out, beside=other)
    if kind == "threads":
        # The system's limit does not hold for root: nobody runs it.
        out.parent.chmod(0o777)
        user = NOBODY if os.geteuid() == 0 else None
        return Trial(args, out, limits=[(resource.RLIMIT_NPROC, 1)], user=user, same=same)
    if kind == "disk":
        size = rng.choice([8, 16, 32, 48, 64, 80, 96])
        return Trial(args, out, mount=["-t", "tmpfs", "-o", f"size={size}k", "tmpfs", out.parent], must_fail=size < 64, same=same)
    if kind == "rename":
        # Nothing can be renamed to a place that another file is mounted on.
        target = rng.choice([out, out.with_suffix(".json")])
        for path in (out, out.with_suffix(".json")):
            shutil.copy(folder.parent / f"other{path.suffix}", path)
        return Trial(args, out, mount=["--bind", folder.parent / f"other{target.suffix}", target], must_fail=True, same=same)
    path = folder / "m.onnx"
    shutil.copy(MODEL, path)
    args[1] = path
    if kind == "cut while read":
        timer = threading.Timer(rng.random() * .2, lambda: path.exists() and os.truncate(path, rng.randrange(100)))
        timer.start()
        return Trial(args, out)
    raise ValueError(kind)


FAULTS = ["file size", "memory", "file handles", "closed pipe", "kill", "mixed pair", "cut while read", "two runs"]


NOBODY = 65534


def add_system_faults(program, folder):
    """Adds the kinds of faults that need rights: to run the program as nobody, where this is root, and to mount."""
    user = {"user": NOBODY} if os.geteuid() == 0 else {}
    try:
        subprocess.run([program, "--version"], stdout=subprocess.DEVNULL, cwd=folder, check=True, **user)
        FAULTS.append("threads")
    except (OSError, subprocess.CalledProcessError):
        pass
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", disk]
    can_mount = os.geteuid() == 0 and shutil.which("mount")
    if can_mount and subprocess.run(mount, stderr=subprocess.DEVNULL).returncode == 0:
        subprocess.run(["umount", disk], check=True)
        FAULTS.extend(["disk", "rename"])


CLASSES = {
    "models": (MODELS, model_trial, .4), "data": (DATA, data_trial, .25), "tables": (TABLES, table_trial, .2),
    "faults": (FAULTS, fault_trial, .15),
}


def prepare(program, folder):
    """Good data and results, which trials change."""
    np.save(folder / "good.npy", np.random.default_rng(0).normal(0, 1, (8, 3, 32, 32)).astype(np.float32))
    (folder / "pairs").mkdir()
    for name, effort, options in (("good", "0", []), ("same1", "1", []), ("other", "0", ["--limit", "2"])):
        output = folder / f"{name}.onnx"
        command = [program, "calibrate", MODEL, "-b", "tensorrt", "--data", folder / "good.npy", "--effort", effort, "--threads", "2"]
        subprocess.run([*command, *options, "-o", output, "--quiet"], check=True, stderr=subprocess.DEVNULL)
        digest = hashlib.sha256(output.read_bytes()).hexdigest()
        pair = digest + hashlib.sha256(output.with_suffix(".json").read_bytes()).hexdigest()
        (folder / "pairs" / pair).touch()
        (folder / {"good": "same0"}.get(name, name)).write_text(digest)


def trials(program, n, seed, only=None, verbose=False):
    """Runs the trials. Returns the number of trials and the violations of each class and kind."""
    program = str(Path(program).resolve())
    counts, found = collections.Counter(), collections.defaultdict(collections.Counter)
    top = Path(tempfile.mkdtemp(prefix="hostile-"))
    top.chmod(0o755)
    try:
        prepare(program, top)
        add_system_faults(program, top)
        for name, (kinds, make, share) in CLASSES.items():
            for k in range(round(n * share)):
                kind = kinds[k % len(kinds)]
                label = name, kind if isinstance(kind, str) else kind.__name__.replace("_", " ")
                if only and only not in label:
                    continue
                folder = top / f"{name}{k}"
                folder.mkdir()
                trial = make(kind, random.Random(f"{seed} {name} {k}"), folder)
                wrong, (code, text, seconds, memory) = violations(trial, program, folder)
                counts[label] += 1
                found[label].update(wrong)
                found[label]["trials with one"] += bool(wrong)
                if wrong and verbose:
                    print(f"{label} {k}: {wrong}: code {code}, {seconds:.1f} s, {memory >> 20} MiB: {text.strip()[-300:]!r}", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return counts, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--trials", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20, help="a run that takes longer hangs")
    parser.add_argument("--only", help="a class or a kind")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    limit["seconds"] = args.seconds
    counts, found = trials(args.program, args.trials, args.seed, args.only, args.verbose)
    print("| class | kind | trials | with violations | which |\n| --- | --- | --- | --- | --- |")
    for (name, kind), n in counts.items():
        of = found[name, kind]
        which = ", ".join(f"{what} {m}" for what, m in of.most_common() if what != "trials with one")
        print(f"| {name} | {kind} | {n} | {of['trials with one']} | {which} |")
    for name in CLASSES:
        n = sum(m for (of, _), m in counts.items() if of == name)
        print(f"{name}: {n} trials, {sum(found[label]['trials with one'] for label in counts if label[0] == name)} with violations")
    sys.exit(any(of["trials with one"] for of in found.values()))


if __name__ == "__main__":
    main()
