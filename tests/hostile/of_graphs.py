"""Models that are odd as graphs: names, inputs and outputs, types, ranks, shared and computed weights, extreme values, functions,
operators that are quantized already. A model that is written runs in ONNX Runtime where the given one does, with outputs like
its own or with a warning."""

import numpy as np
import onnx
from harness import BACKENDS, EVIL, Trial
from of_operators import onnxruntime, run_in_runtime
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
node = helper.make_node
array = lambda name, values, kind=np.float32: numpy_helper.from_array(np.asarray(values, kind), name)
value = lambda name, shape=None, kind=FLOAT: helper.make_tensor_value_info(name, kind, shape)


# Fewer samples are a warning.
N = 16


def draw(*shape, seed=1):
    return np.random.default_rng(seed).normal(0, .3, shape).astype(np.float32)


class Network:
    """`x` -> convolution -> Relu -> convolution -> `y`, changed before it is made."""

    def __init__(self):
        self.nodes = [node("Conv", ["x", "w", "b"], ["a"], "first", pads=[1] * 4), node("Relu", ["a"], ["r"], "relu"),
                      node("Conv", ["r", "v"], ["y"], "second")]
        self.tensors = {"w": draw(6, 3, 3, 3), "b": draw(6), "v": draw(4, 6, 1, 1, seed=2)}
        self.inputs, self.outputs = [value("x", [1, 3, 8, 8])], [value("y", [1, 4, 8, 8])]
        self.samples = {"x": draw(N, 3, 8, 8, seed=3) * 3}
        self.more, self.opset, self.domains, self.functions = [], 17, [], []

    def behind(self, *nodes, output="y"):
        """Adds nodes behind `y`, which is then `h`."""
        self.nodes[-1].output[0] = "h"
        self.nodes.extend(nodes)
        self.outputs = [value(output)]

    def model(self):
        tensors = [array(name, it, it.dtype) for name, it in self.tensors.items()] + self.more
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, tensors)
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in self.domains)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=self.functions)
        try:
            # Outputs without a shape are not valid.
            return onnx.shape_inference.infer_shapes(model)
        except Exception:
            return model


def names(rng, net):
    """Nodes without names, of one name, or named as tensors are; tensors named as mqq names its own."""
    way = rng.randrange(6)
    if way == 0:
        for it in net.nodes:
            it.name = rng.choice(["", "same"])
    elif way == 1:
        net.nodes[0].name, net.nodes[2].name = rng.choice([("a", "r"), ("x", "y"), ("w", "x_DequantizeLinear"), ("", "first")])
    else:
        new = rng.choice(["x_quantized", "x_scale", "w_quantized", "x_QuantizeLinear", "x/q", "a b", "a,b", "é", "*", "[a]", "", "y.1", "x_zero_point", "n" * 300])
        old = rng.choice(["a", "r", "w"])
        net.tensors = {new if name == old else name: it for name, it in net.tensors.items()}
        for it in net.nodes:
            it.input[:] = [new if name == old else name for name in it.input]
            it.output[:] = [new if name == old else name for name in it.output]


def ends(rng, net):
    """Outputs that are inputs, constants or twice the same; inputs and nodes that nothing reads; nothing at all; circles."""
    way = rng.randrange(14)
    if way == 0:
        net.outputs.append(value("x", [1, 3, 8, 8]))
    elif way == 1:
        net.outputs.append(value("w", [6, 3, 3, 3]))
    elif way == 2:
        net.outputs.append(net.outputs[0])
    elif way == 3:
        net.inputs.append(value("unused", [1, 2]))
        if rng.random() < .5:
            net.samples["unused"] = draw(N, 2)
    elif way == 4:
        net.nodes.append(node(rng.choice(["Relu", "Shape", "Identity"]), ["r"], ["nobody"], "dead"))
    elif way == 5:
        net.nodes.append(node("Relu", ["r"], [""], "dead"))
    elif way == 6:
        net.outputs = []
    elif way == 7:
        net.nodes, net.outputs = [], rng.choice([[], [value("x", [1, 3, 8, 8])], [value("w", [6, 3, 3, 3])]])
    elif way == 8:
        net.nodes[1].input[0] = "y"
    elif way == 9:
        net.nodes.reverse()
    elif way == 10:
        net.outputs = [value(name) for name in rng.sample(["a", "r", "y"], 3)]
    elif way == 11:
        net.inputs = []
        net.more.append(array("x", net.samples["x"][:1]))
    elif way == 12:
        net.outputs.append(value("nothing"))
    else:
        net.inputs.append(net.inputs[0])


