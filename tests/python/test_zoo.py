"""Real models that nobody here made, where they are at hand (MQQ_ZOO, or ../shared/zoo)."""

import subprocess

import numpy as np
import onnx
import pytest
from PIL import Image
from expected import hold_quantized
from support import MQQ, RESAVE, ZOO, mqq, run, session

MODELS = sorted((ZOO / "models").glob("*.onnx"))
BAD = sorted((ZOO / "models_bad").glob("*.onnx"))
# Shapes for what a model leaves open.
SHAPES = {
    "ppocrv3_det": {"x": (1, 3, 320, 320)},
    "byte_bidi_lstm": {"input": (1, 512)},
    "silero_vad_op18_ifless": {"input": (1, 512), "state": (2, 1, 128)},
}
# In dB and per cent. Of candidates that are as good on so few samples another may win by float rounding.
MARGIN = 4.0

pytestmark = [pytest.mark.real_models, pytest.mark.skipif(not MODELS, reason=f"no real models at {ZOO}")]


def text_image(file):
    """[1, 3, 320, 320], BGR, with ImageNet's mean and deviation."""
    image = Image.open(file).convert("RGB").resize((320, 320), Image.BILINEAR)
    pixels = np.asarray(image, np.float32)[:, :, ::-1] / 255
    pixels = (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    return pixels.transpose(2, 0, 1)[None].astype(np.float32)


def samples(path, n, seed):
    """Inputs of plausible values: smooth noise in the range that the model is used with."""
    if path.stem == "ppocrv3_det":
        # Noise holds no text: every output would be nearly 0.
        return [{"x": text_image(file)} for file in sorted((ZOO / "text").iterdir())[:n]]
    rng = np.random.default_rng(seed)
    given = SHAPES.get(path.stem, {})
    inputs = session(path, False).get_inputs()
    made = []
    for _ in range(n):
        sample = {}
        for x in inputs:
            shape = given.get(x.name) or tuple(d if isinstance(d, int) else 1 for d in x.shape)
            if x.type == "tensor(int64)":
                sample[x.name] = np.full(shape, 16000 if x.name == "sr" else 320, np.int64)
            elif x.type in ("tensor(int32)", "tensor(uint8)"):
                kind = np.int32 if "32" in x.type else np.uint8
                sample[x.name] = rng.integers(0, 256, shape).astype(kind)
            else:
                coarse = rng.standard_normal((*shape[:-2], *(max(d // 8, 1) for d in shape[-2:])))
                fine = np.repeat(np.repeat(coarse, 8, -2), 8, -1) if len(shape) > 2 else coarse
                fine = np.resize(fine, shape)
                scale = 60 if path.stem.startswith(("squeezenet", "yolox", "mlperf")) else 1
                sample[x.name] = (fine * scale).astype(np.float32)
        made.append(sample)
    return made


def shape_options(path):
    named = SHAPES.get(path.stem, {}).items()
    return [arg for name, s in named for arg in ("--shape", f"{name}={'x'.join(map(str, s))}")]


@pytest.mark.parametrize("path", MODELS + BAD, ids=lambda path: path.stem)
def test_loading_and_saving_changes_no_message(path, tmp_path):
    output = tmp_path / "again.onnx"
    subprocess.run([RESAVE, path, output], check=True)
    assert onnx.load(path, load_external_data=False) == onnx.load(output, load_external_data=False)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_preparing_leaves_the_outputs_alone(path, tmp_path):
    output = tmp_path / "prepared.onnx"
    mqq("prepare", path, "-b", "tensorrt", "-o", output)
    onnx.checker.check_model(str(output), full_check=True)
    data = samples(path, 2, 0)
    for expected, found in zip(run(path, data), run(output, data)):
        expected, found = expected.astype(np.float64), found.astype(np.float64)
        assert np.linalg.norm(expected - found) <= 1e-5 * np.linalg.norm(expected)
        # Single values of ppocrv3_det differ by as much between ONNX Runtime's own optimization levels.
        tolerance = 1e-4 if path.stem == "ppocrv3_det" else 1e-5
        assert np.abs(expected - found).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("backend", ["tensorrt", "onnxruntime"])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_quantized_model_runs_and_resembles_float(path, backend, tmp_path):
    data = samples(path, 6, 1)
    arrays = {k: np.stack([s[k] for s in data]) for k in data[0]}
    # One scalar for all samples, or one each.
    arrays = {k: v.reshape(-1) if v.ndim == 1 else v for k, v in arrays.items()}
    np.savez(tmp_path / "data.npz", **arrays)
    output = tmp_path / "quantized.onnx"
    mqq("calibrate", path, "-b", backend, "--data", tmp_path / "data.npz", "-o", output, "--quiet",
        *shape_options(path))
    onnx.checker.check_model(str(output), full_check=True)
    hold_quantized("zoo", (path.stem, backend, ""), run(path, data), output, data, margin=MARGIN)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_models_that_cannot_be_quantized_end_in_one_clear_error(path, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 224, 224), np.float32))
    output = tmp_path / "quantized.onnx"
    done = subprocess.run(
        [MQQ, "calibrate", path, "-b", "tensorrt", "--data", tmp_path / "x.npy", "-o", output],
        capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: `{path}`: ") and "panick" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy"]
