"""Hostile models: broken bytes, attributes, names, wiring, shapes, sizes and external data."""

import os

import numpy as np
import onnx
from harness import BACKENDS, EVIL, MODEL, Trial, flipped
from onnx import TensorProto, helper, numpy_helper


def save(model, folder):
    path = folder / "m.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def base():
    return onnx.load(MODEL)


def small(rng, nodes=None, tensors=(), opset=17, domains=()):
    """A convolution with further nodes behind; the last one gives `y`."""
    weight = numpy_helper.from_array(np.random.default_rng(rng.randrange(99)).normal(0, .3, (4, 3, 3, 3)).astype(np.float32), "w")
    nodes = nodes or []
    conv = helper.make_node("Conv", ["input", "w"], ["a" if nodes else "y"], "conv")
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph([conv, *nodes], "g", [value("input", [1, 3, 32, 32])], [value("y", ["p", "q", "r", "s"])], [weight, *tensors])
    imports = [helper.make_opsetid("", opset), *domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def ints(name, values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model_bytes(rng, folder):
    data = MODEL.read_bytes()
    # Behind the weights, where the graph's structure is, and anywhere.
    way = rng.randrange(4)
    if way == 0:
        data = flipped(rng, data)
    elif way == 1:
        data = data[: rng.randrange(len(data))]
    elif way == 2:
        a, b = sorted(rng.randrange(len(data)) for _ in range(2))
        data = data[:a] + data[b:] if rng.random() < .5 else data[:b] + data[a:b][:5000] + data[b:]
    else:
        data = data[:-3000] + flipped(rng, data[-3000:])
    return save(data, folder), {}


def attribute_faults(rng, folder):
    model = base()
    node = rng.choice([node for node in model.graph.node if node.attribute])
    way = rng.randrange(6)
    must_fail = way < 3
    if way == 0:
        node.attribute.append(helper.make_attribute(rng.choice(["alpha_", "padz", "colour", EVIL]), rng.choice([1, 2.5, "x"])))
    elif way == 1:
        node.attribute.append(rng.choice(list(node.attribute)))
    elif way == 2:
        attribute = rng.choice(list(node.attribute))
        attribute.CopyFrom(helper.make_attribute(attribute.name, "text" if attribute.type != 3 else 7))
    else:
        number = rng.choice([0, -1, 7, 1 << 20, 1 << 40, -(1 << 62), (1 << 63) - 1])
        conv = rng.choice([node for node in model.graph.node if node.op_type == "Conv"])
        attribute = rng.choice(list(conv.attribute))
        if attribute.type == 7:
            attribute.ints[rng.randrange(len(attribute.ints))] = number
        else:
            attribute.i = number
    return save(model, folder), {"must_fail": must_fail, "node": True}


def opsets(rng, folder):
    model = base()
    way = rng.randrange(3)
    if way == 0:
        model.opset_import.append(helper.make_opsetid(rng.choice(["", "ai.onnx"]), rng.choice([7, 11, 17])))
    elif way == 1:
        rng.choice(list(model.graph.node)).domain = rng.choice(["made.up", "com.microsoft", EVIL])
    else:
        model.opset_import[0].version = rng.choice([-1, 0, 1, 5, 99, 1 << 40])
    return save(model, folder), {"must_fail": True}


def sparse(rng, folder):
    n = rng.choice([-1, 27, 1 << 40, 10**12])
    values = numpy_helper.from_array(np.ones(2, np.float32), "sp")
    tensor = helper.make_sparse_tensor(values, ints("i", [1, n]), [3, 3, 3])
    model = small(rng, [helper.make_node("Relu", ["a"], ["y"], "relu")])
    model.graph.sparse_initializer.append(tensor)
    return save(model, folder), {"must_fail": True}


def hostile_names(rng, folder):
    model = base()
    names = [EVIL, "x" * rng.choice([5_000, 3_000_000]), "`", "a\nerror: FORGED", "\x9b1m", "", "../../x", "\x00", "%s%n", "é" * 300]
    way = rng.randrange(4)
    name = rng.choice(names)
    node = rng.choice(list(model.graph.node))
    if way == 0:
        node.name = name
    elif way == 1:
        node.op_type = name
    elif way == 2 and node.input:
        node.input[0] = name
    else:
        old, target = model.graph.output[0].name, model.graph.output[0]
        target.name = name
        for other in model.graph.node:
            for k, output in enumerate(other.output):
                if output == old:
                    other.output[k] = name
    return save(model, folder), {}


def wiring(rng, folder):
    model = base()
    names = [o for n in model.graph.node for o in n.output] + [t.name for t in model.graph.initializer]
    for _ in range(rng.randrange(1, 3)):
        node = rng.choice(list(model.graph.node))
        way = rng.randrange(5)
        if way == 0 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif way == 1:
            node.op_type = rng.choice(["Relu", "Conv", "Add", "Gather", "Reshape", "Concat", "Split", "LSTM", "Transpose", "MatMul"])
        elif way == 2 and node.input:
            del node.input[rng.randrange(len(node.input))]
        elif way == 3:
            node.output.append(rng.choice(names))
        else:
            model.graph.node.remove(node)
    return save(model, folder), {"node": True}


def initializers(rng, folder):
    model = base()
    tensor = rng.choice(list(model.graph.initializer))
    way = rng.randrange(4)
    if way == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([0, -5, 3, 1 << 33, 1 << 62])
    elif way == 1:
        tensor.data_type = rng.choice([0, 2, 7, 8, 10, 11, 16, 23, 99])
    elif way == 2:
        tensor.raw_data = tensor.raw_data[: rng.randrange(1 + len(tensor.raw_data))]
    else:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(array.reshape(-1), tensor.name))
    return save(model, folder), {"node": True}


def declared_sizes(rng, folder):
    big = rng.choice([1 << 20, 1 << 31, 1 << 40])
    node = lambda op, inputs, **more: [helper.make_node(op, ["a", *inputs], ["y"], "huge", **more)]
    way = rng.randrange(9)
    if way == 0:
        model = small(rng, [helper.make_node("ConstantOfShape", ["s"], ["c"], "huge"), helper.make_node("Add", ["a", "c"], ["y"], "add")],
                      [ints("s", [big, big])])
    elif way == 1:
        model = small(rng, node("Expand", ["s"]), [ints("s", [big, 4, 30, 30])])
    elif way == 2:
        model = small(rng, node("Pad", ["s"]), [ints("s", [0, 0, big, big, 0, 0, big, big])])
    elif way == 3:
        model = small(rng, node("Tile", ["s"]), [ints("s", [1, big, big, 1])])
    elif way == 4:
        model = small(rng, [helper.make_node("Range", ["p", "q", "r"], ["c"], "huge"), helper.make_node("Cast", ["c"], ["d"], "cast", to=1),
                            helper.make_node("Add", ["a", "d"], ["y"], "add")], [ints("p", 0), ints("q", big * 64), ints("r", 1)])
    elif way == 5:
        model = small(rng, node("Resize", ["", "s"]), [numpy_helper.from_array(np.array([1, 1, big, big], np.float32), "s")])
    elif way == 6:
        model = small(rng)
        model.graph.node[0].attribute.append(helper.make_attribute("pads", [big] * 4))
    elif way == 7:
        body = helper.make_graph([], "body", [], [])
        model = small(rng, [helper.make_node("Scan", [], ["c"], "huge", body=body, num_scan_inputs=0), *node("Relu", [])])
    else:
        model = small(rng, node("MaxPool", [], kernel_shape=[2, 2], pads=[0, 0, big, big]))
    return save(model, folder), {"must_fail": True, "node": True}


def shapes(rng, folder):
    """Shapes and axes that do not fit."""
    make = lambda op, inputs, **more: helper.make_node(op, inputs, ["y"], "odd", **more)
    number = rng.choice([5, 7, 9, 500, -9, 1 << 40])
    nodes, tensors = rng.choice([
        ([make("Gather", ["a", "i"], axis=1)], [ints("i", number)]), ([make("Gather", ["a", "i"], axis=number)], [ints("i", 0)]),
        ([make("Transpose", ["a"], perm=[0, 1, number, 2])], []), ([make("Reshape", ["a", "i"])], [ints("i", [number, -1, 7])]),
        ([make("Concat", ["a", "input"], axis=number)], []), ([make("Concat", ["a", "input"], axis=1)], []),
        ([make("Slice", ["a", "i", "j", "k"])], [ints("i", [5]), ints("j", [number]), ints("k", [number])]),
        ([helper.make_node("Split", ["a", "i"], ["y", "z"], "odd", axis=1)], [ints("i", [number, 3])]),
        ([make("Add", ["a", "i"])], [numpy_helper.from_array(np.ones((1, 5, 1, 1), np.float32), "i")]),
        ([make("MatMul", ["a", "i"])], [numpy_helper.from_array(np.ones((7, 3), np.float32), "i")]),
        ([make("Conv", ["a", "i"])], [numpy_helper.from_array(np.ones((4, 9, 3, 3), np.float32), "i")]),
        ([make("Conv", ["a", "i"], strides=[0, 0])], [numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "i")]),
        ([make("Conv", ["a", "i"], group=3)], [numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "i")]),
        ([make("Squeeze", ["a", "i"])], [ints("i", [number])]), ([make("Softmax", ["a"], axis=number)], []),
        ([make("ReduceMean", ["a"], axes=[number])], []), ([make("Flatten", ["a"], axis=number)], []),
    ])
    return save(small(rng, nodes, tensors), folder), {"node": True}


