"""Files for other tools, read as those tools read them: by the tool itself where it is small enough to
install, else by a reader after its source."""

import json
import struct
import subprocess

import numpy as np
import onnx
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from onnx import numpy_helper
from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable
from onnxruntime.quantization.calibrate import load_tensors_data
from onnxruntime.quantization.quant_utils import compute_scale_zp

from expected import hold
from support import MQQ, ROOT, agreement_percent, digits, fixture, float_digits, mqq, overflows, run, sqnr_db

FLOAT = fixture("digits_cnn")
GOLDEN = ROOT / "tests" / "golden" / "formats"
FORMATS = {
    "tensorrt": "mqbench-tensorrt,ppq,trt-cache,ort-cache,ort-flatbuffers,ort-json,openvino-fq,deploy,ncnn,"
    "encodings-0.6.1,encodings-1.0.0,encodings-2.0.0",
    "onnxruntime": "ort-json,openvino-fq,deploy,encodings-0.6.1,encodings-1.0.0,encodings-2.0.0",
}


@pytest.fixture(scope="module", params=list(FORMATS))
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    mqq("calibrate", FLOAT, "--backend", request.param, "--data", ROOT / "calib_data" / "calib", "--preprocess",
        "half", "--effort", "0", "--out-dir", folder, "--weight-observer", "percentile:99", "--emit", FORMATS[request.param])
    return folder / f"digits_cnn.{request.param}.onnx"


def ending(model, suffix):
    path = model.with_suffix("." + suffix)
    if not path.exists():
        pytest.skip(f"not for this backend: {suffix}")
    return path


def qdq_parameters(model):
    """Scale, zero point and axis of every tensor, from the Q/DQ model that mqq wrote."""
    graph = onnx.load(model).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    parameters = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            name = node.output[0].removesuffix("_DequantizeLinear")
            axis = next((a.i for a in node.attribute if a.name == "axis"), None)
            zero_point = constants[node.input[2]] if len(node.input) > 2 else np.int32(0)
            parameters[name] = (constants[node.input[1]], zero_point, axis)
    return parameters


def activations(model):
    sidecar = json.loads(model.with_suffix(".json").read_text())
    return [encoding["name"] for encoding in sidecar["activation_encodings"]]


def test_openvino_computes_the_same(made):
    openvino = pytest.importorskip("openvino", reason="make test-runtimes has it")
    samples, _ = digits("eval")
    samples = samples[:60]
    (expected,) = run(made, samples)
    # In float where integer kernels overflow: the file is tested, not they.
    options = {"LP_TRANSFORMS_MODE": False} if overflows() else {}
    compiled = openvino.Core().compile_model(str(ending(made, "openvino.onnx")), "CPU", options)
    got = np.stack([compiled(sample)[0].reshape(-1) for sample in samples])
    floats = float_digits("digits_cnn")[:60]
    assert sqnr_db(expected, got) > sqnr_db(floats, expected), "further from Q/DQ than Q/DQ from float"
    assert agreement_percent(expected, got) >= 98


def test_openvino_keeps_the_grids(made):
    graph = onnx.load(ending(made, "openvino.onnx")).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    parameters = qdq_parameters(made)
    nodes = [node for node in graph.node if node.op_type == "FakeQuantize"]
    assert {node.input[0] for node in nodes} <= set(parameters) and nodes
    for node in nodes:
        low, high = constants[node.input[1]], constants[node.input[2]]
        levels = node.attribute[0].i
        scale, zero_point, _ = parameters[node.input[0]]
        np.testing.assert_allclose(((high - low) / (levels - 1)).reshape(-1), scale.reshape(-1), rtol=1e-6)
        assert levels in (255, 256)
        assert np.all(np.round(-low.reshape(-1) / scale) == np.asarray(zero_point, int) - zero_point.dtype.type(
            np.iinfo(zero_point.dtype).min).astype(int) + (levels - 256))


