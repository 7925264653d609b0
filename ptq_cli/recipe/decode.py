"""Tables of plain values become settings, strictly: an unknown key or a wrong type is an error."""

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.read_files import require_name
from ptq_cli.core.words import did_you_mean
from ptq_cli.recipe.schema import FORMER_KEYS, Recipe

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
