"""What every backend's table makes of real networks.

    backends.py
    backends.py --backends tflite,qnn-htp --models yolox_nano

Per model and backend a row of docs/measured.md: tensors on grids (activations + weights), output SQNR in dB (one
figure per output) and agreement with float in percent where there are classes, both of the Q/DQ arithmetic in ONNX
Runtime without its optimisations on images not calibrated on, the verdict of `mqq check`, and quantized operators by
type. Options behind `--` go to `mqq calibrate`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter

from accuracy import CASES, MQQ, ZOO, Zoo, measure

MODELS = ["mlperf_resnet8_cifar10", "mobilenetv1_025_imagenet", "squeezenet1_1_logits_op13", "ultraface_rfb320",
          "ppocrv3_det", "yolox_nano", "deimv2_atto"]


def tables():
    listed = subprocess.run([MQQ, "backends", "--json"], capture_output=True, check=True).stdout
    return [backend["name"] for backend in json.loads(listed)["backends"]]


def operators(sidecar):
    """Nodes by type that read a tensor on a grid, and that no entry leaves float."""
    on_grids = {encoding["name"] for kind in ("activation", "param") for encoding in sidecar[f"{kind}_encodings"]}
    left = {node["node"] for node in sidecar["float_nodes"]}
    quantized = lambda node: node["name"] not in left and on_grids.intersection(node["inputs"])
    return Counter(node["op_type"] for node in filter(quantized, sidecar["graph"]["nodes"]))


def row(zoo, name, backend, options):
    figures = measure(zoo, name, backend, options, kernels=False)
    if isinstance(figures, str):
        return ("", "", "", figures.splitlines()[0], "")
    ratios, agreement, *_ = figures
    output = zoo.scratch / "quantized.onnx"
    sidecar = json.loads(output.with_suffix(".json").read_text())
    counts = [len(sidecar[f"{kind}_encodings"]) for kind in ("activation", "param")]
    check = subprocess.run([MQQ, "check", output, "--backend", backend, "--quiet"], capture_output=True)
    verdict = {0: "ok", 4: "broken"}.get(check.returncode, f"exit code {check.returncode}")
    return (f"{counts[0]}+{counts[1]}", ", ".join(f"{ratio:.1f}" for ratio in ratios),
            "" if agreement is None else f"{agreement:.0f}", verdict,
            ", ".join(f"{op} {n}" for op, n in operators(sidecar).most_common()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    parser.add_argument("--models", type=split, default=MODELS, help=f"some of {', '.join(CASES)}, comma-separated")
    parser.add_argument("--backends", type=split, help="names, comma-separated; default: all")
    parser.add_argument("options", nargs="*", help="for mqq, behind --")
    args = parser.parse_args()
    if not (ZOO / "models").is_dir():
        sys.exit(f"no real models at {ZOO}")
    with tempfile.TemporaryDirectory() as scratch:
        zoo = Zoo(scratch)
        for name in args.models:
            print(f"\n## {name}\n\n| table | grids | SQNR, dB | agreement, % | check | quantized operators |\n"
                  "| --- | --- | --- | --- | --- | --- |")
            for backend in args.backends or tables():
                print(f"| {backend} | {' | '.join(row(zoo, name, backend, args.options))} |", flush=True)


if __name__ == "__main__":
    main()
