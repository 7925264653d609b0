"""Data of an ONNX file that lie outside it: they may name any file, and promise any size."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from ptq_cli.core.errors import ModelFormatError

LARGEST_RANK = 64
"""Of a tensor outside the file; NumPy and ONNX Runtime take no more either."""
COUNT = re.compile(r"[0-9]{1,19}")


def external_files(proto: onnx.ModelProto, folder: Path) -> tuple[Path, ...]:
    """Return the files that hold data of a model's tensors, by name; ``require_external_data`` took them."""
    names = {_details(tensor).get("location", "") for tensor in external_tensors(proto)}
    return tuple(folder / name for name in sorted(names))


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose data lie outside the file, those of nested graphs and attributes too."""
    from onnx.external_data_helper import _get_all_tensors

    return (item for item in _get_all_tensors(proto) if item.data_location == onnx.TensorProto.EXTERNAL)


def require_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Check that every tensor's data are in a file beside the model, and that this is as long as promised.

    Raises:
        ModelFormatError: a file is missing, too short, outside the model's folder, or has several names.
    """
    folder = path.parent.resolve()
    for tensor in external_tensors(proto):
        target = _data_file(tensor, folder, path)
        if target.stat().st_nlink > 1:  # As onnx does: one of the names may be that of a secret elsewhere.
            raise ModelFormatError(
                f"model '{path.name}': its data file '{target.name}' has several names (hard links)",
                hint="put a copy of the file next to the model",
            )
        _require_length(tensor, target, path)


def _data_file(tensor: onnx.TensorProto, folder: Path, path: Path) -> Path:
    location = _details(tensor).get("location", "")
    try:
        target = (folder / location).resolve()
        exists, is_file = target.exists(), target.is_file()
    except (OSError, ValueError) as error:  # a NUL in the name, a name that is too long, links in a circle
        raise ModelFormatError(
            f"model '{path.name}': the data file of '{tensor.name}' has a name that is not valid "
            f"({location!r})",
            hint="export it again",
        ) from error
    if not target.is_relative_to(folder) or not location:
        raise ModelFormatError(
            f"model '{path.name}': the data of '{tensor.name}' lie outside its folder ({location!r})",
            hint="ptq reads external data only from the model's folder",
        )
    if not exists:
        raise ModelFormatError(
            f"model '{path.name}': the data file '{location}' of '{tensor.name}' is missing",
            hint="put it next to the model",
        )
    if not is_file:
        kind = "a folder" if target.is_dir() else "not a regular file"
        raise ModelFormatError(
            f"model '{path.name}': the data file '{location}' of '{tensor.name}' is {kind}",
            hint="copy or export it again",
        )
    return target


def _require_length(tensor: onnx.TensorProto, target: Path, path: Path) -> None:
    needed, details = _bytes_of(tensor), _details(tensor)
    offset = _count(details.get("offset") or "0")
    length = _count(details["length"]) if details.get("length") else needed
    if needed < 0 or offset < 0 or length != needed:
        raise ModelFormatError(
            f"model '{path.name}': the place of '{tensor.name}' in its data file is not valid",
            hint="export it again",
        )
    missing = offset + length - target.stat().st_size
    if missing > 0:
        raise ModelFormatError(
            f"model '{path.name}': its data file '{target.name}' is too short: {missing} bytes of "
            f"'{tensor.name}' are missing",
            hint="copy or export it again",
        )


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
    return int(text) if COUNT.fullmatch(text) else -1


def _details(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}
