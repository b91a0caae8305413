"""Saved statistics: read without mqq, against NumPy; killed runs that go on; `solve` on real networks."""

import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from support import MQQ, ROOT, ZOO, digits, mqq

MODEL = ROOT / "fixtures" / "digits_cnn.onnx"
DATA = ["--data", ROOT / "calib_data" / "calib", "--preprocess", "half"]
DTYPES = {"U8": np.uint8, "U64": np.uint64, "F32": np.float32}


def read(path):
    """The text and the arrays of a file."""
    content = path.read_bytes()
    n = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + n])
    text = json.loads(header.pop("__metadata__")["mqq_statistics"])
    arrays = {}
    for name, array in header.items():
        start, end = array["data_offsets"]
        values = np.frombuffer(content[8 + n + start : 8 + n + end], DTYPES[array["dtype"]])
        arrays[name] = values.reshape(array["shape"])
    return text, arrays


def numbers(leb128):
    value = shift = 0
    for byte in leb128.tolist():
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


def histogram(counts):
    """Bins, the upper 17 bits of their float32 values, with their counts."""
    pairs = list(numbers(counts))
    bins = np.cumsum(pairs[::2]) - 1
    return dict(zip(bins.tolist(), pairs[1::2]))


def test_the_file_is_read_without_mqq(tmp_path):
    path = tmp_path / "s.mqqs"
    mqq("calibrate", MODEL, "-b", "snpe", *DATA, "--effort", 0, "--save-stats", path, "-o", tmp_path / "m.onnx", "-q")
    text, arrays = read(path)
    samples, _ = digits("calib")
    values = np.stack([sample["input"] for sample in samples])
    bits = np.where(values == 0, 0, values).view(np.uint32) >> 15
    assert histogram(arrays["input@0/counts"]) == dict(zip(*(a.tolist() for a in np.unique(bits, return_counts=True))))
    assert arrays["input@0/extremes"].tolist() == [values.min(), values.max()]
    assert (text["format"], text["model"]["file"], text["n_listed"]) == (1, MODEL.name, 100)
    # Extremes by sample, for a moving average.
    [model] = text["models"]
    of_input = arrays["batches/0"][:, model["averaged"].index("input")]
    expected = np.stack([values.min(axis=(1, 2, 3, 4)), values.max(axis=(1, 2, 3, 4))], axis=1)
    assert sorted(of_input.tolist()) == sorted(expected.tolist())
    assert len(arrays["samples"]) == 100 and (np.diff(arrays["samples"].astype(object)) > 0).all()


@pytest.mark.parametrize(
    ("backend", "extra"), [("tensorrt", []), ("snpe", ["--effort", 0]), ("tensorrt", ["--methods", "bias"])]
)
def test_saving_changes_nothing(tmp_path, backend, extra):
    without, saving = tmp_path / "without.onnx", tmp_path / "saving.onnx"
    mqq("calibrate", MODEL, "-b", backend, *DATA, *extra, "-o", without, "-q")
    mqq("calibrate", MODEL, "-b", backend, *DATA, *extra, "-o", saving, "-q", "--save-stats", tmp_path / "s.mqqs")
    for ending in (".onnx", ".json"):
        assert without.with_suffix(ending).read_bytes() == saving.with_suffix(ending).read_bytes()


def test_a_killed_shard_goes_on(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for i in range(2000):
        (data / f"{i:05}.png").symlink_to(sorted((ROOT / "calib_data" / "calib").iterdir())[i % 100])
    command = ["calibrate", MODEL, "-b", "mqbench-tensorrt", "--data", data, "--preprocess", "half", "--shard", "1/2"]
    whole, part = tmp_path / "whole.mqqs", tmp_path / "part.mqqs"
    mqq(*command, "--save-stats", whole)
    n_killed = 0
    for _ in range(20):
        run = subprocess.Popen([MQQ, *map(str, command), "--save-stats", part, "--resume", "-q"])
        before = part.read_bytes() if part.exists() else b""
        while run.poll() is None and (not part.exists() or part.read_bytes() == before):
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
        n_killed += run.wait() == -signal.SIGKILL
        if "n_done" not in json.dumps(read(part)[0]):
            break
    assert n_killed > 0
    mqq(*command, "--save-stats", part, "--resume")
    assert part.read_bytes() == whole.read_bytes()


# Preprocessing by the networks' own recipes; few images, as each table is run in full as well.
ZOO_CASES = [
    ("mobilenetv1_025_imagenet_bn", "imagenet/calib", "imagenet", ["tensorrt", "openvino", "qnn-htp", "mqbench-tensorrt"]),
    ("mlperf_resnet8_cifar10", "cifar10/calib", "half", ["onnxruntime", "xint8-a16", "snpe", "tflite"]),
    ("ultraface_rfb320", "faces", "half", ["tensorrt-nlp", "vitis", "onnxruntime-dynamic", "rknn"]),
]
OBSERVERS = ["max", "mse", "percentile:99.9", "entropy", "ema:0.9:4"]


@pytest.mark.parametrize(("model", "data", "preprocess", "backends"), ZOO_CASES)
def test_solve_is_a_full_run_on_real_networks(tmp_path, model, data, preprocess, backends):
    if not ZOO.exists():
        pytest.skip("the zoo is not there")
    path = ZOO / "models" / f"{model}.onnx"
    data = ["--data", ZOO / data, "--preprocess", preprocess, "--limit", 12, "--effort", 0]
    statistics = tmp_path / "s.mqqs"
    collect = ["calibrate", path, "-b", backends[0], *data, "--for", ",".join(backends), "--observer", "ema"]
    mqq(*collect, "--save-stats", statistics, "-o", tmp_path / "unused.onnx", "-q")
    cases = [(backend, []) for backend in backends]
    cases += [(backends[0], ["--observer", observer]) for observer in OBSERVERS]
    for backend, extra in cases:
        full, solved = tmp_path / "full.onnx", tmp_path / "solved.onnx"
        mqq("calibrate", path, "-b", backend, *data, *extra, "-o", full, "-q")
        mqq("solve", path, "-b", backend, "--stats", statistics, *extra, "-o", solved, "-q")
        for ending in (".onnx", ".json"):
            assert full.with_suffix(ending).read_bytes() == solved.with_suffix(ending).read_bytes(), (backend, extra)


@pytest.mark.skipif(not ZOO.exists(), reason="the zoo is not there")
def test_shards_of_a_real_network_are_one_run(tmp_path):
    path = ZOO / "models" / "ultraface_rfb320.onnx"
    command = ["calibrate", path, "-b", "tensorrt-nlp", "--for", "all", "--preprocess", "half", "--limit", 12]
    # Another machine has the images in another folder.
    copied = tmp_path / "elsewhere"
    shutil.copytree(ZOO / "faces", copied)
    parts = []
    for i, data in enumerate([ZOO / "faces", copied, ZOO / "faces"]):
        parts.append(tmp_path / f"{i}.mqqs")
        mqq(*command, "--data", data, "--save-stats", parts[-1], "--shard", f"{i}/3")
    whole, merged = tmp_path / "whole.mqqs", tmp_path / "merged.mqqs"
    unused = tmp_path / "unused.onnx"
    mqq(*command, "--data", ZOO / "faces", "--save-stats", whole, "--effort", 0, "-o", unused, "-q")
    mqq("stats", "merge", parts[1], parts[2], parts[0], "-o", merged)
    assert whole.read_bytes() == merged.read_bytes()
