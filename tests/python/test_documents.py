"""Runs every console block of README.md and docs: exit codes and, where output is shown, the output up to times.

A block is a list of commands, `$ mqq …` or `$ python …`, each with its output below it, or with none. A command goes on
behind a backslash at the end of a line. `…` stands for any lines, or for any part of a line; `$ echo $?` shows the exit
code where it is not 0. A block of YAML or Python under a line that ends with its file's name (`` `mine.yaml`: ``) is
written to that file. All blocks of a document run in one folder, in their order. A Python file that imports a runtime
which is not installed is not run: `make test-runtimes` has all.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from support import MQQ, ROOT, calibrate, digits, fixture, float_digits, mqq, overflows, quantized, run, sqnr_db

DOCUMENTS = ["README.md", "skills/mqq/SKILL.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]
FENCE = re.compile(r"(?:`([\w.-]+)`:\n\n)?^```(\w+)\n(.*?)^```", re.M | re.S)
RUNTIMES = {"openvino", "onnxruntime_qnn", "tvm"}
# A figure, and whether it is a time.
NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)( s\b)?")


def text_of(document):
    return (ROOT / document).read_text()


def runs_here(python):
    """Whether no runtime is missing that a Python file imports."""
    needed = RUNTIMES.intersection(re.findall(r"^import (\w+)", python, re.M))
    return all(importlib.util.find_spec(name) for name in needed)


def steps(document):
    """("file", its name, its text) or ("command", its line, lines of output), in their order."""
    for name, language, body in FENCE.findall(text_of(document)):
        if name:
            yield "file", name, body
        elif language == "console":
            for step in re.split(r"^\$ ", body, flags=re.M)[1:]:
                command, *output = re.sub(r" \\\n +", " ", step.rstrip("\n")).split("\n")
                yield "command", command, output


def pattern(line):
    """A regular expression of a line that is shown, and its figures."""
    parts, figures, end = [], [], 0
    for number in NUMBER.finditer(line):
        parts.append(re.escape(line[end : number.start()]))
        whole = "." not in number[1]
        if number[2] and not whole:
            parts.append(r"[\d.]+ s")
        else:
            parts.append(r"(?<![\w.])" + (r"(\d+)" if whole else r"(\d+\.\d+)"))
            figures.append(number[1])
        end = number.end()
    return "".join(parts) + re.escape(line[end:]), figures


def agree(shown, printed):
    """Whether what is printed is what is shown, where figures of a fraction may differ by 1 % and .05."""
    text, figures = "", []
    for line in shown:
        if line.strip() == "…":
            text += r"(?:.*\n)*?"
            continue
        parts = [pattern(part) for part in re.split(" *… *", line)]
        text += ".*".join(expression for expression, _ in parts) + "\n"
        figures += [figure for _, found in parts for figure in found]
    match = re.fullmatch(text, "".join(line + "\n" for line in printed))
    near = lambda a, b: a == b if "." not in b else abs(float(a) - float(b)) <= 0.05 + 0.01 * float(b)
    return match and all(map(near, match.groups(), figures))


def check(document, command, shown, ran):
    """Lines of stderr stand among those of stdout; a warning or an error that was printed is shown."""
    said = f"{document}: $ {command}\n{ran.stdout}{ran.stderr}"
    errors = ran.stderr.splitlines()
    from_stderr = [line for line in shown if line.strip() != "…" and any(agree([line], [e]) for e in errors)]
    is_shown = agree([line for line in shown if line not in from_stderr], ran.stdout.splitlines())
    assert is_shown, said
    for error in errors:
        if error.startswith(("warning: ", "error: ", "gate missed: ")):
            assert any(agree([line], [error]) for line in from_stderr), f"{said}\nnot shown: {error}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_do_what_the_documents_show(document, tmp_path):
    shutil.copytree(ROOT / "fixtures", tmp_path / "fixtures", ignore=shutil.ignore_patterns("*.py"))
    (tmp_path / "calib_data").symlink_to(ROOT / "calib_data")
    bin = tmp_path / ".bin"
    bin.mkdir()
    (bin / "mqq").symlink_to(MQQ.resolve())
    path = os.pathsep.join([str(bin), str(Path(sys.executable).parent), os.environ["PATH"]])
    code = 0
    for kind, head, body in steps(document):
        if kind == "file":
            (tmp_path / head).write_text(body)
        elif head.startswith("python ") and not runs_here((tmp_path / head.split()[1]).read_text()):
            continue
        elif head == "echo $?":
            assert body == [str(code)], f"{document}: exit code {code} of $ {command}"
            code = 0
        else:
            assert code == 0, f"{document}: $ {command}\n{done.stderr}"
            command = head
            env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
            code = done.returncode
            if body:
                check(document, command, body, done)
    assert code == 0, f"{document}: $ {command}\n{done.stderr}"


@pytest.mark.parametrize("table, overflow", [("onnxruntime-vnni", True), ("onnxruntime", False)])
def test_kernels_differ_from_the_arithmetic_where_sums_overflow(table, overflow):
    """docs/troubleshooting.md; its scripts print other figures on other processors."""
    model, (samples, _) = quantized("digits_cnn", table, "--effort", "0"), digits("eval")
    difference = sqnr_db(*(run(model, samples[:50], optimized)[0] for optimized in (False, True)))
    assert difference < 20 if overflow and overflows() else difference > 40


def rows(text):
    """The cells of the rows of tables."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]


