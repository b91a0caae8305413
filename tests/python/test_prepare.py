"""Small graphs of old opsets: `mqq prepare` must leave their outputs as ONNX Runtime computes them."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import mqq, session

RNG = np.random.default_rng(7)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(opset, nodes, constants=(), shape=(1, 4, 6, 6), outputs=("y",), types=None):
    """A graph from input x to `outputs`; nodes are (op, inputs, outputs, attributes)."""
    made = [helper.make_node(op, list(i), list(o), name=f"{op}_{n}", **a)
            for n, (op, i, o, a) in enumerate(nodes)]
    types = types or {}
    graph = helper.make_graph(
        made, "test", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(o, types.get(o, TensorProto.FLOAT), None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in dict(constants).items()])
    # Shape inference fills in the outputs' shapes.
    return onnx.shape_inference.infer_shapes(helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6 if opset < 14 else 8))


def norm(x, y, name, channels):
    """A BatchNormalization node and its parameters."""
    parameters = {f"{name}.{k}": floats(channels) for k in ("gamma", "beta", "mean")}
    parameters[f"{name}.var"] = np.abs(floats(channels)) + 0.1
    return ("BatchNormalization", [x, *parameters], [y], {}), parameters


I64 = {"indices": TensorProto.INT64}

UPGRADES = {
    "upsample 7": model(7, [("Upsample", ["x"], ["y"], {"mode": "nearest", "scales": [1.0, 1, 2, 3]})]),
    "upsample 9": model(9, [("Upsample", ["x", "s"], ["y"], {"mode": "linear"})],
                        {"s": np.float32([1, 1, 2, 2])}),
    "resize 10": model(10, [("Resize", ["x", "s"], ["y"], {"mode": "nearest"})],
                       {"s": np.float32([1, 1, 2, 2])}),
    "resize 10 down": model(10, [("Resize", ["x", "s"], ["y"], {"mode": "nearest"})],
                            {"s": np.float32([1, 1, 0.6, 0.7])}),
    "clip": model(10, [("Clip", ["x"], ["a"], {"min": -0.5}), ("Clip", ["a"], ["y"], {"max": 0.25})]),
    "pad": model(9, [("Pad", ["x"], ["y"], {"pads": [0, 0, 1, 0, 0, 0, 2, 1], "value": 0.5})]),
    "slice": model(9, [("Slice", ["x"], ["y"], {"starts": [1, -4], "ends": [3, 100], "axes": [1, 3]})]),
    "topk": model(9, [("TopK", ["x"], ["y", "indices"], {"k": 3, "axis": -1})],
                  outputs=("y", "indices"), types=I64),
    "topk 10": model(10, [("TopK", ["x", "k"], ["y", "indices"], {"axis": 3})], {"k": np.int64([2])},
                     outputs=("y", "indices"), types=I64),
    "squeeze": model(9, [("Unsqueeze", ["x"], ["a"], {"axes": [0, 3]}),
                         ("Squeeze", ["a"], ["y"], {"axes": [3]})]),
    "squeeze all": model(9, [("Squeeze", ["x"], ["y"], {})]),
    "reduce": model(9, [("ReduceSum", ["x"], ["a"], {"axes": [2], "keepdims": 1}),
                        ("ReduceMean", ["a"], ["b"], {"axes": [3]}), ("ReduceMax", ["b"], ["y"], {})]),
    "split": model(9, [("Split", ["x"], ["a", "b"], {"axis": 1, "split": [1, 3]}),
                       ("Split", ["b"], ["c", "d", "e"], {"axis": 1}), ("Add", ["d", "a"], ["y"], {})]),
    "softmax matrix": model(9, [("Softmax", ["x"], ["y"], {})]),
    "softmax last": model(11, [("Softmax", ["x"], ["a"], {"axis": 3}),
                               ("LogSoftmax", ["a"], ["y"], {"axis": -1})]),
    "hardmax": model(9, [("Hardmax", ["x"], ["y"], {"axis": 2})]),
    "dropout": model(10, [("Dropout", ["x"], ["a", "mask"], {"ratio": 0.3}),
                          ("Relu", ["a"], ["b"], {}), ("Dropout", ["b"], ["y"], {})]),
    "scatter": model(9, [("Scatter", ["x", "i", "u"], ["y"], {"axis": 1})],
                     {"i": np.int64([[[[2]]]]), "u": np.float32([[[[9]]]])}),
    "gridsample": model(16, [("GridSample", ["x", "g"], ["y"], {"mode": "bilinear"})],
                        {"g": RNG.uniform(-1, 1, (1, 5, 5, 2)).astype(np.float32)}),
    "roialign": model(10, [("RoiAlign", ["x", "r", "b"], ["y"], {"output_height": 2, "output_width": 2})],
                      {"r": np.float32([[0, 0, 4, 4]]), "b": np.int64([0])}),
}


def check(before, tmp_path, opset):
    source, output = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.checker.check_model(before, full_check=True)
    onnx.save(before, source)
    mqq("prepare", source, "-b", "tensorrt", "--opset", opset, "-o", output)
    onnx.checker.check_model(str(output), full_check=True)
    x = {"x": floats(*[d.dim_value or 3 for d in before.graph.input[0].type.tensor_type.shape.dim])}
    for expected, found in zip(session(source, False).run(None, x), session(output, False).run(None, x)):
        assert expected.shape == found.shape
        assert np.abs(expected - found).max() <= 1e-5 * max(np.abs(expected).max(), 1e-30)
    return onnx.load(output)


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("name", UPGRADES)
def test_upgraded_graph_computes_the_same(name, opset, tmp_path):
    before = UPGRADES[name]
    opset = max(opset, before.opset_import[0].version)
    after = check(before, tmp_path, opset)
    assert after.opset_import[0].version == opset
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]


def count(proto, op):
    return sum(node.op_type == op for node in proto.graph.node)


def test_normalization_folds_where_that_is_exact(tmp_path):
    (n1, p1), (n2, p2), (n3, p3) = norm("c", "n", "n", 8), norm("t", "m", "m", 6), norm("g", "y", "k", 5)
    nodes = [("Conv", ["x", "w"], ["c"], {"group": 2}), n1,
             ("ConvTranspose", ["n", "v"], ["t"], {"group": 2, "strides": [2, 2]}), n2,
             ("Flatten", ["m"], ["f"], {}), ("Gemm", ["f", "u", "b"], ["g"], {}), n3]
    constants = {"w": floats(8, 2, 3, 3), "v": floats(8, 3, 2, 2), "u": floats(6 * 64, 5),
                 "b": floats(5), **p1, **p2, **p3}
    after = check(model(13, nodes, constants), tmp_path, 13)
    assert count(after, "BatchNormalization") == 0
    assert len(after.graph.initializer) == 6


def test_normalization_stays_where_it_is_not(tmp_path):
    after_relu, p1 = norm("r", "a", "n", 4)
    nodes = [("Conv", ["x", "w"], ["c"], {}), ("Relu", ["c"], ["r"], {}), after_relu]
    two_readers, p2 = norm("d", "b", "m", 4)
    nodes += [("Conv", ["a", "w2"], ["d"], {}), two_readers, ("Add", ["d", "b"], ["y"], {})]
    constants = {"w": floats(4, 4, 1, 1), "w2": floats(4, 4, 1, 1), **p1, **p2}
    assert count(check(model(13, nodes, constants), tmp_path, 13), "BatchNormalization") == 2


def test_a_column_added_by_gemm_is_no_bias_per_channel(tmp_path):
    norm_node, parameters = norm("g", "y", "n", 4)
    nodes = [("Gemm", ["x", "u", "column"], ["g"], {}), norm_node]
    constants = {"u": floats(6, 4), "column": floats(4, 1), **parameters}
    after = check(model(13, nodes, constants, shape=(4, 6)), tmp_path, 13)
    assert count(after, "BatchNormalization") == 1


def test_weights_that_others_use_are_copied(tmp_path):
    folded, parameters = norm("c", "n", "n", 4)
    nodes = [("Conv", ["x", "w", "b"], ["c"], {}), folded, ("Conv", ["n", "w", "b"], ["y"], {})]
    constants = {"w": floats(4, 4, 1, 1), "b": floats(4), **parameters}
    after = check(model(13, nodes, constants), tmp_path, 13)
    assert count(after, "BatchNormalization") == 0
    names = {t.name for t in after.graph.initializer}
    assert names == {"w", "b", "w_folded", "b_folded"}


def test_a_weight_that_only_folded_layers_share_does_not_stay(tmp_path):
    (n1, p1), (n2, p2) = norm("c", "n", "n", 4), norm("d", "y", "m", 4)
    nodes = [("Conv", ["x", "w", "b"], ["c"], {}), n1, ("Conv", ["n", "w", "b"], ["d"], {}), n2]
    after = check(model(13, nodes, {"w": floats(4, 4, 1, 1), "b": floats(4), **p1, **p2}), tmp_path, 13)
    assert len(after.graph.initializer) == 4
    assert not {"w", "b"} & {t.name for t in after.graph.initializer}


def test_constants_wherever_they_hide(tmp_path):
    value = numpy_helper.from_array(floats(4, 4, 1, 1))
    nodes = [("Constant", [], ["w0"], {"value": value}), ("Identity", ["w0"], ["w1"], {}),
             ("Cast", ["w1"], ["w2"], {"to": TensorProto.FLOAT}), ("Conv", ["x", "w2", "b"], ["y"], {})]
    proto = model(9, nodes, {"b": floats(4)})
    proto.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    after = check(proto, tmp_path, 13)
    assert [node.op_type for node in after.graph.node] == ["Conv"]
    assert {t.name for t in after.graph.initializer} == {"w0", "b"}
    assert [i.name for i in after.graph.input] == ["x"]


def test_a_shape_that_a_node_asks_for_keeps_no_normalization(tmp_path):
    folded, parameters = norm("c", "y", "n", 4)
    nodes = [("Conv", ["x", "w"], ["c"], {}), ("Shape", ["c"], ["shape"], {}), folded]
    constants = {"w": floats(4, 4, 1, 1), **parameters}
    before = model(13, nodes, constants, outputs=("y", "shape"), types={"shape": TensorProto.INT64})
    assert [node.op_type for node in check(before, tmp_path, 13).graph.node] == ["Conv", "Shape"]


def test_a_node_with_constant_inputs_is_folded(tmp_path):
    """A constant that others read stays beside it; nodes that make outputs, and random ones, stay."""
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0])
    nodes = [("Transpose", ["table"], ["w"], {}), ("MatMul", ["x", "w"], ["a"], {}),
             ("Gather", ["table", "ids"], ["rows"], {}), ("MatMul", ["a", "table"], ["y3"], {}),
             ("Split", ["cube"], ["first", "middle", "last"], {"axis": 0}), ("Sub", ["last", "first"], ["d"], {}),
             ("MatMul", ["x", "d"], ["e"], {}), ("Transpose", ["v"], ["z"], {}),
             ("Shape", ["v"], ["size"], {}), ("ConstantOfShape", ["size"], ["zeros"], {"value": zero}),
             ("ReduceMax", ["zeros"], ["nothing"], {"axes": [0, 1], "keepdims": 0}), ("Add", ["e", "nothing"], ["y"], {}),
             ("ConstantOfShape", ["big"], ["y4"], {}), ("ConstantOfShape", ["big"], ["many"], {}),
             ("Shape", ["many"], ["y5"], {}), ("RandomNormalLike", ["v"], ["noise"], {"seed": 1.0}),
             ("Shape", ["noise"], ["y6"], {}), ("ReduceSum", ["rows"], ["y2"], {})]
    constants = {"table": floats(5, 6), "v": floats(5, 6), "ids": np.int64([2]),
                 "cube": floats(18, 5), "big": np.int64([600, 600])}
    types = {"y5": TensorProto.INT64, "y6": TensorProto.INT64}
    before = model(13, nodes, constants, outputs=("y", "z", "y2", "y3", "y4", "y5", "y6"), types=types)
    after = check(before, tmp_path, 13)
    left = [node.op_type for node in after.graph.node]
    counts = {op: left.count(op) for op in ("Split", "Sub", "ReduceMax", "Transpose", "ConstantOfShape", "Gather", "Shape")}
    assert counts == {"Split": 0, "Sub": 0, "ReduceMax": 0, "Transpose": 1, "ConstantOfShape": 2, "Gather": 0, "Shape": 2}
    assert left.count("RandomNormalLike") == 1
    stored = {t.name for t in after.graph.initializer}
    assert {"table", "w", "d", "nothing", "rows"} < stored and not stored & {"cube", "first", "last", "size", "many"}


@pytest.mark.parametrize("opset, upgraded", [(9, 13), (13, 13), (13, 17), (17, 17)])
def test_a_weight_that_is_normalized_by_its_own_statistics_is_folded(opset, upgraded, tmp_path):
    """NFNets standardize their weights by a BatchNormalization in training mode, which outputs mean up to opset 13."""
    training = {"training_mode": 1} if opset > 13 else {}
    statistics = ["mean", "variance"] if opset > 13 else ["mean", "variance", "saved mean", "saved variance"]
    nodes = [("Reshape", ["w", "row"], ["r"], {}),
             ("BatchNormalization", ["r", "gain", "shift", "zeros", "ones"], ["n", *statistics], {"epsilon": 1e-6, **training}),
             ("Reshape", ["n", "back"], ["v"], {}), ("Conv", ["x", "v"], ["y"], {})]
    constants = {"w": floats(8, 4, 3, 3) * 2 + 1, "row": np.int64([1, 8, -1]), "back": np.int64([8, 4, 3, 3]),
                 "gain": np.abs(floats(8)) + 0.1, "shift": floats(8), "zeros": np.zeros(8, np.float32), "ones": np.ones(8, np.float32)}
    after = check(model(opset, nodes, constants), tmp_path, upgraded)
    assert [node.op_type for node in after.graph.node] == ["Conv"]


def test_weights_of_float16_that_are_cast_are_float32(tmp_path):
    """However large they are."""
    nodes = [("Cast", ["half"], ["w"], {"to": TensorProto.FLOAT}), ("MatMul", ["x", "w"], ["a"], {}),
             ("MatMul", ["a", "w"], ["y"], {})]
    half = np.float16(floats(800, 800) / 30)
    after = check(model(13, nodes, {"half": half}, shape=(4, 800)), tmp_path, 13)
    assert [node.op_type for node in after.graph.node] == ["MatMul", "MatMul"]
    (w,) = after.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(w), half.astype(np.float32))
    assert (w.name, w.data_type) == ("w", TensorProto.FLOAT)


def test_a_copy_is_bypassed(tmp_path):
    """Readers read what it copies. An output of the graph keeps its name, and a Cast to another type stays."""
    nodes = [("Identity", ["x"], ["a"], {}), ("Identity", ["a"], ["same"], {}), ("Relu", ["a"], ["b"], {}),
             ("Cast", ["b"], ["c"], {"to": TensorProto.FLOAT}), ("Dropout", ["c", "ratio", "off"], ["d", "mask"], {}),
             ("Transpose", ["d"], ["e"], {"perm": [0, 1, 2, 3]}), ("Concat", ["e"], ["f"], {"axis": 1}),
             ("Sum", ["f"], ["g"], {}), ("Conv", ["g", "w"], ["h"], {}), ("Identity", ["h"], ["y"], {}),
             ("Identity", ["h"], ["y2"], {}), ("Relu", ["h"], ["y3"], {}),
             ("Cast", ["h"], ["half"], {"to": TensorProto.FLOAT16}), ("Cast", ["half"], ["y4"], {"to": TensorProto.FLOAT}),
             ("Greater", ["h", "zero"], ["is_more"], {}), ("Cast", ["is_more"], ["y5"], {"to": TensorProto.FLOAT})]
    constants = {"w": floats(4, 4, 1, 1), "ratio": np.float32(0.5), "off": np.bool_(False), "zero": np.float32(0)}
    outputs = ("same", "y", "y2", "y3", "y4", "y5")
    after = check(model(13, nodes, constants, outputs=outputs), tmp_path, 13)
    assert [node.op_type for node in after.graph.node] == [
        "Identity", "Relu", "Conv", "Identity", "Relu", "Cast", "Cast", "Greater", "Cast"]
    assert list(after.graph.node[2].output) == ["y"]


def test_bounds_in_several_nodes_become_one(tmp_path):
    """In either order of Min, Max and their inputs. Not where another node reads the tensor between, where a bound has
    axes of its own or is no constant, and not a single Min."""
    nodes = [("Max", ["x", "zero"], ["a"], {}), ("Min", ["six", "a"], ["b"], {}), ("Conv", ["b", "w"], ["c"], {}),
             ("Relu", ["c"], ["d"], {}), ("Min", ["d", "six"], ["e"], {}), ("Clip", ["e", "", "five"], ["f"], {}),
             ("Conv", ["f", "w"], ["g"], {}), ("Max", ["zero", "g"], ["h"], {}), ("Conv", ["h", "w"], ["i"], {}),
             ("Max", ["i", "zero"], ["j"], {}), ("Min", ["j", "six"], ["k"], {}), ("Min", ["j", "half"], ["l"], {}),
             ("Max", ["k", "l"], ["m"], {}), ("Min", ["m", "by_channel"], ["n"], {}), ("Max", ["n", "low"], ["o"], {}),
             ("Min", ["o", "low"], ["p"], {}), ("Clip", ["p", "low"], ["y"], {})]
    constants = {"w": floats(4, 4, 1, 1), "zero": np.float32(0), "six": np.float32([[[[6]]]]), "five": np.float32(0.7),
                 "half": np.float32([0.5]), "by_channel": floats(4, 1, 1), "low": np.float32(-0.2)}
    after = check(model(13, nodes, constants), tmp_path, 13)
    assert [node.op_type for node in after.graph.node] == [
        "Clip", "Conv", "Clip", "Conv", "Relu", "Conv", "Relu", "Min", "Min", "Max", "Min", "Max", "Min", "Clip"]
    bounds = {t.name: float(numpy_helper.to_array(t)) for t in after.graph.initializer if not t.dims}
    of = lambda node: [bounds[name] for name in node.input[1:]]
    assert [of(after.graph.node[i]) for i in (0, 2)] == [[0, 6], [0, pytest.approx(0.7)]]


def test_a_slice_by_a_fixed_dimension_beside_an_open_one_is_folded(tmp_path):
    """As torch.onnx writes the weights of nn.MultiheadAttention with an open batch."""
    nodes = [("Transpose", ["x"], ["t"], {"perm": [1, 0, 2]}), ("Shape", ["t"], ["s"], {}),
             ("Gather", ["s", "last"], ["n"], {}), ("Unsqueeze", ["n", "axis"], ["end"], {}),
             ("Mul", ["end", "two"], ["end2"], {}), ("Slice", ["w", "axis", "end", "axis"], ["w1"], {}),
             ("Slice", ["w", "end", "end2", "axis"], ["w2"], {}), ("Transpose", ["w1"], ["v1"], {}),
             ("Transpose", ["w2"], ["v2"], {}), ("MatMul", ["t", "v1"], ["a"], {}), ("MatMul", ["a", "v2"], ["b"], {}),
             ("Gather", ["s", "one"], ["batch"], {}), ("Unsqueeze", ["batch", "axis"], ["rows"], {}),
             ("Concat", ["rows", "rest"], ["shape"], {"axis": 0}), ("Reshape", ["b", "shape"], ["y"], {})]
    constants = {"last": np.int64(2), "one": np.int64(1), "axis": np.int64([0]), "two": np.int64([2]),
                 "w": floats(16, 8), "rest": np.int64([-1])}
    before = model(14, nodes, constants, shape=(3, 5, 8))
    before.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    after = check(before, tmp_path, 14)
    assert [node.op_type for node in after.graph.node] == [
        "Transpose", "Shape", "MatMul", "MatMul", "Gather", "Unsqueeze", "Concat", "Reshape"]


def branches(condition, output, then, other):
    """An If of two branches; each is a list of nodes, and the last one computes the branch's output."""
    graph = lambda name, nodes: helper.make_graph(nodes, name, [], [
        helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)])
    return ("If", [condition], [output], {"then_branch": graph("then", then), "else_branch": graph("else", other)})


