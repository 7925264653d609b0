"""Copy the sample models, whole or with few of their data, so that what a page says runs in seconds."""

import shutil
from pathlib import Path

import numpy as np

SAMPLES = Path(__file__).parents[2] / "sample_models"
IMAGES_A_CLASS, ROWS, LINES = 5, 64, 800  # How much of the samples' data is taken
ONLY_MODEL = ("ptq.toml", "README.md", "ptq-run", "__pycache__")


def sample_names() -> list[str]:
    """Return the names of the samples."""
    return sorted(path.parent.name for path in SAMPLES.glob("*/ptq.toml"))


def copy_sample(name: str, folder: Path, *, whole: bool = False, has_recipe: bool = True) -> None:
    """Copy a sample into a folder; with few of its data, unless it is to be whole."""
    ignored = shutil.ignore_patterns(*(ONLY_MODEL[1:] if has_recipe else ONLY_MODEL))
    if whole:
        shutil.copytree(SAMPLES / name, folder, ignore=ignored, dirs_exist_ok=True)
        return
    left_out = ignored(name, [path.name for path in (SAMPLES / name).iterdir()])
    folder.mkdir(parents=True, exist_ok=True)
    for path in (SAMPLES / name).iterdir():
        if path.name not in left_out:
            _copy_few(path, folder / path.name)


def _copy_few(source: Path, target: Path) -> None:
    if source.is_dir():
        for folder in source.iterdir():
            (target / folder.name).mkdir(parents=True)
            for image in sorted(folder.iterdir())[:IMAGES_A_CLASS]:
                shutil.copy(image, target / folder.name / image.name)
    elif source.suffix == ".npz":
        with np.load(source) as arrays:
            # The samples of one of them are in the order of their classes.
            few = {key: arrays[key][:: max(1, len(arrays[key]) // ROWS)] for key in arrays.files}
        np.savez(target, **few)
    elif source.suffix == ".txt":
        lines = source.read_text(encoding="utf-8").splitlines()
        target.write_text("\n".join(lines[:LINES]), encoding="utf-8")
    else:
        shutil.copy(source, target)
