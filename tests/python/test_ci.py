"""The recipes of docs/ci.md, and the steps of the Action as a runner runs them. `MQQ_WHEEL` is the wheel they install.

Without it they install a wheel that holds nothing but a way to the program under test.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import yaml
from support import MQQ, ROOT, mqq

ACTION = ROOT / ".github" / "actions" / "mqq"
CI = (ROOT / "docs" / "ci.md").read_text()
spec = importlib.util.spec_from_file_location("action", ACTION / "run.py")
action = importlib.util.module_from_spec(spec)
spec.loader.exec_module(action)


def recipe(name):
    """A file of docs/ci.md."""
    return re.search(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)^```", CI, re.M | re.S)[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if "MQQ_WHEEL" in os.environ:
        return Path(os.environ["MQQ_WHEEL"])
    path = tmp_path_factory.mktemp("wheel") / "mqq-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        script = zipfile.ZipInfo("mqq-0.data/scripts/mqq")
        script.external_attr = 0o100755 << 16
        archive.writestr(script, f'#!/bin/sh\nexec "{MQQ.resolve()}" "$@"\n')
        archive.writestr("mqq-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mqq\nVersion: 0\n")
        archive.writestr("mqq-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("mqq-0.dist-info/RECORD", "")
    return path


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The folder of the programs of a fresh Python."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin"


SYSTEM = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def job(tmp_path, wheel):
    """The folder of a job with the repository's data, and its environment, without `mqq`."""
    folder = tmp_path / "job"
    (folder / "fixtures").mkdir(parents=True)
    shutil.copy(ROOT / "fixtures" / "digits_cnn.onnx", folder / "fixtures")
    (folder / "calib_data").symlink_to(ROOT / "calib_data")
    assert shutil.which("mqq", path=SYSTEM) is None
    return folder, {"PATH": SYSTEM, "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "MQQ_WHEEL": str(wheel)}


@pytest.fixture
def with_program(job, python):
    """The same with a Python, and the program installed there."""
    folder, env = job
    env = {**env, "PATH": f"{python}:{SYSTEM}"}
    subprocess.run([python / "pip", "install", "--quiet", env["MQQ_WHEEL"]], env=env, check=True)
    return folder, env


def shell(script, folder, env, *flags):
    return subprocess.run(["bash", "--noprofile", "--norc", *flags, "-c", script], cwd=folder, env=env,
                          capture_output=True, text=True)


def test_gitlab(job, python):
    folder, env = job
    env = {**env, "PATH": f"{python}:{SYSTEM}"}
    for command in yaml.safe_load(recipe(".gitlab-ci.yml"))["quantize"]["script"]:
        ran = shell(command, folder, env, "-e")
        assert ran.returncode == 0, f"$ {command}\n{ran.stderr}"
    assert json.loads((folder / "out" / "report.json").read_text())["missed"] == []


def test_jenkins(job, python):
    folder, env = job
    env = {**env, "PATH": f"{python}:{SYSTEM}"}
    script = re.search(r"sh '''\n(.*?)'''", recipe("Jenkinsfile"), re.S)[1].replace("\\\\", "\\")
    ran = subprocess.run(["sh", "-xe", "-c", script], cwd=folder, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "overlap 0.9" in ran.stdout


def test_shell_stops_at_the_command_that_fails(with_program):
    folder, env = with_program
    ran = shell(recipe("quantize.sh").replace("agreement=99", "overlap=0.9999"), folder, env)
    assert (ran.returncode, "gate missed" in ran.stderr) == (3, True)


def test_many_models(with_program):
    """A suite for each backend with one case, and no finding; a gate that is missed is a failure."""
    folder, env = with_program
    (folder / "models.yaml").write_text(recipe("models.yaml"))
    ran = shell(recipe("models.sh"), folder, env)
    assert ran.returncode == 0, ran.stderr
    suites = ElementTree.parse(folder / "out" / "junit.xml").getroot()
    assert [(suite.get("name"), suite.get("tests"), suite.get("failures")) for suite in suites] == [
        ("openvino", "1", "0"), ("tensorrt", "1", "0")]
    (run,) = json.loads((folder / "out" / "rules.sarif").read_text())["runs"]
    assert run["results"] == []
    (folder / "models.yaml").write_text(recipe("models.yaml").replace("overlap=0.9", "overlap=0.9999"))
    ran = shell(recipe("models.sh"), folder, env)
    suites = ElementTree.parse(folder / "out" / "junit.xml").getroot()
    assert ran.returncode == 1 and [len(suite.findall("testcase/failure")) for suite in suites] == [1, 1]


def test_pre_commit(with_program):
    """The hook on files as pre-commit hands them over, and in pre-commit where it is installed."""
    folder, env = with_program
    mqq("calibrate", folder / "fixtures" / "digits_cnn.onnx", "-b", "tensorrt", "-d", ROOT / "calib_data" / "calib",
        "--preprocess", "half", "--effort", "0", "--quiet", "-o", folder / "good.tensorrt.onnx")
    mqq("calibrate", folder / "fixtures" / "digits_cnn.onnx", "-b", "onnxruntime", "-d", ROOT / "calib_data" / "calib",
        "--preprocess", "half", "--effort", "0", "--quiet", "-o", folder / "bad.tensorrt.onnx")
    hook = yaml.safe_load(recipe(".pre-commit-config.yaml"))["repos"][0]["hooks"][0]
    assert re.search(hook["files"], "good.tensorrt.onnx") and not re.search(hook["files"], "good.tensorrt.json")
    codes = [shell(f"{hook['entry']} {name}.tensorrt.onnx", folder, env).returncode for name in ["good", "bad"]]
    assert codes == [0, 4]
    if importlib.util.find_spec("pre_commit"):
        (folder / ".pre-commit-config.yaml").write_text(recipe(".pre-commit-config.yaml"))
        (folder / "calib_data").unlink()
        for command in ["git init -q", "git add good.tensorrt.onnx .pre-commit-config.yaml"]:
            assert shell(command, folder, env).returncode == 0
        run = f"{sys.executable} -m pre_commit run --all-files"
        good = shell(run, folder, env)
        assert (good.returncode, "Passed" in good.stdout) == (0, True), good.stdout + good.stderr
        shell("git add bad.tensorrt.onnx", folder, env)
        bad = shell(run, folder, env)
        assert (bad.returncode, "Failed" in bad.stdout) == (1, True), bad.stdout + bad.stderr


def inputs_of(given):
    declared = yaml.safe_load((ACTION / "action.yml").read_text())["inputs"]
    assert set(given) <= set(declared)
    assert all(name in given for name, one in declared.items() if one.get("required"))
    return {name: given.get(name, one.get("default", "")) for name, one in declared.items()}


def run_action(folder, env, **given):
    """Runs the shell steps with the files that a runner hands over: the last exit code, summary, outputs, log."""
    inputs = inputs_of({name.replace("_", "-"): value for name, value in given.items()})
    known = {f"inputs.{name}": value for name, value in inputs.items()}
    known |= {"steps.python.outputs.python-path": sys.executable,
              "github.action_path": str(ACTION)}
    fill = lambda text: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], str(text))
    temp = folder.parent / "temp"
    temp.mkdir(exist_ok=True)
    files = {name: temp / name for name in ["GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"]}
    for path in files.values():
        path.write_text("")
    env = {**env, "RUNNER_TEMP": str(temp), **{name: str(path) for name, path in files.items()}}
    log = ""
    for step in yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"]:
        if "run" not in step:
            continue
        assert "${{" not in step["run"], "an input in the text of a script would be run"
        added = {name: fill(value) for name, value in step["env"].items()}
        path = os.pathsep.join([*reversed(files["GITHUB_PATH"].read_text().split()), env["PATH"]])
        ran = shell(step["run"], folder, {**env, **added, "PATH": path}, "-eo", "pipefail")
        log += ran.stdout + ran.stderr
        if ran.returncode != 0:
            break
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return ran.returncode, files["GITHUB_STEP_SUMMARY"].read_text(), outputs, log