def test_deploy_clips_weights_to_their_grids(made):
    clipped = {t.name: numpy_helper.to_array(t) for t in onnx.load(ending(made, "deploy.onnx")).graph.initializer}
    assert not any(n.op_type.endswith("Linear") for n in onnx.load(ending(made, "deploy.onnx")).graph.node)
    sidecar = json.loads(made.with_suffix(".json").read_text())
    changed = 0
    prepared = made.with_suffix(".prepared.onnx")
    mqq("prepare", FLOAT, "--backend", made.name.split(".")[1], "-o", prepared)
    floats = {t.name: numpy_helper.to_array(t) for t in onnx.load(prepared).graph.initializer}
    for encoding in sidecar["param_encodings"]:
        if encoding["output_dtype"] == "int32":
            continue
        weight = floats[encoding["name"]]
        shape = [1] * weight.ndim
        if "axis" in encoding:
            shape[encoding["axis"]] = -1
        scale = np.array(encoding["y_scale"], np.float32).reshape(shape).astype(np.float64)
        low, high = (scale * q for q in encoding["q_range"])
        expected = np.clip(weight, low.astype(np.float32), high.astype(np.float32))
        assert np.array_equal(clipped[encoding["name"]], expected)
        changed += not np.array_equal(weight, expected)
    assert changed
    samples, _ = digits("eval")
    floats, (got,) = float_digits("digits_cnn"), run(ending(made, "deploy.onnx"), samples)
    case = ("digits_cnn", made.name.split(".")[1], "deploy", "logits")
    hold("formats", case, sqnr_db=sqnr_db(floats, got), agreement_percent=agreement_percent(floats, got))


def test_onnxruntime_reads_its_calibration_data(made):
    data = load_tensors_data(ending(made, "ort.json"))
    tensors = data[0] if isinstance(data, tuple) else data
    parameters = qdq_parameters(made)
    assert set(tensors.keys()) == set(activations(made))
    for name in activations(made):
        low, high = tensors[name].range_value
        scale, zero_point, _ = parameters[name]
        info = np.iinfo(zero_point.dtype)
        q_min, q_max = (-127, 127) if info.min < 0 else (info.min, info.max)
        got_zero, got_scale = compute_scale_zp(low, high, np.array(q_min, zero_point.dtype),
                                               np.array(q_max, zero_point.dtype), symmetric=info.min < 0)
        np.testing.assert_allclose(got_scale, scale, rtol=1e-6)
        assert got_zero == zero_point


def test_onnxruntime_reads_its_tables(made):
    table = TrtTable.GetRootAs(ending(made, "ort.flatbuffers").read_bytes(), 0)
    entries = [(table.Dict(i).Key().decode(), float(table.Dict(i).Value())) for i in range(table.DictLength())]
    assert [name for name, _ in entries] == sorted(activations(made))
    lines = [line.rsplit(" ", 1) for line in ending(made, "ort.cache").read_text().splitlines()]
    assert [(name, float(amax)) for name, amax in lines] == entries
    parameters = qdq_parameters(made)
    for name, amax in entries:
        assert np.float32(amax / 127) == parameters[name][0]


def test_tensorrt_cache_as_model_optimizer_reads_it(made):
    lines = ending(made, "trt.cache").read_text().splitlines()
    assert lines[0].startswith("TRT-") and lines[0].endswith("-EntropyCalibration2")
    scales = {}
    for line in lines[1:]:
        name, bits = line.split(": ")
        scales[name] = struct.unpack("!f", bytes.fromhex(bits))[0]
    parameters = qdq_parameters(made)
    assert set(scales) >= set(activations(made))
    assert all(scales[name] == parameters[name][0] for name in activations(made))
    blob_range = json.loads(ending(made, "blob_range.json").read_text())["tensorrt"]["blob_range"]
    assert {name: np.float32(amax / 127) for name, amax in blob_range.items()} == {
        name: np.float32(scale) for name, scale in scales.items()}
    act_quant_info = json.loads(ending(made, "act_quant_info.json").read_text())["act_quant_info"]
    assert all(blob_range[name] == amax for name, amax in act_quant_info.items())


