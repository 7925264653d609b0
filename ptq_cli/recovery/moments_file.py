"""``moments.safetensors``: sums of products of what layers read, and the calibration that they rest on.

The arrays are mapped and not read: those of all layers together may be larger than the memory.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.calibration_file import Counted, table_to_provenance
from ptq_cli.collectors.share import share_to_table
from ptq_cli.core.errors import InputFileError, MomentsFileError, first_line
from ptq_cli.core.files import atomic_write
from ptq_cli.core.read_files import require_file
from ptq_cli.recovery.input_moments import InputMoments
from ptq_cli.recovery.tensor_moments import TensorMoments

FORMAT = "ptq.moments"
FORMAT_VERSION = 2
HEADER_KEY = "ptq"
MOST_HEADER_BYTES = 100_000_000
"""As many as safetensors allows."""
METHOD = "moments"
"""What the provenance has in the place of a collector."""

Moments = Counted[TensorMoments]
Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.signedinteger]
DTYPES = {"I32": "<i4", "I64": "<i8"}
"""How sums are stored, by what safetensors calls it."""


def save_moments(moments: Moments, path: Path) -> None:
    """Write moments, atomically.

    Raises:
        OutputFileError: they cannot be written.
    """
    with atomic_write(path) as partial, partial.open("wb") as file:
        for part in _content(moments):
            file.write(part)


def moments_bytes(moments: Moments) -> bytes:
    """Return the content of the file; the same moments give the same bytes."""
    return b"".join(_content(moments))


def _content(moments: Moments) -> Iterator[bytes | memoryview]:
    entries, arrays = _flatten(moments.statistics)
    header: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "provenance": asdict(moments.provenance) | {"share": share_to_table(moments.provenance.share)},
        "tensors": entries,
    }
    header["checksum"] = _checksum(header, arrays)
    table: dict[str, Any] = {"__metadata__": {HEADER_KEY: json.dumps(header, sort_keys=True)}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        table[name] = {"dtype": _stored_as(array), "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        # As it lies in memory: a copy of all sums would take as much again.
        yield np.ascontiguousarray(array, DTYPES[_stored_as(array)]).reshape(-1).view(np.uint8).data


def _flatten(
    tensors: Mapping[str, TensorMoments],
) -> tuple[list[dict[str, Any]], dict[str, Sums]]:
    entries: list[dict[str, Any]] = []
    arrays: dict[str, Sums] = {}
    for name, item in sorted(tensors.items()):
        readings = []
        for key, moments in sorted(item.readings.items()):
            readings.append({"key": key, "rows": moments.rows})
            number = f"{len(entries)}.{len(readings) - 1}"
            arrays |= {f"{number}.sums": moments.sums, f"{number}.products": moments.products}
        entries.append({"name": name, "grid": item.grid, "readings": readings})
    return entries, arrays


def load_moments(path: Path) -> Moments:
    """Open a file of moments, whose arrays are read as they are used.

    Raises:
        InputFileError: the file is missing or unreadable.
        MomentsFileError: it is damaged, holds no moments, or is of another format version.
    """
    require_file(path, "file of moments")
    try:
        content = np.memmap(path, np.uint8, "r")
    except ValueError as error:
        raise _damaged(str(path), error) from error
    except OSError as error:
        raise InputFileError(
            f"'{path}' cannot be read: {first_line(error)}", hint="check the file and its permissions"
        ) from error
    return parse_moments(content, str(path))


def parse_moments(content: Bytes, name: str) -> Moments:
    """Return the moments of the content of a file.

    Args:
        content: of a file, or whatever stands in its place.
        name: of the file, for messages.

    Raises:
        MomentsFileError: it is damaged, holds no moments, or is of another format version.
    """
    try:
        return _parse(content, name)
    # A deep JSON raises RecursionError; what has other types than expected raises the others.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> MomentsFileError:
    return MomentsFileError(
        f"'{name}' is damaged: {first_line(error)}", hint="run ptq calibrate --moments again"
    )


def _parse(content: Bytes, name: str) -> Moments:
    length = int.from_bytes(content[:8].tobytes(), "little")
    if not 0 < length <= min(MOST_HEADER_BYTES, len(content) - 8):
        raise ValueError("it has no header")
    table = json.loads(content[8 : 8 + length].tobytes())
    header = json.loads(table.pop("__metadata__", {}).get(HEADER_KEY, "{}"))
    if header.get("format") != FORMAT:
        raise MomentsFileError(
            f"'{name}' does not hold moments",
            hint="`ptq calibrate --moments` writes them: moments.safetensors",
        )
    if header.get("format_version") != FORMAT_VERSION:
        version = str(header.get("format_version"))[:40]
        raise MomentsFileError(
            f"'{name}' has format version {version}, this version of ptq reads {FORMAT_VERSION}",
            hint="run ptq calibrate --moments again, or use the version of ptq that wrote it",
        )
    data = content[8 + length :]
    arrays = {key: _array(data, item) for key, item in table.items()}
    if header.pop("checksum", None) != _checksum(header, arrays):
        raise ValueError("its checksum is wrong")
    return Moments(table_to_provenance(header["provenance"]), dict(_tensors(header["tensors"], arrays)))


def _stored_as(array: Sums) -> str:
    return "I32" if array.dtype == np.int32 else "I64"


def _array(data: Bytes, item: Mapping[str, Any]) -> Sums:
    (begin, end), shape = item["data_offsets"], item["shape"]
    if item["dtype"] not in DTYPES or not 0 <= begin <= end <= len(data):
        raise ValueError(f"an array is {item['dtype']}{shape}")
    return np.frombuffer(data[begin:end], DTYPES[item["dtype"]]).reshape(shape)


def _tensors(entries: Any, arrays: Mapping[str, Sums]) -> Iterator[tuple[str, TensorMoments]]:
    for place, entry in enumerate(entries):
        readings = {}
        for index, item in enumerate(entry["readings"]):
            sums, products = (arrays[f"{place}.{index}.{part}"] for part in ("sums", "products"))
            groups, size = sums.shape
            if products.shape != (groups, size * (size + 1) // 2) or not 0 <= int(item["rows"]) < 2**63:
                raise ValueError(f"the moments of '{str(entry['name'])[:40]}' contradict each other")
            readings[str(item["key"])] = InputMoments(rows=int(item["rows"]), sums=sums, products=products)
        yield str(entry["name"]), TensorMoments(grid=str(entry["grid"]), readings=readings)


def _checksum(header: Mapping[str, Any], arrays: Mapping[str, Sums]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
