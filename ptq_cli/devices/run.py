"""Run these cases with ONNX Runtime, and write what they give: all that a device has to do.

python run.py [--provider NAME] [--threads N] [--repeats N] [--name NAME] [--emulated] [-o answer.safetensors]

It needs Python 3.8 or later, numpy and onnxruntime, and nothing of ptq. It prints a line per case, and writes
all outputs into one file, which ``ptq verify --answers`` judges where the cases were made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

FORMAT, VERSION = "ptq.answer", "1"
PARTS = ("model", "tensors", "data")
BLOCK = 1 << 22
# The types of safetensors.
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
NAMES = {np.dtype(code): name for name, code in DTYPES.items()}
Arrays = Mapping[str, npt.NDArray[Any]]


def main(words: Sequence[str]) -> int:
    """Run all cases, and return the exit status: 1 if one could not be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--provider", default="CPUExecutionProvider", help="of ONNX Runtime")
    parser.add_argument("--threads", type=int, default=1, help="of an operator (default: 1)")
    parser.add_argument(
        "--repeats", type=int, default=10, help="runs of the model that are timed, after the first"
    )
    parser.add_argument("--name", default=platform.machine(), help="of the device, for the table of devices")
    parser.add_argument("--emulated", action="store_true", help="note that times are those of an emulator")
    parser.add_argument("-o", "--output", type=Path, default=Path("answer.safetensors"), metavar="FILE")
    arguments = parser.parse_args(words)
    there = onnxruntime.get_available_providers()
    if arguments.provider not in there:
        parser.error(f"this onnxruntime has no {arguments.provider}, but {', '.join(there)}")
    try:  # Before all runs, which take long on a small device.
        arguments.output.open("ab").close()
    except OSError as error:
        parser.error(f"cannot write {arguments.output}: {error.strerror}")
    folder = Path(__file__).resolve().parent
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    outputs, seconds, faults = {}, {}, {}
    for case in manifest["cases"]:
        repeats = 0 if case["op"] else arguments.repeats
        title = " ".join(filter(None, (case["name"], case["op"], case["node"])))
        try:
            model, tensors, *_ = (checked(folder, case, part) for part in PARTS if case[part])
            runs = by_run(unpacked(tensors.read_bytes()))
            found, times = run_case(model, runs, arguments, repeats)
            text = compare(found, runs)
            outputs.update({case["name"] + ":" + key: array for key, array in found.items()})
            seconds[case["name"]] = times
            print(f"{title:44} {1000 * statistics.median(times):9.3f} ms  {text}", flush=True)
        except Exception as error:  # noqa: BLE001 - a provider may refuse one case, and take the others
            faults[case["name"]] = " ".join(str(error).split())[:400]
            print(f"{title:44} failed: {faults[case['name']]}", flush=True)
    about = {
        "format": FORMAT,
        "format_version": VERSION,
        "id": manifest["id"],
        "model_sha256": manifest["cases"][0]["model_sha256"],
        "name": arguments.name,
        "machine": platform.machine(),
        "system": platform.system(),
        "runtime": "onnxruntime " + onnxruntime.__version__,
        "provider": arguments.provider,
        "threads": str(arguments.threads),
        "emulated": json.dumps(arguments.emulated),
        "seconds": json.dumps(seconds),
        "faults": json.dumps(faults),
    }
    arguments.output.write_bytes(packed(outputs, about))
    print(f"wrote {arguments.output}")
    return 1 if faults else 0


def checked(folder: Path, case: Mapping[str, Any], part: str) -> Path:
    """Return the path of a file whose hash is the one in the manifest."""
    path = folder / str(case[part])
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != case[part + "_sha256"]:
        raise ValueError(case[part] + " was changed or cut off: copy the folder again")
    return path


def by_run(arrays: Arrays) -> list[dict[str, dict[str, npt.NDArray[Any]]]]:
    """Return the tensors of each run, by what they are and by name; they are called RUN:KIND:NAME."""
    runs = {}  # type: dict[int, dict[str, dict[str, npt.NDArray[Any]]]]
    for key, array in arrays.items():
        run, kind, name = key.split(":", 2)
        runs.setdefault(int(run), {}).setdefault(kind, {})[name] = array
    return [runs[number] for number in sorted(runs)]


def run_case(
    model: Path, runs: Sequence[Mapping[str, Arrays]], arguments: argparse.Namespace, repeats: int
) -> tuple[dict[str, npt.NDArray[Any]], list[float]]:
    """Return the outputs of a case by RUN:NAME, and how many seconds each run took."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=[arguments.provider])
    names = [output.name for output in session.get_outputs()]
    found, times = {}, []
    for number, run in enumerate(runs):
        given, taken = dict(run.get("input", {})), []
        for _ in range(1 + max(0, repeats)):
            start = time.perf_counter()
            outputs = session.run(names, given)
            taken.append(time.perf_counter() - start)
        found.update({f"{number}:{name}": np.asarray(array) for name, array in zip(names, outputs)})  # noqa: B905
        times.append(statistics.median(taken[1:] or taken))
    return found, times


def compare(found: Arrays, runs: Sequence[Mapping[str, Arrays]]) -> str:
    """Say how far outputs are from what is expected; the workstation decides what that means."""
    largest, differing, count = 0.0, 0, 0
    for number, run in enumerate(runs):
        for name, expected in run.get("output", {}).items():
            array = found[f"{number}:{name}"]
            if array.shape != expected.shape:
                return f"has the shape {array.shape}, expected {expected.shape}"
            if not array.size:
                continue
            apart = np.abs(array.astype(np.float64) - expected.astype(np.float64))
            differing += int(np.count_nonzero(~(apart <= run["tolerance"][name])))
            largest, count = max(largest, float(apart.max())), count + array.size
    if not differing:
        return "as expected"
    return f"{differing} of {count} values differ, by up to {largest:g}"


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


def packed(arrays: Arrays, about: Mapping[str, str]) -> bytes:
    """Return the content of a file of safetensors, with texts about it."""
    header = {"__metadata__": dict(about)}  # type: dict[str, Any]
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
