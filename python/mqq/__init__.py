"""mqq from Python: quantize a model on arrays of one's own loader.

`pip install mqq` puts the program `mqq` on the path; it needs no Python. The functions here run it, so that arrays
need not be saved first. Options are those of the command line, with `_` for `-`: `mqq calibrate --help` lists them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, overload

__all__ = ["MqqError", "calibrate", "compare", "program"]

StrPath = Union[str, "os.PathLike[str]"]
Data = Union[StrPath, Iterable[Any]]


class MqqError(Exception):
    """A run of mqq that failed.

    Attributes:
        code: the exit code of the program: 1 failed, 2 wrong usage, 3 a goal was missed.
        hint: what to do about it; empty where there is no hint.
        place: the file, node or tensor of the error; empty where it has none.
        report: the object that `--json` printed; empty where there is none.
    """

    def __init__(
        self, message: str, *, code: int, hint: str = "", place: str = "", report: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message + "".join(f"\nhint: {line}" for line in hint.splitlines()))
        self.code = code
        self.hint = hint
        self.place = place
        self.report = report or {}


def program() -> Path:
    """The path of the program `mqq`: the one of this package, or else the first on the path.

    Raises:
        FileNotFoundError: If there is none.
    """
    name = "mqq.exe" if os.name == "nt" else "mqq"
    for kind in ["prefix", "user"]:
        path = Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme(kind)), name)
        if path.is_file():
            return path
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"the program {name} is neither in {sysconfig.get_path('scripts')} nor on the path")
    return Path(found)


@overload
def calibrate(
    model: StrPath, backend: StrPath, data: Data | None = None, *, output: StrPath | None = None, **options: Any
) -> dict[str, Any]: ...


@overload
def calibrate(
    model: StrPath, backend: Sequence[StrPath], data: Data | None = None, *, output: None = None, **options: Any
) -> list[dict[str, Any]]: ...


def calibrate(
    model: StrPath,
    backend: StrPath | Sequence[StrPath],
    data: Data | None = None,
    *,
    output: StrPath | None = None,
    **options: Any,
) -> dict[str, Any] | list[dict[str, Any]]:
    """Quantizes a float ONNX model, for one backend or for several at once.

    Args:
        model: The float model.
        backend: The target: a name that `mqq backends` lists, or the path of a table. A list of them shares one pass over
            the data; name the folder of the results by `out_dir`.
        data: Calibration data, as the model takes it: arrays for a model with one input, or dicts from the names of
            inputs to arrays. An item is one sample or, with a first axis that counts them, a batch. Anything with
            `__array__` is an array; torch tensors are taken from their device. A path or a list of paths is passed on
            as `--data`. `None` for backends that need no data. All items are written to temporary files first, one at
            a time: bound a loader that does not end with `itertools.islice`.
        output: Path of the quantized model; beside the float model if not given.
        **options: Options of `mqq calibrate`: `effort=2`, `exclude=["Gemm", "head*"]`, `no_insert=True`. A list
            repeats the option, and `None` and `False` leave it out.

    Returns:
        The entry of `--json`: `output` and `sidecar` are paths, `summary` says what was quantized. For a list of backends
        a list of entries, in its order; `backend` is the name of each.

    Raises:
        MqqError: If the run fails, with the error and the hint of the program. Its warnings become Python's. Where one of
            several backends fails, `report["results"]` has the entries of all.
        ValueError: If the data holds no items, no backend is given, or a text names several.
    """
    is_one = isinstance(backend, (str, os.PathLike))
    backends = [os.fspath(one) for one in ([backend] if is_one else backend)]
    if not backends:
        raise ValueError("backend is an empty list, expected one name or more")
    if any("," in one for one in backends):
        raise ValueError(f"backend is {backend!r}, expected one name, or a list of names")
    arguments = ["calibrate", os.fspath(model), *_option("backend", backends), *_option("output", output)]
    results = _run(arguments, data, options)["results"]
    return results[0] if is_one else results


def compare(float_model: StrPath, quantized_model: StrPath, data: Data, **options: Any) -> dict[str, Any]:
    """Compares the outputs of a quantized model with those of its float model.

    Args:
        float_model: The float model.
        quantized_model: The quantized model.
        data: Evaluation data, as for `calibrate`.
        **options: Options of `mqq compare`: `fail_under=["overlap=0.95", "agreement=99"]`.

    Returns:
        The object of `--json`: `outputs` has the figures of each output, `missed` the gates that were missed.

    Raises:
        MqqError: If the run fails; not where it only missed a gate.
    """
    return _run(["compare", os.fspath(float_model), os.fspath(quantized_model)], data, options)


def _run(arguments: list[str], data: Data | None, options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        arguments += _option(name, value)
    with tempfile.TemporaryDirectory(prefix="mqq-") as folder:
        for path in _paths(data, Path(folder)):
            arguments += _option("data", path)
        ran = subprocess.run([program(), *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace")
    for line in ran.stderr.splitlines():
        if line.startswith("warning: "):
            warnings.warn(line[len("warning: "):], stacklevel=3)
    try:
        report = json.loads(ran.stdout)
    except ValueError:
        raise MqqError(ran.stderr.strip() or f"mqq ended with {ran.returncode}", code=ran.returncode) from None
    if ran.returncode == 0 or "missed" in report:
        return report
    failed = report if "error" in report else next(r for r in report["results"] if "error" in r)
    raise MqqError(failed["error"], code=ran.returncode, hint=failed.get("hint", ""), place=failed.get("where", ""),
                   report=report)


def _option(name: str, value: Any) -> list[str]:
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [f"{option}={one}" for one in values]


def _paths(data: Data | None, folder: Path) -> list[StrPath]:
    """What goes to `--data`; arrays are written to `folder`, a file for each item."""
    if data is None:
        return []
    if isinstance(data, (str, os.PathLike)):
        return [data]
    if isinstance(data, (list, tuple)) and data and all(isinstance(item, (str, os.PathLike)) for item in data):
        return list(data)
    import numpy as np

    if isinstance(data, Mapping):
        data = [data]
    for n, item in enumerate(data):
        path = folder / f"{n:08}"
        if isinstance(item, Mapping):
            np.savez(path.with_suffix(".npz"), **{name: _array(value) for name, value in item.items()})
        else:
            np.save(path.with_suffix(".npy"), _array(item))
    if not any(folder.iterdir()):
        raise ValueError("data holds no items, expected arrays, or dicts from the names of inputs to arrays")
    return [folder]


def _array(value: Any) -> Any:
    import numpy as np

    # A torch tensor that has a gradient, or lies on a GPU, does not become an array by itself.
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)
