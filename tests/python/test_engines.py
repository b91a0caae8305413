"""The recipes of docs/scale.md: one shard is killed in the middle, the engine runs it again, and the merged file and the
models have the bytes of one machine. `make test-engines` runs this in an environment of its own.

`mqq` on the path of a recipe is a script: of shard 1 it kills the first run once it has written its first statistics.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import MQQ, ROOT, mqq

FENCE = re.compile(r"`([\w.-]+)`:\n\n^```\w+\n(.*?)^```", re.M | re.S)
FILES = dict(FENCE.findall((ROOT / "docs" / "scale.md").read_text()))
N_SAMPLES = 2400
KILLER = """#!/bin/sh
case "$*" in
*"--shard 1/4"*)
  if ! [ -e {folder}/killed ]; then
    {mqq} "$@" &
    while ! [ -s part1.mqqs ] && ! [ -s running1.mqqs ]; do sleep .005; done
    kill -KILL $!
    wait $!
    echo $? > {folder}/killed
    exit 1
  fi
  cp part1.mqqs {folder}/left 2> {folder}/none || cp running1.mqqs {folder}/left ;;
esac
exec {mqq} "$@"
"""


@pytest.fixture(scope="session")
def one_machine(tmp_path_factory):
    """A folder with model, images, and the results of one run."""
    folder = tmp_path_factory.mktemp("one")
    shutil.copy(ROOT / "fixtures" / "digits_cnn.onnx", folder / "model.onnx")
    (folder / "images").mkdir()
    images = sorted((ROOT / "calib_data" / "calib").glob("*.png"))
    for i in range(N_SAMPLES):
        (folder / "images" / f"{i:05}.png").symlink_to(images[i % len(images)])
    mqq("calibrate", folder / "model.onnx", "-b", "tensorrt,openvino", "--for", "all", "--data", folder / "images",
        "--preprocess", "half", "--effort", 0, "--save-stats", folder / "all.mqqs", "--out-dir", folder / "solved", "-q")
    return folder


@pytest.fixture
def place(one_machine, tmp_path):
    """A folder with model, images and the files of the document, and an environment with the killer."""
    (tmp_path / "model.onnx").symlink_to(one_machine / "model.onnx")
    (tmp_path / "images").symlink_to(one_machine / "images")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    program = tmp_path / "bin" / "mqq"
    program.parent.mkdir()
    program.write_text(KILLER.format(folder=tmp_path / "bin", mqq=MQQ))
    program.chmod(0o755)
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    return tmp_path, os.environ | {"PATH": path, "HOME": str(tmp_path)}


def run(command, place, **options):
    folder, environment = place
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=600, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def check(place, one_machine):
    folder, _ = place
    assert (folder / "bin" / "killed").read_text().strip() == "137", "no shard was killed"
    left = (folder / "bin" / "left").read_bytes()
    assert b"n_done" in left, "the killed shard had done its work"
    for name in ["all.mqqs", *(f"solved/model.{of}" for of in ["tensorrt.onnx", "tensorrt.json", "openvino.onnx", "openvino.json"])]:
        assert (folder / name).read_bytes() == (one_machine / name).read_bytes(), name


def needs_debian(*packages):
    """Installs Debian packages where this user may."""
    missing = [package for package, program in packages if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"{', '.join(missing)} missing, and apt-get is not at hand")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"apt-get install {' '.join(missing)}: {done.stderr.strip().splitlines()[-1:]}")


def needs_python(module):
    if not importlib.util.find_spec(module):
        pytest.skip(f"{module} is not installed: make test-engines")


def test_gnu_parallel(place, one_machine):
    needs_debian(("parallel", "parallel"))
    run(["sh", "-e", "parallel.sh"], place)
    check(place, one_machine)


SLURM = """ClusterName=test
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SlurmdSpoolDir={folder}/d
StateSaveLocation={folder}/state
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={host} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(place):
    """Munge, slurmctld and slurmd on this machine."""
    needs_debian(("munge", "munged"), ("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("slurm-client", "sbatch"))
    folder, environment = place
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    configuration = folder / "slurm.conf"
    configuration.write_text(SLURM.format(host=socket.gethostname().split(".")[0], folder=folder / "slurm"))
    for part in ["d", "state"]:
        (folder / "slurm" / part).mkdir(parents=True)
    environment["SLURM_CONF"] = str(configuration)
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    daemons = []
    if subprocess.run(["munge", "-n"], capture_output=True).returncode != 0:
        daemons.append(subprocess.Popen(["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground"]))
        time.sleep(2)
    daemons.append(subprocess.Popen(["slurmctld", "-D"], env=environment, cwd=folder))
    daemons.append(subprocess.Popen(["slurmd", "-D"], env=environment, cwd=folder))
    try:
        for _ in range(60):
            state = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True)
            if state.stdout.strip() == "idle":
                break
            time.sleep(1)
        else:
            log = "\n".join(path.read_text()[-2000:] for path in (folder / "slurm").glob("*.log"))
            pytest.fail(f"no idle node: {state.stdout}{state.stderr}\n{log}")
        yield place
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def test_slurm(slurm, one_machine):
    folder, _ = slurm
    run(["sh", "-e", "slurm.sh"], slurm)
    end = time.monotonic() + 420
    while not (folder / "solved" / "model.openvino.onnx").exists() and time.monotonic() < end:
        time.sleep(2)
    queue = run(["squeue"], slurm)
    assert (folder / "solved" / "model.openvino.onnx").exists(), queue + "".join(p.read_text() for p in folder.glob("*.log"))
    check(slurm, one_machine)


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_engines_of_python(place, one_machine, engine):
    needs_python(engine)
    run([sys.executable, f"collect_{engine}.py"], place)
    check(place, one_machine)


def test_snakemake(place, one_machine):
    needs_python("snakemake")
    run([sys.executable, "-m", "snakemake", "--cores", "2"], place)
    check(place, one_machine)


def test_the_manifests_of_kubernetes(place, one_machine):
    needs_python("kubernetes_validate")
    import kubernetes_validate
    import yaml

    folder, environment = place
    jobs = {}
    for name in ["collect", "merge"]:
        manifest = yaml.safe_load(FILES[f"{name}.yaml"])
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        [container] = manifest["spec"]["template"]["spec"]["containers"]
        jobs[name] = (manifest["spec"], [*container["command"], *container["args"]])
    spec, command = jobs["collect"]
    for index in reversed(range(spec["completions"])):
        for attempt in range(spec["backoffLimitPerIndex"] + 1):
            pod = subprocess.run(command, cwd=folder, env=environment | {"JOB_COMPLETION_INDEX": str(index)}, capture_output=True)
            if pod.returncode == 0:
                break
        assert (pod.returncode, attempt) == (0, int(index == 1))
    run(jobs["merge"][1], place)
    check(place, one_machine)
