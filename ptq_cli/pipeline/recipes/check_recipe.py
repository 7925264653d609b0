"""``recipe check``: everything about a recipe that can be wrong without running the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptq_cli.core.entry_point import is_entry_point
from ptq_cli.core.errors import EmptyDataError, InputFileError
from ptq_cli.pipeline.run.resolve import Request, resolve
from ptq_cli.recipe.activation_modes import needs_ranges
from ptq_cli.recipe.locations import map_locations
from ptq_cli.recipe.recipe_layers import FOLDER_RECIPE, file_layer
from ptq_cli.recipe.schema import Recipe


@dataclass(frozen=True, kw_only=True)
class CheckedRecipe:
    """A recipe that is correct.

    Attributes:
        file: the recipe.
        settings: each that it sets, with the section in front, and its value.
        missing: files and folders that it names and that are not there.
        command: what runs it, with what it leaves to the command line.
    """

    file: Path
    settings: dict[str, Any]
    missing: tuple[Path, ...]
    command: str


def check_recipe_file(file: Path | None = None, *, folder: Path = Path()) -> CheckedRecipe:
    """Check a recipe as a command would that reads it, and whether what it names is there.

    Args:
        file: the recipe; ``ptq.toml`` of ``folder`` if there is none.
        folder: where a command would run.

    Raises:
        InputFileError: there is no such file.
        EmptyDataError: it names a model, and not the data that quantizing it needs.
        PtqError: it is not a recipe; see ``resolve``.
    """
    path = file if file is not None else folder / FOLDER_RECIPE
    if not path.is_file():
        raise InputFileError(
            f"there is no recipe '{path}'", hint="ptq recipe init MODEL writes one for a model"
        )
    table = file_layer(path).table
    recipe = resolve(Request(settings={}, recipe_file=path, folder=path.parent)).recipe
    unset = unset_data(recipe)
    if recipe.model.path is not None:  # A recipe without a model is for several, and each has its own data.
        for key, flag in unset.items():
            raise EmptyDataError(
                f"'{key}' is not set in '{path}', and its model cannot be quantized without it",
                hint=f"set it, or leave out 'model.path', too, and pass both: ptq quantize MODEL {flag} PATH",
            )
    words = [] if recipe.model.path is not None else ["MODEL", *(f"{flag} PATH" for flag in unset.values())]
    command = " ".join(["ptq quantize", *words])
    return CheckedRecipe(file=path, settings=_flat(table), missing=_missing(table), command=command)


def unset_data(recipe: Recipe) -> dict[str, str]:
    """Return the keys of data that ``ptq quantize`` needs and a recipe does not set, with their flags.

    Example:
        >>> from ptq_cli.recipe.sections.evaluation_sections import GateSettings
        >>> unset_data(Recipe()), unset_data(Recipe(gate=GateSettings(max_size="1MB")))
        ({'calibration.data': '--data'}, {'calibration.data': '--data', 'evaluation.data': '--eval-data'})
    """
    unset = {}
    if recipe.calibration.data is None and needs_ranges(recipe):
        unset["calibration.data"] = "--data"
    if recipe.evaluation.data is None and recipe.gate.has_limits:
        unset["evaluation.data"] = "--eval-data"
    return unset


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and not prefix:
            found.update(_flat(value, f"{name}."))
        else:
            found[name] = value
    return found


def _missing(table: dict[str, Any]) -> tuple[Path, ...]:
    found = []

    def look(text: str) -> str:
        is_code = is_entry_point(text) and not Path(text).exists()
        path = Path(text.rpartition(":")[0] if is_code else text)
        if not path.exists() and (not is_code or path.suffix == ".py"):
            found.append(path)
        return text

    map_locations(table, look)
    return tuple(dict.fromkeys(found))
