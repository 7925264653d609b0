"""Flags override ``--recipe FILE``, which overrides ``./ptq.toml``, which overrides the preset."""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import tomli_w

from ptq_cli.core.entry_points import is_entry_point, resolve_entry_point
from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.known_names import did_you_mean, require_known
from ptq_cli.core.printable import escaped
from ptq_cli.core.read_files import read_toml, require_name
from ptq_cli.core.trust import grant, note_found
from ptq_cli.recipe.code_settings import code_settings
from ptq_cli.recipe.recovery_rungs import OF_MODES
from ptq_cli.recipe.schema import FORMER_KEYS, Recipe
from ptq_cli.recipe.sections import LATENCY, ActivationSettings, OverrideSettings, WeightSettings


def map_locations(table: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A recipe's nested tables with each location changed."""
    return _map(Recipe, table, change)


def _map(kind: Any, table: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    known = {item.name: item for item in fields(kind)}
    return {name: _map_value(known[name], value, change) for name, value in table.items()}


def _map_value(item: "Field[Any]", value: Any, change: Callable[[str], str]) -> Any:
    (inner,) = get_args(item.type) if get_origin(item.type) is list else (item.type,)
    if isinstance(inner, type) and is_dataclass(inner):
        return (
            [_map(inner, entry, change) for entry in value]
            if isinstance(value, list)
            else (_map(inner, value, change))
        )
    if item.metadata.get("location") and value is not None:
        is_name = item.metadata.get("or_name") and not is_target_file(value)
        return value if is_name else change(value)
    if item.metadata.get("entry_points"):
        named = [_map_entry_point(text, change) for text in ([value] if isinstance(value, str) else value)]
        return named if isinstance(value, list) else named[0]
    return value


def _map_entry_point(text: str, change: Callable[[str], str]) -> str:
    """Change the file of ``file.py:callable`` or ``file.py:callable[output]``; other names stay."""
    location, colon, rest = text.partition(".py:")
    name, bracket, output = rest.partition("[")
    if not colon or not name.isidentifier():
        return text
    return f"{change(f'{location}.py:{name}')}{bracket}{output}"


def is_target_file(text: str) -> bool:
    """Whether a target is named by its file, and not by its name.

    Example:
        >>> is_target_file("ort-cpu"), is_target_file("mine.toml"), is_target_file("./mine")
        (False, True, True)
    """
    return text.endswith(".toml") or "/" in text or os.sep in text


def resolve_location(text: str, folder: Path) -> str:
    """A path or ``file.py:callable`` with the path made absolute.

    Edge case: ``package.module:callable`` stays as it is, unless a file of that very name exists. ``~`` is
        the user's home.
    """
    # Not Path.expanduser(), which raises where there is no such user; such a name is a file's.
    text = os.path.expanduser(text)  # noqa: PTH111
    is_code = is_entry_point(text) and not (folder / text).exists()
    # Not Path.resolve(): a link that the user named stays a link in messages.
    location = resolve_entry_point(text, folder) if is_code else os.path.normpath(folder / text)
    require_name(location)
    return location


def relative_location(location: str, folder: Path) -> str:
    """A resolved location relative to ``folder``, so that a folder can move with its files."""
    path, name = location, ""
    if is_entry_point(location) and not Path(location).exists():
        path, _, name = location.rpartition(":")
        if not path.endswith(".py"):
            return location
    relative = os.path.relpath(path, folder.absolute())
    # Without ./ a file called ``~x`` or ``a:b`` would be read again as a home or as an entry point.
    if relative.startswith("~") or (not name and is_entry_point(relative)):
        relative = f"./{relative}"
    return f"{relative}:{name}" if name else relative


Settings = TypeVar("Settings")
# One value and several of each type, in messages.
WORDS: dict[Any, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
}
TABLE = ("a table", "tables")


def decode_recipe(table: Mapping[str, Any], where: str) -> Recipe:
    """The recipe that nested tables describe; what they leave out has its default."""
    return decode_table(Recipe, table, where)


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


def decode_table(kind: type[Settings], table: Mapping[str, Any], where: str) -> Settings:
    """The dataclass that a table describes; what it leaves out has its default."""
    decoded: Settings = _Decoder(where).section(kind, table, "")
    return decoded


_hints = cache(get_type_hints)


@dataclass(frozen=True)
class _Decoder:
    """Makes values of declared types of what TOML holds; ``where`` it stands begins each message."""

    where: str

    def value(self, kind: Any, value: Any, place: str) -> Any:
        if is_dataclass(kind):
            return self.section(kind, value, place)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is list:
            if not isinstance(value, list):
                raise self.refusal(value, f"a list of {WORDS.get(arguments[0], TABLE)[1]}", place)
            return [self.value(arguments[0], item, place) for item in value]
        if origin is dict:
            if not isinstance(value, Mapping):
                raise self.refusal(value, TABLE[0], place)
            return {
                self.leaf(str, key, place): self.value(arguments[1], item, f"{place}.{key}")
                for key, item in value.items()
            }
        if origin is UnionType:
            first, *others = arguments
            return value if isinstance(value, tuple(others)) else self.value(first, value, place)
        return self.leaf(kind, value, place)

    def section(self, kind: Any, table: Any, place: str) -> Any:
        if not isinstance(table, Mapping):
            raise self.refusal(table, TABLE[0], place)
        self.require_keys(kind, table, place)
        hints, prefix = _hints(kind), f"{place}." if place else ""
        return kind(**{key: self.value(hints[key], item, prefix + key) for key, item in table.items()})

    def require_keys(self, kind: type, table: Mapping[str, Any], place: str) -> None:
        known, prefix = [item.name for item in fields(kind)], f"{place}." if place else ""
        for key in table:
            if key not in known:
                section = f"[{place}]" if place else "the top level"
                raise RecipeKeyError(
                    f"{self.where}: unknown key '{prefix}{key}'{did_you_mean(key, known)}",
                    hint=FORMER_KEYS.get(prefix + key) or f"{section} has: {', '.join(known)}",
                )
        for item in fields(kind):
            # An empty path would be resolved to the recipe's folder, and read as one of images.
            if item.metadata.get("location") and table.get(item.name) == "":
                raise self.refusal("", "a path", prefix + item.name)
            required = item.default is MISSING and item.default_factory is MISSING
            if required and item.name not in table:
                raise RecipeValueError(
                    f"{self.where}: '{prefix}{item.name}' is missing", hint=f"add '{item.name}'"
                )

    def leaf(self, kind: Any, value: Any, place: str) -> Any:
        # What a metric of the user's is given, it alone knows.
        if kind is Any:
            return value
        if isinstance(value, str):
            if "\0" in value:
                raise self.refusal(value, "text without a NUL character", place)
            require_name(value, is_path=False)
        if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.refusal(value, WORDS[kind][0], place)
        return value

    def refusal(self, value: Any, wanted: str, place: str) -> RecipeValueError:
        return RecipeValueError(
            f"{self.where}: '{place}' is {value!r:.80}, expected {wanted}", hint=f"correct '{place}'"
        )


PACKAGE = Path(__file__).parents[1]
# An installation has it in the package, a checkout beside it.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs" / "presets").is_dir() else PACKAGE.parent / "configs"
PRESETS = CONFIGS / "presets"
DEFAULT_PRESET = "int8_ort_cpu"
FOLDER_RECIPE = "ptq.toml"
# Sections that a layer replaces if it names a quantizer, apart from keys that are not the quantizer's.
QUANTIZED = ("weights", "activations")

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
    """The names of the presets."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def preset_layer(name: str) -> RecipeLayer:
    """A preset."""
    require_known("preset", name, preset_names())
    return file_layer(PRESETS / f"{name}.toml", f"preset {name}")


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
    merged: Table = {}
    for layer in layers:
        merged = _overlay(merged, _with_earlier(merged, layer.table) if layer.adds else layer.table)
    return decode_recipe(merged, " over ".join(layer.where for layer in reversed(layers)))


def _with_earlier(below: Table, table: Table) -> Table:
    """A layer's table with the overrides of earlier layers before its own, each once."""
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
