"""Quantizes a model with another tool, at its defaults for int8.

    other_tools.py nncf MODEL.onnx SAMPLES.npz OUT.onnx [--transformer]
    other_tools.py onnxruntime MODEL.onnx SAMPLES.npz OUT.onnx

SAMPLES holds one array per input with a sample per row. NNCF's `quantize` runs with all samples, and with its
transformer type where that is asked for; ONNX Runtime's `quantize_static` with min-max ranges, uint8 activations and int8
weights per channel, behind its own preprocessing. A model below opset 13, which has no scales per channel, is converted to
13 first. Needs nncf or onnxruntime; tasks.py runs it.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx


def rows(file):
    arrays = dict(np.load(file))
    n = len(next(iter(arrays.values())))
    return [{name: array[k : k + 1] for name, array in arrays.items()} for k in range(n)]


def upgraded(path):
    model = onnx.load(path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return model if opset >= 13 else onnx.version_converter.convert_version(model, 13)


def nncf_quantize(path, samples, output, transformer):
    import nncf

    kind = nncf.ModelType.TRANSFORMER if transformer else None
    quantized = nncf.quantize(upgraded(path), nncf.Dataset(samples), subset_size=len(samples), model_type=kind)
    onnx.save(quantized, output)


def ort_quantize(path, samples, output, _):
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = iter(samples)

        def get_next(self):
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        float_path, prepared = Path(folder) / "float.onnx", Path(folder) / "prepared.onnx"
        onnx.save(upgraded(path), float_path)
        quant_pre_process(str(float_path), str(prepared), skip_symbolic_shape=True)
        quantize_static(str(prepared), str(output), Reader(), per_channel=True,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)


TOOLS = {"nncf": nncf_quantize, "onnxruntime": ort_quantize}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    for name in ("model", "samples", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--transformer", action="store_true")
    args = parser.parse_args()
    TOOLS[args.tool](args.model, rows(args.samples), args.output, args.transformer)
