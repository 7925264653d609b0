"""The members of a tar archive, read forward from a stream; nothing is extracted and no path is used.

Python's ``tarfile`` takes a damaged header for the end of the archive, so that samples would be missing
without a word, and reads as much for a long name as a hostile header claims. This reader knows what archives
of samples hold, regular files and folders, and refuses the rest.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from ptq_cli.calibdata.dataset.file_names import escaped_name
from ptq_cli.calibdata.tar.tar_header import (
    BLOCK_BYTES,
    FOLDER_TYPES,
    LONG_NAME,
    PAX,
    PAX_GLOBAL,
    REGULAR_TYPES,
    TarHeader,
    padded,
    parse_header,
    parse_records,
    refused_kind,
)
from ptq_cli.core.errors import DataFormatError, InputFileError, PtqError

MAX_NAME_BYTES = 1 << 16
"""Of an extended header; names are a few hundred bytes."""
MAX_MEMBER_BYTES = 1 << 40
"""A member above 1 TiB is a damaged or hostile header."""

_MAX_TRAILER_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 16
_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)


@dataclass(kw_only=True)
class TarMember:
    """A regular file of the archive, to be read before the next member is asked for.

    Attributes:
        name: its path in the archive, with which nothing is opened.
        size: bytes.
    """

    name: str
    size: int
    _stream: IO[bytes]
    _where: str
    _left: int

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes; all that are left if ``count`` is negative.

        Raises:
            DataFormatError: the archive is truncated or damaged.
        """
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

    Args:
        stream: at the start of the archive; of a compressed one the decompressed stream.
        where: what it is to the user, such as ``"data 'train.tar'"``; messages begin with it.

    Edge case:
        What a member's reader left is passed over by seeking.

    Raises:
        DataFormatError: the archive is damaged or truncated, holds links, devices or sparse files, or goes on
            after its end.
        InputFileError: reading failed.

    Source:
        POSIX.1-2017, pax: "ustar Interchange Format" and "pax Interchange Format"; GNU tar for long names.

    Example:
        >>> import io, tarfile
        >>> content = io.BytesIO()
        >>> with tarfile.open(fileobj=content, mode="w") as archive:
        ...     info = tarfile.TarInfo("a.cls")
        ...     info.size = 2
        ...     archive.addfile(info, io.BytesIO(b"7\n"))
        >>> [(member.name, member.read()) for member in tar_members(io.BytesIO(content.getvalue()), "it")]
        [('a.cls', b'7\n')]
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
            raise DataFormatError(
                f"{where} declares {length} bytes for '{escaped_name(shown)}'",
                hint="create or download it again",
            )
        member = TarMember(name=shown, size=length, _stream=stream, _where=where, _left=length)
        yield member
        member.skip_rest()
        name = size = None
    _require_end(stream, where)


def _next_header(stream: IO[bytes], where: str) -> TarHeader | None:
    block = read_exactly(stream, BLOCK_BYTES, where, or_end=True)
    if not block:
        raise DataFormatError(f"{where} is truncated: it has no end mark", hint="create or download it again")
    return parse_header(block, where)


def _extended(stream: IO[bytes], header: TarHeader, where: str) -> dict[bytes, bytes]:
    if header.size > MAX_NAME_BYTES:
        raise DataFormatError(
            f"{where} declares {header.size} bytes for a member's extended header",
            hint="create or download it again",
        )
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
        raise DataFormatError(
            f"{where} has a damaged extended header: a size of {text[:20]!r}",
            hint="create or download it again",
        )
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
    """Return the next ``count`` bytes.

    Args:
        stream: what is read.
        count: how many bytes.
        where: what it is to the user.
        or_end: fewer are returned where the stream ends.

    Raises:
        DataFormatError: the stream ends early, or is damaged.
        InputFileError: reading failed.
    """
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
        raise DataFormatError(
            f"{where} is truncated: {count - left} of {count} bytes are there",
            hint="create or download it again",
        )
    return b"".join(parts)


def skip(stream: IO[bytes], count: int, where: str) -> None:
    """Pass over the next ``count`` bytes; a compressed stream has to be decompressed for that.

    Raises:
        DataFormatError: the stream is damaged.
        InputFileError: seeking failed.
    """
    try:
        stream.seek(count, os.SEEK_CUR)
    except (*_DAMAGED, OSError) as error:
        raise _unreadable(error, where) from error


def _unreadable(error: Exception, where: str) -> PtqError:
    # A BadGzipFile is an OSError, too.
    if isinstance(error, OSError) and not isinstance(error, _DAMAGED):
        return InputFileError(
            f"{where} cannot be read: {error.strerror or error}", hint="check the file and its permissions"
        )
    return DataFormatError(f"{where} is damaged or truncated: {error}", hint="download it again")