def test_an_if_by_a_fixed_dimension_becomes_its_branch(tmp_path):
    """As torch.onnx writes LocalResponseNorm: the branches have different ranks, and one Squeeze follows another."""
    squeeze = lambda source, name: [
        helper.make_node("Constant", [], [f"{name}.axis"], value_ints=[1]),
        helper.make_node("Squeeze", [source, f"{name}.axis"], [name])]
    identity = lambda source, name: [helper.make_node("Identity", [source], [name])]
    inner = helper.make_node("If", ["is_one"], ["in.if"], then_branch=helper.make_graph(
        squeeze("a", "in.then"), "then", [], [helper.make_tensor_value_info("in.then", TensorProto.FLOAT, None)]),
        else_branch=helper.make_graph(identity("a", "in.else"), "else", [], [
            helper.make_tensor_value_info("in.else", TensorProto.FLOAT, None)]))
    nodes = [("Unsqueeze", ["x", "axis"], ["a"], {}), ("Shape", ["a"], ["s"], {}), ("Gather", ["s", "at"], ["n"], {}),
             ("Equal", ["n", "at"], ["is_one"], {}),
             branches("is_one", "b", [inner, *identity("in.if", "b.then")], identity("a", "b.else")),
             ("Conv", ["b", "w"], ["c"], {"pads": [1] * 4}), ("Shape", ["c"], ["t"], {}), ("Gather", ["t", "at"], ["m"], {}),
             ("Equal", ["m", "at"], ["is_one_again"], {}),
             branches("is_one_again", "z", squeeze("c", "z.then"), [helper.make_node("Relu", ["c"], ["z.else"])]),
             ("Reshape", ["z", "flat"], ["y"], {})]
    constants = {"axis": np.int64([1]), "at": np.int64(1), "w": floats(8, 4, 3, 3), "flat": np.int64([-1, 288])}
    after = check(model(14, nodes, constants, shape=("batch", 4, 6, 6)), tmp_path, 14)
    assert [node.op_type for node in after.graph.node] == ["Unsqueeze", "Squeeze", "Conv", "Relu", "Reshape"]


