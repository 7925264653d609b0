"""The resolved recipe becomes TOML again: the run directory's ``recipe.toml``."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ptq_cli.recipe.locations import map_locations, relative_location
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import ActivationSettings, OverrideSettings, WeightSettings


def recipe_to_toml(recipe: Recipe, folder: Path) -> str:
    """Return the recipe as TOML, its locations relative to ``folder``, where the file will lie.

    Edge case:
        TOML has no null: a setting without a value is left out, and so has its default when read again.

    Example:
        >>> print(recipe_to_toml(Recipe(), Path(".")).splitlines()[0])
        [model]
    """
    return tomli_w.dumps(recipe_to_table(recipe, folder))


def recipe_to_table(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the recipe as nested tables, its locations relative to ``folder``.

    Example:
        >>> recipe_to_table(Recipe(), Path("."))["quantization"]
        {'target': 'ort-cpu', 'all_layers': False, 'float_type': 'float32'}
    """
    # A list of tables stands between sections; an empty one would be a key above them all.
    sections = {name: section for name, section in dataclasses.asdict(recipe).items() if section != []}
    table = {name: _without_null(section) for name, section in sections.items()}
    return map_locations(table, lambda location: relative_location(location, folder))


def overrides_to_tables(overrides: Sequence[OverrideSettings]) -> list[dict[str, Any]]:
    """Return overrides as tables that hold what they set.

    Example:
        >>> overrides_to_tables([OverrideSettings(match="conv1", amax="max")])
        [{'match': 'conv1', 'amax': 'max'}]
    """
    return [_without_null(dataclasses.asdict(item)) for item in overrides]


def settings_to_table(settings: WeightSettings | ActivationSettings) -> dict[str, Any]:
    """Return the settings of a quantizer as a table that holds what they set.

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
