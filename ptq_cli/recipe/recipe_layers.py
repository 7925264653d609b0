"""Flags override ``--recipe FILE``, which overrides ``./ptq.toml``, which overrides the preset."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from ptq_cli.core.read_files import read_toml
from ptq_cli.core.trust import grant, note_found
from ptq_cli.core.words import escaped, require_known
from ptq_cli.recipe.locations import code_settings, map_locations, relative_location, resolve_location
from ptq_cli.recipe.recovery_rungs import OF_MODES
from ptq_cli.recipe.schema import Recipe, decode_recipe
from ptq_cli.recipe.sections import LATENCY, ActivationSettings, OverrideSettings, WeightSettings


def merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with the keys of another laid over them; a list takes the place of the one there.

    Example:
        >>> merge_tables({"a": {"x": 1, "y": [1]}}, {"a": {"y": [2]}})
        {'a': {'x': 1, 'y': [2]}}
    """
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge_tables(result[key], value) if both else value
    return result


PACKAGE = Path(__file__).parents[1]
# An installation has it in the package, a checkout beside it.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs" / "presets").is_dir() else PACKAGE.parent / "configs"
PRESETS = CONFIGS / "presets"
DEFAULT_PRESET = "int8_ort_cpu"
# Presets by the words of the field: bits of weights and of activations. 16 bits of these are floats, as in
# language models, but beside 8-bit weights integers, as in Qualcomm's chips: w8a16 is a preset of its own.
SAME_AS = {"w8a8": DEFAULT_PRESET, "w4a8": "scaled_w4a8", "w4a16": "w4_block128", "dynamic": "dynamic_int8"}
FOLDER_RECIPE = "ptq.toml"
# Sections that a layer replaces if it names a quantizer, apart from keys that are not the quantizer's.
_QUANTIZED = ("weights", "activations")


@dataclass(frozen=True)
class RecipeLayer:
    """Settings from one place.

    Attributes:
        table: sections by name; every location in it is resolved.
        where: the place, for messages.
        adds: its overrides are added after those of earlier layers; otherwise they replace them.
    """

    table: dict[str, Any]
    where: str
    adds: bool = False


def preset_names() -> tuple[str, ...]:
    """The names of the presets, those of the field among them."""
    return tuple(sorted([*SAME_AS, *(path.stem for path in PRESETS.glob("*.toml"))]))


def preset_layer(name: str) -> RecipeLayer:
    """A preset."""
    require_known("preset", name, preset_names())
    return file_layer(PRESETS / f"{SAME_AS.get(name, name)}.toml", f"preset {name}")


def file_layer(path: Path, where: str | None = None, *, by_user: bool = False) -> RecipeLayer:
    """The settings of a TOML file; its locations are relative to its folder."""
    where = where or str(path)
    table = read_toml(path, "recipe", where)
    return table_layer(table, path.parent, where, by_user=by_user)


def table_layer(table: Mapping[str, Any], folder: Path, where: str, *, by_user: bool = False) -> RecipeLayer:
    """A layer of nested tables, checked, with its locations resolved against ``folder``.

    Code that it names may run only if the user named the layer, ``by_user``, or trusts that code.
    """
    decode_recipe(table, where)
    resolved = map_locations(table, lambda text: resolve_location(text, folder.absolute()))
    if by_user:
        grant(code_settings(resolved))
    else:
        note_found(code_settings(resolved), where)
    return RecipeLayer(resolved, where)


def merge_layers(layers: list[RecipeLayer]) -> Recipe:
    """The recipe of layers, the later overriding the earlier, key by key."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _overlay(merged, _with_earlier(merged, layer.table) if layer.adds else layer.table)
    return decode_recipe(merged, " over ".join(layer.where for layer in reversed(layers)))


def _with_earlier(below: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """A layer's table with the overrides of earlier layers before its own, each once."""
    own = table.get("override")
    if own is None:
        return table
    return {**table, "override": [item for item in below.get("override", []) if item not in own] + own}


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        # Parameters of the quantizer of an earlier layer have no meaning for another one,
        if both and key in _QUANTIZED and "quantizer" in value:
            result[key] = {name: item for name, item in result[key].items() if name in OF_MODES}
        result[key] = _overlay(result[key], value) if both else value
        # and so has a profile for another preference.
        if both and key == "export" and "prefer" in value and "profile" not in value:
            result[key] = _for_preference(result[key])
    return result


def _for_preference(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != "profile" or table["prefer"] == LATENCY}


def recipe_to_toml(recipe: Recipe, folder: Path) -> str:
    """The recipe as TOML, its locations relative to ``folder``, where the file will lie.

    Edge case: TOML has no null: a setting without a value is left out, and so has its default when read
        again.
    """
    return escaped(tomli_w.dumps(recipe_to_table(recipe, folder)))


def recipe_to_table(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The recipe as nested tables, its locations relative to ``folder``."""
    # A list of tables stands between sections; an empty one would be a key above them all.
    sections = {name: section for name, section in dataclasses.asdict(recipe).items() if section != []}
    table = {name: _without_null(section) for name, section in sections.items()}
    return map_locations(table, lambda location: relative_location(location, folder))


def overrides_to_tables(overrides: Sequence[OverrideSettings]) -> list[dict[str, Any]]:
    """Overrides as tables that hold what they set.

    Example:
        >>> overrides_to_tables([OverrideSettings(match="conv1", amax="max")])
        [{'match': 'conv1', 'amax': 'max'}]
    """
    return [_without_null(dataclasses.asdict(item)) for item in overrides]


def settings_to_table(settings: WeightSettings | ActivationSettings) -> dict[str, Any]:
    """The settings of a quantizer as a table that holds what they set.

    Example:
        >>> settings_to_table(WeightSettings(bits=4)), settings_to_table(ActivationSettings())
        ({'bits': 4}, {})
    """
    table: dict[str, Any] = _without_null(dataclasses.asdict(settings))
    return table


def _without_null(section: Any) -> Any:
    if isinstance(section, list):
        return [_without_null(item) for item in section]
    if not isinstance(section, dict):
        return section
    return {name: _without_null(value) for name, value in section.items() if value is not None}
