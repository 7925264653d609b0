"""Flags override ``--recipe FILE``, which overrides ``./ptq.toml``, which overrides the preset."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptq_cli.core.documents.toml_file import read_toml
from ptq_cli.core.known_names import require_known
from ptq_cli.recipe.chosen_family import OF_MODES
from ptq_cli.recipe.decode import decode_recipe
from ptq_cli.recipe.locations import map_locations, resolve_location
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import LATENCY

PACKAGE = Path(__file__).parents[1]
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs" / "presets").is_dir() else PACKAGE.parent / "configs"
"""An installation has it in the package, a checkout beside it."""
PRESETS = CONFIGS / "presets"
DEFAULT_PRESET = "int8_ort_cpu"
FOLDER_RECIPE = "ptq.toml"
QUANTIZED = ("weights", "activations")
"""Sections that a layer replaces if it names a quantizer, apart from keys that are not the quantizer's."""

Table = dict[str, Any]


@dataclass(frozen=True)
class RecipeLayer:
    """Settings from one place.

    Attributes:
        table: sections by name; every location in it is resolved.
        where: the place, for messages.
        adds: its overrides are added after those of earlier layers; otherwise they replace them.
    """

    table: Table
    where: str
    adds: bool = False


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets.

    Example:
        >>> "int8_ort_cpu" in preset_names()
        True
    """
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def preset_layer(name: str) -> RecipeLayer:
    """Return a preset.

    Raises:
        UnknownNameError: there is none of that name.
    """
    require_known("preset", name, preset_names())
    return file_layer(PRESETS / f"{name}.toml", f"preset {name}")


def file_layer(path: Path, where: str | None = None) -> RecipeLayer:
    """Return the settings of a TOML file; its locations are relative to its folder.

    Raises:
        InputFileError: the file is missing or unreadable.
        RecipeSyntaxError: it is no TOML.
        RecipeKeyError: it has an unknown key.
        RecipeValueError: a value has the wrong type.
    """
    where = where or str(path)
    table = read_toml(path, "recipe", where)
    return table_layer(table, path.parent, where)


def table_layer(table: Mapping[str, Any], folder: Path, where: str) -> RecipeLayer:
    """Return a layer of nested tables, checked, with its locations resolved against ``folder``.

    Raises:
        RecipeKeyError: it has an unknown key.
        RecipeValueError: a value has the wrong type.

    Example:
        >>> table_layer({"model": {"path": "m.pt"}}, Path("/models"), "a test").table
        {'model': {'path': '/models/m.pt'}}
    """
    decode_recipe(table, where)
    return RecipeLayer(map_locations(table, lambda text: resolve_location(text, folder.absolute())), where)


def merge_layers(layers: list[RecipeLayer]) -> Recipe:
    """Return the recipe of layers, the later overriding the earlier, key by key.

    Example:
        >>> low = table_layer({"calibration": {"method": "max", "batch_size": 8}}, Path("."), "low")
        >>> high = table_layer({"calibration": {"batch_size": 4}}, Path("."), "high")
        >>> recipe = merge_layers([low, high])
        >>> recipe.calibration.method, recipe.calibration.batch_size
        ('max', 4)
    """
    merged: Table = {}
    for layer in layers:
        merged = _overlay(merged, _with_earlier(merged, layer.table) if layer.adds else layer.table)
    return decode_recipe(merged, " over ".join(layer.where for layer in reversed(layers)))


def _with_earlier(below: Table, table: Table) -> Table:
    """Return a layer's table with the overrides of earlier layers before its own, each once."""
    own = table.get("override")
    if own is None:
        return table
    return {**table, "override": [item for item in below.get("override", []) if item not in own] + own}


def _overlay(below: Table, above: Table) -> Table:
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        # Parameters of the quantizer of an earlier layer have no meaning for another one,
        if both and key in QUANTIZED and "quantizer" in value:
            result[key] = {name: item for name, item in result[key].items() if name in OF_MODES}
        result[key] = _overlay(result[key], value) if both else value
        # and so has a profile for another preference.
        if both and key == "export" and "prefer" in value and "profile" not in value:
            result[key] = _for_preference(result[key])
    return result


def _for_preference(table: Table) -> Table:
    return {name: value for name, value in table.items() if name != "profile" or table["prefer"] == LATENCY}
