"""The one message of a model's file, read and written without its large constants in memory.

Protobuf writes a message as a sequence of fields, in the order of their numbers, and one inside another
behind its length. So a large constant can stay where it is in a file, and be copied from there into another.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, Message

from ptq_cli.core.tensors import Array

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # field numbers of ``onnx.proto``
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # wire types of protobuf
LONGEST_VARINT = 10
SMALLEST_LEFT = 1 << 14  # bytes; a smaller constant is read, for the inference of shapes
_PIECE = 1 << 24  # bytes copied at once
# Types whose bytes NumPy reads as they are
AS_IN_NUMPY = frozenset({"float32", "float64", "float16", "int8", "uint8", "int32", "int64"})
_Kind = TypeVar("_Kind", bound=Message)


@dataclass(frozen=True)
class LeftInFile:
    """A message without its large constants, and these as views of the file, by their number."""

    message: onnx.ModelProto
    constants: dict[int, Array]

    def restore(self, model: ir.Model) -> None:
        """Give the graph that was made of the message its constants, in place."""
        for number, array in self.constants.items():
            name = self.message.graph.initializer[number].name
            model.graph.initializers[name].const_value = ir.Tensor(array, name=name)

    def shown(self) -> onnx.ModelProto:
        """Return the message for ONNX's checker, which refuses constants without values: they are inputs."""
        message = onnx.ModelProto()
        message.CopyFrom(self.message)
        inputs = {item.name for item in message.graph.input}
        for number in sorted(self.constants, reverse=True):
            tensor = message.graph.initializer[number]
            if tensor.name not in inputs:
                kind, sizes = tensor.data_type, list(tensor.dims)
                message.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, kind, sizes))
            del message.graph.initializer[number]
        return message


def read_leaving_constants(path: Path) -> LeftInFile | None:
    """Return a file's message without its large constants; None if the whole has to be read.

    Edge case:
        Of a damaged file, and of one that is not ONNX, the whole has to be read, which says what is wrong.
    """
    data, constants = np.memmap(path, np.uint8, "r"), dict[int, Array]()
    written = bytearray()
    try:
        for number, kind, field, value, end in _fields(data, 0, len(data)):
            if (number, kind) != (GRAPH, LENGTH):
                written += data[field:end].tobytes()
                continue
            if constants:  # Another one adds to the first, and so may its constants.
                return None
            graph = _graph_without(data, value, end, constants)
            written += _varint(GRAPH << 3 | LENGTH) + _varint(len(graph)) + graph
        return LeftInFile(onnx.load_model_from_string(bytes(written)), constants) if constants else None
    except (DecodeError, ValueError, IndexError):
        return None


def _graph_without(data: Array, start: int, end: int, constants: dict[int, Array]) -> bytearray:
    written, number = bytearray(), -1
    for kind, how, field, value, stop in _fields(data, start, end):
        if (kind, how) == (INITIALIZER, LENGTH):
            number += 1
            if (left := _left_out(data, value, stop)) is not None:
                tensor, constants[number] = left
                written += _varint(INITIALIZER << 3 | LENGTH) + _varint(len(tensor)) + tensor
                continue
        written += data[field:stop].tobytes()
    return written


def _left_out(data: Array, start: int, end: int) -> tuple[bytes, Array] | None:
    """Return a large constant without its values, and a view of these; None of one that is read."""
    values = [item for item in _fields(data, start, end) if (item[0], item[1]) == (RAW_DATA, LENGTH)]
    if len(values) != 1 or values[0][4] - values[0][3] < SMALLEST_LEFT:
        return None
    (_, _, field, value, stop) = values[0]
    content = data[start:field].tobytes() + data[stop:end].tobytes()
    tensor = onnx.TensorProto.FromString(content)
    sizes = tuple(tensor.dims)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    holds_all = min(sizes, default=0) > 0 and math.prod(sizes) * dtype.itemsize == stop - value
    if str(dtype) not in AS_IN_NUMPY or not holds_all or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    return content, np.asarray(data[value:stop]).view(dtype).reshape(sizes)


def _fields(data: Array, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number and kind of each field, where it and its value begin, and where it ends."""
    at = start
    while at < end:
        field = at
        tag, at = _read_varint(data, at)
        value = at
        if tag & 7 == VARINT:
            _, at = _read_varint(data, at)
        elif tag & 7 == LENGTH:
            size, value = _read_varint(data, at)
            at = value + size
        elif tag & 7 in (EIGHT_BYTES, FOUR_BYTES):
            at += 8 if tag & 7 == EIGHT_BYTES else 4
        else:
            raise ValueError("not a kind of field that ONNX has")
        if at > end:
            raise ValueError("the field ends behind the message")
        yield tag >> 3, tag & 7, field, value, at


def _read_varint(data: Array, at: int) -> tuple[int, int]:
    number = 0
    for index in range(LONGEST_VARINT):
        byte = int(data[at + index])
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("a number has too many bytes")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def message_parts(content: bytes, folder: Path) -> Iterator[bytes]:
    """Yield the parts of the message of a graph with those constants inside that it names in other files.

    They are the bytes that protobuf itself would write, in its deterministic way.
    """
    model = onnx.load_model_from_string(content)
    tensors = [_tensor_parts(tensor, folder) for tensor in model.graph.initializer]
    before, behind = _around(model.graph, INITIALIZER)
    size = len(before) + sum(tensor.size for tensor in tensors) + len(behind)
    first, last = _around(model, GRAPH)
    yield first + _varint(GRAPH << 3 | LENGTH) + _varint(size) + before
    for tensor in tensors:
        yield tensor.before
        yield from tensor.values()
        yield tensor.behind
    yield behind + last


@dataclass(frozen=True)
class _TensorParts:
    """The field of a constant: what is before its values, where these are in a file, and what is behind."""

    before: bytes
    behind: bytes
    place: tuple[Path, int, int] | None = None

    @property
    def size(self) -> int:
        return len(self.before) + (self.place[2] if self.place is not None else 0) + len(self.behind)

    def values(self) -> Iterator[bytes]:
        if self.place is None:
            return
        path, offset, length = self.place
        with path.open("rb") as stream:
            stream.seek(offset)
            for start in range(0, length, _PIECE):
                yield stream.read(min(_PIECE, length - start))


def _tensor_parts(tensor: onnx.TensorProto, folder: Path) -> _TensorParts:
    outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    if not outside:
        content = tensor.SerializeToString(deterministic=True)
        return _TensorParts(_varint(INITIALIZER << 3 | LENGTH) + _varint(len(content)) + content, b"")
    told = {item.key: item.value for item in tensor.external_data}
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    length = int(told["length"])
    before, behind = _around(tensor, RAW_DATA)
    before += _varint(RAW_DATA << 3 | LENGTH) + _varint(length)
    head = _varint(INITIALIZER << 3 | LENGTH) + _varint(len(before) + length + len(behind))
    return _TensorParts(head + before, behind, (folder / told["location"], int(told["offset"]), length))


def _around(message: _Kind, number: int) -> tuple[bytes, bytes]:
    """Return the fields of a message before one of them, and those behind it."""
    before, behind = type(message)(), type(message)()
    before.CopyFrom(message)
    behind.CopyFrom(message)
    for field, _ in message.ListFields():
        if field.number >= number:
            before.ClearField(field.name)
        if field.number <= number:
            behind.ClearField(field.name)
    return before.SerializeToString(deterministic=True), behind.SerializeToString(deterministic=True)