def test_an_if_by_values_or_an_open_dimension_stays(tmp_path):
    stays = [helper.make_node("Relu", ["x"], ["then"])], [helper.make_node("Neg", ["x"], ["else"])]
    of_values = [("ReduceSum", ["x"], ["sum"], {"keepdims": 0}), ("Greater", ["sum", "zero"], ["is"], {}), branches("is", "y", *stays)]
    of_batch = [("Shape", ["x"], ["s"], {}), ("Gather", ["s", "at"], ["n"], {}), ("Equal", ["n", "one"], ["is"], {}),
                branches("is", "y", *stays)]
    by_negation = [*of_batch[:-1], ("Not", ["is"], ["is_not"], {}), branches("is_not", "y", *stays)]
    constants = {"zero": np.float32(0), "at": np.int64(0), "one": np.int64(1)}
    for nodes in (of_values, of_batch, by_negation):
        after = check(model(14, nodes, constants, shape=("batch", 4, 6, 6)), tmp_path, 14)
        assert "If" in [node.op_type for node in after.graph.node]


def per_channel(axis, channels=8, rank=4):
    shape = [1] * rank
    shape[axis] = channels
    return floats(*shape)


def test_arithmetic_per_channel_folds_into_the_layer_before(tmp_path):
    """As BatchNormalization does, also where Transposes put the channels last."""
    normalization, parameters = norm("h", "i", "n", 8)
    nodes = [("Conv", ["x", "w"], ["a"], {}), ("Transpose", ["a"], ["b"], {"perm": [0, 2, 3, 1]}),
             ("Sub", ["b", "mean"], ["c"], {}), ("Mul", ["c", "gain"], ["d"], {}), ("Add", ["beta", "d"], ["e"], {}),
             ("Relu", ["e"], ["f"], {}), ("Transpose", ["f"], ["g"], {"perm": [0, 3, 2, 1]}),
             ("ConvTranspose", ["g", "v", "bias"], ["h"], {"group": 2}), normalization,
             ("Div", ["i", "two"], ["j"], {}), ("Sub", ["one", "j"], ["k"], {}), ("Flatten", ["k"], ["l"], {}),
             ("Gemm", ["l", "u"], ["m"], {}), ("Mul", ["m", "row"], ["y"], {})]
    constants = {"w": floats(8, 4, 1, 1), "v": floats(8, 4, 1, 1), "bias": floats(8), "u": floats(8 * 36, 5),
                 "mean": per_channel(3), "gain": floats(8), "beta": per_channel(3), "two": np.float32([2]),
                 "one": per_channel(1), "row": floats(5), **parameters}
    after = check(model(13, nodes, constants), tmp_path, 13)
    assert [node.op_type for node in after.graph.node] == [
        "Conv", "Transpose", "Relu", "Transpose", "ConvTranspose", "Flatten", "Gemm"]
    assert len(after.graph.initializer) == 6
    # The tensor between Conv and Transpose has other values than before.
    assert after.graph.node[0].output[0] != "a"


