"""Makes the pictures of README.md and docs, from runs of mqq on the bundled model and from tables of docs/measured.md.

    make pictures
    MQQ=path/to/mqq python docs/pictures/make.py [NAME ...]

| picture | shows |
| --- | --- |
| `qdq` | a residual block of the bundled model before and after quantization, as the two ONNX files have it |
| `ranges` | the values of one activation, and the range that each observer keeps of them |
| `effort` | SQNR by `--effort`, for four backends |
| `tools` | accuracy and time of mqq, NNCF and ONNX Runtime, from two tables of docs/measured.md |

The same binary and packages give the same bytes. Each file has its figures as JSON in its metadata; a test compares
them with the program and with docs/measured.md.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import onnx
import onnxruntime
from PIL import Image

matplotlib.use("svg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch  # noqa: E402

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
MQQ = Path(os.environ.get("MQQ", ROOT / "target" / "release" / "mqq"))
MODEL = ROOT / "fixtures" / "digits_cnn.onnx"
DATA = ["--preprocess", "half", "--data"]

# Readable with any kind of color vision; the background is opaque, for pages in light and in dark.
BLUE, ORANGE, GREEN, PURPLE, GRAY = "#0969da", "#bc4c00", "#1a7f37", "#8250df", "#6e7781"
INK, PAPER, FAINT = "#1f2328", "#ffffff", "#d0d7de"
# Glyphs as paths look the same in every browser; a fixed salt gives the same ids in every run.
plt.rcParams.update({
    "svg.hashsalt": "mqq", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 10, "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": GRAY, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": False, "figure.facecolor": PAPER, "savefig.facecolor": PAPER,
    "axes.titlesize": 11, "axes.titlelocation": "left"})


def mqq(*args):
    done = subprocess.run([MQQ, *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mqq {' '.join(map(str, args))}\n{done.stderr}")
    return done.stdout


def calibrate(folder, backend, *options):
    """The bundled model, quantized, and its sidecar."""
    path = Path(folder) / "quantized.onnx"
    mqq("calibrate", MODEL, "--backend", backend, *DATA, ROOT / "calib_data/calib", "--quiet", "-o", path, *options)
    return path, json.loads(path.with_suffix(".json").read_text())


def save(figure, name, figures):
    """Writes a picture, with its figures; coordinates have two decimals, and comments are left out."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Description": json.dumps(figures)})
    plt.close(figure)
    rounded = lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
    path = lambda match: " ".join(re.sub(r"\d+\.\d+", rounded, match[0]).split())
    lean = re.sub(r"\n +", "\n", re.sub(r" *<!--.*?-->\n", "", text.getvalue())).replace("DejaVuSans-", "g")
    (FOLDER / f"{name}.svg").write_text(re.sub(r'(?<= d=")[^"]*', path, lean))


# A residual block, before and after. A node is drawn above the tensor that it makes; time goes from left to right.

FIRST, LAST = "/MaxPool", "/Relu_2"
SHORT = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ", "BatchNormalization": "Batch\nNorm", "MaxPool": "Max\nPool"}


def block(path):
    """Nodes between FIRST and LAST in the file's order, the Q and DQ around them too; and the types of initializers."""
    graph = onnx.load(path).graph
    types = {tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type).lower() for tensor in graph.initializer}
    names = [node.name for node in graph.node]
    nodes = list(graph.node)[names.index(FIRST) : names.index(LAST) + 1]
    following = list(graph.node)[names.index(LAST) + 1 :]
    return nodes + [node for node in following if node.op_type == "QuantizeLinear"][: len(nodes) > 8], types