def test_the_action_with_the_inputs_of_the_document(job):
    folder, env = job
    steps = yaml.safe_load(recipe("quantize.yml"))["jobs"]["quantize"]["steps"]
    given = next(step["with"] for step in steps if "with" in step)
    given["install"] = env["MQQ_WHEEL"]
    code, summary, outputs, log = run_action(folder, env, **given)
    assert code == 0, log
    assert "1 of 1 models passed for `tensorrt`" in summary
    assert re.search(r"\| `fixtures/digits_cnn.onnx` \| ✅ \| logits: overlap 0.98", summary)
    assert outputs == {"report": "mqq-report/report.json", "missed": "0"}
    report = json.loads((folder / outputs["report"]).read_text())
    assert report["models"][0]["calibrate"]["results"][0]["status"] == "ok"
    assert (folder / "mqq-report" / "digits_cnn.tensorrt.onnx").is_file()


def test_the_action_fails_on_a_missed_gate_and_on_an_error(with_program):
    folder, env = with_program
    (folder / "fixtures" / "broken.onnx").write_bytes(b"no model")
    code, summary, outputs, log = run_action(
        folder, env, models="fixtures/*.onnx\nnone.onnx", backend="tensorrt", preprocess="half",
        data="calib_data/calib", gate="overlap=0.9999", calibrate_args="--effort 0")
    assert (code, outputs["missed"]) == (1, "3")
    assert "0 of 3 models passed" in summary
    assert re.search(r"digits_cnn.onnx` \| ❌ .*\| logits: overlap is 0.9\d+, gate 0.9999 \|", summary)
    assert re.search(r"broken.onnx` \| ❌ \|  \| .*`fixtures/broken.onnx`.*\|", summary)
    assert len(re.findall(r"^::error title=mqq::", log, re.M)) == 3
    assert (folder / outputs["report"]).is_file()


def test_the_action_without_data(with_program):
    folder, env = with_program
    given = {"models": "fixtures/*.onnx", "backend": "weight-only-int8"}
    code, summary, _, log = run_action(folder, env, **given)
    assert (code, "1 of 1 models passed" in summary) == (0, True), log
    code, summary, _, log = run_action(folder, env, **given, gate="overlap=0.9")
    assert (code, "a gate needs data" in summary) == (1, True), log


def test_the_action_says_that_there_is_no_program(job):
    code, _, _, log = run_action(*job, models="fixtures/*.onnx", backend="tensorrt")
    assert (code, "set the input `install`" in log) == (1, True), log


@pytest.mark.parametrize("n", [3, 20_000])
def test_a_summary_fits_and_begins_with_what_failed(n):
    result = lambda k: {"model": f"models/{k}.onnx", "passed": k != n - 1, "error": "|ü" * 20}
    text = action.summary([result(k) for k in range(n)], "tensorrt")
    assert len(text.encode()) <= 1024 * 1024
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert f"models/{n - 1}.onnx" in rows[0]
    left = re.search(r"… (\d+) more models", text)
    assert len(rows) + int(left[1] if left else 0) == n and (left is None) == (n == 3)


def test_the_document_lists_the_inputs_of_the_action():
    names = "\n".join(line.split(" | ")[0] for line in CI.splitlines() if line.startswith("| `"))
    listed = re.findall(r"`([\w-]+)`", names)
    assert listed == list(inputs_of({"models": "", "backend": ""}))
