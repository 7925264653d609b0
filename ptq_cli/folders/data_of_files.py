"""Which data each file of a folder gets: the same for all, or a file of its own name."""

import os
from collections.abc import Collection
from pathlib import Path

from ptq_cli.core.errors import DataFormatError, EmptyDataError
from ptq_cli.core.read_files import is_folder


def data_by_file(source: str | None, files: Collection[Path]) -> dict[Path, str | None]:
    """The data of each file.

    A folder that holds ``decoder_model.npz``, or another file or folder of a model's name, has data for each
    file by its name; all other data are for all files.
    """
    if source is None or not is_folder(Path(source)):
        return dict.fromkeys(files, source)
    own = {file: _own(Path(source), file) for file in files}
    return own if any(own.values()) else dict.fromkeys(files, source)


def _own(folder: Path, file: Path) -> str | None:
    places = dict.fromkeys((folder / file.parent, folder))
    for parent in filter(is_folder, places):
        found = sorted(item for item in parent.iterdir() if _is_called(item, file.stem))
        if len(found) > 1:
            names = " and ".join(f"'{item.name}'" for item in found)
            raise DataFormatError(
                f"'{os.fspath(parent)}' holds {names}, which are both named for '{file.name}'",
                hint="leave one of them, or put all data of a model into a folder of its name",
            )
        if found:
            return os.fspath(found[0])
    return None


def _is_called(item: Path, name: str) -> bool:
    if item.is_dir():
        return item.name == name
    return item.stem == name or item.name == f"{name}.tar.gz"


def no_data_for(source: str | None, file: Path) -> EmptyDataError:
    """The error to raise for a file whose activations need ranges, and that has no data.

    Example:
        >>> no_data_for("calib", Path("encoder.onnx")).message
        "no calibration data was given for 'encoder.onnx': 'calib' has no file or folder of its name"
    """
    missing = f": '{source}' has no file or folder of its name" if source is not None else ""
    folder = source if source is not None else "calib"
    name = f"{Path(folder, file.stem).as_posix()}.npz"
    return EmptyDataError(
        f"no calibration data was given for '{file.as_posix()}'{missing}",
        hint=f"save it as '{name}' and pass --data {folder}, or choose a form that needs no data: "
        "--preset dynamic_int8 or w4_block32",
    )