def omitted(rng, net):
    """Inputs that are left out, at the end and in the middle."""
    net.tensors.update(six=np.float32(.6), sizes=np.int64([1, 4, 16, 16]), scales=np.float32([1, 1, 2, 2]), lo=np.float32(-.2))
    net.behind(rng.choice([
        node("Clip", ["h", "", "six"], ["y"], "odd"), node("Clip", ["h", "lo", ""], ["y"], "odd"), node("Clip", ["h", "", ""], ["y"], "odd"),
        node("Resize", ["h", "", "scales"], ["y"], "odd"), node("Resize", ["h", "", "", "sizes"], ["y"], "odd"), node("Clip", ["", "lo"], ["y"], "odd"),
        node("Conv", ["h", "", "lo"], ["y"], "odd"), node("Add", ["h", ""], ["y"], "odd"), node("Dropout", ["h", "", ""], ["y", ""], "odd"),
        node("MaxPool", ["h"], ["y", ""], "odd", kernel_shape=[2, 2]), node("MaxPool", ["h"], ["", "y"], "odd", kernel_shape=[2, 2]),
        node("Concat", ["h", "", "h"], ["y"], "odd", axis=1), node("Slice", ["h", "", "sizes"], ["y"], "odd")]))


def ranks(rng, net):
    """Open, negative, empty and contradictory sizes of inputs, and inputs without rank or axes."""
    net.inputs = [rng.choice([
        value("x", []), value("x", None), value("x", [0, 3, 8, 8]), value("x", [-1, 3, 8, 8]), value("x", ["n", 3, "s", "s"]), value("x", ["n", "n", "n", "n"]),
        value("x", [1, 3, 8]), value("x", ["", 3, 8, 8]), value("x", [1, 3, 8, 8, 1]), value("x", [1, "n", 8, 8]), value("x", [1, 3, "n", "n"]),
        value("x", [2**40, 3, 8, 8]), value("x", [1, 1, 8, 8]), value("x", ["x", 3, "y", 8]), value("x", [1, 3, -2, 8]), value("x", ["n", 3, 8, "n"])])]
    net.outputs = [value("y", rng.choice([None, None, [1, 4, 8, 8], [1, 9, 8, 8], ["n", 4, "n", "m"], []]))]
    if rng.random() < .4:
        net.samples["x"] = rng.choice([draw(N, 3, 8, 6), draw(N, 3, 12, 12), draw(1, 3, 8, 8), draw(0, 3, 8, 8), draw(N, 3, 1, 1), draw(3, 8, 8)])


def types(rng, net):
    """Inputs and constants of every type, also where nothing reads them."""
    kind = rng.choice([*range(1, 24)])
    way = rng.randrange(4)
    if way == 0:
        net.inputs.append(value("other", [1, 2], kind))
        if rng.random() < .5:
            net.samples["other"] = draw(N, 2).astype(rng.choice([np.float32, np.int64, np.uint8, np.float16, np.bool_]))
    elif way == 1:
        net.inputs.append(value("other", [1, 4, 8, 8], kind))
        net.samples["other"] = np.ones((N, 4, 8, 8), rng.choice([np.float32, np.int64, np.uint8, np.float16, np.bool_, np.int8, np.uint64, np.float64]))
        net.behind(node("Cast", ["other"], ["cast"], "cast", to=FLOAT), node("Add", ["h", "cast"], ["y"], "add"))
    elif way == 2:
        net.opset = 21
        tensor = TensorProto(name="odd", data_type=kind, dims=[2])
        size = {2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2}.get(kind, 4 if kind == 1 else 1)
        tensor.raw_data = bytes(2 * size if kind < 21 else 1)
        if kind == 8:
            tensor.ClearField("raw_data")
            tensor.string_data.extend([b"a", EVIL.encode()])
        net.more.append(tensor)
        if rng.random() < .6:
            net.behind(node("Cast", ["odd"], ["cast"], "cast", to=FLOAT), node("ReduceMax", ["cast"], ["m"], "max", keepdims=0), node("Add", ["h", "m"], ["y"], "add"))
    else:
        net.opset = 21
        net.behind(node("Cast", ["h"], ["c"], "cast", to=kind), node("Cast", ["c"], ["y"], "back", to=FLOAT))


