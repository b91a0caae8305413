"""The Python package: arrays in, the program's report or its error out. `make test-install` has it from a wheel."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support import MQQ, ROOT, digits, fixture, save

sys.path.insert(0, str(ROOT / "python"))
import mqq  # noqa: E402

MODEL = fixture("digits_cnn")


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """The program under test, alone on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mqq").symlink_to(MQQ.resolve())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(mqq.sysconfig, "get_path", lambda *_: str(tmp_path / "none"))


def samples(n=20):
    return [sample["input"] for sample in digits("calib")[0][:n]]


def test_arrays_dicts_batches_and_files_give_the_same_model(tmp_path):
    arrays = samples()
    np.save(tmp_path / "all.npy", np.concatenate(arrays))
    spellings = [
        (array for array in arrays),
        [array[0] for array in arrays],
        ({"input": np.concatenate(arrays[k : k + 5])} for k in range(0, 20, 5)),
        {"input": np.concatenate(arrays)},
        np.concatenate(arrays),
        tmp_path / "all.npy",
        [str(tmp_path / "all.npy")],
    ]
    models = set()
    for k, data in enumerate(spellings):
        report = mqq.calibrate(MODEL, "tensorrt", data, output=tmp_path / f"{k}.onnx", effort=0)
        assert (report["status"], report["summary"]["n_samples"]) == ("ok", 20)
        models.add((tmp_path / f"{k}.onnx").read_bytes())
    assert len(models) == 1


def test_torch_tensors_of_a_loader(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(array, requires_grad=True) for array in samples()]
    report = mqq.calibrate(MODEL, "tensorrt", tensors, output=tmp_path / "m.onnx", effort=0)
    assert report["summary"]["n_samples"] == 20


def test_what_detaches_itself_is_taken_from_its_device(tmp_path):
    class Tensor:
        """As a tensor on a GPU: no array before it is copied."""

        def __init__(self, array, at_home=False):
            self.array, self.at_home = array, at_home

        def detach(self):
            return self

        def cpu(self):
            return Tensor(self.array, at_home=True)

        def __array__(self, *_, **__):
            assert self.at_home
            return self.array

    tensors = [Tensor(array) for array in samples()]
    report = mqq.calibrate(MODEL, "tensorrt", tensors, output=tmp_path / "m.onnx", effort=0)
    assert report["summary"]["n_samples"] == 20


def test_several_inputs(tmp_path):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    save(tmp_path / "two.onnx", [("Concat", ["a", "b"], "c", {"axis": 1}), ("MatMul", ["c", "w"], "y", {})],
         {"w": draw(12, 6)}, {"a": (1, 8), "b": (1, 4)})
    data = ({"a": draw(1, 8), "b": draw(1, 4)} for _ in range(8))
    report = mqq.calibrate(tmp_path / "two.onnx", "onnxruntime", data, effort=0)
    assert report["output"] == str(tmp_path / "two.onnxruntime.onnx")
    assert report["summary"]["n_samples"] == 8


def test_a_backend_without_data(tmp_path):
    report = mqq.calibrate(MODEL, "weight-only-int8", output=tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").is_file() and report["status"] == "ok"


def test_several_backends_have_a_result_each(tmp_path):
    backends = ["tensorrt", "openvino", "onnxruntime"]
    reports = mqq.calibrate(MODEL, backends, samples(), out_dir=tmp_path / "several", effort=0)
    assert [report["backend"] for report in reports] == backends
    for backend, report in zip(backends, reports):
        alone = mqq.calibrate(MODEL, backend, samples(), output=tmp_path / f"{backend}.onnx", effort=0)
        assert isinstance(alone, dict) and (alone["backend"], alone["status"]) == (backend, report["status"])
        assert Path(report["output"]).read_bytes() == (tmp_path / f"{backend}.onnx").read_bytes()
    [only] = mqq.calibrate(MODEL, ["tensorrt"], samples(), output=tmp_path / "only.onnx", effort=0)
    assert only["output"] == str(tmp_path / "only.onnx")
    with pytest.raises(mqq.MqqError, match="--output names one file") as caught:
        mqq.calibrate(MODEL, backends, samples(), output=tmp_path / "m.onnx", effort=0)
    assert caught.value.code == 2
    for wrong in [[], "tensorrt,openvino", ["tensorrt,openvino"]]:
        with pytest.raises(ValueError, match="backend is"):
            mqq.calibrate(MODEL, wrong, samples())


def test_options_are_those_of_the_command_line():
    options = {"no_insert": True, "strict": False, "limit": None, "exclude": ["Gemm", "head*"], "mean": -0.5}
    found = [argument for name, value in options.items() for argument in mqq._option(name, value)]
    assert found == ["--no-insert", "--exclude=Gemm", "--exclude=head*", "--mean=-0.5"]


def test_the_error_of_the_program_with_its_hint(tmp_path):
    with pytest.raises(mqq.MqqError, match="`tensorrrt` is unknown(.*\n)*hint: did you mean `tensorrt`") as caught:
        mqq.calibrate(MODEL, "tensorrrt", samples())
    assert (caught.value.code, caught.value.hint) == (2, "did you mean `tensorrt`?")
    with pytest.raises(mqq.MqqError, match="--target-sqnr 99 was not reached") as caught:
        mqq.calibrate(MODEL, "tensorrt", samples(), output=tmp_path / "m.onnx", effort=0, target_sqnr=99)
    assert (caught.value.code, caught.value.place) == (3, str(MODEL))
    assert "mixed_precision" in caught.value.report["results"][0]
    with pytest.raises(ValueError, match="no items"):
        mqq.calibrate(MODEL, "tensorrt", [])


def test_warnings_of_the_program_are_python_s(tmp_path):
    with pytest.warns(UserWarning, match="1 sample"):
        mqq.calibrate(MODEL, "tensorrt", samples(1), output=tmp_path / "m.onnx")


def test_compare_returns_figures_and_the_gates_that_were_missed(tmp_path):
    mqq.calibrate(MODEL, "tensorrt", samples(), output=tmp_path / "m.onnx", effort=0)
    report = mqq.compare(MODEL, tmp_path / "m.onnx", samples(), fail_under=["agreement=50", "overlap=0.9999"])
    assert report["outputs"][0]["metrics"]["agreement"] == 100
    assert [missed["metric"] for missed in report["missed"]] == ["overlap"]
    assert mqq.compare(MODEL, tmp_path / "m.onnx", samples())["missed"] == []


def test_a_program_that_dies_or_is_missing_is_an_error(tmp_path):
    (tmp_path / "bin" / "mqq").unlink()
    with pytest.raises(FileNotFoundError, match="neither in .* nor on the path"):
        mqq.calibrate(MODEL, "tensorrt", samples())
    (tmp_path / "bin" / "mqq").write_text("#!/bin/sh\necho no disk >&2\nexit 9\n")
    (tmp_path / "bin" / "mqq").chmod(0o755)
    with pytest.raises(mqq.MqqError, match="no disk") as caught:
        mqq.calibrate(MODEL, "tensorrt", samples())
    assert caught.value.code == 9


def test_memory_stays_flat(tmp_path):
    tracemalloc.start()
    mqq._paths((np.zeros((1, 256, 1024), np.float32) for _ in range(64)), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20, "64 items of 1 MiB"


def test_python_m_mqq_is_the_program(tmp_path):
    env = {"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = lambda *args: subprocess.run([sys.executable, "-m", "mqq", *args], env=env, capture_output=True, text=True)
    assert ran("--version").stdout == subprocess.run([MQQ, "--version"], capture_output=True, text=True).stdout
    assert ran("backends", "no-such").returncode == 2
