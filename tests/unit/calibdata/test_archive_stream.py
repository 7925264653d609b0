"""Members of tar archives, as Python's writer and GNU tar make them, and as nobody should."""

import gzip
import io
import shutil
import subprocess
import tarfile
import tracemalloc

import numpy as np
import pytest

from ptq_cli.calibdata.archive_stream import MAX_NAME_BYTES, is_tar_header, parse_header, tar_members
from ptq_cli.calibdata.dataset.data_files import SUFFIXES
from ptq_cli.calibdata.tar_dataset import FieldKind, Role, role_of, split_name
from ptq_cli.core.errors import DataFormatError
from tests.each_case import each_case
from tests.unit.calibdata.conftest import tar_bytes

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
MEMBERS = [("a/1.cls", b"1"), ("b", bytes(512)), ("c", b""), ("d", b"x" * 700)]


def tar(members=MEMBERS, form="ustar"):
    return tar_bytes(members, format=FORMATS[form])


def read(content):
    return [(member.name, member.read()) for member in tar_members(io.BytesIO(content), "data 'x.tar'")]


def info(name="a.jpg", **fields):
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def header():
    return bytearray(info().tobuf(tarfile.USTAR_FORMAT))


def with_checksum(block):
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def refused(content, message):
    with pytest.raises(DataFormatError, match=message) as error:
        read(content)
    assert error.value.message.startswith(("data 'x.tar'", "'"))


@pytest.mark.parametrize("form", FORMATS)
def test_members_are_those_that_were_written(form):
    members = [*MEMBERS, ("long/" * 30 + "1.jpg", b"y"), ("große.npy", b"z")]
    assert read(tar(members, form)) == members


def test_folders_are_passed_over():
    assert read(tar([(info("a", type=tarfile.DIRTYPE), b""), ("old/", b""), ("a/1.cls", b"1")])) == [
        ("a/1.cls", b"1")
    ]


def test_size_of_a_pax_header():
    sized = info("a.cls", pax_headers={"comment": "größer", "size": "1"})
    assert read(tar([(sized, b"1")], "pax")) == [("a.cls", b"1")]


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar program")
@each_case("form", ["ustar", "gnu", "pax", "v7"])
def test_archives_of_the_tar_program(tmp_path, form):
    (tmp_path / "data").mkdir()
    for name, content in (("1.cls", b"1"), ("1.jpg", b"xyz" * 999)):
        (tmp_path / "data" / name).write_bytes(content)
    words = ["tar", f"--format={form}", "--sort=name", "-cf", "x.tar", "data"]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert read((tmp_path / "x.tar").read_bytes()) == [("data/1.cls", b"1"), ("data/1.jpg", b"xyz" * 999)]


def test_base_256_sizes():
    block = bytearray(tar([("a.cls", b"123")])[:512])
    block[124:136] = b"\x80" + (3).to_bytes(11, "big")
    assert read(with_checksum(block) + b"123".ljust(512, b"\0") + bytes(1024)) == [("a.cls", b"123")]
    block[124:136] = b"\x80" + (2**60).to_bytes(11, "big")
    refused(with_checksum(block), "declares 1152921504606846976 bytes for 'a.cls'")


KINDS = {
    "a symbolic link": tarfile.SYMTYPE,
    "a link": tarfile.LNKTYPE,
    "a device": tarfile.CHRTYPE,
    "a device ": tarfile.BLKTYPE,
    "a pipe": tarfile.FIFOTYPE,
    "a sparse file": tarfile.GNUTYPE_SPARSE,
    "of unknown type b'M'": b"M",
}


def of_size(field):
    """An archive whose first header has such a size."""
    content = bytearray(tar([("1.cls", b"1" * 2048), ("2.cls", b"2")]))
    content[124:136] = field
    content[:512] = with_checksum(content[:512])
    return bytes(content)


def extended(records, kind=tarfile.XHDTYPE):
    return tar([(info(type=kind), records), ("1.cls", b"1")])


def size_record(size):
    record = f" size={size}\n"
    return f"{len(record) + 2}{record}".encode()