def notes(rng, net):
    """Fields beside the graph: metadata, documentation, training, annotations."""
    model = net.model()
    way = rng.randrange(7)
    if way == 0:
        entry = model.metadata_props.add()
        entry.key, entry.value = rng.choice([("k" * 3_000_000, "v"), ("k", "v" * 3_000_000), ("", ""), (EVIL, EVIL), ("mqq", "1")])
        model.metadata_props.add().CopyFrom(entry)
    elif way == 1:
        training = model.training_info.add()
        training.algorithm.CopyFrom(model.graph)
    elif way == 2:
        note = model.graph.quantization_annotation.add()
        note.tensor_name = rng.choice(["w", "nothing", "a", EVIL])
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=rng.choice(["nothing", "b"]))
    elif way == 3:
        model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = rng.choice(["d" * 3_000_000, EVIL, ""])
    elif way == 4:
        model.producer_name, model.producer_version, model.domain, model.model_version = EVIL, "v" * 10_000, "\0", -2**63
    elif way == 5:
        model.ir_version = rng.choice([1, 3, 4, 13, 99, 2**31])
    else:
        model.graph.name = rng.choice(["", EVIL, "g" * 100_000])
    return model


def functions(rng, net):
    """Functions with references to attributes, of themselves, of each other, unused, of other inputs than calls."""
    net.domains = ["own"]
    imports = [helper.make_opsetid("", rng.choice([17, 17, 17, 21])), helper.make_opsetid("own", 1)]
    inner = node("LeakyRelu", ["a"], ["b"])
    inner.attribute.add(name="alpha", ref_attr_name=rng.choice(["slope", "slope", "nothing"]), type=1)
    way = rng.randrange(8)
    net.behind(node("F", ["h"], ["y"], "call", domain="own", **({"slope": .2} if rng.random() < .6 else {})))
    make = lambda name, nodes, inputs=["a"], outputs=["b"], **more: helper.make_function("own", name, inputs, outputs, nodes, imports, **more)
    first = make("F", [inner], attributes=["slope"])
    if way == 0:
        first = make("F", [node("F", ["a"], ["b"], domain="own")])
    elif way == 1:
        first = make("F", [node("G", ["a"], ["b"], domain="own")])
        net.functions.append(make("G", [node("F", ["a"], ["b"], domain="own")]))
    elif way == 2:
        first = make("F", [node("Add", ["a", "c"], ["b"])], inputs=["a", "c"])
    elif way == 3:
        first = make("F", [node("Gelu", ["a"], ["b"])])
    elif way == 4:
        net.functions.append(make("Unused", [node("Nothing", ["a"], ["b"])]))
    elif way == 5:
        first = make("F", [node("Conv", ["a", "k"], ["b"]), ], inputs=["a"])
    elif way == 6:
        net.functions.append(make("F", [node("Tanh", ["a"], ["b"])]))
    net.functions.append(first)


def quantized_parts(rng, net):
    """Q/DQ pairs, integer operators and fused operators, in a part of the graph or all of it."""
    net.opset = 21
    zero = rng.choice([np.uint8(128), np.int8(0), np.uint16(9), np.int8(5)])
    net.tensors.update(s=np.float32(rng.choice([.05, .05, 0, -1, np.nan, 1e-30])), z=zero, z8=np.uint8(3))
    way = rng.randrange(7)
    if way < 3:
        at = rng.choice(["x", "a", "r"])
        for it in net.nodes:
            it.input[:] = ["dq" if name == at else name for name in it.input]
        pair = [node("QuantizeLinear", [at, "s", "z"], ["q"], "q"), node("DequantizeLinear", ["q", "s", "z"], ["dq"], "dq")]
        place = {"x": 0, "a": 1, "r": 2}[at]
        net.nodes[place:place] = pair
    elif way == 3:
        net.tensors.update(w=np.random.default_rng(1).integers(-100, 100, (6, 3, 3, 3)).astype(np.int8))
        net.nodes.insert(0, node("DequantizeLinear", ["w", "s"], ["wf"], "dq"))
        net.nodes[1].input[1] = "wf"
    elif way == 4:
        net.behind(node("DynamicQuantizeLinear", ["h"], ["q", "qs", "qz"], "dynamic"), node("DequantizeLinear", ["q", "qs", "qz"], ["y"], "dq"))
    elif way == 5:
        net.domains = ["com.microsoft"]
        net.nodes[0].op_type, net.nodes[0].domain = "FusedConv", "com.microsoft"
        net.nodes[0].attribute.append(helper.make_attribute("activation", "Relu"))
    else:
        net.domains = ["com.microsoft"]
        operator = rng.choice(["Gelu", "QuickGelu", "FastGelu", "QLinearAdd", "BiasGelu", "NhwcConv"])
        net.behind(node(operator, ["h"], ["y"], "fused", domain="com.microsoft"))


