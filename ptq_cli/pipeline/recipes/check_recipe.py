"""``recipe check``: everything about a recipe that can be wrong without running the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptq_cli.core.entry_point import is_entry_point
from ptq_cli.core.errors import InputFileError
from ptq_cli.pipeline.run.resolve import Request, resolve
from ptq_cli.recipe.locations import map_locations
from ptq_cli.recipe.recipe_layers import FOLDER_RECIPE, file_layer


@dataclass(frozen=True, kw_only=True)
class CheckedRecipe:
    """A recipe that is correct.

    Attributes:
        file: the recipe.
        settings: each that it sets, with the section in front, and its value.
        missing: files and folders that it names and that are not there.
    """

    file: Path
    settings: dict[str, Any]
    missing: tuple[Path, ...]


def check_recipe_file(file: Path | None = None, *, folder: Path = Path()) -> CheckedRecipe:
    """Check a recipe as a command would that reads it, and whether what it names is there.

    Args:
        file: the recipe; ``ptq.toml`` of ``folder`` if there is none.
        folder: where a command would run.

    Raises:
        InputFileError: there is no such file.
        PtqError: it is not a recipe; see ``resolve``.
    """
    path = file if file is not None else folder / FOLDER_RECIPE
    if not path.is_file():
        raise InputFileError(
            f"there is no recipe '{path}'", hint="ptq recipe init MODEL writes one for a model"
        )
    table = file_layer(path).table
    resolve(Request(settings={}, recipe_file=path, folder=path.parent))
    return CheckedRecipe(file=path, settings=_flat(table), missing=_missing(table))


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