def legacy(bits, symmetric, scale, offset):
    """Scale and ONNX zero point of AIMET's 0.6.1 and 1.0.0, whose integers are unsigned: signed where
    symmetric, as aimet_onnx/_encoding.py."""
    return np.float32(scale), -int(offset) - (2 ** (bits - 1) if symmetric else 0)


def read_061(file):
    assert file["version"] == "0.6.1"
    for name, entry in (file["activation_encodings"] | file["param_encodings"]).items():
        for e in entry:
            assert abs(e["min"] - e["scale"] * e["offset"]) < 1e-12
            assert abs(e["max"] - e["scale"] * (e["offset"] + 2 ** e["bitwidth"] - 1)) < 1e-12
        yield name, [legacy(e["bitwidth"], e["is_symmetric"] == "True", e["scale"], e["offset"]) for e in entry]


def read_100(file):
    assert file["version"] == "1.0.0"
    for e in file["activation_encodings"] + file["param_encodings"]:
        assert e["enc_type"] == ("PER_TENSOR" if len(e["scale"]) == 1 else "PER_CHANNEL")
        yield e["name"], [legacy(e["bw"], e["is_sym"], *pair) for pair in zip(e["scale"], e["offset"])]


def read_200(file):
    assert file["version"] == "2.0.0"
    for e in file["encodings"]:
        scales = np.atleast_1d(np.array(e["y_scale"], np.float32))
        zero_points = np.broadcast_to(e.get("y_zero_point", 0), scales.shape)
        yield e["name"], list(zip(scales, map(int, zero_points)))


@pytest.mark.parametrize("version, reader", [("0.6.1", read_061), ("1.0.0", read_100), ("2.0.0", read_200)])
def test_encodings_hold_the_parameters_of_the_qdq_model(made, version, reader):
    read = dict(reader(json.loads(ending(made, f"{version}.encodings").read_text())))
    parameters = qdq_parameters(made)
    expected = {name for name, (_, zero, _) in parameters.items() if version == "2.0.0" or zero.dtype != np.int32}
    assert set(read) == expected
    for name, slices in read.items():
        scale, zero_point, _ = parameters[name]
        scales, zeros = np.atleast_1d(scale), np.broadcast_to(zero_point, np.atleast_1d(scale).shape)
        assert slices == [(s, int(z)) for s, z in zip(scales, zeros)], name


def test_ncnn_table_as_ncnn2int8_reads_it(made):
    parameters = qdq_parameters(made)
    graph = onnx.load(made).graph
    inputs = {n.name: [i.removesuffix("_DequantizeLinear") for i in n.input] for n in graph.node}
    weights, layers = {}, {}
    for line in ending(made, "ncnn.table").read_text().splitlines():
        key, *values = line.split(" ")
        if key.endswith("_param_0"):
            assert not layers, "weights stand first"
            weights[key.removesuffix("_param_0")] = np.array(values, np.float32)
        else:
            layers[key] = np.float32(values[0])
            assert len(values) == 1
    assert set(weights) == set(layers) and layers
    for layer, scale in layers.items():
        x, w = inputs[layer][:2]
        np.testing.assert_allclose(1 / scale, parameters[x][0], rtol=1e-6)
        np.testing.assert_allclose(1 / weights[layer], parameters[w][0], rtol=1e-6)


