"""Containers: arrays and a checked header in one safetensors file, as ptq stores what it may continue.

A checksum covers the header and the arrays, so that a damaged file is an error and never a wrong number.
Nothing is pickled. Arrays may be mapped from a file and are then read as they are used.

Source: https://huggingface.co/docs/safetensors: 8 bytes of length, a JSON header, then the arrays.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ptq_cli.core.documents import strict_json
from ptq_cli.core.errors import InputFileError, PtqError, ReportError, first_line
from ptq_cli.core.read_files import require_file

Arrays = Mapping[str, npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]
_T = TypeVar("_T")
HEADER_KEY = "ptq"
MOST_HEADER_BYTES = 100_000_000  # safetensors allows no more.
# Dtypes by safetensors' names, in its order. Arrays of the last type come first: all are then aligned.
DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}
ORDER = tuple(DTYPES)
_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Container:
    """One kind of file.

    Attributes:
        format: its name, in each header.
        version: of the format, in each header.
        error: what is raised for a file that is not one, or is damaged.
        what: what it is, after "is not": ``"a calibration"``.
        made_by: hint on how such a file is made.
        again: hint on what to do about a damaged one.
        dtypes: what safetensors calls the types that its arrays may have.
        is_flat: whether each array has one axis.
    """

    format: str
    version: int
    error: type[PtqError]
    what: str
    made_by: str
    again: str
    dtypes: Collection[str] = ORDER
    is_flat: bool = True

    def parts(self, content: Mapping[str, Any], arrays: Arrays) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a file; the same content gives the same bytes, in whatever order it comes.

        ``content`` is what the header says besides format, version and checksum. The arrays are handed out as
        they lie in memory, because a copy of all of them would take as much again.
        """
        header: dict[str, Any] = {"format": self.format, "format_version": self.version, **content}
        header["checksum"] = checksum(header, arrays)
        table: dict[str, Any] = {"__metadata__": {HEADER_KEY: json.dumps(header, sort_keys=True)}}
        # The order and the text that safetensors' own writer makes (its enum of types, then names): a file of
        # ours and one that it writes of the same arrays are the same bytes.
        stored = sorted(arrays.items(), key=lambda item: (-ORDER.index(_NAMES[item[1].dtype]), item[0]))
        end = 0
        for name, array in stored:
            begin, end = end, end + array.nbytes
            place = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
            table[name] = place
        text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
        # The arrays begin at a multiple of 8, so that a mapped one can be read where it lies.
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for _, array in stored:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def content(self, content: Mapping[str, Any], arrays: Arrays) -> bytes:
        """The bytes of a file."""
        return b"".join(self.parts(content, arrays))

    def parse(
        self, data: bytes | Bytes, name: str, make: Callable[[dict[str, Any], dict[str, Any]], _T]
    ) -> _T:
        """Result of ``make`` for a file's header and arrays.

        What it raises about values says that the file, which messages call ``name``, is damaged.
        """
        try:
            header, arrays = self._read(np.frombuffer(data, np.uint8), name)
            return make(header, arrays)
        # A deep JSON raises RecursionError; what has other types than expected raises the others.
        except (
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
            ReportError,
        ) as error:
            reason = error.message if isinstance(error, ReportError) else first_line(error)
            raise self.error(f"'{name}' is damaged: {reason}", hint=self.again) from error

    def _read(self, data: Bytes, name: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        length = int.from_bytes(data[:8].tobytes(), "little")
        # Before anything is read as JSON: the length is a number that a hostile file may choose.
        if not 0 < length <= min(MOST_HEADER_BYTES, len(data) - 8):
            raise ValueError("it has no header")
        table = strict_json(data[8 : 8 + length].tobytes())
        header = strict_json((table.pop("__metadata__", None) or {}).get(HEADER_KEY, "{}").encode())
        if not isinstance(header, dict) or header.get("format") != self.format:
            raise self.error(f"'{name}' is not {self.what}", hint=self.made_by)
        version = header.get("format_version")
        if version != self.version:
            raise self.error(
                f"'{name}' has format version {str(version)[:40]}, this version of ptq reads {self.version}",
                hint=f"{self.again}, or use the version of ptq that wrote it",
            )
        arrays = {key: self._array(data[8 + length :], place) for key, place in table.items()}
        # Bytes that no array has are in no checksum: something was appended, or the header was cut.
        if sum(array.nbytes for array in arrays.values()) != len(data) - 8 - length:
            raise ValueError("its arrays are not all of it")
        if header.pop("checksum", None) != checksum(header, arrays):
            raise ValueError("its checksum is wrong")
        return header, arrays

    def _array(self, data: Bytes, place: Mapping[str, Any]) -> npt.NDArray[Any]:
        (begin, end), dtype, shape = place["data_offsets"], place["dtype"], place["shape"]
        fits = (
            dtype in self.dtypes and (len(shape) == 1 or not self.is_flat) and 0 <= begin <= end <= len(data)
        )
        if not fits or math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize != end - begin:
            raise ValueError(f"an array is {str(dtype)[:40]}{str(shape)[:40]}")
        return np.frombuffer(data[begin:end], DTYPES[dtype]).reshape(shape)


def map_file(path: Path, what: str, container: Container) -> Bytes:
    """The bytes of a file without reading them."""
    require_file(path, what)
    try:
        return np.memmap(path, np.uint8, "r")
    except ValueError as error:
        raise container.error(f"'{path}' is damaged: {first_line(error)}", hint=container.again) from error
    except OSError as error:
        raise InputFileError(
            f"'{path}' cannot be read: {first_line(error)}", hint="check the file and its permissions"
        ) from error


def checksum(header: Mapping[str, Any], arrays: Arrays) -> str:
    """The SHA-256 of a header and its arrays, in the order of their names."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
