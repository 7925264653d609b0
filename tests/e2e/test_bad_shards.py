"""Tar shards and Parquet files that cannot be used: refused with file and sample or row named."""

import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.each_case import each_case

X = np.full((6, 3, 8, 8), 0.5, np.float32)
COMMANDS = {
    "calibrate": "calibrate model.onnx --data {}",
    "quantize": "quantize model.onnx --data {}",
    "evaluate": "evaluate --eval-data {}",
}


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def tar(folder: Path, change: Callable[[int, str, bytes], tuple[str, bytes] | None]) -> None:
    """Write six samples, each member as ``change`` returns it, as ``bad.tar``."""
    with tarfile.open(folder / "bad.tar", "w") as archive:
        for index in range(6):
            for suffix, content in (("x.npy", npy(X[index])), ("cls", b"%d" % (index % 5))):
                member = change(index, suffix, content)
                if member is not None:
                    info = tarfile.TarInfo(f"{index:03}.{member[0]}")
                    info.size = len(member[1])
                    archive.addfile(info, io.BytesIO(member[1]))


def parquet(folder: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), folder / "bad.parquet", row_group_size=4)


def nested(array: np.ndarray) -> pa.Array:
    kind = pa.from_numpy_dtype(array.dtype)
    for _ in array.shape[1:]:
        kind = pa.list_(kind)
    return pa.array(array.tolist(), kind)


def truncated_tar(folder: Path) -> None:
    tar(folder, lambda index, suffix, content: (suffix, content))
    (folder / "bad.tar").write_bytes((folder / "bad.tar").read_bytes()[:8000])


def linked_tar(folder: Path) -> None:
    with tarfile.open(folder / "bad.tar", "w") as archive:
        info = tarfile.TarInfo("000.x.npy")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)


def corrupt_parquet(folder: Path) -> None:
    parquet(folder, x=nested(np.random.default_rng(0).random(X.shape, dtype=np.float32)))
    content = bytearray((folder / "bad.parquet").read_bytes())
    content[20:400] = bytes(380)
    (folder / "bad.parquet").write_bytes(bytes(content))


def replaced(at: int, to: Callable[[], tuple[str, bytes] | None]) -> Callable[[Path], None]:
    def change(index: int, suffix: str, content: bytes) -> tuple[str, bytes] | None:
        return to() if index == at and suffix == "x.npy" else (suffix, content)

    return lambda folder: tar(folder, change)


def with_nan() -> np.ndarray:
    array = X.copy()
    array[5, 0, 0, 0] = np.nan
    return array


CASES: dict[str, tuple[Callable[[Path], None], str, str, tuple[str, ...]]] = {
    "a truncated tar": (truncated_tar, "bad.tar", "PTQ-DATA-001", ("'bad.tar' is truncated",)),
    "a link": (linked_tar, "bad.tar", "PTQ-DATA-001", ("'bad.tar' holds '000.x.npy'", "symbolic link")),
    "a missing input": (
        replaced(3, lambda: None),
        "bad.tar",
        "PTQ-DATA-002",
        ("sample 'bad.tar:003' of 'bad.tar' has no array 'x'",),
    ),
    "another shape": (
        replaced(2, lambda: ("x.npy", npy(X[0, :2]))),
        "bad.tar",
        "PTQ-DATA-003",
        ("'x' of sample 'bad.tar:002'", "[2, 8, 8]", "[3, 8, 8]"),
    ),
    "another dtype": (
        lambda folder: tar(folder, lambda index, suffix, content: (suffix, content.replace(b"<f4", b"<i4"))),
        "bad.tar",
        "PTQ-DATA-004",
        ("found int32, expected float32",),
    ),
    "NaN in a tar": (
        replaced(4, lambda: ("x.npy", npy(with_nan()[5]))),
        "bad.tar",
        "PTQ-DATA-008",
        ("input 'x' holds nan at [0, 0, 0] of sample 'bad.tar:004'",),
    ),
    "a wrong name": (
        lambda folder: tar(
            folder,
            lambda _, suffix, content: ("X.npy", content) if suffix == "x.npy" else ("z.npy", npy(X[0])),
        ),
        "bad.tar",
        "PTQ-DATA-002",
        ("no array for input 'x' in 'bad.tar', found 'X'",),
    ),
    "a corrupted Parquet": (corrupt_parquet, "bad.parquet", "PTQ-DATA-001", ("'bad.parquet' is damaged",)),
    "a missing column": (
        lambda folder: parquet(folder, y=nested(X), z=nested(X)),
        "bad.parquet",
        "PTQ-DATA-002",
        ("no array for input 'x' in 'bad.parquet', found 'y', 'z'",),
    ),
    "a column of another type": (
        lambda folder: parquet(folder, x=nested(X.astype(np.float64))),
        "bad.parquet",
        "PTQ-DATA-004",
        ("found float64, expected float32",),
    ),
    "a column of another shape": (
        lambda folder: parquet(folder, x=nested(X[:, :2])),
        "bad.parquet",
        "PTQ-DATA-003",
        ("2, 8, 8], expected [?, 3, 8, 8]", "sample 'bad.parquet[0]'"),
    ),
    "NaN in a column": (
        lambda folder: parquet(folder, x=nested(with_nan())),
        "bad.parquet",
        "PTQ-DATA-008",
        ("input 'x' holds nan at [0, 0, 0] of sample 'bad.parquet[5]'",),
    ),
}


@each_case("arrange, name, code, says", CASES.values(), ids=CASES.keys())
def test_bad_shards_are_refused(
    folder: Path, anew: Any, refuse: Any, arrange: Any, name: str, code: str, says: tuple[str, ...]
) -> None:
    anew()
    arrange(folder)
    refuse(COMMANDS["calibrate"].format(name), code, *says)


@each_case("command", COMMANDS.values(), ids=COMMANDS.keys())
@each_case("case", ["NaN in a tar", "NaN in a column"])
def test_every_command_refuses_bad_shards(
    folder: Path, anew: Any, refuse: Any, command: str, case: str
) -> None:
    anew()
    arrange, name, code, says = CASES[case]
    arrange(folder)
    refuse(command.format(name), code, *says)


def test_labels_outside_the_classes(folder: Path, refuse: Any) -> None:
    parquet(folder, x=nested(X), label=[0, 1, 2, 7, 0, 0])
    refuse("evaluate --eval-data bad.parquet", "PTQ-DATA-006", "label 7", "bad.parquet[3]")


@each_case("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_parquet_without_its_extra(
    folder: Path, refuse: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    parquet(folder, x=nested(X))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refuse(
        command.format("bad.parquet"), "PTQ-USAGE-001", "needs pyarrow", hint="pip install 'ptq-cli[parquet]'"
    )
