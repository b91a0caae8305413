"""The overlap of squared deviations: how much of a network's outputs is left, 0 to 1, without labels.

    overlap.py FLOAT.onnx QUANTIZED.onnx SAMPLES.npz [...]
    overlap.py FLOAT.onnx QUANTIZED.onnx SAMPLES.npz --axis 0=2 --axis 1=none

Every file has an array per input with the samples along the first axis; both models run in ONNX Runtime without its
optimisations. Prints J of every group of channels of every output, the mean J (over groups, then outputs) and the
lowest J. `--axis` sets the axis of channels of an output, counted with the batch's, or says that it has none.

An output is [samples, positions, channels]; all statistics are of the float network, in float64:

1. Per channel over samples and positions: median m (the mean of the two middle values where they are even in number),
   population variance v, kurtosis k = E(f - mean)^4 / v^2. A channel is dead, and has no say, where v is at most 1e-10
   of the largest of the output.
2. Two groups of the living channels: sparse (k above 10) and dense.
3. a = f - m and b = q - m. Where ab > 0: lo = min(a^2, b^2) and hi = max(a^2, b^2); elsewhere lo = 0 and
   hi = (|a| + |b|)^2.
4. J of a group = sum of lo / sum of hi over its channels, positions and samples.
5. The figure is the mean of J over an output's groups, then over outputs; beside it stands the lowest J.

The axis of channels is the roughest one: with the largest mean squared difference of neighbours over twice the
variance of the output. An output whose roughness is below .25 and whose slices along that axis have means that make
up less than .1 of the variance is a map: one channel. So is an output of one value a sample.

No say have outputs of integers, outputs that are the same for every sample (anchors), those of which a value of the
float network is not finite, and those whose shape changes. Where the quantized network has NaN or infinity, J is 0.
"""

import argparse
from pathlib import Path

import numpy as np

DEAD, SPARSE = 1e-10, 10.0
SMOOTH, ALIKE = 0.25, 0.1


def no_say(float_output, quantized_output):
    """Why an output has no say, or None: both are lists of arrays, one a sample."""
    arrays = [*float_output, *quantized_output]
    if not all(np.issubdtype(array.dtype, np.floating) for array in arrays):
        return "integers"
    if len({array.shape for array in arrays}) > 1:
        return "shapes that differ"
    if not arrays[0].size or not all(np.isfinite(array).all() for array in float_output):
        return "float values that are not finite"
    if len(float_output) > 1 and all(np.array_equal(array, float_output[0]) for array in float_output):
        return "the same for every sample"
    if np.ptp(arrays[0]) == 0 and len(float_output) == 1:
        return "one value"
    return None


def roughness(values, axis):
    """Mean squared difference of neighbours along an axis over twice the variance of all values."""
    return np.square(np.diff(values, axis=axis)).mean() / (2 * values.var())


def explained(values, axis):
    """The share of the variance that the means of the slices along an axis make up."""
    others = tuple(k for k in range(values.ndim) if k != axis)
    return values.mean(others).var() / values.var()


def channel_axis(values):
    """The axis of channels of [samples, ...], or None where all values are one channel."""
    axes = [axis for axis in range(1, values.ndim) if values.shape[axis] > 1]
    if not axes or values.var() == 0:
        return None
    if len(axes) == 1 and values[0].size == values.shape[axes[0]]:
        return axes[0]
    rough, axis = max((roughness(values, axis), -axis) for axis in axes)
    axis = -axis
    return None if rough < SMOOTH and explained(values, axis) < ALIKE else axis


def by_channel(values, axis):
    """[samples, ...] as [samples * positions, channels]."""
    if axis is None:
        return values.reshape(-1, 1)
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def statistics(values):
    """Median, population variance and kurtosis of every column; a constant's kurtosis is 0."""
    squares = np.square(values - values.mean(0))
    variance = squares.mean(0)
    kurtosis = np.divide(np.square(squares).mean(0), np.square(variance), out=np.zeros_like(variance),
                         where=variance > 0)
    return np.median(values, 0), variance, kurtosis


