"""Models of one operator each, from ONNX's own test cases: extreme attributes and constants, values of the definition."""

import functools
import os
import re
import warnings

import numpy as np
import onnx
from harness import BACKENDS, Trial
from onnx import TensorProto, helper, numpy_helper

try:
    import onnxruntime
    onnxruntime.set_default_logger_severity(4)
except ImportError:
    onnxruntime = None

INTEGERS = [-2**31, 2**31 - 1, -2**63, 2**63 - 1, 10**6, 10**9, 0, -1, -7, 1, 3, 17]
FLOATS = [float("nan"), float("inf"), -float("inf"), -1e38, 1e38, 1e-45, -1.0, 0.0, 1e9, 3.0]
TEXTS = [b"", b"\xff\xfe", b"x", b"SAME_UPPER", b"\x1b[0m\nFORGED", b"x" * 100_000, b"linear", b"..."]
# Numbers that the engine and the package do not both have; operators that draw random numbers; shifts by more bits
# than there are, which only opset 28 defines.
UNLIKE = re.compile(
    r"float8|fp8|e4m3|e5m2|float4|e8m0|int2|bernoulli|random|training|dropout_default_mask_ratio|shift_ge_width|negative_shift", re.I)


@functools.cache
def cases():
    """ONNX's test cases with arrays of numbers only, sorted by operator, each operator as often as the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases
        found = collect_testcases(None)
    by_operator = {}
    for case in found:
        inputs, outputs = case.data_sets[0]
        is_array = all(isinstance(it, np.ndarray) and it.dtype.kind in "fiub" for it in [*inputs, *outputs])
        if is_array and inputs and len(inputs) == len(case.model.graph.input) and not UNLIKE.search(case.name):
            by_operator.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return by_operator


def case_of(rng):
    """A model, its inputs and outputs by name. Inputs but one are constants, in two of three."""
    by_operator = cases()
    case = rng.choice(by_operator[rng.choice(sorted(by_operator))])
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs, outputs = case.data_sets[0]
    names = [value.name for value in model.graph.input]
    floats = [k for k, array in enumerate(inputs) if array.dtype == np.float32]
    kept = set(range(len(inputs))) if rng.random() < .35 else {floats[0] if floats else 0}
    for k in reversed(range(len(inputs))):
        if k not in kept:
            model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(inputs[k]), names[k]))
            del model.graph.input[k]
    return model, {names[k]: inputs[k] for k in sorted(kept)}, dict(zip((it.name for it in model.graph.output), outputs)), case.name


def save(model, inputs, folder):
    path, data = folder / "m.onnx", folder / "d.npz"
    path.write_bytes(model.SerializeToString())
    np.savez(data, **inputs)
    return path, data


def commands(rng, path, data, folder):
    """A command on the model, and the quantized or prepared model that it writes."""
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    way = rng.choice(["inspect"] * 3 + ["calibrate"] * 3 + ["prepare", "compare", "eval", "doctor", "check"])
    options = [] if way == "prepare" else ["--json"] if rng.random() < .4 else []
    if way == "calibrate":
        return Trial([way, path, "-b", rng.choice(BACKENDS), "--data", data, "--effort", "0", "--threads", "1", "-o", out, *options], out, source=path)
    if way == "prepare":
        return Trial([way, path, "-b", rng.choice(BACKENDS), "-o", out], out, source=path)
    if way == "compare":
        return Trial([way, path, path, "--data", data, *options])
    if way in ("eval", "doctor"):
        return Trial([way, path, "--data", data, *options])
    return Trial([way, path, "-b", rng.choice(BACKENDS), *options])


def extremes(rng, folder):
    """A number or text of an attribute, or a number of a constant, is extreme."""
    while True:
        model, inputs, _, _ = case_of(rng)
        sites = [attribute for node in model.graph.node for attribute in node.attribute if attribute.type in (1, 2, 3, 6, 7)]
        sites += [tensor for tensor in model.graph.initializer if tensor.data_type in (6, 7)]
        if sites:
            break
    site = rng.choice(sites)
    if isinstance(site, onnx.TensorProto):
        array = numpy_helper.to_array(site).copy()
        number = rng.choice(INTEGERS)
        if array.size:
            array.reshape(-1)[rng.randrange(array.size)] = number if site.data_type == 7 else max(-2**31, min(2**31 - 1, number))
            site.CopyFrom(numpy_helper.from_array(array, site.name))
    elif site.type == 1:
        site.f = rng.choice(FLOATS)
    elif site.type == 2:
        site.i = rng.choice(INTEGERS)
    elif site.type == 3:
        site.s = rng.choice(TEXTS)
    elif site.type == 6 and site.floats:
        site.floats[rng.randrange(len(site.floats))] = rng.choice(FLOATS)
    elif site.ints and rng.random() < .8:
        site.ints[rng.randrange(len(site.ints))] = rng.choice(INTEGERS)
    else:
        site.ints.extend([1] * rng.choice([1, 5000]))
    return commands(rng, *save(model, inputs, folder), folder)


def odd_inputs(rng, folder):
    """Samples with no values, of another rank, size or type, or with values that an operator has no result for."""
    model, inputs, _, _ = case_of(rng)
    name = rng.choice(sorted(inputs))
    array = inputs[name]
    declared = next(value for value in model.graph.input if value.name == name).type.tensor_type.shape
    way = rng.randrange(6)
    if way == 0 and array.ndim:
        array = array[:0]
    elif way == 1:
        array = array[None]
    elif way == 2 and array.ndim:
        array = np.concatenate([array] * 2, rng.randrange(array.ndim))
    elif way == 3 and array.dtype.kind == "f":
        array = np.full_like(array, rng.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0]))
    elif way == 4 and array.dtype.kind in "iu":
        information = np.iinfo(array.dtype)
        array = np.full_like(array, rng.choice([information.min, information.max]))
    else:
        array = array.astype(rng.choice([np.float64, np.int64, np.bool_, np.uint8]))
    if rng.random() < .5:
        # The model leaves the sizes open, or declares what it gets.
        for k, dim in enumerate(declared.dim):
            dim.dim_param = f"d{k}"
    return commands(rng, *save(model, {**inputs, name: array}, folder), folder)


def wrong_types(rng, folder):
    """Types and shapes of value infos that lie, and other operators under a node's name."""
    model, inputs, _, _ = case_of(rng)
    way = rng.randrange(5)
    graph = model.graph
    if way == 0:
        value = rng.choice([*graph.input, *graph.output])
        value.type.tensor_type.elem_type = rng.choice([0, 1, 6, 7, 8, 9, 10, 11, 16, 99])
    elif way == 1:
        value = rng.choice([*graph.input, *graph.output])
        value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=[{"dim_value": rng.choice([0, -1, 7, 2**31, 2**63 - 1])}] * rng.choice([0, 1, 4, 100])))
    elif way == 2:
        node = rng.choice(graph.node)
        graph.value_info.append(helper.make_tensor_value_info(node.output[0], rng.choice([1, 7, 9]), [rng.choice([0, 3, 2**40])] * 2))
    elif way == 3:
        operator = rng.choice(sorted(cases()))
        graph.node[0].op_type = operator
    else:
        model.opset_import[0].version = rng.choice([1, 6, 7, 9, 11, 13, 18, 21, 26])
    return commands(rng, *save(model, inputs, folder), folder)


