"""Read a member of a tar shard as an image, an array or a label."""

import json

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.arrays.array_rows import read_rows
from ptq_cli.calibdata.arrays.npy_header import read_header, require_size
from ptq_cli.calibdata.images.checked_settings import MAX_IMAGE_BYTES
from ptq_cli.calibdata.images.image_decoding import decode_bytes
from ptq_cli.calibdata.tar.archive_stream import TarMember
from ptq_cli.core.errors import DataFormatError, LabelError
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections.input_sections import ImageSettings

MAX_JSON_BYTES = 1 << 24
MAX_CLASS_BYTES = 1 << 10

_INT64 = np.iinfo(np.int64)


def read_image(member: TarMember, where: str, settings: ImageSettings) -> npt.NDArray[np.uint8]:
    """Return a decoded image.

    Raises:
        DataFormatError: it is larger than the limit for images, or truncated.
        PtqError: as raised by ``decode_bytes``.
    """
    return decode_bytes(_read(member, where, MAX_IMAGE_BYTES), where, settings)


def read_array(member: TarMember, where: str) -> Array:
    """Return the array of an ``.npy`` member, which is one sample.

    Raises:
        DataFormatError: it is damaged, or holds Python objects.
        EmptyDataError: it has no values.
    """
    header = read_header(member, where, one_sample=True)
    require_size(header, member.size, where)
    return read_rows(member, header, 1, where).reshape(header.shape[1:])


def read_class(member: TarMember, where: str) -> int:
    """Return the class that is written in a ``.cls`` member.

    Raises:
        LabelError: it is not an integer.
    """
    return as_label(_read(member, where, MAX_CLASS_BYTES).decode("utf-8-sig", "replace").strip(), where)


def read_label_array(member: TarMember, where: str) -> int:
    """Return the label of a ``label.npy`` member: one integer, with or without an axis.

    Raises:
        LabelError: it is anything else.
        DataFormatError: it is damaged.
    """
    array = read_array(member, where)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise LabelError(
            f"{where} has dtype {array.dtype} and {array.size} values, expected one integer",
            hint="labels are class numbers from 0",
        )
    return as_label(str(array.item()), where)


def read_json_label(member: TarMember, where: str) -> int | None:
    """Return the label of a ``.json`` member: an integer, or one under the key ``label``; or None.

    Raises:
        LabelError: it is not JSON.
    """
    try:
        value = json.loads(_read(member, where, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise LabelError(f"{where} is not JSON: {type(error).__name__}", hint="write it again") from error
    if isinstance(value, dict):
        value = value.get("label")
    return as_label(str(value), where) if isinstance(value, int) and not isinstance(value, bool) else None


def as_label(text: str, where: str) -> int:
    """Return an integer that fits into int64.

    Raises:
        LabelError: it is not an integer, or does not fit.

    Example:
        >>> as_label("7", "it")
        7
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise LabelError(f"{where} is {text[:20]!r}, expected an integer", hint="classes count from 0")
    if not _INT64.min <= int(text) <= _INT64.max:
        raise LabelError(
            f"{where} is {text}, which does not fit into int64", hint="labels are indices of classes: 0, 1, …"
        )
    return int(text)


def _read(member: TarMember, where: str, most: int) -> bytes:
    if member.size > most:
        raise DataFormatError(
            f"{where} has {member.size} bytes, the limit is {most}", hint="save smaller samples"
        )
    return member.read()
