"""What `make dist` wrote, in clean environments: wheel, program, checksums, SBOM, completions, man pages.

`DIST` is its folder. A shell or a tool that is not installed is skipped with the reason.
"""

import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ.get("DIST", ROOT / "target" / "dist")).resolve()
WHEEL = next(DIST.glob("*.whl"))
ARCHIVE = next(DIST.glob("*.tar.gz"))
LINUX = sys.platform == "linux"
EXAMPLE = [ROOT / "fixtures" / "digits_cnn.onnx", "--backend", "tensorrt", "--data", ROOT / "calib_data" / "calib",
           "--preprocess", "half", "--effort", "0"]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The folder of the programs of a fresh Python with the wheel."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "--no-index", WHEEL], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of the archive."""
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


def alone(*command):
    """Runs a command with no environment, not even a path."""
    return subprocess.run(command, env={}, capture_output=True, text=True)


def calibrated(program, folder):
    ran = alone(program, "calibrate", *EXAMPLE, "-o", folder / "model.onnx")
    assert ran.returncode == 0, ran.stderr
    return (folder / "model.onnx").read_bytes()


def test_the_wheel_and_the_archive_have_a_program_that_runs_alone(python, unpacked, tmp_path):
    for name in ["wheel", "archive"]:
        (tmp_path / name).mkdir()
    assert calibrated(python / "mqq", tmp_path / "wheel") == calibrated(unpacked / "mqq", tmp_path / "archive")


def test_the_package_in_the_wheel_runs_its_program(python, tmp_path):
    assert alone(python / "python", "-m", "mqq", "--version").stdout == alone(python / "mqq", "--version").stdout
    code = "import mqq; print(mqq.program()); print(mqq.calibrate('{}', 'weight-only-int8', output='{}')['status'])"
    ran = alone(python / "python", "-c", code.format(EXAMPLE[0], tmp_path / "m.onnx"))
    assert ran.stdout.split() == [str(python / "mqq"), "ok"], ran.stderr
    code = "import mqq, pathlib; print((pathlib.Path(mqq.__file__).parent / 'py.typed').is_file())"
    assert alone(python / "python", "-c", code).stdout == "True\n"


def test_cargo_install_gives_a_program_that_writes_the_same_bytes(unpacked, tmp_path):
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    command = ["cargo", "install", "--quiet", "--locked", "--path", ROOT, "--root", tmp_path, "--target-dir", target]
    subprocess.run(command, check=True)
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["mqq"]
    for name in ["own", "archive"]:
        (tmp_path / name).mkdir()
    assert calibrated(tmp_path / "bin" / "mqq", tmp_path / "own") == calibrated(unpacked / "mqq", tmp_path / "archive")


@pytest.mark.skipif(not LINUX, reason="linked to the system's libraries")
def test_the_program_needs_no_library(unpacked):
    command = ["readelf", "--program-headers", "--dynamic", unpacked / "mqq"]
    headers = subprocess.run(command, capture_output=True, text=True).stdout
    assert "LOAD" in headers and "INTERP" not in headers and "NEEDED" not in headers
    assert "-py3-none-manylinux2014_" in WHEEL.name


def test_sizes_and_start(unpacked):
    size = {path.name: path.stat().st_size / 1e6 for path in [WHEEL, ARCHIVE, unpacked / "mqq"]}
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        alone(unpacked / "mqq", "--version")
        times.append(1000 * (time.perf_counter() - begin))
    print("".join(f"\n{name}: {n:.1f} MB" for name, n in size.items()), f"\nstart: {statistics.median(times):.1f} ms")
    assert size[WHEEL.name] < 25 and size[ARCHIVE.name] < 25 and min(times) < 50


def test_checksums():
    lines = [line.split("  ") for line in (DIST / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {path.name for path in DIST.iterdir()} - {"SHA256SUMS", "mqq", "mqq.exe"}
    for digest, name in lines:
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest


def test_the_sbom_has_every_crate_of_the_program():
    sbom = json.loads(next(DIST.glob("*.cdx.json")).read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    listed = {(one["name"], one["version"]) for one in sbom["components"]}
    command = ["cargo", "tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"]
    tree = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    crates = {(name, version.removeprefix("v")) for name, version, *_ in map(str.split, tree.splitlines())}
    assert {name for name, _ in crates - listed} <= {"mqq", "mqq-concrete"}
    locked = {(one["name"], one["version"]) for one in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    assert listed <= locked


BACKENDS = ["tensorrt", "tensorrt-nlp"]
# A script that prints what the shell offers for the last word of `mqq calibrate m.onnx --backend tens`.
SHELLS = {
    "bash": """
        source <(mqq completions bash)
        COMP_WORDS=(mqq calibrate m.onnx --backend tens) COMP_CWORD=4 COMP_TYPE=9
        _clap_complete_mqq mqq tens --backend
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        zmodload zsh/zpty
        zpty shell "TERM=dumb zsh -f -i"
        zpty -w shell 'PS1= ; autoload -U compinit; compinit -D; source <(mqq completions zsh); LISTMAX=0; echo READY'
        zpty -r shell line '*READY*READY*'
        zpty -w -n shell $'mqq calibrate m.onnx --backend tens\\t\\t'
        sleep 2
        text=; while zpty -r -t shell part; do text+=$part; done
        print -r -- $text
    """,
    "fish": """
        mqq completions fish | source
        complete --do-complete 'mqq calibrate m.onnx --backend tens'
    """,
    "pwsh": """
        mqq completions powershell | Out-String | Invoke-Expression
        $line = 'mqq calibrate m.onnx --backend tens'
        $found = TabExpansion2 -inputScript $line -cursorColumn $line.Length
        $found.CompletionMatches | ForEach-Object { $_.CompletionText }
    """,
}


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_in_the_shell(shell, unpacked, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    env = {"PATH": f"{unpacked}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    command = [program, "-c", SHELLS[shell]]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert sorted(set(re.findall(r"\btensor[\w-]*", ran.stdout))) == BACKENDS, ran.stdout + ran.stderr


def test_man_pages(unpacked):
    pages = sorted(path.name for path in (unpacked / "man").iterdir())
    assert {"mqq.1", "mqq-calibrate.1", "mqq-compare.1"} <= set(pages)
    if shutil.which("mandoc"):
        for page in pages:
            command = ["mandoc", "-T", "utf8", "-W", "error", unpacked / "man" / page]
            ran = subprocess.run(command, capture_output=True, text=True)
            assert (ran.returncode, "mqq" in ran.stdout) == (0, True), ran.stderr
