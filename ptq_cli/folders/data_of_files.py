"""Which data each file of a folder gets: the same for all, or a file of its own name."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from ptq_cli.core.errors import DataFormatError, EmptyDataError, UsageError
from ptq_cli.core.read_files import is_folder
from ptq_cli.recipe.known_modes import DYNAMIC, FLOAT
from ptq_cli.recipe.recovery_rungs import mode_of
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import FLOAT16


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


# What the names of quantized files end with, as the libraries that load them expect.


QUANTIZED = "quantized"
BYTE = 8
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


def suffix_of(recipe: Recipe) -> str:
    """The suffix for what a recipe makes: that under which Transformers.js looks for such a model.

    Its names are ``quantized`` for dynamic ranges and for weights of 8 bits, ``q4`` and ``q4f16`` for weights
    of 4 bits, ``int8`` for integers. What it has no name for is called by its bits.

    Source:
        Transformers.js, ``src/utils/dtypes.js``; Optimum, ``ORTQuantizer.quantize(file_suffix="quantized")``.

    Example:
        >>> from ptq_cli.recipe.sections import ActivationSettings, WeightSettings
        >>> alone = ActivationSettings(mode="float")
        >>> suffix_of(Recipe(weights=WeightSettings(bits=4), activations=alone)), suffix_of(Recipe())
        ('q4', 'int8')
        >>> suffix_of(Recipe(activations=ActivationSettings(mode="dynamic")))
        'quantized'
        >>> suffix_of(Recipe(weights=WeightSettings(bits=4)))
        'w4a8'
    """
    weights, activations = recipe.weights, recipe.activations
    bits = weights.bits or BYTE
    mode = mode_of(activations)
    if weights.dtype is not None:
        return "fp8" if "float8" in weights.dtype else "fp4"
    half = "f16" if recipe.quantization.float_type == FLOAT16 else ""
    if mode == FLOAT:
        return QUANTIZED if bits == BYTE and not half else f"q{bits}{half}"
    if mode == DYNAMIC and bits == BYTE:
        return QUANTIZED
    wide = "16" in (activations.dtype or "")
    return f"int8{half}" if bits == BYTE and not wide else f"w{bits}a{16 if wide else BYTE}{half}"


def require_suffix(suffix: str) -> str:
    """A suffix that a file's name can have."""
    if _VALID.fullmatch(suffix) is None:
        raise UsageError(
            f"'run.suffix' is '{suffix}', expected letters, digits, '.', '+' or '-'",
            hint="--set run.suffix=q4 names the files model_q4.onnx",
        )
    return suffix


def refuse_suffix(suffix: str | None) -> None:
    """Refuse a suffix for a model that is a single file, whose output has any name."""
    if suffix is not None:
        raise UsageError(
            "'run.suffix' names the files that a folder's models become, and the model is a single file",
            hint=f"leave 'run.suffix' out, and pass --output model_{suffix}.onnx",
        )
