"""Where the files of a quantized folder lie: constants that the float files shared are shared again."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.core.files import Content
from ptq_cli.folders.model_folder import SUFFIX, ModelFolder
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.files.storing import share_constants

DATA_SUFFIX = ".onnx_data"  # of files of constants, as Transformers.js and Optimum name them


@dataclass(frozen=True, kw_only=True)
class FolderLayout:
    """The files of quantized models.

    Attributes:
        models: each model as its files hold it, by the path of its float model in the folder.
        shared: number of constants that several models read from one file.
    """

    files: Mapping[Path, Content]
    models: Mapping[Path, StoredModel]
    shared: int
    saved: int

    @property
    def bytes(self) -> int:
        """How many bytes all files have."""
        sizes = [
            len(item) if isinstance(item, bytes) else item.stat().st_size for item in self.files.values()
        ]
        return sum(sizes)


def lay_out(
    folder: ModelFolder, models: Mapping[Path, StoredModel], outputs: Mapping[Path, Path], suffix: str
) -> FolderLayout:
    """The files of quantized models.

    An empty ``suffix`` keeps the names of the float models.
    """
    files: dict[Path, Content] = {}
    placed: dict[Path, StoredModel] = {}
    shared = saved = 0
    for group in folder.groups():
        stored = [models[file] for file in group]
        if len(group) > 1 or stored[0].data:
            place = outputs[group[0]].parent
            found = share_constants(stored, place, _data_name(folder, group, suffix))
            stored, shared, saved = list(found.models), shared + found.shared, saved + found.saved
        for file, model in zip(group, stored, strict=True):
            placed[file] = model
            files |= model.files(outputs[file])
    return FolderLayout(files=files, models=placed, shared=shared, saved=saved)


def _data_name(folder: ModelFolder, group: Sequence[Path], suffix: str) -> str:
    """The name of a group's constants: the model's, or that of the file that float models share."""
    stem = group[0].stem
    if len(group) > 1:
        first = min(path.name for file in group for path in folder.data[file])
        stem = Path(first).stem.removesuffix(SUFFIX)
    return f"{'_'.join(filter(None, (stem, suffix)))}{DATA_SUFFIX}"


def carried_files(folder: ModelFolder, output: Path) -> list[Path]:
    """The configurations and tokenizers that have to be copied; none into the folder itself."""
    same = os.path.realpath
    return [file for file in folder.carried if same(folder.path / file) != same(output / file)]
