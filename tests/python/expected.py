"""Figures that quantized models reached, as tables in `expected/`: SQNR in dB and agreement of classes in per cent
against float, a row for each model, table, options and output. A test fails where a figure is lower than its row's by
more than a margin; better ones pass. `MQQ_RECORD=1 make test-python test-runtimes` writes them anew, and leaves the
rows of tests that it does not run."""

import csv
import functools
import os
from pathlib import Path

from support import agreement_percent, output_names, overflows, run, sqnr_db

FOLDER = Path(__file__).parent / "expected"
CASE = ["model", "table", "options", "output"]
# Q/DQ arithmetic as ONNX defines it, another runtime or ONNX Runtime's integer kernels, and the lower agreement.
FIGURES = ["sqnr_db", "kernels_db", "agreement_percent"]
# Processors sum in other orders, which moves values between two integers.
MARGIN = 2.0
# More is float rounding.
HIGHEST_DB = 80.0
RECORD = os.environ.get("MQQ_RECORD") == "1"
RECORDED = {}


@functools.cache
def table(subject):
    """Figures by case, of a file in `expected/`."""
    path = FOLDER / f"{subject}.csv"
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[k] for k in CASE): {k: float(row[k]) for k in FIGURES if row[k]} for row in rows}


def hold(subject, case, margin=MARGIN, **figures):
    """Compares `figures` of a case (model, table, options, output) with its row; all of them are to be there."""
    highest = lambda name: HIGHEST_DB if name.endswith("_db") else 100
    figures = {name: min(float(value), highest(name)) for name, value in figures.items()}
    if RECORD:
        RECORDED.setdefault(subject, {})[case] = figures
        return
    row = table(subject).get(case, {})
    assert row.keys() == figures.keys(), f"{case}: none or others in expected/{subject}.csv; MQQ_RECORD=1 writes them"
    for name, figure in figures.items():
        assert figure >= row[name] - margin, f"{case}: {name} {figure:.1f}, {row[name]} in expected/{subject}.csv"


def hold_quantized(subject, case, expected, path, samples, classes=False, margin=MARGIN):
    """Holds every output of a quantized model to its row, with ONNX Runtime's graph optimizations off and on. `case` is
    (model, table, options), `expected` the float model's outputs as `support.run` gives them."""
    plain, kernels = (run(path, samples, optimized) for optimized in (False, True))
    if overflows():
        # They run, and what they compute says little of the model.
        kernels = plain
    for name, floats, *found in zip(output_names(path), expected, plain, kernels, strict=True):
        sqnr, kernels_sqnr = (sqnr_db(floats, values) for values in found)
        agreement = {"agreement_percent": min(agreement_percent(floats, values) for values in found)} if classes else {}
        hold(subject, (*case, name), margin, sqnr_db=sqnr, kernels_db=kernels_sqnr, **agreement)


def write():
    """Writes what was recorded."""
    for subject, cases in RECORDED.items():
        cases = {**table(subject), **cases}
        FOLDER.mkdir(exist_ok=True)
        with open(FOLDER / f"{subject}.csv", "w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(CASE + FIGURES)
            for case, figures in sorted(cases.items()):
                rows.writerow([*case, *(f"{figures[k]:.1f}" if k in figures else "" for k in FIGURES)])
