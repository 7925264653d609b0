"""Run the cases of a pack with ONNX Runtime, and write what they give: all that another machine has to run.

python run.py [--threads N] [--case NAME]... PACK ANSWER

It needs Python 3.8 or later, numpy and onnxruntime, and nothing else of the project. ``PACK/cases`` has a
folder for each case, with ``model.onnx`` and its inputs, RUN:NAME in ``inputs.safetensors``. The file ANSWER
gets all outputs, as CASE:RUN:NAME. Whether they are right is judged where the pack was made.
"""

from __future__ import annotations

import argparse
import json
import platform
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

DTYPES = {
    "BOOL": "?",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}
"""The types of safetensors."""
NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


def main(words: Sequence[str]) -> int:
    """Run the cases that the command names, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pack", type=Path, metavar="PACK")
    parser.add_argument("answer", type=Path, metavar="ANSWER")
    parser.add_argument("--threads", type=int, default=1, help="of an operator (default: 1)")
    parser.add_argument("--case", action="append", metavar="NAME", help="run only this one")
    arguments = parser.parse_args(words)
    outputs, seconds = {}, {}
    for folder in sorted((arguments.pack / "cases").iterdir()):
        if arguments.case is None or folder.name in arguments.case:
            start = time.perf_counter()
            for name, array in run_case(folder, arguments.threads).items():
                outputs[f"{folder.name}:{name}"] = array
            seconds[folder.name] = round(time.perf_counter() - start, 1)
    about = {
        "machine": platform.machine(),
        "runtime": f"onnxruntime {onnxruntime.__version__}",
        "seconds": json.dumps(seconds),
    }
    arguments.answer.write_bytes(packed(outputs, about))
    return 0


def run_case(folder: Path, threads: int) -> dict[str, npt.NDArray[Any]]:
    """Return the outputs of a case by RUN:NAME."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    model = str(folder / "model.onnx")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    runs: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in unpacked((folder / "inputs.safetensors").read_bytes()).items():
        run, _, name = key.partition(":")
        runs.setdefault(run, {})[name] = array
    names = [output.name for output in session.get_outputs()]
    found = {}
    for run, inputs in runs.items():
        for index, array in enumerate(session.run(names, inputs)):
            found[f"{run}:{names[index]}"] = np.asarray(array)
    return found


def unpacked(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file of safetensors."""
    (size,) = struct.unpack_from("<Q", content)
    start, arrays = 8 + size, {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(content[start + begin : start + end], DTYPES[entry["dtype"]])
            arrays[name] = array.reshape(entry["shape"])
    return arrays


def packed(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, str]) -> bytes:
    """Return the content of a file of safetensors, with texts about it."""
    header: dict[str, Any] = {"__metadata__": about}
    blocks, start = [], 0
    for name, array in arrays.items():
        blocks.append(array.tobytes())
        end = start + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    return b"".join([struct.pack("<Q", len(text)), text, *blocks])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
