"""A trial: a command, what is known about it, and which violations it shows."""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import jsonschema
import onnx
import referencing

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "fixtures" / "digits_cnn.onnx"
IMAGES = ROOT / "calib_data" / "calib"
MEMORY = 4 << 30
limit = {"seconds": 20}
EVIL = "\x1b[2J\x1b]0;title\x07\nerror: FORGED: all is well\r\x9b31m\u202e"
FORGED = re.compile(r"^(error: |hint: |warning: )?FORGED", re.M)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
OF_ENGINE = re.compile(
    r"Failed analyse|Translating node|to unify|out of bounds|stopped unexpectedly|DatumType|TDim|Val\(|ShapeError|DynSlice|"
    r"ChunkType|invalid wire type|field identifier|as [ui]128|out of range integral|RUST_BACKTRACE|unwrap\(\)|internal error|"
    r"\bsrc/\w|\.rs:\d|(Some|Err|Ok)\(|os error|in tract|Illegal combination|called `")
BACKENDS = ["tensorrt", "onnxruntime", "openvino", "qnn-htp", "tflite", "weight-only-int4", "onnxruntime-dynamic"]
# Places that are neither a file, a node nor a tensor.
OTHER_PLACES = ("stdout", "--", "out of memory", "standard output")


class Trial:
    """A command, and what is known about it."""

    def __init__(self, args, out=None, must_fail=False, node=False, limits=(), kill=None, same=False, stdout=None, says="",
                 beside=None, mount=None, user=None, environment=None, must_pass=False, leaves=(), changes=(), checks=None,
                 folder_is_gone=False, closed=(), partial=False, source=None):
        self.args, self.out, self.must_fail, self.node = args, out, must_fail, node
        self.limits, self.kill, self.same, self.stdout, self.says = limits, kill, same, stdout, says
        # Another command at the same time; arguments of mount; the user to run as; changes of the environment.
        self.beside, self.mount, self.user, self.environment = beside, mount, user, environment or {}
        self.must_pass, self.folder_is_gone, self.closed = must_pass, folder_is_gone, closed
        # Files that a failed run may leave, and that any run may change; whether a failed run may leave other results.
        self.leaves, self.changes, self.partial = leaves, changes, partial
        # The model, where a result may be as invalid as it is.
        self.source = source
        # Further violations, from the exit code, the printed object and the text.
        self.checks = checks


def run(args, folder, trial=None):
    """Exit code, stdout, stderr, seconds, memory in bytes; the code is None after a hang."""
    trial = trial or Trial(args)
    gone = folder / "gone"

    def prepare():
        for name, value in trial.limits:
            resource.setrlimit(name, (value, value))
        if trial.user:
            os.setuid(trial.user)
        if trial.folder_is_gone:
            os.rmdir(gone)
        for descriptor in trial.closed:
            os.close(descriptor)
    if trial.folder_is_gone:
        gone.mkdir()
    environment = dict(os.environ, RUST_BACKTRACE="0", COLUMNS="120")
    for name, value in trial.environment.items():
        environment.pop(name, None)
        environment.update({} if value is None else {name: value})
    outputs = folder.parent / f"{folder.name}.stdout", folder.parent / f"{folder.name}.stderr"
    with open(outputs[0], "wb") as out, open(outputs[1], "wb") as err:
        start = time.monotonic()
        child = subprocess.Popen([a if isinstance(a, bytes) else str(a) for a in args], stdout=trial.stdout or out, stderr=err,
                                 stdin=subprocess.DEVNULL, preexec_fn=prepare, cwd=gone if trial.folder_is_gone else folder,
                                 env=environment)
        timers = [threading.Timer(limit["seconds"], child.kill)]
        if trial.kill:
            timers.append(threading.Timer(trial.kill[0], lambda: child.send_signal(trial.kill[1])))
        for timer in timers:
            timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = 0
        for timer in timers:
            timer.cancel()
        seconds = time.monotonic() - start
    code = os.waitstatus_to_exitcode(status)
    out, err = (path.read_bytes() for path in outputs)
    for path in outputs:
        path.unlink()
    return (None if seconds >= limit["seconds"] else code), out, err, seconds, usage.ru_maxrss * 1024


def state(folder):
    """Files and folders, with all that a write changes."""
    found = {}
    for top, folders, files in os.walk(os.fsencode(folder)):
        for name in [*folders, *files]:
            path = os.path.join(top, name)
            status = os.lstat(path)
            is_folder = stat.S_ISDIR(status.st_mode)
            found[path] = is_folder or (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)
    return found


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
    before = state(folder)
    code, out, err, seconds, memory = run([program, *trial.args], folder, trial)
    text = (out + b"\n" + err).decode("utf-8", "replace")
    if trial.beside and second.wait() != 0:
        found.append("the other run failed")
    killed = bool(trial.kill) and code is not None and code < 0
    found.extend(of_text(trial, code, text, killed))
    if memory > MEMORY:
        found.append("memory")
    if not (is_text(out) and is_text(err)) and not killed:
        found.append("not UTF-8")
    printed = None
    is_json = "--json" in trial.args and not killed and code is not None and 1 not in trial.closed and not trial.stdout
    if is_json:
        wrong, printed = of_json(trial, code, out)
        found.extend(wrong)
    if code in (1, 2):
        found.extend(of_error(trial, code, printed, err.decode("utf-8", "replace")))
    model = trial.out
    if code == 0 and model and model.is_file():
        if not is_valid(model) and (trial.source is None or is_valid(trial.source)):
            found.append("invalid model")
        if trial.same and hashlib.sha256(model.read_bytes()).hexdigest() != trial.same:
            found.append("another model")
    if code in (1, 2) and not trial.partial:
        after = state(folder)
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        may_change = {os.fsencode(path) for path in (*trial.leaves, *trial.changes)}
        if changed - may_change - {os.fsencode(folder / "gone")}:
            found.append("left behind")
    if code and not (killed and trial.kill[1] == signal.SIGKILL) and any(b".mqq-" in path for path in state(folder)):
        found.append("temporary files")
    has_fault = killed or trial.limits or trial.beside or trial.mount
    if model and has_fault and model.exists() and model.with_suffix(".json").exists():
        found.extend(mixed(model, program, folder))
    if trial.checks:
        found.extend(trial.checks(code, printed, text))
    return found, (code, text, seconds, memory)


