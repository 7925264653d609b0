"""Data files of each form with other types, sizes, names and bytes."""

import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.properties.fuzz.hostile_texts import flipped

Random = np.random.Generator
NAMES = (
    *("../../x", "/abs", "x", "\0", "", "n" * 4000, "\x1b[31m", "\u202eabc", "label", "x.npy", "a/b"),
    *("input", "C:\\x"),
)
DTYPES = ("<f8", "<f2", ">f4", "<i8", "|u1", "<c8", "|b1", "<U4", "|S3", "<M8[s]", "|V7", "|O")
SIZES = ((0, 3, 8, 8), (4, 3, 8), (4, 3, 8, 8, 1), (), (4, 3, 9, 8), (4,), (2, 3, 8, 8), (1, 3, 8, 8))
CLAIMED = ((2**62,), (-1, 3), (2**31, 2**31), (4, 3, 8, 8, 10**6), (10**9, 3, 8, 8))


def one(items, random: Random):
    return items[int(random.integers(0, len(items)))]


def odd_array(random: Random) -> np.ndarray:
    """Return an array that the model does not expect, or one with values that it does not."""
    shape = one(SIZES, random) if random.random() < 0.6 else (4, 3, 8, 8)
    if random.random() < 0.5:
        values = np.full(shape, one((np.nan, np.inf, 3e38, 1e-40, 0.0, -1e30), random), np.float32)
    else:
        values = random.standard_normal(shape).astype(np.float32)
    dtype = one(DTYPES, random) if random.random() < 0.5 else "<f4"
    with np.errstate(all="ignore"):
        if np.dtype(dtype).kind in "fiub":
            return np.nan_to_num(values).astype(dtype) if dtype != "<f4" else values
    if dtype == "|O":
        return np.array([{"a": 1}] * 4, object)
    return np.zeros(shape, dtype)


def npy(array: np.ndarray, random: Random) -> bytes:
    """Return a file of an array; now and then its header lies."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    content = stream.getvalue()
    if random.random() < 0.3:
        claimed = one(CLAIMED, random)
        header = (
            f"{{'descr': '{array.dtype.str}', 'fortran_order': {random.random() < 0.5}, 'shape': {claimed}}}"
        )
        text = header.ljust(117).encode() + b"\n"
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content[128:]
    return content


def fuzzed_npz(random: Random) -> bytes:
    """Return an archive with other arrays, names, methods, or with far more than its file has."""
    stream = io.BytesIO()
    method = one((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA), random)
    with zipfile.ZipFile(stream, "w", method) as archive:
        for _ in range(int(random.integers(1, 4))):
            name = f"{one(NAMES, random)}{'.npy' if random.random() < 0.8 else ''}"
            content = npy(odd_array(random), random)
            if random.random() < 0.1:
                content = npy(np.zeros((2_000_000,), np.float32), random)
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


def fuzzed_tar(random: Random) -> bytes:
    """Return an archive with members of other kinds, names and sizes."""
    stream = io.BytesIO()
    kinds = (
        tarfile.REGTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.DIRTYPE,
        tarfile.FIFOTYPE,
    )
    with tarfile.open(
        fileobj=stream, mode="w", format=one((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT), random)
    ) as archive:
        for index in range(4):
            for suffix in ("x.npy", "cls"):
                name = f"{index}.{suffix}" if random.random() < 0.85 else one(NAMES, random)
                info = tarfile.TarInfo(name.replace("\0", "?"))
                info.type = tarfile.REGTYPE if random.random() < 0.8 else one(kinds, random)
                info.linkname = "../../../etc/passwd"
                content = npy(odd_array(random).reshape(-1)[:192], random)
                if suffix == "cls":
                    content = one((b"1", b"-1", b"9" * 30, b"x", b"\xff", b""), random)
                if random.random() < 0.1:
                    content = flipped(content, random)
                info.size = len(content) if info.type == tarfile.REGTYPE else 0
                archive.addfile(info, io.BytesIO(content))
    found = stream.getvalue()
    return flipped(found, random) if random.random() < 0.2 else found


def fuzzed_parquet(random: Random) -> bytes:
    """Return a table with columns of other types, names and lengths."""
    lists = [[0.5] * int(random.choice([0, 1, 191, 192])) for _ in range(4)]
    columns = {
        "x": one(
            (
                pa.array(lists),
                pa.array([["a"] * 192] * 4),
                pa.array([None] * 4),
                pa.array([b"\x89PNG\r\n"] * 4),
                pa.array([{"bytes": b"", "path": "../../x"}] * 4),
                pa.array([[[0.5] * 64] * 3] * 4),
                pa.array([[None] * 192] * 4, pa.list_(pa.float32())),
                pa.array([1, 2, 3, 2**60]),
                pa.array(["2020-01-01"] * 4).dictionary_encode(),
            ),
            random,
        ),
        one(NAMES, random): one(
            (pa.array([0, 1, -5, 2**62]), pa.array([None] * 4), pa.array(["a"] * 4)), random
        ),
    }
    stream = io.BytesIO()
    method = one(("none", "snappy", "gzip", "zstd"), random)
    pq.write_table(pa.table(columns), stream, compression=method)
    found = stream.getvalue()
    return flipped(found, random) if random.random() < 0.4 else found


def png(width: int, height: int) -> bytes:
    """Return an image that claims a size, with few bytes of content."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(4000))) + chunk(b"IEND", b"")


def fuzz_images(folder: Path, random: Random) -> None:
    """Damage, replace or add files of a folder of images."""
    images = sorted(folder.rglob("*.png"))
    path = one(images, random)
    match random.integers(0, 7):
        case 0:
            path.write_bytes(flipped(path.read_bytes(), random))
        case 1:
            path.write_bytes(png(*one(((50_000, 50_000), (0, 8), (1, 2**31 - 1), (3000, 3000)), random)))
        case 2:
            path.unlink()
            path.symlink_to(one(("/etc/passwd", "/dev/zero", "loop", "..", "../0/0.png"), random))
        case 3:
            (path.parent / "new\n\x1b[31m.jpg").write_bytes(path.read_bytes())
        case 4:
            path.write_bytes(b"GIF89a" + bytes(50) if random.random() < 0.5 else b"<svg/>")
        case 5:
            (path.parent / "deep" / "er").mkdir(parents=True)
        case _:
            path.write_bytes(pickle.dumps({"a": 1}))