def differing(section, quantize, names, folder):
    """Rows of a section of docs/coming-from.md whose figures are not those of the models that both commands make."""
    text = text_of("docs/coming-from.md").split("\n## ")[section]
    table = [row for row in rows(text) if len(row) == 4 and re.fullmatch(r"[\d.]+", row[3])]
    assert len(table) > 6
    effort = ["--effort", "0"] if "`mqq calibrate … --effort 0`" in text else []
    theirs, ours = folder / "theirs.onnx", folder / "ours.onnx"
    figure = lambda path: sqnr_db(float_digits("digits_cnn"), run(path, digits("eval")[0])[0])
    wrong = []
    for option, command, *shown in table:
        if not option.startswith("the same"):
            quantize(theirs, **eval(f"dict({option.split('`')[1] if '`' in option else ''})", dict(names)))
        _, backend, *options = command.strip("`").split(" ")
        calibrate(fixture("digits_cnn"), backend, ours, *options, *([] if option.startswith("the same") else effort))
        found = [figure(theirs), figure(ours)]
        if any(abs(a - float(b)) > 0.5 for a, b in zip(found, shown)):
            wrong.append((option, found, shown))
    return wrong


def test_both_commands_give_what_coming_from_onnxruntime_shows(tmp_path):
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.left = iter(digits("calib")[0])

        def get_next(self):
            return next(self.left, None)

    prepared = str(tmp_path / "prepared.onnx")
    quant_pre_process(str(fixture("digits_cnn")), prepared, skip_symbolic_shape=True)
    quantize = lambda output, **options: quantization.quantize_static(prepared, str(output), Reader(), **options)
    assert not differing(1, quantize, vars(quantization), tmp_path)


def test_both_commands_give_what_coming_from_nncf_shows(tmp_path):
    """Where NNCF is installed, which no environment of the Makefile does."""
    nncf = pytest.importorskip("nncf", reason="NNCF is not installed")
    from nncf.quantization import advanced_parameters

    def quantize(output, **options):
        advanced = {name: options.pop(name) for name in ("disable_bias_correction", "overflow_fix") if name in options}
        options["advanced_parameters"] = nncf.AdvancedQuantizationParameters(**advanced)
        samples = nncf.Dataset(digits("calib")[0])
        onnx.save(nncf.quantize(onnx.load(fixture("digits_cnn")), samples, subset_size=100, **options), output)

    assert not differing(2, quantize, vars(nncf) | vars(advanced_parameters), tmp_path)


def test_code_blocks_do_not_scroll():
    """94 characters fit where a page is 850 pixels wide."""
    long = [(document, line) for document in DOCUMENTS for _, _, body in FENCE.findall(text_of(document))
            for line in body.splitlines() if len(line) > 94]
    assert not long


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 120


def test_make_demo_runs_the_commands_of_the_readme():
    shown = [f"$(MQQ) {head.removeprefix('mqq ')}" for kind, head, _ in steps("README.md") if head.startswith("mqq ")]
    recipe = " ".join(text_of("Makefile").replace("\\\n", " ").split())
    assert len(shown) == 2 and all(command in recipe for command in shown)


def test_the_figures_of_the_readme_are_those_measured():
    measured = [[row[0].split(",")[0], *row[1:]] for row in rows(text_of("docs/measured.md"))]
    shown = [[row[0].split(": ")[1], *row[1:]] for row in rows(text_of("README.md")) if ": " in row[0]]
    assert len(shown) >= 3
    for row in shown:
        assert row in measured


PICTURE = re.compile(r"!\[([^\]]+)\]\(([^)]+\.svg)\)")


def pictures():
    """Words and file of every picture that a document shows."""
    return [(words, (ROOT / document).parent / path) for document in DOCUMENTS
            for words, path in PICTURE.findall(text_of(document))]


def drawn(name):
    """The figures that docs/pictures/make.py drew, and the words beside them."""
    words, path = next((words, path) for words, path in pictures() if path.stem == name)
    return json.loads(ElementTree.parse(path).find(".//{http://purl.org/dc/elements/1.1/}description").text), words


