"""Which figure without labels orders quantized networks as their tasks do: the overlap of overlap.py, or SQNR.

    judge.py --models yolox_nano,ultraface_rfb320 --json rows.jsonl
    judge.py --from rows.jsonl

Quantizes every network with mqq in some twenty versions (tables, observers, methods, bits, layers left float) and
measures each as tasks.py does: the task's figure, the overlap J (the mean) and the lowest J, and the SQNR in dB, the
mean over the outputs that have a say. Versions above 100 dB, of which all that matters stayed float, are left out.
`--json` appends the rows, which `--from` reads instead of measuring (those of tasks.py too).

Per network: the spread of the task, Spearman's correlation of J, of the lowest J and of SQNR with it, and what is wrong
about pairs of versions whose task differs by more than .03. *Approved* is a change from one to the other that a figure
says is better: J or SQNR rises by more than .05 of its spread (largest minus least over the network's versions), or, as
a rule, J rises by more than .005 and the lowest J does not fall. *Harmful* pairs are those of which the change to the
worse task is approved, *missed* ones those of which the change to the better task is not.

At the end the task's figures by J, a row per range of J: of all networks, and of each (least to largest).
"""

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np
from tasks import TASKS, ZOO, Network, known

WORSE, SPREAD, RISE, EXACT = 0.03, 0.05, 0.005, 100.0
MODELS = ["yolox_nano", "deimv2_atto", "st_ssd_mobilenet_v1_025", "ultraface_rfb320", "ppocrv3_det",
          "mlperf_resnet8_cifar10", "mobilenetv1_025_imagenet"]
NONE = "--methods none"


def bits(type_, n):
    return f"--set types.{type_}.bits={n} --set types.{type_}.storage_bits=8 {NONE}"


OPTIONS = [NONE, "", "--methods bias", "--methods equalize", "--observer max --methods none",
           "--observer percentile:99.99 --methods none", "--observer entropy --methods none", bits("act8", 6)]
VERSIONS = [*((backend, options) for backend in ("tensorrt", "onnxruntime") for options in OPTIONS),
            *((backend, options) for backend in ("openvino", "qnn-htp") for options in OPTIONS[:2]),
            *(("tensorrt", options) for options in ("--keep-float 2 --methods none", bits("wgt8", 5), bits("act8", 5)))]
BUCKETS = [0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0001]


def measured(names, more, log):
    """Rows of all versions of networks, as tasks.py writes them; what mqq refuses is printed and left out."""
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            network = Network(name, scratch, more)
            for backend, options in VERSIONS:
                about = {"network": name, "backend": backend, "variant": options or "default", "task": network.unit}
                try:
                    row = about | network.measure(backend, shlex.split(options))
                except RuntimeError as error:
                    print(f"{name} {backend} {options}: {str(error).splitlines()[0]}", flush=True)
                    continue
                print(f"{name:24} {backend:12} {network.unit} {row['figure']:.3f}  J {row['j']:.3f} "
                      f"{row['lowest_j']:.3f}  {mean_sqnr(row):5.1f} dB  {row['seconds']:5.1f} s  {about['variant']}",
                      flush=True)
                if log:
                    with open(log, "a") as file:
                        file.write(json.dumps(row) + "\n")
                yield row


def mean_sqnr(row):
    return np.mean([ratio for ratio in row["sqnr_db"] if ratio is not None] or [np.nan])


def ranks(values):
    """Ranks from 0; those of equal values are their mean."""
    _, position, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[position]


def spearman(a, b):
    """Correlation of ranks; NaN where one of them does not vary."""
    a, b = ranks(a), ranks(b)
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else float("nan")


def rises(values):
    """By how much every version is above every other: [from, to]."""
    return values[None] - values[:, None]


def approvals(j, lowest, sqnr):
    """Which changes are approved, [from, to] by the name of what approves."""
    above = lambda values: rises(values) > SPREAD * np.ptp(values)
    return {"J": above(j), "J and lowest": (rises(j) > RISE) & (rises(lowest) >= 0), "SQNR": above(sqnr)}


