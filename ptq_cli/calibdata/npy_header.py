"""The header of an ``.npy`` stream, checked as untrusted input: parsed as a literal, never evaluated."""

import io
import math
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy_format

from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError
from ptq_cli.core.tensors import TensorSpec, format_shape

MAX_HEADER_BYTES = 10_000  # numpy's limit; a longer one could exhaust the literal parser
MAX_SAMPLE_BYTES = 2**31  # a larger sample is a damaged or hostile header
_PREFIX_BYTES = npy_format.MAGIC_LEN
# Version 3.0 differs only in allowing Unicode field names, and arrays with fields are refused anyway.
_LENGTH_FORMAT = {(1, 0): "<H", (2, 0): "<I"}
_READERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


class Readable(Protocol):
    """A stream that can only be read forward."""

    def read(self, count: int, /) -> bytes:
        """Return the next ``count`` bytes; fewer at the end."""


@dataclass(frozen=True)
class ArrayHeader:
    """Shape and dtype of a stored array, samples first; its byte order may be the other one.

    Attributes:
        raw: the bytes before the first value, by which the same array is known when it is opened again.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    raw: bytes

    @cached_property
    def count(self) -> int:
        """Number of samples; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @cached_property
    def end(self) -> int:
        """Bytes of the whole stream."""
        return len(self.raw) + self.count * self.row_bytes

    def spec(self, name: str, axis: int | None = 0) -> TensorSpec:
        """The array as it is in batches: native byte order, any number of samples on their axis."""
        sizes = tuple(None if index == axis else size for index, size in enumerate(self.shape))
        return TensorSpec(name, self.dtype.newbyteorder("="), sizes, axis)


def read_header(
    stream: Readable, where: str, *, one_sample: bool = False, scalars: bool = False
) -> ArrayHeader:
    """Read the header as NEP 1 has it; the stream is then at the first value.

    Messages begin with ``where``, such as ``"array 'x' of 'calib.npz'"``. With ``one_sample`` the array gets
    an axis of size 1 before its own; with ``scalars`` a single value is allowed.
    """
    shape, fortran_order, dtype, raw = _parse(stream, where)
    _require_numbers(dtype, where)
    if one_sample:
        fortran_order = fortran_order and len(shape) > 1
        shape = (1, *shape)
    if not shape and not scalars:
        raise DataShapeError(
            f"{where} is a single value, expected an axis for the samples",
            hint="save an array whose first axis is the sample",
        )
    if any(size < 0 for size in shape):
        raise DataFormatError(
            f"{where} has a damaged header: shape {format_shape(shape)}", hint="save it again with numpy.save"
        )
    if fortran_order and len(shape) > 1:
        raise DataFormatError(
            f"{where} is stored in Fortran order, expected C order",
            hint="save numpy.ascontiguousarray(array)",
        )
    header = ArrayHeader(dtype, shape, raw)
    if 0 in shape:
        raise EmptyDataError(
            f"{where} has shape {format_shape(shape)}, which has no values", hint="save at least one sample"
        )
    if header.row_bytes > MAX_SAMPLE_BYTES:
        raise DataFormatError(
            f"{where} declares samples of {header.row_bytes} bytes, the limit is 2 GiB",
            hint="save smaller samples, or fewer values in each",
        )
    return header


def require_size(header: ArrayHeader, size: int, where: str) -> None:
    """Check that the stream is as long as its header says."""
    if header.end != size:
        kind = "truncated" if size < header.end else "damaged"
        raise DataFormatError(
            f"{where} is {kind}: found {size} bytes, "
            f"{header.dtype}{format_shape(header.shape)} takes {header.end}",
            hint="save it again",
        )


def _parse(stream: Readable, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], bytes]:
    prefix = stream.read(_PREFIX_BYTES)
    version = (prefix[6], prefix[7]) if len(prefix) == _PREFIX_BYTES else None
    if version is None or not prefix.startswith(npy_format.MAGIC_PREFIX):
        raise DataFormatError(
            f"{where} is not an npy array: its first bytes are {prefix[:8]!r}",
            hint="save it with numpy.save or numpy.savez",
        )
    if version not in _READERS:
        raise DataFormatError(
            f"{where} has npy version {version[0]}.{version[1]}, expected 1.0 or 2.0",
            hint="save it again with numpy.save",
        )
    width = struct.calcsize(_LENGTH_FORMAT[version])
    field = stream.read(width)
    # The length is checked here because numpy would first read as much as the header claims: up to 4 GiB.
    length = struct.unpack(_LENGTH_FORMAT[version], field)[0] if len(field) == width else 0
    if not 0 < length <= MAX_HEADER_BYTES:
        raise DataFormatError(
            f"{where} has a damaged header: its length is {length} bytes",
            hint="save it again with numpy.save",
        )
    text = stream.read(length)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2, and escapes in malformed text
            shape, fortran, dtype = _READERS[version](io.BytesIO(field + text), MAX_HEADER_BYTES)
    except Exception as error:  # the text may be anything, and parsing it may raise anything
        raise DataFormatError(
            f"{where} has a damaged header: {type(error).__name__}", hint="save it again"
        ) from error
    return tuple(int(size) for size in shape), fortran, dtype, prefix + field + text


def _require_numbers(dtype: np.dtype[Any], where: str) -> None:
    if dtype.hasobject:
        raise DataFormatError(
            f"{where} holds Python objects, which ptq never unpickles",
            hint="save an array of numbers; numpy.stack makes one from a list of arrays of the same shape",
        )
    if dtype.kind not in "biuf":
        raise DataFormatError(f"{where} has dtype {dtype}, expected numbers", hint="save an array of numbers")