def weights(rng, net):
    """Weights that several operators read, or that nodes or inputs give."""
    way = rng.randrange(11)
    if way == 0:
        net.tensors["i"] = np.int64([0, 1, 2, 3])
        net.tensors["flat"] = np.int64([1, 4, 1, 6])
        net.behind(node("Gather", ["v", "i"], ["row"], "gather", axis=0), node("ReduceMean", ["row"], ["m"], "mean", keepdims=0), node("Add", ["h", "m"], ["y"], "add"))
    elif way == 1:
        net.behind(node("Relu", ["h"], ["k"], "k"), node("Conv", ["r", "v"], ["again"], "again"), node("Add", ["k", "again"], ["y"], "add"))
    elif way == 2:
        net.nodes.insert(0, node(rng.choice(["Mul", "Add", "Sub"]), ["w", "w"], ["ww"], "computed"))
        net.nodes[1].input[1] = "ww"
    elif way == 3:
        net.inputs.append(value("w2", [6, 3, 3, 3]))
        net.samples["w2"] = draw(N, 6, 3, 3, 3)
        net.nodes[0].input[1] = "w2"
    elif way == 4:
        net.tensors["shape"] = np.int64([4, 6, 1, 1])
        net.nodes.insert(0, node("ReduceMean", ["x"], ["m"], "mean", keepdims=0))
        net.nodes.insert(1, node("Mul", ["v", "m"], ["vm"], "scaled"))
        net.nodes[-1].input[1] = "vm"
    elif way == 5:
        net.behind(node("Add", ["h", "vb"], ["y"], "add"))
        net.tensors["vb"] = draw(1, 4, 1, 1)
        net.nodes[2].input.append("vb4")
        net.nodes.insert(0, node("Squeeze", ["vb", "axes"], ["vb4"], "squeeze"))
        net.tensors["axes"] = np.int64([0, 2, 3])
    elif way == 6:
        net.nodes.insert(0, node("Constant", [], ["w3"], "constant", value=array("", net.tensors.pop("w"))))
        net.nodes[1].input[1] = "w3"
    elif way == 7:
        net.nodes[0].input[2] = "xb"
        net.nodes.insert(0, node("ReduceMean", ["x"], ["xm"], "mean", axes=[0, 2, 3], keepdims=0))
        net.nodes.insert(1, node("Concat", ["xm", "xm"], ["xb"], "bias", axis=0))
    elif way == 8:
        net.nodes[0].input[1] = net.nodes[0].input[0]
    elif way == 9:
        net.inputs.append(value("w", [6, 3, 3, 3]))
    else:
        net.tensors["w"] = net.tensors["w"][:, :, :1, :1] if rng.random() < .5 else np.zeros((0, 3, 3, 3), np.float32)


def extremes(rng, net):
    """Weights, biases and normalizations of extreme values."""
    name = rng.choice(["w", "w", "v", "b"])
    shape = net.tensors[name].shape
    number = rng.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 1e-45, 0, 1, 1e30, 1e-30, 1e10, 65504, 1e-7])
    way = rng.randrange(4)
    if way == 0:
        net.tensors[name] = np.full(shape, number, np.float32)
    elif way == 1:
        net.tensors[name].reshape(-1)[0] = number
    elif way == 2:
        with np.errstate(all="ignore"):
            net.tensors[name] = (net.tensors[name] * np.float32(number)).astype(np.float32)
    else:
        statistics = {"scale": draw(4), "shift": draw(4), "mean": draw(4), "variance": np.abs(draw(4)) + .1}
        odd = rng.choice(sorted(statistics))
        statistics[odd][rng.randrange(4)] = rng.choice([0, -1, number])
        net.tensors.update({f"bn_{key}": it for key, it in statistics.items()})
        net.behind(node("BatchNormalization", ["h", "bn_scale", "bn_shift", "bn_mean", "bn_variance"], ["y"], "norm",
                        epsilon=rng.choice([1e-5, 0., -1., float("nan"), 1e30])))


