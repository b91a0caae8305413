"""Which integer kernels ONNX Runtime makes of a quantized model, what they cost, and what they compute.

    kernels.py --models minilm_l6 --more FOLDER
    kernels.py --models mobilenetv1_025_imagenet --backends onnxruntime

Quantizes networks of tasks.py with mqq at its defaults, loads float and quantized model in ONNX Runtime on CPU with all
optimisations and saves the optimised graph. Prints per network and backend: products with a constant weight (MatMul,
Gemm, Conv, ConvTranspose) of the float graph, how many of them integer kernels took, by operator, and what stayed
float; the processor time per sample on one thread as a share of the float model's, by medians of passes in turns; and
the figure of tasks.py by Q/DQ arithmetic (without optimisations) and by the kernels. The first line says which integer
instructions the processor has: without VNNI, products of u8 and s8 are added in 16 bits.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
from tasks import Network, figure, known, outputs

WEIGHTED = {"MatMul", "Gemm", "Conv", "ConvTranspose", "FusedMatMul", "FusedGemm", "FusedConv"}
INTEGER = {"QLinearMatMul", "QGemm", "QLinearConv", "MatMulInteger", "MatMulIntegerToFloat", "ConvInteger",
           "DynamicQuantizeMatMul", "MatMulNBits", "QAttention", "DynamicQuantizeLSTM"}
# What hands a stored weight on.
PASSES_ON = {"DequantizeLinear", "Transpose", "Identity", "Cast"}


def instructions():
    """Integer instruction sets of the processor."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return "unknown"
    known_sets = ["avx2", "avx512bw", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"]
    return ", ".join(name for name in known_sets if name in flags) or "none"


def products(path):
    """Products with a constant weight, by operator: those of integers and those of floats."""
    graph = onnx.load(path).graph
    constant = {tensor.name for tensor in graph.initializer if len(tensor.dims) >= 2}
    integer, floats = Counter(), Counter()
    for node in graph.node:
        is_stored = any(name in constant for name in node.input)
        if node.op_type == "Constant" or is_stored and node.op_type in PASSES_ON:
            constant.add(node.output[0])
        elif is_stored and node.op_type in INTEGER:
            integer[node.op_type] += 1
        elif is_stored and node.op_type in WEIGHTED:
            floats[node.op_type] += 1
    return integer, floats


def loaded(path, scratch):
    """A session with all optimisations on one thread, and the products of the graph that it runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(scratch / "optimized.onnx")
    runner = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return runner, products(options.optimized_model_filepath)


def time_share(float_runner, runner, samples, passes):
    """Processor time per pass over the samples as a share of the float model's, medians of passes in turns."""
    seconds = [[], []]
    for turn in range(passes + 1):
        for of_runner, spent in zip((float_runner, runner), seconds):
            start = time.process_time()
            for sample in samples:
                of_runner.run(None, sample)
            # The first pass warms up.
            if turn:
                spent.append(time.process_time() - start)
    of_float, of_quantized = map(statistics.median, seconds)
    return of_quantized / of_float


def counted(counts):
    return ", ".join(f"{n} {op}" for op, n in sorted(counts.items())) or "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    parser.add_argument("--models", type=split, default=["minilm_l6"], help="names of tasks.py, comma-separated")
    parser.add_argument("--backends", type=split, default=["onnxruntime", "onnxruntime-dynamic", "onnxruntime-nbits"])
    parser.add_argument("--more", type=Path, help="folder of minilm_l6 and vit_s_focus")
    parser.add_argument("--passes", type=int, default=9, help="timed passes over 50 samples of each model")
    args = parser.parse_args()
    print(f"instructions: {instructions()}; ONNX Runtime {onnxruntime.__version__}", flush=True)
    for name in known(args.models, args.more, slow=True):
        with tempfile.TemporaryDirectory() as scratch:
            network = Network(name, scratch, args.more)
            float_runner, _ = loaded(network.path, network.scratch)
            in_float = products(network.path)[1].total()
            for backend in args.backends:
                path, _ = network.quantize(backend, [])
                runner, (integer, floats) = loaded(path, network.scratch)
                share = time_share(float_runner, runner, network.samples[:50], args.passes)
                figures = [float(figure(network.task(network.expected, outputs(path, network.samples, kernels))))
                           for kernels in (False, True)]
                print(f"{name:24} {backend:20} {integer.total()} of {in_float} integer: {counted(integer)}; "
                      f"float: {counted(floats)}; time {share:.2f} of float; {network.unit} {figures[0]:.3f}, "
                      f"kernels {figures[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