@pytest.mark.parametrize("case", ["along another axis", "a higher rank", "a quotient of a constant", "two readers",
                                  "a division by zero", "more channels", "an output of the graph", "scaled twice"])
def test_arithmetic_stays_where_folding_is_not_exact(case, tmp_path):
    op, constant, outputs, channels = "Mul", per_channel(1), ("y",), 8
    inputs, more = ["a", "c"], []
    if case == "along another axis":
        constant = per_channel(2, 6)
    elif case == "a higher rank":
        constant = floats(1, 1, 8, 1, 1)
    elif case == "a quotient of a constant":
        op, inputs = "Div", ["c", "a"]
    elif case == "two readers":
        more = [("Add", ["y", "a"], ["z"], {})]
    elif case == "a division by zero":
        op, constant = "Div", np.float32(0)
    elif case == "more channels":
        channels = 1
    elif case == "an output of the graph":
        outputs = ("y", "a")
    elif case == "scaled twice":
        inputs = ["a", "a"]
    nodes = [("Conv", ["x", "w", "b"], ["a"], {}), (op, inputs, ["y"], {}), *more]
    before = model(13, nodes, {"c": constant, "w": floats(channels, 4, 1, 1), "b": floats(channels)}, outputs=outputs)
    source, output = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(before, source)
    mqq("prepare", source, "-b", "tensorrt", "-o", output)
    assert count(onnx.load(output), op) == 1


LAST, FIRST = {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}


def channels_last(*behind):
    """A convolution of a network with channels last, with nodes behind it."""
    return [("Conv", ["x", "w"], ["a"], {"pads": [1] * 4}), ("Transpose", ["a"], ["b"], LAST), *behind]


def test_transposes_that_undo_each_other_go(tmp_path):
    """With residual sums between them, whose tensors have other readers: these get a Transpose."""
    nodes = channels_last(
        ("Mul", ["b", "gain"], ["c"], {}), ("Relu", ["c"], ["d"], {}), ("Pad", ["d", "pads"], ["e"], {}),
        ("Transpose", ["e"], ["f"], FIRST), ("Conv", ["f", "v"], ["g"], {}), ("Transpose", ["g"], ["h"], LAST),
        ("Add", ["h", "d"], ["i"], {}), ("Concat", ["i", "d"], ["j"], {"axis": -1}),
        ("Split", ["j"], ["k", "l"], {"axis": 3}), ("Softmax", ["k"], ["m"], {"axis": 3}),
        ("ReduceMean", ["l"], ["n"], {"axes": [1, 2]}), ("Mul", ["m", "n"], ["o"], {}), ("Add", ["o", "shift"], ["p"], {}),
        ("Clip", ["p", "low", ""], ["q"], {}), ("Transpose", ["q"], ["r"], FIRST), ("Shape", ["q"], ["s"], {}),
        ("Conv", ["r", "u"], ["y"], {}), ("Flatten", ["i"], ["y2"], {}))
    constants = {"w": floats(8, 4, 3, 3), "gain": floats(8), "pads": np.int64([0, 1, 1, 0, 0, 1, 1, 0]),
                 "v": floats(8, 8, 3, 3), "shift": np.float32(0.1), "low": np.float32(-0.2), "u": floats(8, 8, 1, 1)}
    before = model(13, nodes, constants, outputs=("y", "y2", "s"), types={"s": TensorProto.INT64})
    after = check(before, tmp_path, 13)
    # In front of Flatten and Shape.
    assert count(after, "Transpose") == 2
    assert count(after, "Mul") == 1


@pytest.mark.parametrize("case", ["no second one", "a reader in another order", "a constant with two axes",
                                  "a reduction without its axes", "an output of the graph", "a pair", "three axes",
                                  "its own inverse"])
def test_transposes_go_only_where_fewer_are_left(case, tmp_path):
    second, outputs, constants, left = ("Transpose", ["c"], ["y"], FIRST), ("z",), {}, 0
    last, between, behind = LAST, ("Relu", ["b"], ["c"], {}), ("Relu", ["y"], ["z"], {})
    if case == "no second one":
        second, left = ("Flatten", ["c"], ["y"], {}), 1
    elif case == "a reader in another order":
        second, left = ("Transpose", ["c"], ["y"], LAST), 2
    elif case == "a constant with two axes":
        between, constants, left = ("Mul", ["b", "k"], ["c"], {}), {"k": floats(6, 8)}, 2
    elif case == "a reduction without its axes":
        between = ("ReduceMax", ["b"], ["b2"], {"axes": [1], "keepdims": 0})
        second, left = ("Transpose", ["b2"], ["y"], {"perm": [0, 2, 1]}), 2
    elif case == "an output of the graph":
        outputs, left = ("y",), 2
    elif case == "a pair":
        between, second = ("Transpose", ["b"], ["y"], FIRST), ("Tanh", ["y"], ["c"], {})
    elif case == "its own inverse":
        last, second = {"perm": [0, 2, 1, 3]}, ("Transpose", ["c"], ["y"], {"perm": [0, 2, 1, 3]})
    elif case == "three axes":
        last, second = {"perm": [1, 2, 3, 0]}, ("Transpose", ["c"], ["y"], {"perm": [3, 0, 1, 2]})
    nodes = [("Conv", ["x", "w"], ["a"], {"pads": [1] * 4}), ("Transpose", ["a"], ["b"], last), between, second, behind]
    before = model(13, nodes, {"w": floats(8, 4, 3, 3), **constants}, outputs=outputs)
    assert count(check(before, tmp_path, 13), "Transpose") == left