def constants(model, outputs, path):
    """A model of the same inputs whose outputs are these arrays."""
    nodes = [helper.make_node("Identity", [f"constant{k}"], [name], f"copy{k}") for k, name in enumerate(outputs)]
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), f"constant{k}") for k, array in enumerate(outputs.values())]
    values = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(it.dtype), it.shape) for name, it in outputs.items()]
    graph = helper.make_graph(nodes, "constants", list(model.graph.input), values, tensors)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def values(rng, folder):
    """The engine against the values that ONNX's test cases expect, within 1e-4 of the largest."""
    model, inputs, outputs, name = case_of(rng)
    path, data = save(model, inputs, folder)
    expected = folder / "expected.onnx"
    constants(model, outputs, expected)

    def fits(code, printed, text):
        # It may refuse an operator, but not compute something else.
        wrong = []
        for output in printed.get("outputs", []) if code == 0 else []:
            array = outputs[output["tensor"]].astype(np.float64)
            finite = np.abs(array[np.isfinite(array)])
            difference = output.get("max_difference")
            tolerance = 2e-2 if outputs[output["tensor"]].dtype == np.float16 else 2e-4
            is_near = difference is not None and difference <= tolerance * max(finite.max(initial=0), 1e-6)
            if not is_near and finite.size == array.size:
                wrong.append(f"another value in {name}")
        return wrong
    return Trial(["compare", path, expected, "--data", data, "--json"], checks=fits)


