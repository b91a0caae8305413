"""The work of the Action: calibrates each model, compares it with float, writes report.json and the job summary.

In: the environment variables of action.yml. Ends with code 1 where a model failed or missed a gate.
"""

import glob
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

# What GitHub takes of one step; it drops a larger summary as a whole.
MAX_SUMMARY = 1024 * 1024


def lines(name):
    """The lines of an input that are not empty."""
    return [line.strip() for line in os.environ.get(name, "").splitlines() if line.strip()]


def mqq(*arguments):
    """The exit code, the object of --json and the lines of stderr."""
    command = ["mqq", *arguments, "--json"]
    print("::group::" + shlex.join(command), flush=True)
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    print(ran.stderr, end="")
    print("::endgroup::", flush=True)
    try:
        report = json.loads(ran.stdout)
    except ValueError:
        report = {"error": ran.stderr.strip() or f"mqq ended with {ran.returncode}"}
    return ran.returncode, report


def error_of(report):
    """The error of a report with its hint; empty where there is none."""
    failed = [one for one in [report, *report.get("results", [])] if "error" in one]
    return "\n".join(text for one in failed for text in [one["error"], one.get("hint", "")] if text)


def one(model):
    """Calibrates a model and compares the result."""
    preprocess = [f"--preprocess={name}" for name in lines("PREPROCESS")]
    code, calibrated = mqq("calibrate", model, f"--backend={os.environ['BACKEND']}",
                           *(f"--data={path}" for path in lines("DATA")), f"--out-dir={os.environ['OUT_DIR']}",
                           *(preprocess if lines("DATA") else []), *shlex.split(os.environ.get("CALIBRATE_ARGS", "")))
    result = {"model": model, "calibrate": calibrated}
    data = lines("EVAL_DATA") or lines("DATA")
    if code != 0:
        return {**result, "passed": False, "error": error_of(calibrated)}
    if not data:
        gates = lines("GATE")
        return {**result, "passed": not gates, **({"error": "a gate needs data or eval-data"} if gates else {})}
    code, compared = mqq("compare", model, calibrated["results"][0]["output"], *(f"--data={path}" for path in data),
                         *preprocess, *(f"--fail-under={gate}" for gate in lines("GATE")),
                         *shlex.split(os.environ.get("COMPARE_ARGS", "")))
    result["compare"] = compared
    of_gate = "{}: {} is {}, gate {}".format
    missed = [of_gate(gate.get("tensor", "task"), gate["metric"], number(gate.get("value")), number(gate["bound"]))
              for gate in compared.get("missed", [])]
    error = error_of(compared) or "\n".join(missed)
    return {**result, "passed": code == 0, **({"error": error} if error else {})}


def number(value):
    return f"{value:.4g}" if isinstance(value, (int, float)) else "missing"


def cell(text):
    """Text in a cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", "<br>")


def figures(result):
    """The figures of each output, and of the task."""
    compared = result.get("compare", {})
    named = [(output["tensor"], output["metrics"]) for output in compared.get("outputs", [])]
    named += [(compared["task"].get("task", "task"), compared["task"].get("metrics", {}))] if "task" in compared else []
    return "\n".join(f"{name}: " + ", ".join(f"{metric} {number(value)}" for metric, value in metrics.items())
                     for name, metrics in named)


def summary(results, backend):
    """The job summary as Markdown, of at most 1 MiB."""
    n_passed = sum(result["passed"] for result in results)
    head = [f"### mqq: {n_passed} of {len(results)} models passed for `{backend}`", "",
            "| model | | figures | missed or failed |", "| --- | --- | --- | --- |"]
    rows = [f"| `{cell(result['model'])}` | {'✅' if result['passed'] else '❌'} | {cell(figures(result))} "
            f"| {cell(result.get('error', ''))} |" for result in results]
    end = "\n… {} more models are in report.json.\n"
    left = MAX_SUMMARY - len("\n".join([*head, end.format(len(rows))]).encode())
    shown = []
    # Failed models come first.
    for row in sorted(rows, key=lambda row: "| ✅ |" in row):
        left -= len(row.encode()) + 1
        if left < 0:
            break
        shown.append(row)
    hidden = len(rows) - len(shown)
    return "\n".join([*head, *shown, end.format(hidden) if hidden else ""])


def append(variable, text):
    """Appends to the file that a variable of GitHub names."""
    if path := os.environ.get(variable):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)


def main():
    found = [sorted(glob.glob(pattern, recursive=True)) or [pattern] for pattern in lines("MODELS")]
    models = list(dict.fromkeys(path for paths in found for path in paths))
    out_dir = Path(os.environ["OUT_DIR"])
    out_dir.mkdir(parents=True, exist_ok=True)
    results = [one(model) for model in models]
    n_missed = sum(not result["passed"] for result in results)
    report = out_dir / "report.json"
    report.write_text(json.dumps({"backend": os.environ["BACKEND"], "models": results}, indent=2), encoding="utf-8")
    append("GITHUB_STEP_SUMMARY", summary(results, os.environ["BACKEND"]))
    append("GITHUB_OUTPUT", f"report={report}\nmissed={n_missed}\n")
    for result in results:
        if not result["passed"]:
            text = f"{result['model']}: {result['error']}"
            print("::error title=mqq::" + text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
    sys.exit(1 if n_missed or not models else 0)


if __name__ == "__main__":
    main()