def is_valid(model):
    try:
        onnx.checker.check_model(str(model))
    except Exception:
        return False
    return True


def is_text(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def of_text(trial, code, text, killed):
    if code is None:
        yield "hang"
    elif code < 0 and not killed:
        yield "signal"
    elif code not in (0, 1, 2, 3, 4) and not killed:
        yield "panic" if code == 101 else "exit code"
    if "panicked at" in text and code != 101:
        yield "panic"
    if CONTROLS.search(text):
        yield "escape"
    if FORGED.search(text):
        yield "forged line"
    if max(map(len, text.split("\n"))) > 20_000:
        yield "long line"
    if trial.says not in text:
        yield "not told"
    if code == 0 and trial.must_fail:
        yield "accepted"
    if code != 0 and trial.must_pass:
        yield "refused"
    if code == 0 and re.search(r"^error: ", text, re.M):
        yield "error with exit code 0"


def of_error(trial, code, printed, err):
    """A failure has an error with a place, and a hint."""
    if printed is not None:
        results = [printed, *(it for it in printed.get("results", []) if isinstance(it, dict))]
        errors = [str(it["error"]) for it in results if "error" in it]
        has_hint = any(it.get("hint") for it in results)
    else:
        errors = [line for line in err.split("\n") if line.startswith("error: ")]
        has_hint = "\nhint: " in err or code == 2 and re.search(r"For more information|tip: |\[possible values|Usage:", err)
    text = " ".join(errors)
    if not errors:
        yield "no error"
    if OF_ENGINE.search(text):
        yield "words of the engine"
    if code == 1:
        names = re.findall(r"`([^`]*)`", text)
        names = [name for name in names if trial.node is False or not name.endswith((".onnx", ".npy", ".npz", ".png"))]
        if not names and not any(word in text for word in OTHER_PLACES):
            yield "no place"
        if not has_hint and "out of memory" not in text:
            yield "no hint"


def pairs(items):
    object_ = dict(items)
    if len(object_) != len(items):
        raise ValueError("a key twice")
    return object_


def refuse(constant):
    raise ValueError(constant)


def schema(name):
    files = {path.name: json.loads(path.read_text()) for path in (ROOT / "docs" / "schemas").iterdir()}
    resources = [(key, referencing.Resource.from_contents(it)) for key, it in files.items()]
    return jsonschema.Draft202012Validator(files[name], registry=referencing.Registry().with_resources(resources))


def schema_of(args):
    words = [str(a) for a in args if not str(a).startswith("-")]
    command = {"quantize": "calibrate", "solve": "calibrate"}.get(words[0], words[0])
    if command == "stats":
        command = f"stats-{words[1]}" if len(words) > 1 else ""
    if command == "export" and "--list" in args:
        command = "export-list"
    if command == "backends" and len(words) > 1:
        return None
    if command == "calibrate" and "--zoo" in args:
        command = "zoo"
    return f"{command}.json" if (ROOT / "docs" / "schemas" / f"{command}.json").exists() else None


def of_json(trial, code, out):
    """Violations of the printed object, and the object."""
    try:
        printed = json.loads(out.decode(), object_pairs_hook=pairs, parse_constant=refuse)
    except (ValueError, RecursionError):
        return ["not JSON"], {}
    if not isinstance(printed, dict):
        return ["not an object"], {}
    name = "error.json" if "error" in printed and "results" not in printed else schema_of(trial.args)
    if name is None:
        return [], printed
    try:
        schema(name).validate(printed)
    except jsonschema.ValidationError:
        return ["not by the schema"], printed
    return [], printed


def mixed(model, program, folder):
    """Whether a model stands beside the sidecar of another run, and `check` does not tell."""
    known = Path(folder).parent / "pairs"
    pair = hashlib.sha256(model.read_bytes()).hexdigest() + hashlib.sha256(model.with_suffix(".json").read_bytes()).hexdigest()
    if (known / pair).exists():
        return []
    _, out, err, _, _ = run([program, "check", model, "-b", "tensorrt"], folder)
    return [] if b"[sidecar]" in out + err else ["mixed pair"]


def flipped(rng, data, n=None):
    """Bytes of which some have other values."""
    data = bytearray(data)
    for _ in range(n or rng.randrange(1, 12)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    return path


def good(folder, *names):
    """Copies of good results, in the trial's folder; their paths."""
    for name in names:
        shutil.copy(folder.parent / name, folder / name)
    return [folder / name for name in names]
