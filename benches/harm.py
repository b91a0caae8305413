"""Whether a method that mqq accepted harms the network's task, on images that calibration and tuning never saw.

    harm.py --models yolox_nano,ultraface_rfb320 --backends tensorrt,onnxruntime --json rows.jsonl

Quantizes each network of tasks.py at mqq's defaults and reads from the sidecar which methods were accepted. It then adds
them one by one with `--methods`, in that order, and rescue last. Prints a row per step: the figure of tasks.py
before and after, and the standard deviation of the difference (200 paired bootstraps over the judged samples). A loss of
more than two of these counts as harm; the last line counts the steps and the harms.
"""

import argparse
import json
import shlex
import tempfile
from pathlib import Path

import numpy as np
from tasks import TASKS, Network, deviation, known


def steps(network, backend):
    """(name, options) of the network without methods, then with one accepted method more each."""
    path, _ = network.quantize(backend, [])
    outcomes = json.loads(path.with_suffix(".json").read_text())["methods"]
    accepted = list(dict.fromkeys(o["method"] for o in outcomes if o["accepted"] and o["method"] not in ("all", "rescue")))
    found = [("none", "--methods none")]
    found += [(method, f"--methods {','.join(accepted[:i + 1])}") for i, method in enumerate(accepted)]
    if any(outcome["method"] == "rescue" and outcome["accepted"] for outcome in outcomes):
        found.append(("rescue", ""))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    parser.add_argument("--models", type=split, default=list(TASKS), help="names, comma-separated; default: all")
    parser.add_argument("--backends", type=split, default=["tensorrt", "onnxruntime", "openvino"])
    parser.add_argument("--more", type=Path, help="folder of minilm_l6 and vit_s_focus")
    parser.add_argument("--slow", action="store_true", help="vit_s_focus too")
    parser.add_argument("--json", type=Path, help="file to which rows are appended, one object a line")
    args = parser.parse_args()
    n_steps, harms = 0, []
    for name in known(args.models, args.more, args.slow):
        with tempfile.TemporaryDirectory() as scratch:
            network = Network(name, scratch, args.more)
            for backend in args.backends:
                before = None
                for method, options in steps(network, backend):
                    measured = network.measure(backend, shlex.split(options))
                    if before:
                        chance = deviation(*(np.array(of["contributions"]) for of in (before, measured)))
                        change = measured["figure"] - before["figure"]
                        n_steps += 1
                        if change < -2 * chance:
                            harms.append(f"{name} {backend} {method}")
                        print(f"{name:24} {backend:12} {method:16} {network.unit:6} {before['figure']:.3f} -> "
                              f"{measured['figure']:.3f} (± {chance:.3f})", flush=True)
                        if args.json:
                            row = {"network": name, "backend": backend, "method": method, "deviation": chance,
                                   "figures": [before["figure"], measured["figure"]]}
                            with open(args.json, "a") as file:
                                file.write(json.dumps(row) + "\n")
                    before = measured
    print(f"{len(harms)} of {n_steps} accepted changes lost more than two standard deviations", *harms, sep="\n")


if __name__ == "__main__":
    main()
