"""The members of a tar archive, read forward from a stream; nothing is extracted and no path is used.

Python's ``tarfile`` takes a damaged header for the end of the archive, so that samples would be missing
without a word, and reads as much for a long name as a hostile header claims. Only a header's checksum and
numbers are left to it. This reader knows what archives of samples hold, regular files and folders, and
refuses the rest.
"""

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from ptq_cli.calibdata.dataset.data_files import escaped_name, unreadable
from ptq_cli.core.errors import DataFormatError, PtqError

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
    """Name, size and kind of a member."""

    name: bytes
    size: int
    kind: bytes


def _damaged(message: str) -> DataFormatError:
    return DataFormatError(message, hint="create or download it again")


def padded(size: int) -> int:
    """Return the bytes that content of this size takes in whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def is_tar_header(block: bytes) -> bool:
    """Tell whether a file's first bytes are those of a tar archive: a header, or the end of an empty one."""
    try:
        parse_header(block, "")
    except DataFormatError:
        return False
    return True


def parse_header(block: bytes, where: str) -> TarHeader | None:
    """Return the header in a block of 512 bytes, or None for the end of the archive.

    Fewer bytes are a truncated archive.
    """
    if len(block) < BLOCK_BYTES:
        raise _damaged(f"{where} is truncated inside a header")
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
            raise _damaged(f"{where} has a damaged extended header")
        records[key] = value[:-1]
        content = content[length:]
    return records


def refused_kind(kind: bytes) -> str:
    """Return the noun of a type flag, with an article.

    Example:
        >>> refused_kind(b"2"), refused_kind(b"Z")
        ('a symbolic link', "of unknown type b'Z'")
    """
    return _REFUSED.get(kind, f"of unknown type {kind!r}")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


MAX_NAME_BYTES = 1 << 16  # of an extended header; names are a few hundred bytes
MAX_MEMBER_BYTES = 1 << 40  # a larger member is a damaged or hostile header
_MAX_TRAILER_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 16
_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)


@dataclass(kw_only=True)
class TarMember:
    """A regular file of the archive, to be read before the next member is asked for.

    Attributes:
        name: its path in the archive, with which nothing is opened.
    """

    name: str
    size: int
    _stream: IO[bytes]
    _where: str
    _left: int

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes; all that are left if ``count`` is negative."""
        count = self._left if count < 0 else min(count, self._left)
        content = read_exactly(self._stream, count, f"'{escaped_name(self.name)}' of {self._where}")
        self._left -= count
        return content

    def skip_rest(self) -> None:
        """Go to the next member's header."""
        skip(self._stream, self._left + padded(self.size) - self.size, self._where)
        self._left = 0


def tar_members(stream: IO[bytes], where: str) -> Iterator[TarMember]:
    r"""Yield the archive's regular files in their order; folders are passed over.

    The stream is the decompressed one; ``where``, such as ``"data 'train.tar'"``, begins messages. What a
    member's reader left is passed over by seeking.

    Source:
        POSIX.1-2017, pax: "ustar Interchange Format" and "pax Interchange Format"; GNU tar for long names.
    """
    name: bytes | None = None
    size: int | None = None
    while (header := _next_header(stream, where)) is not None:
        if header.kind in (PAX, PAX_GLOBAL, LONG_NAME):
            found = _extended(stream, header, where)
            name, size = found.get(b"path", name), _as_size(found.get(b"size"), size, where)
            continue
        path = header.name if name is None else name
        shown = os.fsdecode(path)
        if header.kind in FOLDER_TYPES or (header.kind in REGULAR_TYPES and path.endswith(b"/")):
            name = size = None
            continue
        if header.kind not in REGULAR_TYPES:
            raise DataFormatError(
                f"{where} holds '{escaped_name(shown)}', which is {refused_kind(header.kind)}",
                hint="put regular files into the archive",
            )
        length = header.size if size is None else size
        if length > MAX_MEMBER_BYTES:
            raise _damaged(f"{where} declares {length} bytes for '{escaped_name(shown)}'")
        member = TarMember(name=shown, size=length, _stream=stream, _where=where, _left=length)
        yield member
        member.skip_rest()
        name = size = None
    _require_end(stream, where)


def _next_header(stream: IO[bytes], where: str) -> TarHeader | None:
    block = read_exactly(stream, BLOCK_BYTES, where, or_end=True)
    if not block:
        raise _damaged(f"{where} is truncated: it has no end mark")
    return parse_header(block, where)


def _extended(stream: IO[bytes], header: TarHeader, where: str) -> dict[bytes, bytes]:
    if header.size > MAX_NAME_BYTES:
        raise _damaged(f"{where} declares {header.size} bytes for a member's extended header")
    content = read_exactly(stream, padded(header.size), where)[: header.size]
    if header.kind == LONG_NAME:
        return {b"path": content.rstrip(b"\0")}
    records = parse_records(content, where)
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise DataFormatError(f"{where} holds a sparse file", hint="put regular files into the archive")
    if header.kind == PAX:
        return records
    if b"path" in records or b"size" in records:
        raise DataFormatError(f"{where} has one name or size for all members", hint="create it again")
    return {}


def _as_size(text: bytes | None, otherwise: int | None, where: str) -> int | None:
    if text is None:
        return otherwise
    if not text.isdigit() or len(text) > 20:
        raise _damaged(f"{where} has a damaged extended header: a size of {text[:20]!r}")
    return int(text)


def _require_end(stream: IO[bytes], where: str) -> None:
    # Archives that were joined go on after the end; and only its end tells the CRC of a compressed stream.
    left = _MAX_TRAILER_BYTES
    while left > 0 and (part := read_exactly(stream, _CHUNK_BYTES, where, or_end=True)):
        if part.count(0) != len(part):
            break
        left -= len(part)
    else:
        if left > 0:
            return
    raise DataFormatError(
        f"{where} has data after its end", hint="name archives that were concatenated one by one"
    )


def read_exactly(stream: IO[bytes], count: int, where: str, *, or_end: bool = False) -> bytes:
    """Return the next ``count`` bytes."""
    parts = []
    left = count
    try:
        # In pieces: what is held grows with what is there, not with what a header claims.
        while left and (part := stream.read(min(left, _CHUNK_BYTES))):
            parts.append(part)
            left -= len(part)
    except (*_DAMAGED, OSError) as error:
        raise _unreadable(error, where) from error
    if left and not or_end:
        raise _damaged(f"{where} is truncated: {count - left} of {count} bytes are there")
    return b"".join(parts)


def skip(stream: IO[bytes], count: int, where: str) -> None:
    """Pass over the next ``count`` bytes; a compressed stream has to be decompressed for that."""
    try:
        stream.seek(count, os.SEEK_CUR)
    except (*_DAMAGED, OSError) as error:
        raise _unreadable(error, where) from error


def _unreadable(error: Exception, where: str) -> PtqError:
    # A BadGzipFile is an OSError, too.
    if isinstance(error, OSError) and not isinstance(error, _DAMAGED):
        return unreadable(where, error)
    return DataFormatError(f"{where} is damaged or truncated: {error}", hint="download it again")
