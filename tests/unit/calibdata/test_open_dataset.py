import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ptq_cli.calibdata.array_files import NpyDataset
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.calibdata.parquet_files import ParquetDataset
from ptq_cli.calibdata.tar_dataset import TarDataset
from ptq_cli.core.errors import DataFormatError, EmptyDataError, InputFileError, RecipeValueError
from ptq_cli.recipe.sections import ImageSettings
from tests.each_case import each_case
from tests.unit.calibdata.conftest import npy, tar_bytes

IMAGE = ImageSettings()


@each_case("name", ["x.npy", "x.npz", "x.txt", "x"])
def test_npy_by_content(tmp_path, name):
    with (tmp_path / name).open("wb") as stream:
        np.save(stream, np.zeros((5, 2)))
    dataset = open_dataset(str(tmp_path / name), IMAGE, samples=3)
    assert isinstance(dataset, NpyDataset)
    assert dataset.count == 3


def test_file_whose_name_looks_like_an_entry_point(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Path("a.py:f").open("wb") as stream:
        np.save(stream, np.zeros((1, 1)))
    assert isinstance(open_dataset("a.py:f", IMAGE), NpyDataset)


@each_case("source", ["missing.npz", "no/such/folder", "C:\\data\\calib.npz", "a b:c", "x.npz:f.g"])
def test_missing(source):
    with pytest.raises(InputFileError, match=r"^PTQ-FILE-001: data '.*' does not exist") as error:
        open_dataset(source, IMAGE)
    assert (
        "an .npz, an .npy, .tar shards, .parquet files, a folder of images, text files, or file.py:callable"
        in (error.value.hint)
    )


@pytest.mark.parametrize("source", ["a\0b", "x" * 5000], ids=["nul", "too_long"])
def test_impossible_paths(source):
    with pytest.raises(InputFileError, match=r"does not exist|cannot be read"):
        open_dataset(source, IMAGE)


def test_no_name_is_not_the_current_folder():
    with pytest.raises(EmptyDataError, match="no data was given"):
        open_dataset("", IMAGE)


UNKNOWN = {
    "text": ("x.npz", b"hello world", "begins with b'hello wo', expected an .npz", "numpy.savez"),
    "empty": ("x.npy", b"", "is an empty file", ""),
    "xz": ("x.tar.xz", b"\xfd7zXZ\0aa", "is compressed with xz, which ptq does not read", "decompress it"),
    "zstd": ("x.tar.zst", b"\x28\xb5\x2f\xfd", "is compressed with zstd", "decompress it"),
    "bzip2": ("x.tar.bz2", b"BZh9aaaa", "is compressed with bzip2", "compress a tar archive with gzip"),
    "jpeg": (
        "x.jpg",
        b"\xff\xd8\xff\xe0abcd",
        "has an unknown format",
        "name the folder that the image is in",
    ),
    "python": ("d.py", b"import numpy", "has an unknown format", "name the callable too: .*d.py:batches"),
    "pickle": ("x.npz", b"\x80\x04\x95aaaaaa", "has an unknown format", "numpy.savez"),
}


@each_case("name, content, message, hint", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_file_of_no_known_kind(tmp_path, name, content, message, hint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFormatError, match=message) as error:
        open_dataset(str(tmp_path / name), IMAGE)
    assert re.search(hint, error.value.hint)


def test_shards_by_content(tmp_path):
    (tmp_path / "a").write_bytes(tar_bytes([("0.npy", npy(np.zeros(3)))]))
    (tmp_path / "b.tar").write_bytes(tar_bytes([("0.npy", npy(np.zeros(3)))], "w:gz"))
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "c")
    kinds = [type(open_dataset(str(tmp_path / name), IMAGE)) for name in ("a", "b.tar", "c")]
    assert kinds == [TarDataset, TarDataset, ParquetDataset]


def test_a_pattern_whose_files_are_missing(tmp_path):
    (tmp_path / "t-0.tar").write_bytes(tar_bytes([("0.npy", npy(np.zeros(3)))]))
    with pytest.raises(InputFileError, match=r"t-1\.tar' does not exist"):
        open_dataset(str(tmp_path / "t-{0..2}.tar"), IMAGE)


def test_a_pattern_is_for_files_of_arrays(tmp_path):
    for index in range(2):
        np.savez(tmp_path / f"x-{index}.npz", x=np.zeros(3))
        np.save(tmp_path / f"x-{index}.npy", np.zeros(3))
    assert [batch.size for batch in open_dataset(str(tmp_path / "x-{0..1}.npz"), IMAGE).batches(4)] == [4, 2]
    assert [batch.size for batch in open_dataset(str(tmp_path / "x-{0..1}.npy"), IMAGE).batches(4)] == [4, 2]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    (tmp_path / "t-{0..2}.tar").write_bytes(tar_bytes([("0.npy", npy(np.zeros(3)))]))
    assert isinstance(open_dataset(str(tmp_path / "t-{0..2}.tar"), IMAGE), TarDataset)


def test_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputFileError, match="is not a regular file"):
        open_dataset(str(tmp_path / "pipe"), IMAGE)


def test_limit_is_checked_first():
    with pytest.raises(RecipeValueError, match="samples must be at least 1, got 0"):
        open_dataset("missing.npz", IMAGE, samples=0)
