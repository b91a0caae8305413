"""What ncnn's tool ncnn2int8 does, for lack of a wheel of it: a float model of ncnn and a table of scales
become an int8 model.

Source: Tencent/ncnn, tools/quantize/ncnn2int8.cpp, tools/modelwriter.h and load_model of the layers. Weights
are float32 behind the tag 0, int8 behind the tag 0x000D4B38 and padded to 4 bytes; then bias, one scale per
output channel (per group for depthwise), one scale of the input; parameter 8 says that these are there.
"""

import numpy as np
import onnx

INT8_TAG = 0x000D4B38
# Layer type: (parameter that holds the number of weights, value of int8_scale_term).
SCALE_TERMS = {"Convolution": (6, 2), "ConvolutionDepthWise": (6, 1), "InnerProduct": (2, 2)}


def read_table(path):
    """{node name: (scales of the weight, scale of the input)}"""
    lines = [line.split() for line in path.read_text().splitlines() if line]
    scales = {name: np.array(values, np.float32) for name, *values in lines}
    return {name: (scales[f"{name}_param_0"], scales[name]) for name in scales if not name.endswith("_param_0")}


def weights_by_node(model):
    values = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    made = {}
    for node in onnx.load(model).graph.node:
        if node.op_type in ("Conv", "Gemm"):
            weight = values[node.input[1]]
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            made[node.name] = weight if node.op_type == "Conv" or transposed else weight.T
    return made


def quantize(param, binary, table, model, folder):
    """Writes int8.param and int8.bin into `folder`; returns the names of the layers that became int8."""
    table, weights, data = read_table(table), weights_by_node(model), binary.read_bytes()
    lines, out, at, done = param.read_text().splitlines(), bytearray(), 0, []
    for i, line in enumerate(lines):
        kind = line.split()[0]
        if kind not in SCALE_TERMS:
            continue
        options = dict(o.split("=") for o in line.split() if "=" in o)
        size_key, term = SCALE_TERMS[kind]
        size, n_out = int(options[str(size_key)]), int(options["0"])
        tag = np.frombuffer(data, np.uint32, 1, at)[0]
        assert tag == 0, f"{line}: weights of type {tag:#x}, expected float32"
        weight = np.frombuffer(data, np.float32, size, at + 4)
        n_bias = n_out if int(options.get("1" if kind == "InnerProduct" else "5", 0)) else 0
        bias = np.frombuffer(data, np.float32, n_bias, at + 4 + 4 * size)
        at += 4 + 4 * size + 4 * n_bias
        names = [n for n, w in weights.items() if w.size == size and np.array_equal(w.reshape(-1), weight)]
        assert len(names) == 1, f"{line}: its weights are those of {names}"
        scales, input_scale = table[names[0]]
        rows = weight.reshape(len(scales), -1) * scales[:, None]
        ints = np.clip(np.round(rows), -127, 127).astype(np.int8).tobytes()
        out += np.uint32(INT8_TAG).tobytes() + ints + bytes(-len(ints) % 4)
        out += bias.tobytes() + scales.tobytes() + input_scale.tobytes()
        lines[i] = f"{line} 8={term}"
        done.append(names[0])
    assert at == len(data)
    (folder / "int8.param").write_text("\n".join(lines) + "\n")
    (folder / "int8.bin").write_bytes(out)
    return done