def draw(axes, nodes, types, y):
    """A row of nodes; the weights' DequantizeLinear stand below the node that reads them."""
    made = {node.output[0]: node for node in nodes}
    of_weights = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear" and node.input[0] in types}
    chain = [node for node in nodes if node.output[0] not in of_weights]
    step = 11 / len(chain)
    place = {node.output[0]: (step * (k + 0.5), y) for k, node in enumerate(chain)}

    def box(text, x, y, width, color):
        filled = FancyBboxPatch((x - width / 2, y - 0.25), width, 0.5, boxstyle="round,pad=0,rounding_size=0.06",
                                facecolor=color or PAPER, edgecolor=color or INK, linewidth=1.1, zorder=3)
        axes.add_patch(filled)
        axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=PAPER if color else INK, zorder=4)

    def arrow(start, end, integers, bend=0.0):
        axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, shrinkA=0, shrinkB=0,
                                       connectionstyle=f"arc3,rad={bend}", linewidth=2 if integers else 1.1,
                                       color=BLUE if integers else GRAY, zorder=2))

    half = lambda node: 0.24 if node.op_type.endswith("Linear") else 0.34
    for node in chain:
        x = place[node.output[0]][0]
        color = BLUE if node.op_type.endswith("Linear") else None
        box(SHORT.get(node.op_type, node.op_type), x, y, 2 * half(node), color)
        for name in node.input:
            if name in place:
                source = made[name]
                near = x - place[name][0] < 1.5 * step
                integers = source.op_type == "QuantizeLinear"
                if near:
                    arrow((place[name][0] + half(source), y), (x - half(node), y), integers)
                else:
                    arrow((place[name][0], y + 0.25), (x, y + 0.25), integers, -0.13)
            elif name in of_weights:
                box("DQ", x, y - 0.8, 0.48, BLUE)
                arrow((x, y - 0.55), (x, y - 0.25), False)
                arrow((x, y - 1.4), (x, y - 1.05), True)
                axes.text(x, y - 1.55, f"{types[made[name].input[0]]} weights", ha="center", va="center", fontsize=9,
                          color=BLUE)
            elif name.endswith(".weight") and node.op_type == "Conv":
                arrow((x, y - 0.6), (x, y - 0.25), False)
                axes.text(x, y - 0.75, "float weights", ha="center", va="center", fontsize=9, color=GRAY)
    first, last = place[chain[0].output[0]][0], place[chain[-1].output[0]][0]
    arrow((first - step / 2 - 0.1, y), (first - half(chain[0]), y), False)
    arrow((last + half(chain[-1]), y), (last + step / 2 + 0.1, y), chain[-1].op_type == "QuantizeLinear")


def qdq(folder):
    quantized, _ = calibrate(folder, "tensorrt", "--effort", "0")
    figure, axes = plt.subplots(figsize=(9.2, 3.8))
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.99)
    axes.set(xlim=(-0.2, 11.2), ylim=(-1.7, 3.5))
    axes.axis("off")
    for text, color, y in [("float32 tensor", GRAY, 3.35), ("int8 tensor", BLUE, 3.05)]:
        axes.plot([9.1, 9.5], [y, y], color=color, linewidth=2 if color == BLUE else 1.1)
        axes.text(9.6, y, text, va="center", fontsize=9, color=color)
    figures = {}
    for title, path, y in [("Float model", MODEL, 2.4), ("Quantized for TensorRT", quantized, 0.1)]:
        axes.text(-0.1, y + 0.75, title, fontsize=11, fontweight="bold", va="center")
        nodes, types = block(path)
        draw(axes, nodes, types, y)
        figures[title] = [node.op_type for node in nodes]
    save(figure, "qdq", figures)


# The values of an activation and what observers keep of them.

TENSOR = "/Relu_5_output_0"
OBSERVERS = {"max": GRAY, "entropy": PURPLE, "mse": GREEN, "ema": ORANGE, "percentile:99.99": BLUE}


def values():
    """All values of TENSOR on the calibration images, in float."""
    model = onnx.load(MODEL)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(TENSOR))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    images = [Image.open(path).convert("RGB") for path in sorted((ROOT / "calib_data/calib").glob("*.png"))]
    samples = [(np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255 - 0.5) / 0.5 for image in images]
    return np.concatenate([session.run([TENSOR], {"input": sample})[0].ravel() for sample in samples])


