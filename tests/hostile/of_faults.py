"""Faults of the machine: limits, full disks, kills, two runs at once, odd environments."""

import os
import resource
import shutil
import signal
import subprocess
import threading
import time

from harness import IMAGES, MODEL, Trial, run


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
        # With fewer the system cannot load the program's libraries.
        return Trial(args, out, limits=[(resource.RLIMIT_NOFILE, rng.randrange(5, 12))], same=same)
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
        return Trial(args, out, mount=["--bind", folder.parent / f"other{target.suffix}", target], must_fail=True, same=same,
                     changes=[out, out.with_suffix(".json")])
    if kind == "full stdout":
        more = rng.choice([[], ["--json"]])
        results = [out, out.with_suffix(".json")]
        return Trial([*args, *more], out, stdout=open("/dev/full", "w"), must_fail=bool(more), same=same, leaves=results)
    if kind == "closed streams":
        return Trial(args, out, closed=rng.choice([(0,), (1,), (2,), (0, 1, 2)]), same=same)
    if kind == "environment":
        return Trial(args, out, environment=rng.choice(ENVIRONMENTS), must_pass=True, same=same)
    if kind == "deleted folder":
        return Trial(args, out, folder_is_gone=True, must_pass=True, same=same)
    if kind == "small stack":
        # A smaller stack holds not even the arguments and the environment.
        stack = rng.choice([64, 128, 256, 1024]) << 10
        return Trial(args, out, limits=[(resource.RLIMIT_STACK, stack)], same=same)
    if kind == "killed zoo":
        return killed_zoo(rng, folder, out.parent)
    if kind == "killed statistics":
        return killed_statistics(rng, folder, out)
    path = folder / "m.onnx"
    shutil.copy(MODEL, path)
    args[1] = path
    if kind == "cut while read":
        timer = threading.Timer(rng.random() * .2, lambda: path.exists() and os.truncate(path, rng.randrange(100)))
        timer.start()
        return Trial(args, out, changes=[path])
    if kind == "data deleted":
        images = folder / "images"
        shutil.copytree(IMAGES, images)
        args[5:6] = [images, "--preprocess", "half"]
        threading.Timer(rng.random() * .1, lambda: shutil.rmtree(images, ignore_errors=True)).start()
        return Trial(args, out, partial=True)
    raise ValueError(kind)


ENVIRONMENTS = [
    {"TMPDIR": "/nonexistent"}, {"HOME": None}, {"HOME": "/nonexistent"}, {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR"}, {"LC_ALL": b"xx\xff"},
    {"LC_NUMERIC": "de_DE.UTF-8"}, {"PATH": ""}, {"PATH": None}, {"COLUMNS": "1"}, {"COLUMNS": "-5"}, {"COLUMNS": "abc"}, {"COLUMNS": "99999999999"},
    {"NO_COLOR": "1", "TERM": "dumb"}, {"CLICOLOR_FORCE": "1"}, {"TERM": ""}, {"TERM": None}, {"RUST_BACKTRACE": "full"},
    {"RAYON_NUM_THREADS": "0"}, {"RAYON_NUM_THREADS": "100000"}, {"RAYON_NUM_THREADS": "x"}, {"SOURCE_DATE_EPOCH": "x"}, {"TZ": "nope"},
    {"RUST_LOG": "trace"}, {"RUST_MIN_STACK": "1"}, {"MALLOC_ARENA_MAX": "0"}, {"X": "y" * 100_000}, {"PWD": "/nonexistent"}]


def killed_zoo(rng, folder, out):
    """A zoo that a signal ends, and then runs again, to its end."""
    (folder / "zoo.yaml").write_text(
        f"defaults: {{ backend: [tensorrt, openvino], data: '{folder.parent}/good.npy', effort: 0 }}\nmodels: {{}}\n")
    shutil.copy(MODEL, folder / "m.onnx")
    args = ["calibrate", MODEL, folder / "m.onnx", "--zoo", folder / "zoo.yaml", "--out-dir", out, "--skip-existing"]
    how = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])

    def again(code, printed, text):
        second, *_ = run([program[0], *args], folder)
        wrong = [] if second == 0 else ["the second run failed"]
        # Processes of the killed zoo may still run.
        end = time.monotonic() + 5
        while (left := any(".mqq-" in name for name in os.listdir(out))) and time.monotonic() < end:
            time.sleep(.1)
        return wrong + ["temporary files"] * left
    return Trial(args, kill=(rng.random() * .6, how), checks=again, partial=True)


def killed_statistics(rng, folder, out):
    """Statistics that a signal cuts off, and --resume completes: to the bytes of a run that nothing ended."""
    statistics = folder / "s.mqqs"
    args = ["calibrate", MODEL, "-b", "tensorrt", "--data", folder.parent / "good.npy", "--effort", "0", "--threads", "2", "--keep-samples", "4"]
    args += ["--save-stats", statistics, "--resume", "-o", out]

    def again(code, printed, text):
        second, *_ = run([program[0], *args], folder)
        if second != 0:
            return ["the second run failed"]
        return [] if statistics.read_bytes() == (folder.parent / "good.mqqs").read_bytes() else ["other statistics"]
    return Trial(args, kill=(rng.random() * .2, signal.SIGKILL), checks=again, partial=True)


FAULTS = ["file size", "memory", "file handles", "closed pipe", "kill", "mixed pair", "cut while read", "two runs", "full stdout",
          "closed streams", "environment", "deleted folder", "small stack", "killed zoo", "killed statistics", "data deleted"]
# The program, for commands within trials.
program = []


NOBODY = 65534


def add_system_faults(path, folder):
    """Adds the kinds of faults that need rights: to run the program as nobody, where this is root, and to mount."""
    user = {"user": NOBODY} if os.geteuid() == 0 else {}
    try:
        subprocess.run([path, "--version"], stdout=subprocess.DEVNULL, cwd=folder, check=True, **user)
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
