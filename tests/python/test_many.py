"""`mqq calibrate --zoo`: an interrupted run, and all real models with the bad ones (MQQ_ZOO, or ../shared/zoo)."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import yaml
from support import MQQ, ROOT, ZOO, mqq
from test_zoo import BAD, MODELS, samples, shape_options

DATA = {"data": str(ROOT / "calib_data" / "calib"), "preprocess": "half"}
# Images and their preprocessing; the other models take arrays.
IMAGES = {
    "squeezenet1_1*": ("imagenet/calib", "imagenet-caffe", {}),
    "mobilenetv1_025*": ("imagenet/calib", "imagenet", {}),
    "mlperf_resnet8*": ("cifar10/calib", "raw", {}),
    "ultraface*": ("scenes", "ultraface", {}),
    "yolox_nano": ("scenes", "yolox", {}),
    "ppocrv3_det": ("text", "paddleocr", {"shape": "x=1x3x320x320"}),
    "superres_subpixel": ("scenes", "superres-y", {}),
    "st_ssd*": ("scenes", "minus-one-to-one", {"resize": "exact"}),
}


def write_zoo(folder, options):
    """The file for all real models; writes arrays for those that take no images."""
    models = {}
    for pattern, (data, preprocess, extra) in IMAGES.items():
        models[pattern] = {"data": str(ZOO / data), "preprocess": preprocess, **extra}
    for path in MODELS:
        if path.stem in ("deimv2_atto", "magika_v3_3", "byte_bidi_lstm", "silero_vad_op18_ifless", "mnist_external"):
            made = samples(path, 32, 0)
            for i, sample in enumerate(made):
                target = folder / path.stem / f"{i}.npz"
                target.parent.mkdir(exist_ok=True)
                np.savez(target, **sample)
            # A relative path, and a shape for what stays open.
            models[path.stem] = {"data": path.stem}
            if shapes := shape_options(path)[1::2]:
                models[path.stem]["shape"] = shapes
    models |= {path.stem: {"data": str(ZOO / "scenes")} for path in BAD}
    text = yaml.safe_dump({"defaults": options, "models": models}, sort_keys=False)
    (folder / "zoo.yaml").write_text(text)
    return folder / "zoo.yaml"


def test_an_interrupted_zoo_has_complete_results_and_goes_on(tmp_path):
    names = [f"m{i:02}" for i in range(12)]
    for name in names:
        shutil.copy(ROOT / "fixtures" / "digits_cnn.onnx", tmp_path / f"{name}.onnx")
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump({"defaults": {"backend": ["tensorrt", "openvino"], **DATA}}))
    out = tmp_path / "out"
    command = [MQQ, "calibrate", *(tmp_path / f"{name}.onnx" for name in names), "--zoo", tmp_path / "zoo.yaml",
               "--out-dir", out, "--skip-existing", "--json"]
    # A terminal sends the signal to the whole group; a shell has background jobs ignore it, and what they start.
    heeded = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heeded)
    while len(list(out.glob("*.origin"))) < 3:
        time.sleep(0.01)
        assert run.poll() is None
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(60) == -signal.SIGINT
    finished = list(out.glob("*.origin"))
    assert 3 <= len(finished) < 2 * len(names)
    for origin in finished:
        onnx.load(origin.with_suffix(".onnx"))
        json.loads(origin.with_suffix(".json").read_text())
    assert {path.stem for path in out.glob("*.onnx")} == {path.stem for path in finished}
    done = subprocess.run(command, capture_output=True, text=True)
    results = json.loads(done.stdout)["results"]
    assert done.returncode == 0 and len(results) == 2 * len(names)
    assert sum(result["status"] == "skipped" for result in results) == len(finished)
    by_hand = tmp_path / "hand"
    mqq("calibrate", tmp_path / "m00.onnx", "-b", "tensorrt", "--data", DATA["data"], "--preprocess", "half", "--out-dir", by_hand, "-q")
    for name in names:
        for ending in ("onnx", "json"):
            expected = (by_hand / f"m00.tensorrt.{ending}").read_bytes().replace(b"m00.onnx", f"{name}.onnx".encode())
            assert (out / f"{name}.tensorrt.{ending}").read_bytes() == expected


def test_a_signal_to_a_zoo_ends_the_runs_of_its_models(tmp_path):
    """CI systems send TERM to the one process that they started."""
    shutil.copy(ROOT / "fixtures" / "digits_cnn.onnx", tmp_path / "m.onnx")
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump({"defaults": {"backend": "tensorrt", "effort": 3, **DATA}}))
    run = subprocess.Popen([MQQ, "calibrate", tmp_path / "m.onnx", "--zoo", tmp_path / "zoo.yaml", "--out-dir", tmp_path / "out"])
    children = Path(f"/proc/{run.pid}/task")
    running = lambda: [child for task in children.glob("*/children") for child in task.read_text().split()]
    while not running():
        time.sleep(0.01)
    child = Path(f"/proc/{running()[0]}")
    time.sleep(0.2)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == -signal.SIGTERM
    for _ in range(500):
        if not child.exists() or "\nState:\tZ" in (child / "status").read_text():
            break
        time.sleep(0.01)
    else:
        raise AssertionError("the run of the model goes on")
    assert not list(tmp_path.glob("out/*.onnx"))


def test_a_signal_that_the_caller_ignores_stays_ignored(tmp_path):
    """As `nohup` has it."""
    command = [MQQ, "calibrate", ROOT / "fixtures" / "digits_cnn.onnx", "-b", "tensorrt", "--data", DATA["data"],
               "--preprocess", "half", "-o", tmp_path / "q.onnx"]
    ignored = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=ignored)
    while run.poll() is None:
        run.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    assert run.returncode == 0 and (tmp_path / "q.onnx").exists()


@pytest.mark.skipif(not MODELS, reason=f"no real models at {ZOO}")
def test_all_real_models_and_the_bad_ones(tmp_path):
    zoo = write_zoo(tmp_path, {"backend": "tensorrt", "effort": 0, "limit": 8})
    command = [MQQ, "calibrate", *MODELS, *BAD, "--zoo", zoo, "--out-dir", tmp_path / "out", "--memory", "2G"]
    junit = tmp_path / "junit.xml"
    done = subprocess.run([*command, "--junit", junit, "--json"], capture_output=True, text=True)
    report = json.loads(done.stdout)
    states = {result["model"].split("/")[-1].removesuffix(".onnx"): result["status"] for result in report["results"]}
    assert states == {path.stem: "ok" for path in MODELS} | {path.stem: "failed" for path in BAD}
    assert (done.returncode, done.stderr.count("error: ")) == (1, len(BAD))
    assert all(result["peak_bytes"] for result in report["results"])
    assert 0 < report["zoo"]["peak_bytes"] < report["zoo"]["memory_bytes"] == 2 << 30
    [suite] = ElementTree.parse(junit).getroot()
    assert (int(suite.get("tests")), int(suite.get("errors"))) == (len(MODELS + BAD), len(BAD))
    for result in report["results"]:
        if result["status"] == "ok":
            onnx.load(result["output"])