def test_a_transpose_stays_whose_output_a_subgraph_reads(tmp_path):
    def branch(op):
        output = helper.make_tensor_value_info(op.lower(), TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["b"], [op.lower()])], op, [], [output])

    nodes = [("Transpose", ["x"], ["a"], LAST), ("Transpose", ["a"], ["b"], FIRST),
             ("ReduceMax", ["x"], ["largest"], {"keepdims": 0}), ("Greater", ["largest", "zero"], ["c"], {}),
             ("If", ["c"], ["y"], {"then_branch": branch("Relu"), "else_branch": branch("Neg")})]
    assert count(check(model(13, nodes, {"zero": np.float32(0)}), tmp_path, 13), "Transpose") == 2


def test_a_pad_with_zeros_folds_into_convolutions(tmp_path):
    """Of several Convs, with padding of their own and without, in one and two axes."""
    nodes = [("Pad", ["x", "p", "nothing"], ["a"], {}), ("Conv", ["a", "w"], ["b"], {"pads": [1, 0, 0, 2]}),
             ("Conv", ["a", "w"], ["c"], {"strides": [2, 2]}), ("Reshape", ["b", "line"], ["d"], {}),
             ("Pad", ["d", "q"], ["e"], {}), ("Conv", ["e", "v"], ["y"], {}), ("Relu", ["c"], ["z"], {})]
    constants = {"p": np.int64([0, 0, 0, 1, 0, 0, 1, 2]), "nothing": np.float32(0), "line": np.int64([1, 8, 54]),
                 "w": floats(8, 4, 3, 3), "q": np.int64([0, 0, 2, 0, 0, 1]), "v": floats(4, 8, 3)}
    after = check(model(13, nodes, constants, outputs=("y", "z")), tmp_path, 13)
    assert count(after, "Pad") == 0
    assert {t.name for t in after.graph.initializer} == {"w", "v", "line"}


@pytest.mark.parametrize("case", ["a value", "edges", "channels", "less than 0", "auto_pad", "another reader", "an output"])
def test_a_pad_stays_where_a_convolution_cannot_do_it(case, tmp_path):
    pads, value, attributes, of_conv, more, outputs = [0, 0, 1, 1, 0, 0, 1, 1], 0.0, {}, {}, [], ("y",)
    if case == "a value":
        value = 0.5
    elif case == "edges":
        attributes = {"mode": "edge"}
    elif case == "channels":
        pads = [0, 1, 1, 1, 0, 1, 1, 1]
    elif case == "less than 0":
        pads = [0, 0, 1, -1, 0, 0, 1, 1]
    elif case == "auto_pad":
        of_conv = {"auto_pad": "SAME_UPPER"}
    elif case == "another reader":
        more, outputs = [("Relu", ["a"], ["z"], {})], ("y", "z")
    else:
        outputs = ("y", "a")
    nodes = [("Pad", ["x", "p", "v"], ["a"], attributes), ("Conv", ["a", "w"], ["y"], of_conv), *more]
    channels = 4 + (2 if case == "channels" else 0)
    constants = {"p": np.int64(pads), "v": np.float32(value), "w": floats(8, channels, 3, 3)}
    assert count(check(model(13, nodes, constants, outputs=outputs), tmp_path, 13), "Pad") == 1


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("case", ["of an image", "of a line", "without its axes", "some axes", "channels", "subtracted"])
def test_a_mean_over_all_positions_becomes_pooling(case, opset, tmp_path):
    axes, keepdims, behind, constants = [2, 3], 1, [("Conv", ["m", "v"], ["y"], {})], {"v": floats(5, 8, 1, 1)}
    w, shape = floats(8, 4, 3, 3), (1, 4, 6, 6)
    if case == "of a line":
        axes, w, shape, constants = [-1], floats(8, 4, 3), (1, 4, 6), {"v": floats(5, 8, 1)}
    elif case == "without its axes":
        keepdims, behind, constants = 0, [("Gemm", ["m", "u"], ["y"], {})], {"u": floats(8, 5)}
    elif case == "some axes":
        axes = [3]
    elif case == "channels":
        axes, constants = [1, 2, 3], {"v": floats(5, 1, 1, 1)}
    elif case == "subtracted":
        behind, constants = [("Sub", ["b", "m"], ["y"], {})], {}
    mean = ("ReduceMean", ["b"], ["m"], {"axes": axes, "keepdims": keepdims})
    if opset == 18:
        mean = ("ReduceMean", ["b", "axes"], ["m"], {"keepdims": keepdims})
        constants = {**constants, "axes": np.int64(axes)}
    nodes = [("Conv", ["x", "w"], ["a"], {}), ("Relu", ["a"], ["b"], {}), mean, *behind]
    after = check(model(opset, nodes, {"w": w, **constants}, shape=shape), tmp_path, opset)
    becomes = case in ("of an image", "of a line", "without its axes")
    assert [count(after, op) for op in ("ReduceMean", "GlobalAveragePool")] == [not becomes, becomes]
    assert count(after, "Flatten") == (case == "without its axes")