def tidl_message():
    """TIDLNetQuantParams, from the published specification (TexasInstruments/edgeai-tidl-tools, "Quantization
    Proto")."""
    file = descriptor_pb2.FileDescriptorProto(name="tidl.proto", package="tidl")
    kinds = {"int32": 5, "uint32": 13, "float": 2, "double": 1, "string": 9}
    for name, values in [("TidlQuantType", ["SYMMETRIC", "ASYMMETRIC"]),
                         ("TidlCalibType", ["PERTENSOR", "PERCHANNEL"])]:
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values, 1):
            enum.value.add(name=value, number=number)
    messages = {
        "TidlTensorQuantParams": [("min", "float"), ("max", "float"), ("size", "uint32"), ("element_type", "uint32"),
                                  ("scale", "*double"), ("zero_point", "*uint32"), ("value", "*double")],
        "TidlLayerQuantParams": [("layer_name", "string"), ("layer_type", "string"), ("bit_depth", "uint32")]
        + [(field, "*TidlTensorQuantParams") for field in ("outputs", "weights", "bias", "slope")],
        "TIDLNetQuantParams": [("num_layers", "int32"), ("quant_type", "TidlQuantType"),
                               ("calib_type", "TidlCalibType"), ("layers", "*TidlLayerQuantParams")],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            added = message.field.add(name=field, number=number, label=3 if kind[0] == "*" else 1)
            kind = kind.lstrip("*")
            if kind in kinds:
                added.type = kinds[kind]
            else:
                added.type = 14 if kind.endswith("Type") else 11
                added.type_name = f".tidl.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tidl.TIDLNetQuantParams"))()


def test_tidl_parses_its_quantization_parameters():
    text = (GOLDEN / "model.tidl.prototxt").read_text()
    net = text_format.Parse(text, tidl_message())
    assert net.num_layers == len(net.layers) and net.quant_type == 1
    assert [layer.layer_name for layer in net.layers][:2] == ["x", "relu1_out"]
    limit = 3.4e38
    for layer in net.layers:
        for tensor in [*layer.outputs, *layer.weights, *layer.bias]:
            assert -limit < tensor.min <= tensor.max < limit and len(tensor.scale) == 1
        for bias in layer.bias:
            assert bias.size == len(bias.value)
    conv = net.layers[1]
    assert conv.layer_type == "TIDL_ConvolutionLayer" and len(conv.weights) == len(conv.bias) == 1


@pytest.fixture(scope="module")
def node_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node_data")
    mqq("calibrate", FLOAT, "-b", "tensorrt", "--data", ROOT / "calib_data" / "calib", "--preprocess", "half", "--out-dir", folder,
        "--emit", "model-explorer")
    return folder / "digits_cnn.tensorrt.onnx"


def test_node_data_has_the_error_of_each_node(node_data):
    data = json.loads(ending(node_data, "model-explorer.json").read_text())
    sidecar = json.loads(node_data.with_suffix(".json").read_text())
    errors = {error["tensor"]: error["sqnr_db"] for error in sidecar["tensor_errors"]["tensors"]}
    nodes = {node["name"]: errors[node["outputs"][0]] for node in sidecar["graph"]["nodes"] if node["outputs"][0] in errors}
    assert {node: entry["value"] for node, entry in data["results"].items()} == nodes and len(nodes) > 10
    bounds = [threshold["value"] for threshold in data["thresholds"]]
    assert bounds == sorted(bounds)


def test_model_explorer_finds_the_nodes(node_data):
    adapter = pytest.importorskip("model_explorer_onnx.main").ONNXAdapter()
    builder = pytest.importorskip("model_explorer.node_data_builder")
    data = json.loads(ending(node_data, "model-explorer.json").read_text())
    results = {node: builder.NodeDataResult(**entry) for node, entry in data["results"].items()}
    thresholds = [builder.ThresholdItem(**entry) for entry in data["thresholds"]]
    same = builder.GraphNodeData(results=results, name=data["name"], thresholds=thresholds)
    assert json.loads(builder.ModelNodeData({"graph": same}).to_json_string())["graph"]["results"] == data["results"]
    for model in (FLOAT, node_data):
        [graph, *_] = adapter.convert(str(model), {})["graphs"]
        identifiers = {node.id for node in graph.nodes}
        # Batch normalization is folded: its nodes are gone, and no name is new.
        assert set(data["results"]) <= identifiers, model


def test_node_data_needs_errors(made):
    done = subprocess.run([MQQ, "export", made.with_suffix(".json"), "--format", "model-explorer"], capture_output=True, text=True)
    assert done.returncode == 1 and "has no tensor errors" in done.stderr and "--effort 1" in done.stderr
