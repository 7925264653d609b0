"""Count the files of the package on the ways of a batch, an amax, a recovered weight, a metric and a setting.

python -m tools.hops [--names]

A file is on the way of a batch, an amax or a weight if one of its functions is called while the thing is on
its way: a batch from where it is read to its counts in a histogram; an amax from the method that chose it
to the scale in the file; a weight from where it is decided, by ``--recover all``, to the integers in the
graph. A file is on the way of a metric or a setting if one of its functions is given it: as an argument,
within a text or a collection, or as a field of a value. Ways are those of real runs of a small network with
the command line; what is told of progress does not count.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx

import ptq_cli
from ptq_cli.cli.main import run

PACKAGE = Path(ptq_cli.__file__).parent
MODEL = """(float[n, 8] x) => (float[n, 4] y) <float[8, 4] w, float[4] b, float[4, 4] v> {
    [layer] h = Gemm(x, w, b)
    r = Relu(h)
    [other] y = MatMul(r, v)
}"""
# The functions that the thing goes through, by file; everything that they call is on its way.
STARTS = {
    "batch to histogram": {("count_batches.py", "count_batches")},
    "amax to the file": {
        ("ranges.py", "decide_activations"),
        ("quantize_graph.py", "insert_activation_pairs"),
    },
    "weight with --recover all": {
        ("site_parameters.py", "decide_weight"),
        ("recover_rounding.py", "recover_rounding"),
        ("constant_pairs.py", "store_constants"),
        ("constant_pairs.py", "replace_constants"),
    },
}
# What functions are given, by what it is.
GIVEN: Mapping[str, Any] = {"metric": "class_accuracy", "setting": 1023}
LONGEST_TEXT, MOST_PARTS = 200, 64  # characters and entries: a page and an array are not looked through
COMMAND = (
    "quantize model.onnx --data calib.npz --run run --prefer size --amax mse --set amax.bins=1023 "
    "--recover all --eval-data calib.npz --metric class_accuracy --set evaluation.latency=false"
)


class Ways:
    """Notes the files whose functions are on a way, as ``sys.setprofile`` calls it."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {path: set() for path in (*STARTS, *GIVEN)}
        self._inside: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take an event."""
        del argument
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(PACKAGE) or path.name == "progress.py":
            return
        name = str(path.relative_to(PACKAGE))
        here = (path.name, frame.f_code.co_name)
        started = [way for way, starts in STARTS.items() if here in starts]
        if event == "call":
            self._inside += started
            for way in self._inside:
                self.files[way].add(name)
            for way, value in GIVEN.items():
                if any(_holds(item, value) for item in _arguments(frame)):
                    self.files[way].add(name)
        elif event == "return":
            for way in started:
                if way in self._inside:
                    self._inside.remove(way)


def _arguments(frame: FrameType) -> list[Any]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals[name] for name in names if name in frame.f_locals]


def _holds(item: Any, value: Any, depth: int = 1) -> bool:
    """Whether an argument is the value, or holds it itself."""
    if isinstance(item, str):
        return str(value) in item and len(item) < LONGEST_TEXT
    if type(item) is type(value):
        return bool(item == value)
    return depth > 0 and any(_holds(each, value, 0) for each in _parts(item))


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, (tuple, list, set, frozenset)) and len(item) < MOST_PARTS:
        return item
    if isinstance(item, dict) and len(item) < MOST_PARTS:
        return (*item, *item.values())
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [getattr(item, each.name, None) for each in dataclasses.fields(item)]
    return ()


@contextlib.contextmanager
def _in_empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _watched(work: Callable[[], object]) -> Ways:
    ways = Ways()
    threading.setprofile(ways)
    sys.setprofile(ways)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return ways


def _write_network() -> None:
    """A network of two layers, with data and labels."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {MODEL}')
    for name, shape in {"w": (8, 4), "b": (4,), "v": (4, 4)}.items():
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, "model.onnx")
    x = random.standard_normal((64, 8)).astype(np.float32)
    np.savez("calib.npz", x=x, label=random.integers(0, 4, 64))


def _quantize() -> None:
    status = run(COMMAND.split())
    if status:
        sys.exit(status)


def main() -> None:
    """Print the counts, with the files if they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="list the files")
    names = parser.parse_args().names
    with _in_empty_folder():
        _write_network()
        with contextlib.redirect_stdout(sys.stderr):
            _quantize()  # So that everything is imported and compiled.
            ways = _watched(_quantize)
    for way, files in ways.files.items():
        print(f"{way}: {len(files)} files")
        print("".join(f"  {file}\n" for file in sorted(files)) if names else "", end="")


if __name__ == "__main__":
    main()