def groups(variance, kurtosis):
    """Masks of channels by the name of their group; groups without channels are left out."""
    living = variance > DEAD * variance.max()
    masks = {"dense": living & (kurtosis <= SPARSE), "sparse": living & (kurtosis > SPARSE)}
    return {name: mask for name, mask in masks.items() if mask.any()}


def bounds(a, b):
    """Per channel the sums of the smaller and of the larger squared deviations."""
    same = a * b > 0
    a, b = np.abs(a), np.abs(b)
    lo = np.where(same, np.square(np.minimum(a, b)), 0)
    hi = np.square(np.where(same, np.maximum(a, b), a + b))
    return lo.sum(0), hi.sum(0)


def of_output(float_output, quantized_output, axis="roughest"):
    """What is known of one output: `axis`, `channels`, `dead` and, by group, `n` and `j`; or `no_say`."""
    reason = no_say(float_output, quantized_output)
    if reason:
        return {"no_say": reason}
    expected, found = (np.stack(output).astype(np.float64) for output in (float_output, quantized_output))
    axis = channel_axis(expected) if axis == "roughest" else axis
    expected, found = by_channel(expected, axis), by_channel(found, axis)
    median, variance, kurtosis = statistics(expected)
    masks = groups(variance, kurtosis)
    with np.errstate(invalid="ignore", over="ignore"):
        lo, hi = bounds(expected - median, found - median)
        whole = lambda mask: np.isfinite(found[:, mask]).all()
        figures = {name: {"n": int(mask.sum()), "j": float(lo[mask].sum() / hi[mask].sum()) if whole(mask) else 0.0}
                   for name, mask in masks.items()}
    living = sum(group["n"] for group in figures.values())
    # Without the axis of samples, that of the batch is 0.
    return {"axis": None if axis is None else axis - 1, "channels": len(variance), "dead": len(variance) - living,
            "groups": figures}


def overlap(float_samples, quantized_samples, axes=None):
    """(mean J, lowest J, description) of samples, each a list of outputs as ONNX Runtime gives them for a batch of 1.

    `axes` has, by the number of an output, its axis of channels or None. The description has a dict per output, as
    `of_output` makes it. Both figures are NaN where no output has a say.
    """
    axes = {k: axis if axis is None else axis + 1 for k, axis in (axes or {}).items()}
    described = [of_output(*pair, axes.get(k, "roughest"))
                 for k, pair in enumerate(zip(zip(*float_samples), zip(*quantized_samples)))]
    by_output = [[group["j"] for group in output["groups"].values()] for output in described if "groups" in output]
    if not by_output:
        return np.nan, np.nan, described
    return float(np.mean([np.mean(js) for js in by_output])), float(min(map(min, by_output))), described


def spelled(output):
    """One output's description as text."""
    if "no_say" in output:
        return f"no say: {output['no_say']}"
    where = "one channel" if output["axis"] is None else f"{output['channels']} channels along axis {output['axis']}"
    dead = f" ({output['dead']} dead)" if output["dead"] else ""
    return f"{where}{dead}, " + ", ".join(f"{name} {group['n']}: J {group['j']:.4f}"
                                          for name, group in output["groups"].items())


def axis_option(text):
    number, _, axis = text.partition("=")
    return int(number), None if axis == "none" else int(axis)


def main():
    from tasks import entries, outputs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, type=Path, metavar="MODEL.onnx")
    parser.add_argument("samples", nargs="+", type=Path, metavar="SAMPLES.npz")
    parser.add_argument("--axis", action="append", type=axis_option, default=[], help="OUTPUT=AXIS or OUTPUT=none")
    args = parser.parse_args()
    samples = [sample for file in args.samples for sample in entries(file)]
    mean, lowest, described = overlap(*(outputs(model, samples) for model in args.models), dict(args.axis))
    for k, output in enumerate(described):
        print(f"output {k}: {spelled(output)}")
    print(f"J {mean:.4f}, lowest {lowest:.4f}, {len(samples)} samples")


if __name__ == "__main__":
    main()