def run_in_runtime(model, inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def prepared_values(rng, folder):
    """The prepared model against the model, in ONNX Runtime, where that runs the model. Casts behind it look like copies."""
    model, inputs, outputs, name = case_of(rng)
    if rng.random() < .5:
        for k, output in enumerate(list(model.graph.output)):
            to = rng.choice([TensorProto.FLOAT, TensorProto.FLOAT, output.type.tensor_type.elem_type])
            model.graph.node.append(helper.make_node("Cast", [output.name], [f"cast{k}"], f"cast{k}", to=to))
            model.graph.output[k].CopyFrom(helper.make_tensor_value_info(f"cast{k}", to, list(outputs[output.name].shape)))
    path, _ = save(model, inputs, folder)
    out = folder / "p.onnx"

    def equal(code, printed, text):
        if code != 0 or onnxruntime is None:
            return []
        try:
            expected = run_in_runtime(model, inputs)
        except Exception:
            return []
        try:
            found = run_in_runtime(str(out), inputs)
        except Exception:
            return [f"ONNX Runtime refuses the prepared {name}"]
        is_equal = lambda a, b: a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(a).max(initial=1e-6), equal_nan=True)
        same = all(is_equal(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(expected, found, strict=True))
        return [] if same else [f"prepared {name} has other values"]
    return Trial(["prepare", path, "-b", rng.choice(BACKENDS), "-o", out], out, checks=equal)


# Structures that no operator has alone

def structure(nodes, tensors=(), inputs=None, outputs=None, opset=17, functions=(), **more):
    value = lambda name, shape=(2, 4): helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", inputs or [value("x")], outputs or [value("y", ["rows", "columns"])], tensors, **more)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)


def structures(rng, folder):
    """Sequences, optionals, loops with names of the outer graph, functions, inputs that are initializers, no values."""
    node = helper.make_node
    weight = numpy_helper.from_array(np.random.default_rng(1).normal(0, .4, (4, 4)).astype(np.float32), "w")
    count = numpy_helper.from_array(np.array(rng.choice([3, 0, -1, 10**9, 2**63 - 1]), np.int64), "n")
    true = numpy_helper.from_array(np.array(True), "t")
    value = lambda name, kind=TensorProto.FLOAT, shape=None: helper.make_tensor_value_info(name, kind, shape)
    product = node("MatMul", ["x", "w"], ["h"], "product")
    way = rng.randrange(14)
    functions = []
    if way == 0:
        body = helper.make_graph([node("MatMul", ["s", "w"], ["r"], "inner"), node("Add", ["r", "h"], ["s2"]), node("Identity", ["c"], ["c2"])], "body",
                                 [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("s")],
                                 [value("c2", TensorProto.BOOL, []), value("s2")])
        model = structure([product, node("Loop", ["n", "t", "x"], ["y"], "loop", body=body)], [weight, count, true])
    elif way == 1:
        body = helper.make_graph([node("Add", ["s", "e"], ["s2"]), node("Mul", ["e", rng.choice(["w", "h", "nothing", "s2"])], ["o"])], "body",
                                 [value("s"), value("e")], [value("s2"), value("o")])
        model = structure([product, node("Scan", ["h", "w"], ["f", "y"], "scan", body=body, num_scan_inputs=rng.choice([1, 1, 0, 2, 10**6]))], [weight])
    elif way == 2:
        model = structure([product, node("SequenceConstruct", ["h", "x"], ["q"]), node("SequenceAt", ["q", "n"], ["y"])], [weight, count])
    elif way == 3:
        model = structure([product, node("Optional", ["h"], ["q"]), node("OptionalGetElement", ["q"], ["y"])], [weight])
    elif way == 4:
        # A chain of functions, each of which calls the next twice; or one that calls itself.
        depth = rng.choice([3, 40])
        call = lambda k: (f"F{k}", "own") if k < depth else ("Relu", "")
        for k in range(depth):
            name, domain = call(k if rng.random() < .02 else k + 1)
            inner = [node(name, ["a"], ["c"], domain=domain), node(name, ["c"], ["b"], domain=domain)]
            functions.append(helper.make_function("own", f"F{k}", ["a"], ["b"], inner, [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]))
        model = structure([product, node("F0", ["h"], ["y"], domain="own")], [weight], functions=functions)
    elif way == 5:
        # An initializer that is an input as well; samples do not have it, or have it.
        model = structure([node("MatMul", ["x", "w"], ["y"], "product")], [weight], [value("x", shape=[2, 4]), value("w", shape=[4, 4])])
    elif way == 6:
        model = structure([product, node("Slice", ["h", "a", "b"], ["y"], "none")],
                          [weight, numpy_helper.from_array(np.array([0]), "a"), numpy_helper.from_array(np.array([0]), "b")])
    elif way == 7:
        branch = lambda operator: helper.make_graph([node(operator, ["h"], ["r" + operator])], "b", [], [value("r" + operator)])
        model = structure([product, node("If", ["t"], ["y"], "if", then_branch=branch("Relu"), else_branch=branch("Tanh"))], [weight, true])
    elif way == 8:
        graph = helper.make_graph([node("Relu", ["h"], ["r"])], "g0", [], [value("r")])
        for k in range(rng.choice([5, 25])):
            graph = helper.make_graph([node("If", ["t"], ["r"], then_branch=graph, else_branch=helper.make_graph([node("Relu", ["h"], ["r"])], "e", [], [value("r")]))],
                                      f"g{k + 1}", [], [value("r")])
        model = structure([product, node("If", ["t"], ["y"], "deep", then_branch=graph, else_branch=graph)], [weight, true])
    elif way == 9:
        model = structure([product, node("Relu", ["h"], ["y"], "a"), node("Relu", ["h"], ["y"], "a")], [weight])
    elif way == 10:
        model = structure([product], [weight], outputs=[value("h"), value("x", shape=[2, 4]), value("w", shape=[4, 4]), value("h")])
    elif way == 11:
        chain = [node("Identity" if k % 2 else "Neg", [f"c{k}"], [f"c{k + 1}"]) for k in range(rng.choice([500, 2000]))]
        model = structure([node("MatMul", ["x", "w"], ["c0"]), *chain, node("Relu", [f"c{len(chain)}"], ["y"])], [weight])
    elif way == 12:
        # The engine compares all pairs of the readers of a tensor.
        wide = [node("Relu", ["h"], [f"r{k}"]) for k in range(500)]
        model = structure([product, *wide, node("Sum", [f"r{k}" for k in range(500)], ["y"])], [weight])
    else:
        model = structure([product, node("Cast", ["h"], ["y"], to=rng.choice([0, 2, 6, 7, 8, 9, 10, 11, 14, 16, 17, 21, 99, -1]))], [weight])
    batch = rng.choice([2, 2, 2, 0, 1, 3])
    if batch != 2 and way != 10:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    inputs = {"x": np.random.default_rng(2).normal(0, 1, (batch, 4)).astype(np.float32)}
    return commands(rng, *save(model, inputs, folder), folder)


def varint(number):
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def field(number, kind, data=b""):
    return varint(number << 3 | kind) + (varint(len(data)) + data if kind == 2 else data)


def encodings(rng, folder):
    """Forms of protobuf that writers rarely use: groups, unknown fields, fields twice, packed or not, long numbers."""
    weight = np.random.default_rng(1).normal(0, .4, (4, 4)).astype(np.float32)
    model = structure([helper.make_node("MatMul", ["x", "w"], ["y"], "product")])
    raw = weight.tobytes()
    tensor = field(8, 2, b"w") + field(2, 0, varint(1))
    dims = field(1, 0, varint(4)) * 2 if rng.random() < .5 else field(1, 2, varint(4) * 2)
    values = rng.choice([
        lambda: field(9, 2, raw), lambda: field(4, 2, raw), lambda: b"".join(field(4, 5, raw[k:k + 4]) for k in range(0, 64, 4)),
        lambda: field(4, 2, raw[:32]) + field(4, 2, raw[32:]), lambda: field(9, 2, raw) * 2, lambda: field(9, 2, raw[:32]) + field(9, 2, raw[32:]),
        lambda: field(9, 2, raw) + field(4, 2, raw), lambda: field(4, 2, raw[:30]), lambda: field(5, 2, b"\x01" * 16), lambda: b"",
        lambda: field(9, 2, raw) + field(2, 0, b"\xff" * 9 + b"\x01"), lambda: field(9, 2, raw) + field(2, 0, b"\xff" * 11)])()
    odd = rng.choice([
        b"", field(77, 0, varint(2**64 - 1)), field(78, 2, b"z" * 1000), field(79, 3) + field(80, 0, b"\x01") + field(79, 4), field(79, 3), field(79, 4),
        field(81, 1, bytes(8)), field(82, 5, bytes(4)), b"\x00", field(0, 0, b"\x01"), field(83, 6), field(2**29 - 1, 0, b"\x01"), field(84, 2, b"")[:-1] + b"\xff\xff\xff\xff\x0f",
        field(79, 3) * 5000 + field(79, 4) * 5000])
    path, data = save(model, {"x": np.ones((2, 4), np.float32)}, folder)
    content = path.read_bytes()
    if rng.random() < .1:
        # An If in an If, and so on.
        deep = b""
        for _ in range(rng.choice([20, 40, 3000])):
            branch = field(1, 2, b"then_branch") + field(20, 0, b"\x05") + field(6, 2, deep)
            deep = field(1, 2, field(1, 2, b"t") + field(2, 2, b"z") + field(4, 2, b"If") + field(5, 2, branch))
        odd = field(7, 2, deep)
    part = field(5, 2, tensor + dims + values + (odd if rng.random() < .5 else b""))
    path.write_bytes(content + field(7, 2, part) + odd)
    return commands(rng, path, data, folder)


def parts_of_files(rng, folder):
    """External data that overlaps, ends behind the file, is the model itself, twice the same, or in odd numbers."""
    weight = numpy_helper.from_array(np.random.default_rng(1).normal(0, .4, (4, 4)).astype(np.float32), "w")
    model = structure([helper.make_node("MatMul", ["x", "w"], ["h"], "one"), helper.make_node("MatMul", ["h", "v"], ["y"], "two")], [weight, weight])
    model.graph.initializer[1].name = "v"
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        keys = rng.choice([
            {"location": "w.bin"}, {"location": "w.bin", "offset": "0", "length": "64"}, {"location": "w.bin", "offset": "32"}, {"location": "m.onnx"},
            {"location": "w.bin", "offset": "18446744073709551615", "length": "18446744073709551615"}, {"location": "w.bin", "offset": "9223372036854775807"},
            {"location": "./w.bin"}, {"location": "w.bin", "length": "63"}, {"location": "w.bin", "offset": "0x10"}, {"location": "w.bin", "offset": " 1"}, {"location": "."},
            {"location": "w.bin", "offset": ""}, {"location": "big.bin"}, {"location": "empty.bin"}, {"offset": "0"}, {"location": "w.bin", "checksum": "0", "other": "x"},
            {"location": "w.bin", "offset": "+1"}, {"location": "w.bin/"}, {"location": "W.BIN"}, {"location": "a\nerror: FORGED"}, {"location": "sub/../w.bin"}])
        for key, it in keys.items():
            tensor.external_data.add(key=key, value=it)
        if rng.random() < .1:
            tensor.external_data.add(key="location", value="w.bin")
    (folder / "w.bin").write_bytes(weight.raw_data * rng.choice([1, 2]))
    (folder / "empty.bin").write_bytes(b"")
    with open(folder / "big.bin", "wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    return commands(rng, *save(model, {"x": np.ones((2, 4), np.float32)}, folder), folder)


OPERATORS = [extremes, extremes, extremes, odd_inputs, wrong_types, values, values, prepared_values, structures, encodings, parts_of_files]


def operator_trial(kind, rng, folder):
    return kind(rng, folder)
