"""The resolved recipe becomes TOML again: the run directory's ``recipe.toml``."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import tomli_w

from ptq_cli.core.entry_point import is_entry_point
from ptq_cli.recipe.schema import Recipe


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
        {'target': 'ort-cpu'}
    """
    return {
        section.name: _section_to_table(getattr(recipe, section.name), folder)
        for section in dataclasses.fields(recipe)
    }


def _section_to_table(section: Any, folder: Path) -> dict[str, Any]:
    table = {}
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if value is None:
            continue
        table[item.name] = _relative(value, folder) if item.metadata.get("location") else value
    return table


def _relative(location: str, folder: Path) -> str:
    if is_entry_point(location) and not Path(location).exists():
        path, _, name = location.rpartition(":")
        return f"{_relative_path(path, folder)}:{name}" if path.endswith(".py") else location
    return _relative_path(location, folder)


def _relative_path(path: str, folder: Path) -> str:
    return os.path.relpath(path, folder.absolute())