def random_graph(seed):
    """Nodes, constants and outputs of a graph of what passes look for, from an input [1, 4, 6, 6]."""
    rng = np.random.default_rng(seed)
    nodes, constants, tensors, n = [], {}, {"x": (1, 4, 6, 6)}, 0
    some = lambda sequence: sequence[rng.integers(len(sequence))]

    def constant(value):
        constants[f"c{len(constants)}"] = value
        return f"c{len(constants) - 1}"

    def values(*shape):
        return constant(rng.uniform(0.5, 1.5, shape).astype(np.float32))

    while len(nodes) < 25:
        name = some(list(tensors)[-6:])
        shape = tensors[name]
        axis = int(rng.integers(4))
        output = f"t{n}"
        n += 1
        kind = some(["transpose"] * 6 + ["copy", "unary", "constant", "constant", "sum", "concat", "split", "softmax",
                                         "reduce", "pad", "conv", "conv", "norm"])
        inputs, outputs, attributes, op = [name], [output], {}, kind
        if kind == "transpose":
            op, perm = "Transpose", some([(0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (0, 1, 2, 3)])
            attributes, shape = {"perm": list(perm)}, tuple(shape[i] for i in perm)
        elif kind == "copy":
            op = some(["Identity", "Dropout", "Cast"])
            attributes = {"to": TensorProto.FLOAT} if op == "Cast" else {}
        elif kind == "unary":
            op = some(["Relu", "Sigmoid", "Neg", "Tanh"])
        elif kind == "constant":
            op = some(["Add", "Sub", "Mul", "Div"])
            dims = some([(), (1,), tuple(d if i == axis else 1 for i, d in enumerate(shape)), shape[3:], shape])
            inputs = [name, values(*dims)]
            if op != "Div" and rng.random() < 0.5:
                inputs.reverse()
        elif kind == "sum":
            inputs = [name, some([other for other, dims in tensors.items() if dims == shape])]
            op = some(["Add", "Mul", "Max"])
        elif kind == "concat":
            if shape[axis] > 8:
                continue
            inputs = [name, some([other for other, dims in tensors.items() if dims == shape])]
            op, attributes, shape = "Concat", {"axis": axis - 4}, tuple(d * (1 + (i == axis)) for i, d in enumerate(shape))
        elif kind == "split":
            if shape[axis] < 2:
                continue
            first = int(rng.integers(1, shape[axis]))
            inputs, outputs = [name, constant(np.int64([first, shape[axis] - first]))], [output, f"{output}_rest"]
            tensors[outputs[1]] = tuple(shape[axis] - first if i == axis else d for i, d in enumerate(shape))
            op, attributes, shape = "Split", {"axis": axis}, tuple(first if i == axis else d for i, d in enumerate(shape))
        elif kind == "softmax":
            op, attributes = "Softmax", {"axis": axis}
        elif kind == "reduce":
            op, attributes, shape = "ReduceMean", {"axes": [axis]}, tuple(1 if i == axis else d for i, d in enumerate(shape))
        elif kind == "pad":
            amounts = rng.integers(0, 2, 8)
            amounts[[0, 4]] = 0
            if rng.random() < 0.7:
                amounts[[1, 5]] = 0
            if max(shape) > 12:
                continue
            op, inputs, shape = "Pad", [name, constant(amounts)], tuple(d + amounts[i] + amounts[i + 4] for i, d in enumerate(shape))
        elif kind == "conv":
            if min(shape[2:]) < 3:
                continue
            inputs, op = [name, values(4, int(shape[1]), 3, 3)], "Conv"
            attributes, shape = {"pads": [1, 1, 1, 1]}, (shape[0], 4, *shape[2:])
        else:
            op, inputs = "BatchNormalization", [name, *(values(int(shape[1])) for _ in range(4))]
        nodes.append((op, inputs, outputs, attributes))
        tensors[output] = tuple(map(int, shape))
    made = [output for *_, outputs, _ in nodes for output in outputs]
    chosen = sorted({made[-1], *(some(made) for _ in range(2))}, key=made.index)
    return nodes, constants, chosen


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_compute_the_same(seed, tmp_path):
    nodes, constants, outputs = random_graph(seed)
    check(model(13, nodes, constants, outputs=outputs), tmp_path, 13)


def test_products_and_sums_for_divisions_differences_and_squares(tmp_path):
    """Only in tables that ask for it; what has no reciprocal, what is divided, and other powers stay."""
    before = model(13, [
        ("Div", ["x", "c"], ["a"], {}),
        ("Sub", ["a", "c"], ["b"], {}),
        ("Div", ["c", "b"], ["d"], {}),
        ("Div", ["d", "zero"], ["e"], {}),
        ("Sub", ["c", "x"], ["f"], {}),
        ("Div", ["x", "x"], ["g"], {}),
        ("Pow", ["x", "two"], ["h"], {}),
        ("Pow", ["h", "half"], ["i"], {}),
        ("Sub", ["i", "h"], ["j"], {}),
        ("Pow", ["j", "two_of_rank_5"], ["k"], {}),
        ("Pow", ["x", "whole_two"], ["l"], {}),
        ("Add", ["b", "f"], ["y"], {}),
    ], {"c": np.array([6.0, 0.3, -7.0, 1e3], np.float32).reshape(4, 1, 1), "zero": np.float32(0), "two": np.float32(2),
        "half": np.float32(0.5), "two_of_rank_5": np.full((1,) * 5, 2, np.float32), "whole_two": np.int64(2)},
        outputs=("y", "d", "e", "f", "g", "h", "k", "l"))
    path, x = tmp_path / "model.onnx", floats(1, 4, 6, 6)
    onnx.save(before, path)
    kinds = {}
    for backend in ("qnn-htp", "qnn-htp-a16"):
        output = tmp_path / f"{backend}.onnx"
        mqq("prepare", path, "-b", backend, "-o", output)
        onnx.checker.check_model(str(output), full_check=True)
        after = onnx.load(output)
        kinds[backend] = " ".join(node.op_type for node in after.graph.node)
        pairs = zip(session(path, False).run(None, {"x": x}), session(output, False).run(None, {"x": x}))
        for expected, found in pairs:
            np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6)
    assert kinds["qnn-htp"] == "Div Sub Div Div Sub Div Pow Pow Sub Pow Pow Add"
    assert kinds["qnn-htp-a16"] == "Mul Add Div Div Neg Add Div Mul Pow Sub Pow Mul Add"


def test_a_graph_of_products_and_sums_can_be_exported_again(tmp_path):
    weight = floats(4, 4, 1, 1)
    path = tmp_path / "model.onnx"
    onnx.save(model(13, [("Div", ["x", "c"], ["a"], {}), ("Conv", ["a", "w"], ["y"], {})],
                    {"c": np.float32(6), "w": weight}), path)
    np.save(tmp_path / "x.npy", floats(8, 4, 6, 6))
    output, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    report = json.loads(mqq("calibrate", path, "-b", "qnn-htp-a16", "--data", tmp_path / "x.npy", "-o", output,
                            "--emit", "deploy", "--json"))
    assert [node.op_type for node in onnx.load(output).graph.node if "Linear" not in node.op_type] == ["Mul", "Conv"]
    emitted = [file for file in tmp_path.iterdir() if "deploy" in file.name]
    assert len(emitted) == 1, report
    mqq("export", output.with_suffix(".json"), "-f", "deploy", "-m", path, "-o", again)
    assert again.read_bytes() == emitted[0].read_bytes()


ROOTS = {"root": np.float32(2**0.5), "inverse": np.float32(0.5**0.5), "one": np.float32(1), "half": np.float32(0.5),
         "tiny": np.float32(1e-12), "large": np.float32(0.1), "axis": np.int64([1]), "two_axes": np.int64([1, 2])}
ERF = [("Erf", ["a"], ["b"], {}), ("Add", ["b", "one"], ["c"], {})]
NORM = ("ReduceL2", ["x", "axis"], ["n"], {"keepdims": 1})
SPELLED_OUT = {
    "torch": ([("Div", ["x", "root"], ["a"], {}), *ERF, ("Mul", ["x", "c"], ["d"], {}), ("Mul", ["d", "half"], ["y"], {})], "Gelu"),
    "half first": ([("Mul", ["inverse", "x"], ["a"], {}), *ERF, ("Mul", ["x", "half"], ["h"], {}), ("Mul", ["h", "c"], ["y"], {})],
                   "Gelu"),
    "half of the sum": ([("Mul", ["x", "inverse"], ["a"], {}), *ERF, ("Mul", ["half", "c"], ["d"], {}), ("Mul", ["d", "x"], ["y"], {})],
                        "Gelu"),
    "another scale": ([("Mul", ["x", "half"], ["a"], {}), *ERF, ("Mul", ["x", "c"], ["d"], {}), ("Mul", ["d", "half"], ["y"], {})],
                      None),
    "another factor": ([("Div", ["x", "root"], ["a"], {}), *ERF, ("Relu", ["x"], ["r"], {}), ("Mul", ["r", "c"], ["d"], {}),
                        ("Mul", ["d", "half"], ["y"], {})], None),
    "read elsewhere": ([("Div", ["x", "root"], ["a"], {}), *ERF, ("Mul", ["x", "c"], ["d"], {}), ("Mul", ["d", "half"], ["e"], {}),
                        ("Sub", ["e", "b"], ["y"], {})], None),
    "norm": ([NORM, ("Div", ["x", "n"], ["y"], {})], "LpNormalization"),
    "bounded norm": ([NORM, ("Clip", ["n", "tiny"], ["m"], {}), ("Shape", ["x"], ["s"], {}), ("Expand", ["m", "s"], ["e"], {}),
                      ("Div", ["x", "e"], ["y"], {})], "LpNormalization"),
    "norm with a large bound": ([NORM, ("Clip", ["n", "large"], ["m"], {}), ("Div", ["x", "m"], ["y"], {})], None),
    "norm over two axes": ([("ReduceL2", ["x", "two_axes"], ["n"], {"keepdims": 1}), ("Div", ["x", "n"], ["y"], {})], None),
    "norm of another tensor": ([("Relu", ["x"], ["r"], {}), NORM, ("Div", ["r", "n"], ["y"], {})], None),
}