def test_pictures_are_small_and_told_in_words():
    assert sorted(path for _, path in pictures()) == sorted((ROOT / "docs/pictures").glob("*.svg"))
    for words, path in pictures():
        assert len(words) > 80 and path.stat().st_size < 60_000 and "dc:date" not in path.read_text(), path


def test_the_picture_of_the_readme_has_the_figures_measured():
    section = text_of("docs/measured.md").split("\n## Accuracy and time\n")[1].split("\n## ")[0]
    names, _, *table = [[cell.strip("`") for cell in row] for row in rows(section)]
    figures, words = drawn("tools")
    assert figures == [dict(zip(names, row)) for row in table] and len(figures) >= 3
    cells = " ".join(" ".join(row) for row in table)
    told = re.findall(r"\.\d{3}|\d+\.\d", words)
    assert told and all(re.search(rf"(?<!\d){re.escape(number)}(?!\d)", cells) for number in told), told
    by_task = {row[0].split(",")[0]: row for row in rows(text_of("docs/measured.md")) if len(row) == 7}
    for row in figures:
        kept = [row[tool].split(", ")[0] for tool in ("mqq", "NNCF", "ONNX Runtime")]
        assert kept == [by_task[row["network"]][at] for at in (3, 5, 6)], row


def test_the_picture_of_qdq_is_the_model_that_mqq_writes():
    figures, _ = drawn("qdq")
    models = [fixture("digits_cnn"), quantized("digits_cnn", "tensorrt", "--effort", "0")]
    for model, ops in zip(models, figures.values()):
        assert ", ".join(ops) in ", ".join(node.op_type for node in onnx.load(model).graph.node)


def test_the_picture_of_ranges_has_those_of_the_observers():
    figures, words = drawn("ranges")
    ((tensor, largest),) = figures.items()
    for observer, end in largest.items():
        path = quantized("digits_cnn", "tensorrt", "--effort", "0", "--observer", observer)
        encodings = json.loads(path.with_suffix(".json").read_text())["activation_encodings"]
        found = next(encoding["range"][1] for encoding in encodings if encoding["name"] == tensor)
        assert abs(found - end) < 0.02 and f"{observer} {end:.1f}" in words, observer


@pytest.mark.parametrize("effort", [0, 1])
def test_the_picture_of_effort_has_the_ratios_reached(effort):
    figures, _ = drawn("effort")
    path = quantized("digits_cnn", "tensorrt", "--effort", str(effort))
    ratio = sqnr_db(float_digits("digits_cnn"), run(path, digits("eval")[0])[0])
    assert abs(ratio - figures["tensorrt"][effort]) < 0.5


def test_every_backend_has_a_target():
    targets = text_of("docs/targets.md")
    listed = json.loads(subprocess.run([MQQ, "backends", "--json"], capture_output=True, text=True, check=True).stdout)
    assert [table["name"] for table in listed["backends"] if f"`{table['name']}`" not in targets] == []


def test_options_in_the_documents_exist():
    helps = [subprocess.run([MQQ, command, "--help"], capture_output=True, text=True).stdout
             for command in ["calibrate", "solve", "stats", "inspect", "compare", "eval", "diff", "check", "export",
                             "prepare", "backends"]]
    of_others = {"--locked", "--path", "--onnx", "--saveEngine", "--int8", "--fp16"}
    known = set(re.findall(r"--[a-z][\w-]*", " ".join(helps))) | of_others
    for document in ["README.md", "docs/guide.md", "skills/mqq/SKILL.md"]:
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text_of(document))) <= known, document


def test_the_promises_have_the_versions_and_codes_of_the_program(tmp_path):
    promises = {row[0]: row[1] for row in rows(text_of("docs/promises.md"))}
    output = tmp_path / "model.onnx"
    report = json.loads(mqq("calibrate", fixture("digits_cnn"), "-b", "tensorrt", "--data", ROOT / "calib_data/calib",
                            "--preprocess", "half", "--effort", "0", "--json", "-o", output))
    sidecar = json.loads(output.with_suffix(".json").read_text())
    assert f"`{report['schema_version']}`" in promises["`--json`"]
    assert f"`{sidecar['schema_version']}`" in promises["sidecar"]
    section = text_of("docs/guide.md").split("\n## Use exit codes\n")[1].split("\n## ")[0]
    codes = [row[0] for row in rows(section) if row[0].isdigit()]
    assert promises["exit codes"].startswith(f"{codes[0]} to {codes[-1]} ")


def test_the_skill_is_one_by_its_specification():
    front, body = text_of("skills/mqq/SKILL.md").split("---\n")[1:]
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert fields["name"] == "mqq" and len(fields["description"]) <= 1024 and len(fields["compatibility"]) <= 500
    assert len(body.splitlines()) <= 500
    for path in re.findall(r"`(docs/[\w.]+)`", body):
        assert (ROOT / path).is_file(), path
