"""What is written for ONNX Runtime loads and runs at each level of its optimizer, whatever attributes an operator has."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import mqq, run, save, sqnr_db

LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


def forms(axes, opset):
    """Nodes from `c` to `p`, with channels in place and `axes` axes behind them; and their constants."""
    ones, twos = [1] * axes, [2] * axes
    scales = lambda by: {"scales": np.array([1, 1] + [by] * axes, np.float32)}
    op = lambda name, inputs=("c",), **attributes: helper.make_node(name, inputs, ["p"], name="op", **attributes)
    for name in ("MaxPool", "AveragePool"):
        pool = lambda **attributes: op(name, kernel_shape=[3] * axes, **attributes)
        yield f"{name}", pool(), {}
        yield f"{name}-pads", pool(pads=ones * 2, strides=twos), {}
        yield f"{name}-ceil", pool(ceil_mode=1, strides=twos), {}
        yield f"{name}-same", pool(auto_pad="SAME_LOWER"), {}
        if name == "MaxPool" or opset >= 19:
            yield f"{name}-dilated", pool(dilations=twos), {}
            yield f"{name}-not-dilated", pool(dilations=ones), {}
    yield "AveragePool-counts-pads", op("AveragePool", kernel_shape=[3] * axes, pads=ones * 2, count_include_pad=1), {}
    yield "GlobalAveragePool", op("GlobalAveragePool"), {}
    for mode in ("nearest", "linear"):
        for by in (2, 0.5):
            yield f"Resize-{mode}-{by}", op("Resize", ("c", "", "scales"), mode=mode), scales(by)
    for name in ("Sigmoid", "LeakyRelu"):
        yield name, op(name), {}
    yield "Add", op("Add", ("c", "c")), {}
    yield "Mul", op("Mul", ("c", "x")), {}
    yield "Concat", op("Concat", ("c", "x"), axis=-1), {}
    yield "Transpose", op("Transpose", perm=[0, 1, *range(axes + 1, 1, -1)]), {}
    yield "Slice", op("Slice", ("c", "from", "to")), {"from": np.array([0, 0, 1]), "to": np.array([1, 4, 9])}
    yield "ConvTranspose", op("ConvTranspose", ("c", "w"), strides=twos, output_padding=ones), {}
    yield "Conv-dilated", op("Conv", ("c", "w"), dilations=twos, pads=twos * 2), {}


@pytest.mark.parametrize("opset", [13, 19, 21, 22])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_operator_of_the_table_loads_at_each_level(axes, opset, tmp_path):
    rng = np.random.default_rng(axes)
    x = rng.standard_normal([1, 4] + [16] * axes).astype(np.float32)
    w = rng.standard_normal([4, 4] + [3] * axes).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    for name, node, constants in forms(axes, opset):
        conv = lambda inputs, output: helper.make_node("Conv", inputs, [output], name=output, pads=[1] * axes * 2)
        tensors = [numpy_helper.from_array(value, name) for name, value in {"w": w, **constants}.items()]
        graph = helper.make_graph(
            [conv(["x", "w"], "c"), node, conv(["p", "w"], "y")], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        onnx.save(model, tmp_path / "m.onnx")
        mqq("calibrate", tmp_path / "m.onnx", "-b", "onnxruntime", "--data", tmp_path / "x.npy", "--effort", "0", "--threads", "1",
            "-o", tmp_path / "q.onnx", "-q")

        def output(path, level):
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
            options.intra_op_num_threads = 1
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]

        expected = output(tmp_path / "m.onnx", "ORT_DISABLE_ALL")
        for level in LEVELS:
            found = output(tmp_path / "q.onnx", level)
            error = np.square(found - expected).sum() / np.square(expected).sum()
            assert error < 0.05, (name, level, error)


def test_a_scale_is_shared_by_the_groups_of_a_transposed_convolution(tmp_path):
    """Upsampling by a ConvTranspose with a group for each channel, whose weight has one scale for all of them."""
    rng = np.random.default_rng(4)
    line = np.float32([0.25, 0.75, 0.75, 0.25])
    constants = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32) / 5, "up": np.tile(np.outer(line, line), (4, 1, 1, 1))}
    nodes = [("Conv", ["x", "w"], "a", {"pads": [1] * 4}), ("Relu", ["a"], "b", {}),
             ("ConvTranspose", ["b", "up"], "y", {"group": 4, "strides": [2, 2], "pads": [1] * 4})]
    save(tmp_path / "m.onnx", nodes, constants, {"x": (1, 3, 8, 8)})
    np.save(tmp_path / "x.npy", rng.standard_normal((32, 3, 8, 8)).astype(np.float32))
    samples = [{"x": one[None]} for one in np.load(tmp_path / "x.npy")]
    for backend, effort in (("openvino", 1), ("qnn-htp-a16", 1), ("esp-dl", 3), ("onnxruntime", 3)):
        mqq("calibrate", tmp_path / "m.onnx", "-b", backend, "--data", tmp_path / "x.npy", "--effort", effort, "--quiet",
            "-o", tmp_path / "q.onnx")
        assert sqnr_db(run(tmp_path / "m.onnx", samples)[0], run(tmp_path / "q.onnx", samples)[0]) > 25, backend


def test_outputs_that_depend_on_no_input(tmp_path):
    nodes = [("Conv", ["x", "w"], "c", {}), ("Shape", ["c"], "n_shape", {}), ("Cast", ["n_shape"], "s", {"to": 1}),
             ("MatMul", ["s", "v"], "y", {})]
    rng = np.random.default_rng(5)
    constants = {"w": rng.standard_normal((8, 3, 1, 1)).astype(np.float32), "v": rng.standard_normal((4, 8)).astype(np.float32)}
    save(tmp_path / "m.onnx", nodes, constants, {"x": (1, 3, 8, 8)})
    np.save(tmp_path / "x.npy", rng.standard_normal((24, 3, 8, 8)).astype(np.float32))
    mqq("calibrate", tmp_path / "m.onnx", "-b", "onnxruntime", "--data", tmp_path / "x.npy", "--quiet", "-o", tmp_path / "q.onnx")
