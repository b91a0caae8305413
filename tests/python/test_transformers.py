"""Transformers in the spellings of exporters: what is quantized of each, what is smoothed, and how near to float it stays."""

import functools
import json
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import transformers
from expected import hold_quantized
from support import MQQ, mqq, run, sqnr_db
from transformers import LAYERS, LENGTH, images, tokens, vectors

# Every model stays so near to float at least, in dB: with all methods of the default, or smoothing alone. What each reaches
# stands in expected/transformers.csv.
BACKENDS = {"onnxruntime": 25, "tensorrt": 20, "openvino": 20}
N_SAMPLES = 40
FOLDER = tempfile.TemporaryDirectory()
ids = functools.partial(tokens, mask=False)


class Model:
    """`build` writes it; `samples` makes so many samples; `layers`: in each block those with a constant weight, `ends`
    those outside of the blocks; `smoothed`: groups of their inputs, and those of them behind an inserted Mul."""

    def __init__(self, build, samples, scope, layers, ends, smoothed, n_blocks=LAYERS):
        self.build, self.samples, self.smoothed, self.ends = build, samples, smoothed, set(ends)
        self.layers = {f"{scope}{k}/{layer}" for k in range(n_blocks) for layer in layers.split()} | self.ends


BLOCK, OF_LLAMA = "query key value output up down", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"


def bert(*spelling):
    # What a norm makes goes into the next residual Add, too.
    return Model(lambda path: transformers.bert(path, *spelling), tokens, "layer.", BLOCK, ["pooler"], (9, 9))


def vit(*spelling, layers=BLOCK):
    # Behind attention, GELU and the Gather of the class token nothing else takes scales up.
    return Model(lambda path: transformers.vit(path, *spelling), images, "blocks.", layers, ["head"], (9, 5))


def llama(operators):
    return Model(lambda path: transformers.llama(path, operators), ids, "layers.", OF_LLAMA, ["lm_head"], (9, 4))


MODELS = {
    "BERT, opset 11": bert(11, "spelled", "tanh", "additive"),
    "BERT, opset 17": bert(17, "operator", "erf, divided", "where"),
    "ViT, opset 11": vit(11, "spelled", "sigmoid", False),
    "ViT, opset 20": vit(20, "operator", "operator", True, layers="qkv output up down"),
    "Swin": Model(transformers.swin, images, "blocks.", "qkv output up down", ["head"], (9, 5)),
    "LLaMA, opset 17": llama(operators=False),
    "LLaMA, opset 23": llama(operators=True),
    "com.microsoft": Model(functools.partial(transformers.microsoft, whole=False), tokens, "layer.", BLOCK, ["pooler"],
                           (13, 13), n_blocks=3),
    "Gemm": Model(transformers.flattened, vectors, "layer.", BLOCK, ["embed"], (9, 5)),
    "indirect weights": Model(transformers.indirect, vectors, "layer.", BLOCK, [], (8, 4)),
}