def control(rng, net):
    """Branches and loops: of unknown conditions, of other shapes, with weights, with names of the outer graph."""
    result = lambda name, shape=None: value(name, shape)
    branch = lambda name, *nodes: helper.make_graph(list(nodes), name, [], [result(nodes[-1].output[0])])
    net.tensors.update(limit=np.float32(0), n=np.int64(3), t=np.array(True), f=np.array(False), u=draw(4, 4, 1, 1), c0=np.int64([0]))
    condition = rng.choice(["t", "f", "known", "c", "c", "c"])
    conditions = [node("ReduceSum", ["h"], ["sum"], "sum", keepdims=0), node("Greater", ["sum", "limit"], ["c"], "greater"), node("Not", ["f"], ["known"], "not")]
    relu, tanh = node("Relu", ["h"], ["r1"], "inner1"), node("Tanh", ["h"], ["r2"], "inner2")
    layer = node("Conv", ["h", "u"], ["r3"], "inner3")
    smaller = node("MaxPool", ["h"], ["r4"], "inner4", kernel_shape=[2, 2], strides=[2, 2])
    flat = node("Flatten", ["h"], ["r5"], "inner5")
    shadow = node("Relu", ["h"], ["r"], "inner6")
    missing = node("Relu", ["nowhere"], ["r7"], "inner7")
    way = rng.randrange(4)
    if way < 2:
        both = rng.sample([relu, tanh, layer, smaller, flat, shadow, missing], 2)
        net.behind(*conditions, node("If", [condition], ["y"], "if", then_branch=branch("then", both[0]), else_branch=branch("else", both[1])))
    elif way == 2:
        inner = rng.choice([[node("Conv", ["s", "u"], ["s2"], "inner")], [node("Relu", ["s"], ["s2"], "inner")], [node("Add", ["s", "h"], ["s2"], "inner")]])
        body = helper.make_graph([*inner, node("Identity", ["go"], ["go2"])], "body", [value("k", [], 7), value("go", [], 9), result("s")],
                                 [value("go2", [], 9), result("s2")])
        net.behind(*conditions, node("Loop", [rng.choice(["n", ""]), rng.choice([condition, ""]), "h"], ["y"], "loop", body=body))
    else:
        body = helper.make_graph([node("Add", ["s", "e"], ["s2"]), node("Relu", ["s2"], ["o"])], "body", [result("s"), result("e")], [result("s2"), result("o")])
        net.tensors["start"] = draw(4, 8, 8)
        net.behind(node("Scan", ["start", "h"], ["end", "y"], "scan", body=body, num_scan_inputs=1))


GRAPHS = [names, ends, omitted, ranks, types, notes, functions, quantized_parts, weights, extremes, control]


def graph_trial(kind, rng, folder):
    net = Network()
    model = kind(rng, net) or net.model()
    path, data = folder / "m.onnx", folder / "d.npz"
    path.write_bytes(model.SerializeToString())
    np.savez(data, **net.samples)
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    backend = rng.choice(BACKENDS)
    way = rng.choice(["calibrate"] * 7 + ["prepare", "inspect", "doctor", "eval", "compare"])
    options = ["--json"] if rng.random() < .4 and way != "prepare" else []
    if way == "prepare":
        return Trial([way, path, "-b", backend, "-o", out], out, source=path)
    if way == "inspect":
        return Trial([way, path, "-b", backend, *options])
    if way in ("doctor", "eval", "compare"):
        return Trial([way, path, *[path][: way == "compare"], "--data", data, *options])

    def like_the_given(code, printed, text):
        """Violations of a written model that ONNX Runtime does not run, or whose outputs are far from those of the given one in silence."""
        if code != 0 or onnxruntime is None:
            return []
        kept = {it.name for it in model.graph.input} - {it.name for it in model.graph.initializer}
        sample = {name: it[:1] for name, it in net.samples.items() if name in kept}
        try:
            expected = run_in_runtime(str(path), sample)
        except Exception:
            return []
        try:
            found = run_in_runtime(str(out), sample)
        except Exception as error:
            return [f"ONNX Runtime refuses the written model: {str(error)[:200]}"]
        wrong = []
        for k, (a, b) in enumerate(zip(expected, found, strict=True)):
            a, b = np.asarray(a), np.asarray(b)
            if a.shape != b.shape or a.dtype != b.dtype:
                wrong.append(f"output {k} is {b.dtype} {b.shape}, was {a.dtype} {a.shape}")
            elif a.dtype.kind == "f" and a.size and np.isfinite(a).all() and "warning" not in text:
                a = a.astype(np.float64)
                error = np.abs(a - b).mean() / max(np.abs(a).mean(), 1e-30)
                if not error < .3:
                    wrong.append(f"output {k} is far off in silence: {error:.2g}")
        return wrong
    args = ["calibrate", path, "-b", backend, "--data", data, "--effort", rng.choice("001"), "--threads", "2", "-o", out, *options]
    return Trial(args, out, source=path, checks=like_the_given)

