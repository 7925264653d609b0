"""Builders of data files; every random number is seeded."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SaveNpz = Callable[..., str]
SaveImages = Callable[..., str]
SaveCode = Callable[[str], str]


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
    """Save images of one grey each, by relative name; return the folder."""

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
