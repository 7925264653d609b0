import tarfile

import pytest

from ptq_cli.calibdata.tar.archive_stream import is_tar_header, parse_header
from ptq_cli.core.errors import DataFormatError
from tests.each_case import each_case


def header(**fields):
    info = tarfile.TarInfo("a.jpg")
    for name, value in fields.items():
        setattr(info, name, value)
    return bytearray(info.tobuf(tarfile.USTAR_FORMAT))


def with_checksum(block):
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_what_a_header_says():
    found = parse_header(bytes(header(size=1000)), "it")
    assert (found.name, found.size, found.kind) == (b"a.jpg", 1000, b"0")


def test_the_prefix_belongs_to_the_name_of_posix_alone():
    block = header()
    block[345:350] = b"cat\0\0"
    assert parse_header(with_checksum(block), "it").name == b"cat/a.jpg"
    block[257:265] = b"ustar  \0"
    assert parse_header(with_checksum(block), "it").name == b"a.jpg"


@each_case("size", [b"9" * 11 + b"\0", b"-1234567890\0", b"\xff" * 12, b"0x10\0" + bytes(7)])
def test_sizes_that_are_none(size):
    block = header()
    block[124:136] = size
    with pytest.raises(DataFormatError, match=r"damaged: a header has (the size -1\b|.* invalid number)"):
        parse_header(with_checksum(block), "it")


@each_case("checksum", [b"        ", b"\0" * 8, b"zzzzzz\0 ", b"-00001\0 ", b"7777777 "])
def test_checksums_that_are_none(checksum):
    block = header()
    block[148:156] = checksum
    assert not is_tar_header(bytes(block))
    with pytest.raises(DataFormatError, match="a header has a wrong checksum"):
        parse_header(bytes(block), "it")


@each_case("size", range(0, 512, 73))
def test_half_a_header(size):
    assert not is_tar_header(bytes(header())[:size])
    with pytest.raises(DataFormatError, match="truncated inside a header"):
        parse_header(bytes(header())[:size], "it")
