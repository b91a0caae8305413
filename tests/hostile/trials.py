"""Hostile models, graphs, data, texts, options and faults, by seed: counts what a program does that it must not.

    python tests/hostile/trials.py target/release/mqq --trials 3200

Violations: a signal, a panic or an unknown exit code; over 20 s; over 4 GB; an escape sequence, a forged line, a line of over
20,000 letters or bytes that are not UTF-8 in the output; with `--json` no object, or one that breaks docs/schemas; exit code 0
with a model that ONNX's checker refuses, or that differs from that of the same run without a fault; values other than those of
ONNX's test cases; a model that ONNX Runtime refuses where it runs the given one, or whose outputs are far from those of the
given one without a warning; an error that names no place, has no hint or is in words of the engine's code; files left behind or
overwritten; a model beside the sidecar of another run that nothing tells.
Needs numpy, onnx, Pillow, PyYAML and jsonschema, and uses ONNX Runtime where it is installed.
"""

import argparse
import collections
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import MODEL, limit, violations
from of_data import DATA, data_trial
from of_faults import FAULTS, add_system_faults, fault_trial, program as of_program
from of_graphs import GRAPHS, graph_trial
from of_models import MODELS, model_trial
from of_operators import OPERATORS, operator_trial
from of_options import OPTION_TRIALS, option_trial
from of_texts import TABLES, detector, table_trial

CLASSES = {
    "models": (MODELS, model_trial, .15), "graphs": (GRAPHS, graph_trial, .15), "operators": (OPERATORS, operator_trial, .2),
    "data": (DATA, data_trial, .1), "texts": (TABLES, table_trial, .15), "options": (OPTION_TRIALS, option_trial, .15), "faults": (FAULTS, fault_trial, .1),
}


def prepare(program, folder):
    """Good data and results, which trials change."""
    np.save(folder / "good.npy", np.random.default_rng(0).normal(0, 1, (8, 3, 32, 32)).astype(np.float32))
    (folder / "pairs").mkdir()
    statistics = ["--save-stats", folder / "good.mqqs", "--keep-samples", "4"]
    for name, effort, options in (("good", "0", statistics), ("same1", "1", []), ("other", "0", ["--limit", "2"])):
        output = folder / f"{name}.onnx"
        command = [program, "calibrate", MODEL, "-b", "tensorrt", "--data", folder / "good.npy", "--effort", effort, "--threads", "2"]
        subprocess.run([*command, *options, "-o", output, "--quiet"], check=True, stderr=subprocess.DEVNULL)
        digest = hashlib.sha256(output.read_bytes()).hexdigest()
        pair = digest + hashlib.sha256(output.with_suffix(".json").read_bytes()).hexdigest()
        (folder / "pairs" / pair).touch()
        (folder / {"good": "same0"}.get(name, name)).write_text(digest)
    export = [program, "export", folder / "good.json", "--format", "encodings-1.0.0", "-o", folder / "good.encodings"]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    detector(folder / "detector.onnx")


def trials(program, n, seed, only=None, verbose=False):
    """Runs the trials. Returns the number of trials and the violations of each class and kind."""
    program = str(Path(program).resolve())
    counts, found = collections.Counter(), collections.defaultdict(collections.Counter)
    top = Path(tempfile.mkdtemp(prefix="hostile-"))
    top.chmod(0o755)
    try:
        prepare(program, top)
        of_program[:] = [program]
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
                # Names that are not UTF-8 are taken, too.
                shutil.rmtree(os.fsencode(folder), ignore_errors=True)
    finally:
        shutil.rmtree(os.fsencode(top), ignore_errors=True)
    return counts, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--trials", type=int, default=3200)
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
