"""Data outside an ONNX file, which may name any file and promise any size; names that are not text."""

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ptq_cli.core.errors import ModelFormatError

LARGEST_RANK = 64  # of a tensor outside the file, as in NumPy and ONNX Runtime
_COUNT = re.compile(r"[0-9]{1,19}")


def external_files(proto: onnx.ModelProto, folder: Path) -> tuple[Path, ...]:
    """Return the files that hold data of a model's tensors, by name; ``require_external_data`` took them."""
    names = {_details(tensor).get("location", "") for tensor in external_tensors(proto)}
    return tuple(folder / name for name in sorted(names))


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose data lie outside the file, those of nested graphs and attributes too."""
    from onnx.external_data_helper import _get_all_tensors

    return (item for item in _get_all_tensors(proto) if item.data_location == onnx.TensorProto.EXTERNAL)


def require_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Check that every tensor's data are in a file beside the model, and that this is as long as promised."""
    folder = path.parent.resolve()
    for tensor in external_tensors(proto):
        target = _data_file(tensor, folder, path)
        if target.stat().st_nlink > 1:  # As onnx does: one of the names may be that of a secret elsewhere.
            found = f"its data file '{target.name}' has several names (hard links)"
            raise _bad_data(path, found, "put a copy of the file next to the model")
        _require_length(tensor, target, path)


def _data_file(tensor: onnx.TensorProto, folder: Path, path: Path) -> Path:
    location = _details(tensor).get("location", "")
    try:
        target = (folder / location).resolve()
        exists, is_file = target.exists(), target.is_file()
    except (OSError, ValueError) as error:  # a NUL in the name, a name that is too long, links in a circle
        found = f"the data file of '{tensor.name}' has a name that is not valid ({location!r})"
        raise _bad_data(path, found, "export it again") from error
    if not target.is_relative_to(folder) or not location:
        found = f"the data of '{tensor.name}' lie outside its folder ({location!r})"
        raise _bad_data(path, found, "ptq reads external data only from the model's folder")
    if not exists:
        found = f"the data file '{location}' of '{tensor.name}' is missing"
        raise _bad_data(path, found, "put it next to the model")
    if not is_file:
        kind = "a folder" if target.is_dir() else "not a regular file"
        found = f"the data file '{location}' of '{tensor.name}' is {kind}"
        raise _bad_data(path, found, "copy or export it again")
    return target


def _require_length(tensor: onnx.TensorProto, target: Path, path: Path) -> None:
    needed, details = _bytes_of(tensor), _details(tensor)
    offset = _count(details.get("offset") or "0")
    length = _count(details["length"]) if details.get("length") else needed
    if needed < 0 or offset < 0 or length != needed:
        raise _bad_data(
            path, f"the place of '{tensor.name}' in its data file is not valid", "export it again"
        )
    missing = offset + length - target.stat().st_size
    if missing > 0:
        found = f"its data file '{target.name}' is too short: {missing} bytes of '{tensor.name}' are missing"
        raise _bad_data(path, found, "copy or export it again")


def _bad_data(path: Path, found: str, hint: str) -> ModelFormatError:
    return ModelFormatError(f"model '{path.name}': {found}", hint=hint)


def _bytes_of(tensor: onnx.TensorProto) -> int:
    """Return how many bytes a tensor's shape and type need, or a negative number where they make no sense."""
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):  # unknown, or text, whose length no type tells
        return -1
    sizes = list(tensor.dims)
    if any(size < 0 for size in sizes) or len(sizes) > LARGEST_RANK:
        return -1
    count: int = math.prod(sizes)
    return -(-count * bits // 8)


def _count(text: str) -> int:
    """Return a number of bytes, or -1 where a text is not one: int() also takes signs, spaces and more."""
    return int(text) if _COUNT.fullmatch(text) else -1


def _details(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


def require_text(message: Message, name: str) -> None:
    """Check that every string of a model is text: whoever meets bytes later does not expect them."""
    if not _is_text(message):
        raise ModelFormatError(
            f"model '{name}' is damaged: a name in it is not text", hint="copy or export it again"
        )


def _is_text(message: Message) -> bool:
    # By name and not with ListFields, which would copy every constant of the model.
    for name, is_message, is_repeated in _fields(message.DESCRIPTOR):
        if is_message and not is_repeated and not message.HasField(name):
            continue
        value = getattr(message, name)
        for item in value if is_repeated else (value,):
            if not _is_text(item) if is_message else isinstance(item, bytes):
                return False
    return True


@cache
def _fields(kind: Descriptor) -> tuple[tuple[str, bool, bool], ...]:
    """Return each field that may hold text: its name, whether it is a message, and whether it is repeated."""
    empty, kinds = GetMessageClass(kind)(), (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)
    return tuple(
        (
            field.name,
            field.type == FieldDescriptor.TYPE_MESSAGE,
            # What a descriptor says of this has another name from version to version of protobuf.
            not isinstance(getattr(empty, field.name), str | bytes | Message),
        )
        for field in kind.fields
        if field.type in kinds
    )