@pytest.mark.parametrize("dim", [1, "N"])
def test_shapes_are_constants_for_the_htp(dim, tmp_path):
    """Its provider takes no Shape; with an open batch, --shape fixes the dimension."""
    path, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model(17, [("Shape", ["x"], ["s"], {}), ("Gather", ["s", "first"], ["n"], {}), ("Concat", ["n", "rest"], ["t"], {"axis": 0}),
                         ("Reshape", ["x", "t"], ["y"], {})], {"first": np.int64([0]), "rest": np.int64([-1, 6])}, shape=(dim, 4, 6, 6)), path)
    mqq("prepare", path, "-b", "qnn-htp", "--shape", "x=1x4x6x6", "-o", output)
    onnx.checker.check_model(str(output), full_check=True)
    assert [node.op_type for node in onnx.load(output).graph.node] == ["Reshape"]
    x = {"x": floats(1, 4, 6, 6)}
    np.testing.assert_array_equal(*(session(file, False).run(None, x)[0] for file in (path, output)))
    mqq("prepare", path, "-b", "tensorrt", "-o", output)
    assert "Shape" in {node.op_type for node in onnx.load(output).graph.node}


@pytest.mark.parametrize("rows,is_reshaped", [([[0, 0], [0, 1], [0, 2], [0, 3]], True), ([[0, 0], [0, 1], [0, 3], [0, 2]], False),
                                              ([[0, 0], [0, 1]], False), ([[0, 0], [0, -3], [-1, 2], [0, 3]], True)])
def test_a_gather_of_all_rows_becomes_a_reshape_for_the_htp(rows, is_reshaped, tmp_path):
    """As torch.onnx reads the mask of attention, of an open batch too."""
    path, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model(17, [("GatherND", ["x", "rows"], ["y"], {})], {"rows": np.int64(rows)[:, None]}, shape=("batch", 4, 6, 6)), path)
    mqq("prepare", path, "-b", "qnn-htp", "--shape", "x=1x4x6x6", "-o", output)
    onnx.checker.check_model(str(output), full_check=True)
    assert [node.op_type for node in onnx.load(output).graph.node] == ["Reshape" if is_reshaped else "GatherND"]
    x = {"x": floats(1, 4, 6, 6)}
    np.testing.assert_array_equal(*(session(file, False).run(None, x)[0] for file in (path, output)))


def test_a_reciprocal_becomes_a_quotient_for_the_htp(tmp_path):
    """The HTP computes a Reciprocal above 2 wrong."""
    path, output, x = tmp_path / "model.onnx", tmp_path / "out.onnx", np.abs(floats(1, 4, 6, 6)) + 0.1
    nodes = [("Reciprocal", ["x"], ["one"], {}), ("Mul", ["one", "x"], ["m"], {}), ("Reciprocal", ["m"], ["y"], {})]
    onnx.save(model(18, nodes), path)
    for backend, expected in (("qnn-htp", "Div Mul Div"), ("tensorrt", "Reciprocal Mul Reciprocal")):
        mqq("prepare", path, "-b", backend, "-o", output)
        onnx.checker.check_model(str(output), full_check=True)
        assert " ".join(node.op_type for node in onnx.load(output).graph.node) == expected
        [before], [after] = (session(file, False).run(None, {"x": x}) for file in (path, output))
        np.testing.assert_allclose(after, before, rtol=1e-5)


def test_a_guard_of_a_softmax_is_removed_for_the_htp(tmp_path):
    """As torch.onnx writes scaled_dot_product_attention. A guard of other values stays."""
    guard = lambda source, n: [("IsNaN", [source], [f"i{n}"], {}), ("Where", [f"i{n}", "zero", source], [f"g{n}"], {})]
    nodes = [("MatMul", ["x", "x"], ["s"], {}), ("Softmax", ["s"], ["p"], {"axis": -1}), *guard("p", 1),
             ("MatMul", ["g1", "x"], ["c"], {}), *guard("c", 2), ("Relu", ["g2"], ["y"], {})]
    path, output, x = tmp_path / "model.onnx", tmp_path / "out.onnx", floats(1, 4, 6, 6)
    onnx.save(model(18, nodes, {"zero": np.float32(0)}), path)
    mqq("prepare", path, "-b", "qnn-htp", "-o", output)
    onnx.checker.check_model(str(output), full_check=True)
    kinds = [node.op_type for node in onnx.load(output).graph.node]
    assert kinds == ["MatMul", "Softmax", "MatMul", "IsNaN", "Where", "Relu"]
    [expected], [found] = (session(file, False).run(None, {"x": x}) for file in (path, output))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    mqq("prepare", path, "-b", "tensorrt", "-o", output)
    assert len(onnx.load(output).graph.node) == len(nodes)


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_spelled_out_operators_are_fused_for_the_htp(name, tmp_path):
    nodes, fused = SPELLED_OUT[name]
    path, x = tmp_path / "model.onnx", floats(1, 4, 6, 6)
    used = {i for _, inputs, _, _ in nodes for i in inputs}
    onnx.save(model(18, nodes, {k: v for k, v in ROOTS.items() if k in used}), path)
    output = tmp_path / "out.onnx"
    mqq("prepare", path, "-b", "qnn-htp", "-o", output)
    onnx.checker.check_model(str(output), full_check=True)
    after = onnx.load(output)
    ops = [node.op_type for node in after.graph.node]
    assert ops == [fused] if fused else len(ops) == len(nodes)
    [expected], [found] = (session(file, False).run(None, {"x": x}) for file in (path, output))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # Other targets have no operator for it.
    mqq("prepare", path, "-b", "tensorrt", "-o", output)
    assert len(onnx.load(output).graph.node) == len(nodes)


def test_a_fused_graph_can_be_exported_again(tmp_path):
    nodes = [("Conv", ["x", "w"], ["v"], {}), *[(op, ["v" if i == "x" else i for i in inputs], outputs, attributes)
                                               for op, inputs, outputs, attributes in SPELLED_OUT["torch"][0]]]
    constants = {"w": floats(4, 4, 1, 1), **{k: ROOTS[k] for k in ("root", "one", "half")}}
    path, output, again = tmp_path / "model.onnx", tmp_path / "out.onnx", tmp_path / "again.onnx"
    onnx.save(model(13, nodes, constants), path)
    np.save(tmp_path / "x.npy", floats(8, 4, 6, 6))
    mqq("calibrate", path, "-b", "qnn-htp", "--data", tmp_path / "x.npy", "-o", output, "--emit", "deploy")
    assert [node.op_type for node in onnx.load(output).graph.node if "Linear" not in node.op_type] == ["Conv", "Gelu"]
    [emitted] = [file for file in tmp_path.iterdir() if "deploy" in file.name]
    mqq("export", output.with_suffix(".json"), "-f", "deploy", "-m", path, "-o", again)
    assert again.read_bytes() == emitted.read_bytes()