CLAIM = info("././@LongLink", type=tarfile.GNUTYPE_LONGNAME, size=MAX_NAME_BYTES + 1)
REFUSED = [
    *[
        (tar([("1.cls", b"1"), (info(type=kind), b"")]), f"holds 'a.jpg', which is {says.strip()}")
        for says, kind in KINDS.items()
    ],
    (tar([(info(pax_headers={"GNU.sparse.major": "1"}), b"")], "pax"), "holds a sparse file"),
    (tar() + tar(), "has data after its end"),
    (CLAIM.tobuf(), "declares 65537 bytes for a member's extended header"),
    *[
        (extended(records), "damaged extended header")
        for records in (b"nonsense", b"99 path=a\n", b"0 path=a\n", b"9 path=ab", b"7 =abc\n")
    ],
    *[(extended(size_record(size)), "damaged extended header: a size") for size in ("-1", "1e9", "9" * 30)],
    (extended(b"12 path=abc\n", tarfile.XGLTYPE), "one name or size for all"),
    *[
        (of_size(size), "damaged: a header has")
        for size in (b"0000001_000\0", b"+0000001000\0", b"-0000001000\0")
    ],
]


@each_case("content, says", REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_plain_archive_is_refused(content, says):
    refused(content, says)


def test_an_archive_that_was_cut_is_never_taken_for_a_shorter_one():
    content = tar()
    whole = content.rstrip(b"\0")
    for end in range(0, len(whole), 64):
        with pytest.raises(DataFormatError):
            read(content[:end])


def test_an_endless_end_is_refused():
    stream = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(tar() + bytes(1 << 25))))
    with pytest.raises(DataFormatError, match="has data after its end"):
        list(tar_members(stream, "it"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "crc"])
def test_damaged_gzip(damage):
    rng = np.random.default_rng(0)
    content = bytearray(gzip.compress(tar([("a.jpg", rng.bytes(5000))])))
    if damage == "cut":
        del content[3000:]
    else:
        content[-8 if damage == "crc" else 12] ^= 0xFF
    stream = gzip.GzipFile(fileobj=io.BytesIO(bytes(content)))
    with pytest.raises(DataFormatError, match=r"damaged|truncated|wrong checksum"):
        for member in tar_members(stream, "data 'x.tar'"):
            member.read()


def test_memory_follows_what_is_there_and_not_what_is_claimed():
    tracemalloc.start()
    refused(
        info("a.npy", size=2**34).tobuf() + bytes(1024),
        r"'a\.npy' of data 'x\.tar' is truncated: 1024 of 17179869184 bytes",
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


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


@each_case(
    "path, parts",
    [
        ("0001.jpg", ("0001", "jpg")),
        ("./cat/0001.jpg", ("./cat/0001", "jpg")),
        ("v1.2/0001.mask.npy", ("v1.2/0001", "mask.npy")),
        ("frame.0001.jpg", ("frame", "0001.jpg")),
        ("README", None),
        ("cat/.hidden.jpg", None),
        ("__MACOSX/._0001.jpg", None),
        ("0001.", None),
        ("", None),
    ],
)
def test_a_key_ends_at_the_first_dot_of_the_base_name(path, parts):
    assert split_name(path) == parts


@each_case("suffix", SUFFIXES)
def test_images(suffix):
    assert role_of(suffix[1:].upper()) == Role(FieldKind.IMAGE)
    assert role_of(f"pixels{suffix}") == Role(FieldKind.IMAGE, "pixels")


@each_case(
    "extension, role",
    [
        ("npy", Role(FieldKind.ARRAY)),
        ("input_ids.npy", Role(FieldKind.ARRAY, "input_ids")),
        ("a.b.npy", Role(FieldKind.ARRAY, "a.b")),
        ("Input.NPY", Role(FieldKind.ARRAY, "Input")),
        ("label.npy", Role(FieldKind.LABEL)),
        ("labels.npy", Role(FieldKind.LABEL)),
        ("cls", Role(FieldKind.CLASS)),
        ("json", Role(FieldKind.JSON)),
        *[(name, None) for name in ("x.cls", "meta.json", "txt", "pyd", "pickle", "pth", "npz", "jpgx")],
    ],
)
def test_what_an_extension_says(extension, role):
    assert role_of(extension) == role