def judge(rows):
    """Of one network: its figures, correlations by name, and (harmful, missed) by name."""
    task, j, lowest = (np.array([row[key] for row in rows]) for key in ("figure", "j", "lowest_j"))
    sqnr = np.array([mean_sqnr(row) for row in rows])
    correlations = {"J": spearman(j, task), "lowest": spearman(lowest, task), "SQNR": spearman(sqnr, task)}
    change = rises(task)
    wrong = {name: (int((approved & (change < -WORSE)).sum()), int((~approved & (change > WORSE)).sum()))
             for name, approved in approvals(j, lowest, sqnr).items()}
    return task, j, correlations, wrong, int((change > WORSE).sum())


def extent(values):
    """Least and largest, as text."""
    return f"{min(values):.2f}-{max(values):.2f}" if len(values) else ""


def report(networks):
    """Prints all of what was judged: rows by network."""
    judged = {name: judge(rows) for name, rows in networks.items()}
    print("\n| network | versions | task | Spearman J, lowest, SQNR | pairs | harmful (missed): J, J and lowest, SQNR |"
          "\n| --- | --- | --- | --- | --- | --- |")
    spelled = lambda wrong: ", ".join(f"{harmful} ({missed})" for harmful, missed in wrong)
    for name, (task, _, correlations, wrong, pairs) in judged.items():
        print(f"| {name} | {len(task)} | {extent(task)} | {', '.join(f'{c:.3f}' for c in correlations.values())} "
              f"| {pairs} | {spelled(wrong.values())} |")
    means = [np.nanmean([figures[2][key] for figures in judged.values()]) for key in ("J", "lowest", "SQNR")]
    totals = np.sum([list(figures[3].values()) for figures in judged.values()], 0)
    print(f"| all | {sum(len(figures[0]) for figures in judged.values())} | | {', '.join(f'{c:.3f}' for c in means)} "
          f"| {sum(figures[4] for figures in judged.values())} | {spelled(totals)} |")
    print(f"\n| J | versions | least, median, largest | {' | '.join(judged)} |\n{'| --- ' * (len(judged) + 3)}|")
    for low, high in zip(BUCKETS, BUCKETS[1:]):
        within = {name: task[(low <= j) & (j < high)] for name, (task, j, *_) in judged.items()}
        all_ = np.concatenate(list(within.values()))
        if len(all_):
            figures = ", ".join(f"{value:.2f}" for value in np.quantile(all_, [0, 0.5, 1]))
            print(f"| {low:.2f} to {min(high, 1):.2f} | {len(all_)} | {figures} "
                  f"| {' | '.join(map(extent, within.values()))} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), help=f"some of {', '.join(TASKS)}, "
                        f"comma-separated; default: {', '.join(MODELS)}, or all of the rows that are read")
    parser.add_argument("--more", type=Path, help="folder of minilm_l6 and vit_s_focus")
    parser.add_argument("--slow", action="store_true", help="vit_s_focus too")
    parser.add_argument("--json", type=Path, help="file to which rows are appended, one object a line")
    parser.add_argument("--from", dest="files", type=Path, nargs="+", default=[], help="rows that were measured before")
    args = parser.parse_args()
    if args.files:
        rows = [json.loads(line) for file in args.files for line in file.read_text().splitlines()]
        rows = [row for row in rows if "error" not in row and row["network"] in (args.models or TASKS)]
    elif (ZOO / "models").is_dir():
        rows = measured(list(known(args.models or MODELS, args.more, args.slow)), args.more, args.json)
    else:
        sys.exit(f"no real models at {ZOO}")
    networks = {}
    for row in rows:
        if mean_sqnr(row) > EXACT:
            continue
        networks.setdefault(row["network"], []).append(row)
    if not networks:
        sys.exit("nothing was measured")
    report(networks)


if __name__ == "__main__":
    main()