def test_functions_are_inlined_as_onnx_runtime_runs_them(tmp_path):
    """Attributes that refer to the call's, a default, subgraphs that read the function's tensors, and a call in a subgraph."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    leaky = helper.make_node("LeakyRelu", ["p"], ["q"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    slope = [helper.make_attribute("slope", 0.25)]
    plain = helper.make_function("mine", "Leaky", ["p"], ["q"], [leaky], opsets, [], slope)
    call = lambda op, x, y, **attributes: helper.make_node(op, x, y, domain="mine", **attributes)
    then = helper.make_graph([call("Leaky", ["q"], ["l"]), helper.make_node("Add", ["l", "p"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Sub", ["q", "p"], ["e"])], "else", [], [value("e")])
    body = [leaky, helper.make_node("ReduceSum", ["p"], ["s"], keepdims=0),
            helper.make_node("Constant", [], ["zero"], value_float=0.0), helper.make_node("Greater", ["s", "zero"], ["c"]),
            helper.make_node("If", ["c"], ["out"], then_branch=then, else_branch=other)]
    inner = helper.make_function("mine", "Inner", ["p"], ["out"], body, opsets, [], slope)
    outer = helper.make_function("mine", "Outer", ["in", "w"], ["o"], [
        helper.make_node("Conv", ["in", "w"], ["conv"], pads=[1] * 4), call("Leaky", ["conv"], ["o"], slope=0.5)], opsets)
    nodes = [call("Outer", ["x", "w"], ["a"]), call("Outer", ["a", "v"], ["b"]), call("Inner", ["b"], ["y"], slope=0.75)]
    constants = [numpy_helper.from_array(np.asarray(v, np.float32), k)
                 for k, v in {"w": floats(8, 4, 3, 3), "v": floats(8, 8, 3, 3)}.items()]
    shape = [1, 4, 6, 6]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 6, 6])], constants)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, functions=[plain, inner, outer], opset_imports=opsets, ir_version=9), path)
    mqq("prepare", path, "-b", "onnxruntime", "-o", tmp_path / "p.onnx")
    prepared = onnx.load(tmp_path / "p.onnx")
    assert not prepared.functions and not any(node.domain for node in prepared.graph.node)
    onnx.checker.check_model(prepared, full_check=True)
    before, after = session(path, optimized=False), session(tmp_path / "p.onnx", optimized=False)
    for _ in range(4):
        sample = {"x": floats(*shape)}
        np.testing.assert_allclose(before.run(None, sample)[0], after.run(None, sample)[0], rtol=1e-5, atol=1e-5)
    np.save(tmp_path / "x.npy", floats(16, 4, 6, 6))
    mqq("calibrate", path, "-b", "onnxruntime", "--data", tmp_path / "x.npy", "--effort", 0, "-o", tmp_path / "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    quantized = session(tmp_path / "q.onnx", optimized=False)
    noise, signal = 0.0, 0.0
    for array in np.load(tmp_path / "x.npy"):
        expected, found = before.run(None, {"x": array[None]})[0], quantized.run(None, {"x": array[None]})[0]
        noise, signal = noise + np.square(expected - found).sum(), signal + np.square(expected).sum()
    assert 10 * np.log10(signal / noise) > 25


EINSUMS = {  # equation, shapes of the second operand or a constant, whether it is turned
    "dense": ("abcd,de->abce", [6, 5], True, True),
    "heads": ("abcd,dhk->abchk", [6, 3, 5], True, True),
    "heads joined": ("abhk,hkd->abd", [6, 6, 5], True, True),
    "first": ("de,abcd->eabc", [6, 5], True, True),
    "no output": ("abcd,de", [6, 5], True, True),
    "scores": ("bqhd,bkhd->bhqk", [1, 7, 6, 6], False, True),
    "values": ("bhqk,bkhd->bqhd", [1, 6, 4, 5], False, True),
    "experts": ("beij,ejk->beik", [4, 6, 5], True, True),
    "experts joined": ("beij,ejhk->beihk", [4, 6, 2, 5], True, True),
    "several rows of a batch": ("abcd,ade->abce", [1, 6, 5], True, True),
    "elementwise": ("abcd,abcd->abcd", [1, 4, 6, 6], False, False),
    "outer": ("abcd,e->abcde", [5], True, False),
    "sum of one": ("abcd,de->ace", [6, 5], True, False),
    "diagonal": ("abcc,ce->abe", [6, 5], True, False),
    "ellipsis": ("...d,de->...e", [6, 5], True, False),
}


@pytest.mark.parametrize("name", EINSUMS)
def test_an_einsum_becomes_a_matmul(name, tmp_path):
    equation, shape, is_constant, is_turned = EINSUMS[name]
    is_first = equation.startswith("de,")
    other = "w" if is_constant else "v"
    operands = [other, "r"] if is_first else ["r", other]
    # The activation is no constant: a part of the input, repeated to the shape.
    nodes = [("Relu", ["x"], ["r"], {}), ("ReduceMean", ["x"], ["m"], {"keepdims": 0}), ("Mul", ["w", "m"], ["v"], {}),
             ("Einsum", operands, ["y"], {"equation": equation})]
    after = check(model(13, nodes, {"w": floats(*shape)}), tmp_path, 13)
    assert (count(after, "Einsum"), count(after, "MatMul")) == ((0, 1) if is_turned else (1, 0))


@pytest.mark.parametrize("equation,factor,is_turned", [
    ("abcd,bdcv,abc->abcv", (1, 4, 6), True), ("cab,abcd,bdcv->abcv", (6, 1, 4), True), ("abcd,bdcv,d->abcv", (6,), False),
    ("abcd,bdcv,abcv->abcv", (1, 4, 6, 5), True)])
def test_an_einsum_with_a_factor_becomes_a_matmul_and_a_mul(equation, factor, is_turned, tmp_path):
    """As linear attention normalizes."""
    of = {"abcd": "r", "bdcv": "v"}
    nodes = [("Relu", ["x"], ["r"], {}), ("ReduceMean", ["x"], ["m"], {"keepdims": 0}), ("Mul", ["w", "m"], ["v"], {}),
             ("Mul", ["k", "m"], ["f"], {}),
             ("Einsum", [of.get(letters, "f") for letters in equation.split("->")[0].split(",")], ["y"], {"equation": equation})]
    after = check(model(13, nodes, {"w": floats(4, 6, 6, 5), "k": floats(*factor)}), tmp_path, 13)
    assert (count(after, "Einsum"), count(after, "MatMul"), count(after, "Mul")) == ((0, 1, 3) if is_turned else (1, 0, 2))


def test_attention_by_einsum_is_quantized(tmp_path):
    """As Keras and JAX write it."""
    nodes = [("Einsum", ["x", "wq"], ["q"], {"equation": "bld,dhk->blhk"}), ("Einsum", ["x", "wk"], ["k"], {"equation": "bld,dhk->blhk"}),
             ("Einsum", ["x", "wv"], ["v"], {"equation": "bld,dhk->blhk"}), ("Einsum", ["q", "k"], ["s"], {"equation": "blhk,bmhk->bhlm"}),
             ("Softmax", ["s"], ["p"], {"axis": -1}), ("Einsum", ["p", "v"], ["m"], {"equation": "bhlm,bmhk->blhk"}),
             ("Einsum", ["m", "wo"], ["y"], {"equation": "blhk,hkd->bld"})]
    constants = {name: floats(16, 4, 4) / 4 for name in ("wq", "wk", "wv")} | {"wo": floats(4, 4, 16) / 4}
    onnx.save(model(17, nodes, constants, shape=(1, 8, 16)), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", floats(24, 8, 16))
    found = json.loads(mqq("calibrate", tmp_path / "m.onnx", "-b", "onnxruntime", "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx", "--json"))
    [result] = found["results"]
    assert result["summary"]["n_quantized_nodes"] >= 4 and result["summary"]["integer_share"] > 0.5
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    session(tmp_path / "q.onnx", optimized=True).run(None, {"x": floats(1, 8, 16)})
