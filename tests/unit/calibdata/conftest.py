"""Builders of data files; every random number is seeded."""

import io
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ptq_cli.calibdata.dataset.dataset import Dataset
from tests.small_tokenizers import save_tokenizers

SaveNpz = Callable[..., str]
SaveImages = Callable[..., str]
SaveCode = Callable[[str], str]
SaveTar = Callable[..., str]
SaveParquet = Callable[..., str]


def npy(array: object, **options: object) -> bytes:
    """The bytes of an ``.npy`` file."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(array), **options)  # type: ignore[call-overload]
    return stream.getvalue()


def png(value: int, size: tuple[int, int] = (4, 4)) -> bytes:
    """The bytes of an image of one gray."""
    stream = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(stream, "PNG")
    return stream.getvalue()


def tar_bytes(members: Iterable[tuple[str, bytes]], mode: str = "w", **options: object) -> bytes:
    """The bytes of a tar archive, as Python's own writer makes it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, **options) as archive:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def peak_of_iterating(dataset: Dataset) -> int:
    """The most bytes that Python holds while batches of 32 are read."""
    next(dataset.batches(1))  # warm up: imports and caches are not the data's
    tracemalloc.start()
    try:
        for batch in dataset.batches(32):
            del batch
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def save_npz(tmp_path: Path) -> SaveNpz:
    """Save arrays as ``calib.npz``; return its path."""

    def save(compressed: bool = False, **arrays: np.ndarray) -> str:
        path = tmp_path / "calib.npz"
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
        return str(path)

    return save


@pytest.fixture
def save_images(tmp_path: Path) -> SaveImages:
    """Save images of one gray each, by relative name; return the folder."""

    def save(values: Mapping[str, int], size: tuple[int, int] = (4, 4)) -> str:
        folder = tmp_path / "images"
        for name, value in values.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (value, value, value)).save(path)
        return str(folder)

    return save


@pytest.fixture
def save_code(tmp_path: Path) -> SaveCode:
    """Save Python source as ``data.py``; return ``data.py:batches``."""

    def save(body: str) -> str:
        path = tmp_path / "data.py"
        path.write_text(f"import numpy as np\n{body}")
        return f"{path}:batches"

    return save


@pytest.fixture
def save_tar(tmp_path: Path) -> SaveTar:
    """Save members, by name in their order, as a tar archive; return its path."""

    def save(members: Mapping[str, bytes], name: str = "train.tar", mode: str = "w") -> str:
        path = tmp_path / name
        path.write_bytes(tar_bytes(members.items(), mode))
        return str(path)

    return save


@pytest.fixture
def save_parquet(tmp_path: Path) -> SaveParquet:
    """Save columns as a Parquet file of small row groups; return its path."""

    def save(columns: Mapping[str, object], name: str = "train.parquet", rows: int = 3) -> str:
        path = tmp_path / name
        pq.write_table(pa.table(dict(columns)), path, row_group_size=rows)
        return str(path)

    return save


@pytest.fixture
def words(tmp_path: Path) -> str:
    return save_tokenizers(tmp_path)[0]


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    return save_tokenizers(tmp_path)[1]
