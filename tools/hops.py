"""Count the files of the package on three paths: a batch, an amax, and a weight that is recovered.

python -m tools.hops [--names]

A file is passed if one of its functions is called while the thing is on its way: a batch from where it is
read to its counts in a histogram; an amax from the method that chose it to the scale that is stored; a weight
from where it is decided, by ``--recover round``, to the integers in the graph. What
runs once for a whole command, as planning does, is not on the way, and neither is what is told of progress.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx

import ptq_cli

PACKAGE = Path(ptq_cli.__file__).parent
MODEL = """(float[n, 8] x) => (float[n, 4] y) <float[8, 4] w, float[4] b, float[4, 4] v> {
    [layer] h = Gemm(x, w, b)
    r = Relu(h)
    [other] y = MatMul(r, v)
}"""
STARTS = {
    "batch to histogram": {("count_batches.py", "count_batches")},
    "amax to scale": {("ranges.py", "decide_activations")},
    "recovered weight": {
        ("weight_decisions.py", "decide_weight"),
        ("site_parameters.py", "decide_weight"),
        ("twin_graphs.py", "__init__"),
        ("recover_rounding.py", "recover_rounding"),
        ("constant_pairs.py", "store_constants"),
        ("quantized_layer.py", "replace_constants"),
    },
}
"""The functions that the thing goes through, by file; everything that they call is on its way."""


class Passed:
    """Notes the files whose functions run inside the functions where a path starts."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {path: set() for path in STARTS}
        self._inside: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take an event of ``sys.setprofile``."""
        del argument
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(PACKAGE) or path.name == "progress.py":
            return
        here = (path.name, frame.f_code.co_name)
        started = [name for name, starts in STARTS.items() if here in starts]
        if event == "call":
            self._inside += started
            for name in self._inside:
                self.files[name].add(str(path.relative_to(PACKAGE)))
        elif event == "return":
            for name in started:
                if name in self._inside:
                    self._inside.remove(name)


@contextlib.contextmanager
def _in_empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _watched(work: Callable[[], object]) -> Passed:
    passed = Passed()
    threading.setprofile(passed)
    sys.setprofile(passed)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return passed


def _small_run() -> None:
    """Write a model of one layer with data, calibrated once, so that everything is imported and compiled."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {MODEL}')
    for name, shape in {"w": (8, 4), "b": (4,), "v": (4, 4)}.items():
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, "model.onnx")
    np.savez("calib.npz", x=random.standard_normal((32, 8)).astype(np.float32))
    _calibrate()
    _export()


def _calibrate() -> None:
    ptq_cli.calibrate("model.onnx", data="calib.npz", method="histogram", run="run", all_layers=True)


def _export() -> None:
    ptq_cli.export(run="run", recover=["round"])


def main() -> None:
    """Print the three counts, with the files if they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="list the files")
    names = parser.parse_args().names
    with _in_empty_folder():
        _small_run()
        found = [_watched(work).files for work in (_calibrate, _export)]
    for path in STARTS:
        files = sorted(set.union(*(item[path] for item in found)))
        print(f"{path}: {len(files)} files")
        print("".join(f"  {file}\n" for file in files) if names else "", end="")


if __name__ == "__main__":
    main()
