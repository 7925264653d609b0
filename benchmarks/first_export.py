"""Time of the first export, or of the first read and write of a file, in its own process.

python -m benchmarks.first_export onnx MODEL COPY      onnx reads and writes the file
python -m benchmarks.first_export onnx_ir MODEL COPY   onnx_ir does
python -m benchmarks.first_export export RUN FOLDER    the model calibrated in RUN is exported

A command is such a process: it gets its memory from the system, page by page. Imports are not counted,
because they do not depend on the model.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from ptq_cli.pipeline.run_export import run_export
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

WORK: dict[str, Callable[[Path, Path], object]] = {
    "onnx": lambda model, copy: onnx.save(onnx.load(model), copy),
    "onnx_ir": lambda model, copy: ir.save(ir.load(model), copy),
    "export": lambda run, folder: run_export(
        Request(settings={}, model=None, folder=folder), RunDirectory(run)
    ),
}


def main(kind: str, *paths: str) -> None:
    """Do the work once, and print how long it took."""
    first, second = map(Path, paths)
    start = time.perf_counter()
    WORK[kind](first, second)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
