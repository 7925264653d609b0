"""``calibration.safetensors``: the statistics, and what they were made from.

One flat array holds all tensors' bins, another their counts; a JSON header says where each tensor's lie.
The header also carries a checksum of itself and of the arrays, so that a damaged file is an error and
never a wrong number. Only the statistics are kept: every amax method decides from them later.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from ptq_cli.collectors.bit_histogram import BitHistogram
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.errors import CalibrationFileError, first_line
from ptq_cli.core.files import atomic_write, require_file

FORMAT = "ptq.calibration"
FORMAT_VERSION = 1
HEADER_KEY = "ptq"
Arrays = dict[str, npt.NDArray[Any]]
ARRAYS: dict[str, np.dtype[Any]] = {
    "keys": np.dtype("<u4"),
    "counts": np.dtype("<i8"),
    "minimum": np.dtype("<f4"),
    "maximum": np.dtype("<f4"),
}
SAFETENSORS_DTYPES = {"U32": "<u4", "I64": "<i8", "F32": "<f4"}


@dataclass(frozen=True)
class Provenance:
    """What a calibration was made from; it is refused where one of these has changed.

    Attributes:
        model: SHA-256 of ``model.float.onnx``.
        source: SHA-256 of the model's file that the user named.
        data: digest of the calibration set.
        settings: the recipe's settings that the statistics depend on, as text by name.
        flags: what the command line set, so that a later stage can tell it from an edited recipe.
        method: the collector.
        samples: how many samples were seen.
    """

    model: str
    source: str
    data: str
    settings: dict[str, str]
    flags: dict[str, Any]
    method: str
    samples: int


@dataclass(frozen=True)
class Calibration:
    """Statistics by tensor name, with their provenance."""

    provenance: Provenance
    statistics: dict[str, TensorStatistics]


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration, atomically; the same statistics give the same bytes.

    Raises:
        OutputFileError: it cannot be written.
    """
    arrays, entries = _flatten(calibration.statistics)
    header: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "provenance": asdict(calibration.provenance),
        "tensors": entries,
    }
    header["checksum"] = _checksum(header, arrays)
    content = save(arrays, metadata={HEADER_KEY: json.dumps(header, sort_keys=True)})
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def load_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        InputFileError: the file is missing or unreadable.
        CalibrationFileError: it is damaged, no calibration, or of another format version.
    """
    content = require_file(path, "calibration").read_bytes()
    try:
        header, arrays = _parse(content)
        fault = _header_fault(header, arrays)
        if not fault:
            return Calibration(Provenance(**header["provenance"]), _unflatten(header["tensors"], arrays))
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
    ) as error:
        raise CalibrationFileError(
            f"'{path}' is damaged: {first_line(error)}", hint="calibrate again"
        ) from error
    raise CalibrationFileError(f"'{path}' {fault}", hint="calibrate again, or use the ptq that wrote it")


def _header_fault(header: dict[str, Any], arrays: Arrays) -> str:
    if header.get("format") != FORMAT:
        return "is no calibration"
    if header.get("format_version") != FORMAT_VERSION:
        return f"has format version {header.get('format_version')}, this ptq reads {FORMAT_VERSION}"
    content = {key: value for key, value in header.items() if key != "checksum"}
    return "" if header.get("checksum") == _checksum(content, arrays) else "is damaged: its checksum is wrong"


def _flatten(
    statistics: dict[str, TensorStatistics],
) -> tuple[Arrays, list[dict[str, Any]]]:
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [np.zeros(0, dtype)] for name, dtype in ARRAYS.items()}
    entries = []
    for name, item in sorted(statistics.items()):
        bins = item.histogram.keys.size if item.histogram is not None else None
        if item.histogram is not None:
            parts["keys"].append(item.histogram.keys)
            parts["counts"].append(item.histogram.counts)
        parts["minimum"].append(item.minimum.reshape(-1))
        parts["maximum"].append(item.maximum.reshape(-1))
        channels = item.minimum.size if item.axis is not None else None
        entries.append(
            {"name": name, "count": item.count, "zeros": item.zeros, "axis": item.axis, "channels": channels}
            | {"bins": bins}
        )
    return {name: np.concatenate(items).astype(ARRAYS[name]) for name, items in parts.items()}, entries


def _unflatten(
    entries: list[dict[str, Any]], arrays: dict[str, npt.NDArray[Any]]
) -> dict[str, TensorStatistics]:
    statistics = {}
    at_bin = at_range = 0
    for entry in entries:
        channels, bins = entry["channels"], entry["bins"]
        width = 1 if channels is None else int(channels)
        shape = () if channels is None else (width,)
        ranges = slice(at_range, at_range + width)
        histogram = None
        if bins is not None:
            part = slice(at_bin, at_bin + int(bins))
            histogram = BitHistogram(arrays["keys"][part], arrays["counts"][part])
            at_bin += int(bins)
        statistics[str(entry["name"])] = TensorStatistics(
            int(entry["count"]),
            int(entry["zeros"]),
            arrays["minimum"][ranges].reshape(shape),
            arrays["maximum"][ranges].reshape(shape),
            entry["axis"],
            histogram,
        )
        at_range += width
    return statistics


def _parse(content: bytes) -> tuple[dict[str, Any], Arrays]:
    # safetensors checks offsets and lengths, but its Python layer hands out no metadata of bytes in memory.
    items = deserialize(content)  # type: ignore[no-untyped-call]
    tensors = {name: np.frombuffer(item["data"], SAFETENSORS_DTYPES[item["dtype"]]) for name, item in items}
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][HEADER_KEY])
    if set(tensors) != set(ARRAYS) or any(tensors[name].dtype != dtype for name, dtype in ARRAYS.items()):
        raise ValueError("its arrays are not those of a calibration")
    return header, tensors


def _checksum(header: dict[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in ARRAYS:
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