def ranges(folder):
    figure, axes = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
    seen = values()
    counts, edges = np.histogram(seen[seen > 0], bins=80)
    axes.stairs(counts, edges, fill=True, color=FAINT)
    axes.set(yscale="log", xlim=(0, None), ylim=(0.7, counts.max() * 300), ylabel="number of values above 0",
             xlabel=f"value of the activation {TENSOR}",
             title="The largest value that each observer keeps; larger ones are clipped")
    axes.set_yticks([1, 10, 100, 1000, 10000])
    figures = {}
    for k, (observer, color) in enumerate(OBSERVERS.items()):
        _, sidecar = calibrate(folder, "tensorrt", "--effort", "0", "--observer", observer)
        encoding = next(e for e in sidecar["activation_encodings"] if e["name"] == TENSOR)
        figures[observer] = largest = round(encoding["range"][1], 2)
        top = 0.96 - 0.085 * k
        axes.plot([largest, largest], [0, top], color=color, linewidth=1.6, transform=axes.get_xaxis_transform())
        axes.annotate(f"{observer}  {largest:.1f} ", (largest, top - 0.03), xycoords=axes.get_xaxis_transform(),
                      ha="right", va="center", color=color)
    save(figure, "ranges", {TENSOR: figures})


# SQNR by effort.

def effort(folder):
    figure, axes = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
    lines = [("onnxruntime", BLUE, "o"), ("openvino", GREEN, "s"), ("tensorrt", ORANGE, "^"), ("xint8", PURPLE, "D")]
    figures = {}
    for backend, color, marker in lines:
        figures[backend] = ratios = []
        for level in range(4):
            path, _ = calibrate(folder, backend, "--effort", level)
            compared = json.loads(mqq("compare", MODEL, path, *DATA, ROOT / "calib_data/eval", "--json"))
            ratios.append(round(compared["outputs"][0]["sqnr_db"], 2))
        axes.plot(range(4), ratios, color=color, marker=marker, label=backend)
        axes.annotate(backend, (3, ratios[-1]), xytext=(9, 0), textcoords="offset points", va="center", color=color)
    axes.set(xticks=range(4), yticks=range(20, 50, 5), xlim=(-0.15, 3.7), ylim=(20, 46), xlabel="--effort",
             ylabel="SQNR of the output, dB", title="More effort leaves a smaller error (bundled model, 300 images)")
    axes.set_xticklabels(["0", "1 (default)", "2", "3"])
    save(figure, "effort", figures)


# Accuracy and time against other tools.

TOOLS = {"mqq": BLUE, "mqq --effort 0": "#80ccff", "NNCF": ORANGE, "ONNX Runtime": GRAY}


def measured():
    """Rows of the table of accuracy and time in docs/measured.md, as dictionaries of texts by column."""
    text = (ROOT / "docs/measured.md").read_text().split("\n## Accuracy and time\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [dict(zip([name.strip("`") for name in lines[0]], row)) for row in lines[2:]]


def tools(_):
    rows = measured()
    figure, (accuracy, time) = plt.subplots(1, 2, figsize=(9.2, 4.4), layout="constrained", width_ratios=(1.2, 1))
    positions = np.arange(len(rows))[::-1]
    for k, (tool, color) in enumerate(TOOLS.items()):
        kept, seconds = zip(*(map(float, row[tool].removesuffix(" s").split(", ")) for row in rows))
        texts = [(accuracy, kept, [f"{value:.3f}".lstrip("0") for value in kept]),
                 (time, seconds, [f"{value:.1f}" for value in seconds])]
        for axes, numbers, shown in texts:
            places = positions + 0.2 * (1.5 - k)
            axes.barh(places, numbers, 0.18, color=color, label=tool)
            for place, number, text in zip(places, numbers, shown):
                axes.annotate(text, (number, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    accuracy.set(yticks=positions, yticklabels=[f"{row['network']}\n{row['figure']}" for row in rows], xlim=(0, 1.1),
                 xlabel="share of the float model's result", title="Accuracy (longer is better)")
    time.set(yticks=[], xlabel="seconds", xlim=(0, 1.1 * time.get_xlim()[1]),
             title="Time to quantize (shorter is better)")
    figure.legend(*accuracy.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save(figure, "tools", rows)


PICTURES = {"qdq": qdq, "ranges": ranges, "effort": effort, "tools": tools}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as scratch:
            PICTURES[name](scratch)
        print(FOLDER / f"{name}.svg")