def external(rng, folder):
    model = small(rng)
    tensor = model.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    outside = folder.parent / "outside.bin"
    outside.write_bytes(data)
    way = rng.randrange(6)
    name, more, must_fail = "w.bin", {}, True
    if way == 0:
        os.symlink(outside, folder / name)
    elif way == 1:
        name = rng.choice(["../outside.bin", str(outside), "/dev/zero", EVIL])
    elif way == 2:
        os.mkfifo(folder / name)
    elif way == 3:
        (folder / name).write_bytes(data[: rng.randrange(len(data))])
    elif way == 4:
        (folder / name).write_bytes(data)
        more = {"offset": rng.choice(["-1", "99999999", "x" + EVIL, str(1 << 63)])}
    else:
        (folder / name).write_bytes(data)
        must_fail = False
    tensor.data_location = 1
    for key, value in {"location": name, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return save(model, folder), {"must_fail": must_fail, "node": True}


MODELS = [model_bytes, attribute_faults, opsets, sparse, hostile_names, wiring, initializers, declared_sizes, shapes, external]


def model_trial(kind, rng, folder):
    path, known = kind(rng, folder)
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    backend = rng.choice(BACKENDS)
    way = rng.choice(["calibrate"] * 6 + ["inspect", "prepare", "check"])
    data = ["--data", folder.parent / "good.npy", "--effort", rng.choice("001"), "--threads", "2"]
    if way == "calibrate":
        return Trial([way, path, "-b", backend, *data, "-o", out], out, **known)
    if way == "prepare":
        return Trial([way, path, "-b", backend, "-o", out], out, **known)
    # These need not look at all, and exit 0 of `inspect` writes nothing.
    return Trial([way, path, "-b", backend], None, node=False)
