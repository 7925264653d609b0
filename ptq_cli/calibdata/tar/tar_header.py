"""The headers of a tar archive, checked as untrusted input.

``tarfile`` checks a header's checksum and its numbers. What it does not decide is decided here: where a name
has a prefix, that a size is not negative, and which kinds are refused.
"""

import tarfile
from dataclasses import dataclass

from ptq_cli.core.errors import DataFormatError

BLOCK_BYTES = 512

REGULAR_TYPES = (b"0", b"\0", b"7")
FOLDER_TYPES = (b"5",)
PAX, PAX_GLOBAL, LONG_NAME = b"x", b"g", b"L"

_REFUSED = {
    b"1": "a link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
    b"K": "a link",
}
_POSIX_MAGIC = b"ustar\0"


@dataclass(frozen=True)
class TarHeader:
    """What the header of a member says.

    Attributes:
        name: path in the archive, as bytes.
        size: bytes of content.
        kind: the type flag.
    """

    name: bytes
    size: int
    kind: bytes


def padded(size: int) -> int:
    """Return the bytes that content of this size takes in whole blocks.

    Example:
        >>> padded(0), padded(1), padded(512)
        (0, 512, 512)
    """
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def is_tar_header(block: bytes) -> bool:
    """Tell whether a file's first bytes are those of a tar archive: a header, or the end of an empty one.

    Example:
        >>> is_tar_header(bytes(512)), is_tar_header(b"x" * 512), is_tar_header(b"")
        (True, False, False)
    """
    try:
        parse_header(block, "")
    except DataFormatError:
        return False
    return True


def parse_header(block: bytes, where: str) -> TarHeader | None:
    """Return what a block of 512 bytes says, or None for the end of the archive.

    Args:
        block: fewer bytes are a truncated archive.
        where: what the archive is to the user; messages begin with it.

    Raises:
        DataFormatError: it is truncated, or not a header.
    """
    if len(block) < BLOCK_BYTES:
        raise DataFormatError(f"{where} is truncated inside a header", hint="create or download it again")
    if not any(block):
        return None
    try:
        size = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size
    except tarfile.HeaderError as error:
        raise DataFormatError(
            f"{where} is damaged: a header has a wrong checksum or an invalid number",
            hint="download it again",
        ) from error
    if size < 0:
        raise DataFormatError(f"{where} is damaged: a header has the size {size}", hint="download it again")
    name = _text(block[:100])
    # GNU keeps times where POSIX has the prefix; tarfile reads either as one.
    if block[257:263] == _POSIX_MAGIC and (prefix := _text(block[345:500])):
        name = prefix + b"/" + name
    return TarHeader(name, size, block[156:157])


def parse_records(content: bytes, where: str) -> dict[bytes, bytes]:
    r"""Return the records of a pax extended header: ``"%d %s=%s\n" % (length, key, value)`` each.

    Raises:
        DataFormatError: they are damaged.

    Example:
        >>> parse_records(b"12 path=a/b\n11 size=42\n", "it")
        {b'path': b'a/b', b'size': b'42'}
    """
    records = {}
    while content:
        digits, _, _ = content[:8].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = content[len(digits) + 1 : length].partition(b"=")
        if not key or not equals or not value.endswith(b"\n") or length > len(content):
            raise DataFormatError(
                f"{where} has a damaged extended header", hint="create or download it again"
            )
        records[key] = value[:-1]
        content = content[length:]
    return records


def refused_kind(kind: bytes) -> str:
    """Return what a type flag stands for, with an article.

    Example:
        >>> refused_kind(b"2"), refused_kind(b"Z")
        ('a symbolic link', "of unknown type b'Z'")
    """
    return _REFUSED.get(kind, f"of unknown type {kind!r}")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