@functools.cache
def written(name):
    """The float model, and options for mqq with its samples."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
    path, model = folder / "float.onnx", MODELS[name]
    model.build(path)
    samples = model.samples(N_SAMPLES)
    np.savez(folder / "samples.npz", **samples)
    shape = lambda array: "x".join(map(str, (1, *array.shape[1:])))
    shapes = [x for key, array in samples.items() for x in ("--shape", f"{key}={shape(array)}")]
    return path, ["--data", folder / "samples.npz", *shapes]


@functools.cache
def quantized(name, backend):
    """The quantized model and what became of each method; smoothing alone but for ONNX Runtime."""
    path, options = written(name)
    output = path.with_name(f"{backend}.onnx")
    methods = [] if backend == "onnxruntime" else ["--methods", "smooth"]
    report = json.loads(mqq("calibrate", path, "-b", backend, *options, "-o", output, "--json", *methods))
    (result,) = report["results"]
    assert not result["summary"]["warnings"]
    return output, result["summary"]["methods"]


def readers_of_integers(path):
    """Nodes that read what a DequantizeLinear makes."""
    nodes = onnx.load(path).graph.node
    made = {output for node in nodes if node.op_type == "DequantizeLinear" for output in node.output}
    return {node.name for node in nodes if node.op_type != "DequantizeLinear" and made & set(node.input)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_layers_with_a_constant_weight_read_integers_and_nothing_else_does(name, backend):
    """So outputs, residual Adds, norms, GELU, Softmax, both products of attention and the embedding of patches stay float."""
    path, _ = quantized(name, backend)
    onnx.checker.check_model(str(path))
    expected = MODELS[name].layers
    if backend == "tensorrt":
        # It leaves products of one row, and of fewer than 16 columns, float.
        expected = expected - (MODELS[name].ends - {"lm_head", "embed"})
    assert readers_of_integers(path) == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_quantized_transformers_stay_near_to_float(name, backend):
    """Calibrated with one sample at a time, run with others in a batch."""
    path, _ = quantized(name, backend)
    batch = [{key: array[N_SAMPLES:] for key, array in MODELS[name].samples(2 * N_SAMPLES).items()}]
    expected = run(written(name)[0], batch)
    assert all(sqnr_db(a, b) > BACKENDS[backend] for a, b in zip(expected, run(path, batch)))
    hold_quantized("transformers", (name, backend, ""), expected, path, batch)


@pytest.mark.parametrize("name", MODELS)
def test_inputs_of_layers_are_smoothed_by_norms_where_these_feed_nothing_else(name):
    _, methods = quantized(name, "onnxruntime")
    (details,) = [entry["details"] for entry in methods if entry["method"] == "smooth" and entry["accepted"]]
    words = details[0].split()
    groups, muls = int(words[0]), int(words[words.index("Muls") - 1])
    assert (groups, muls) == MODELS[name].smoothed, details


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].samples in (tokens, ids)])
def test_sequences_of_other_lengths_run(name):
    path, _ = quantized(name, "onnxruntime")
    batch = [{key: array[:3, :LENGTH // 2] for key, array in MODELS[name].samples(N_SAMPLES).items()}]
    for expected, found in zip(run(written(name)[0], batch), run(path, batch, optimized=True)):
        assert sqnr_db(expected, found) > 18


def inspected(path, *shapes):
    return json.loads(mqq("inspect", path, "-b", "onnxruntime", *shapes, "--json"))


def test_inspect_says_why_the_rest_stays_float():
    path, (_, _, *shapes) = written("BERT, opset 11")
    reasons = {node["node"]: node["reason"] for node in inspected(path, *shapes)["placement"]["float_nodes"]}
    for node in ("layer.0/scores", "layer.0/mixed"):
        assert reasons[node].startswith("part of a transformer"), reasons[node]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Embedding and attention as one operator each."""
    path = tmp_path_factory.mktemp("whole") / "float.onnx"
    transformers.microsoft(path, whole=True)
    return path


def test_operators_that_the_engine_lacks_are_named(whole):
    shapes = [x for name in ("input_ids", "attention_mask") for x in ("--shape", f"{name}=1x{LENGTH}")]
    np.savez(whole.with_name("samples.npz"), **tokens(4))
    done = subprocess.run([MQQ, "calibrate", whole, "-b", "onnxruntime", "--data", whole.with_name("samples.npz"), *shapes,
                           "-o", whole.with_name("out.onnx")], capture_output=True, text=True)
    assert done.returncode == 1 and not whole.with_name("out.onnx").exists()
    seen = inspected(whole, *shapes)
    for message in (done.stderr, seen["engine_error"]):
        assert "EmbedLayerNormalization (1" in message and "com.microsoft.Attention (3" in message, message
    found = {node["node"] for node in seen["placement"]["quantized_nodes"]}
    assert found == {f"layer.{k}/{name}" for k in range(3) for name in ("output", "up", "down")} | {"pooler"}


@pytest.mark.parametrize("backend, least", [("onnxruntime-dynamic", 20), ("onnxruntime-nbits", 10), ("weight-only-int8", 28)])
def test_fused_operators_stay_as_they_are_where_no_data_are_needed(whole, backend, least):
    output = whole.with_name(f"{backend}.onnx")
    mqq("calibrate", whole, "-b", backend, "-o", output, "--quiet")
    fused = lambda path: Counter(node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"
                                 and node.op_type != "MatMulNBits")
    assert fused(output) == fused(whole) and fused(whole).total() == 13
    batch = [tokens(N_SAMPLES)]
    for expected, found in zip(run(whole, batch), run(output, batch, optimized=True)):
        assert sqnr_db(expected, found) > least
        assert sqnr_db(expected, found) < 80
