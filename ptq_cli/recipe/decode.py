"""Tables of plain values become settings, strictly: an unknown key or a wrong type is an error."""

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from ptq_cli.core.documents.decoding import decode_value
from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.read_files import require_name
from ptq_cli.recipe.schema import Recipe

Settings = TypeVar("Settings")
WORDS: dict[Any, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
}
"""One value and several of each type, in messages."""
TABLE = ("a table", "tables")


def decode_recipe(table: Mapping[str, Any], where: str) -> Recipe:
    """Return the recipe that nested tables describe; what they leave out has its default.

    Args:
        table: sections by name, as ``tomllib`` gives them.
        where: the file's name or ``"the command line"``, for messages.

    Raises:
        RecipeKeyError: a key that no section has.
        RecipeValueError: a value of the wrong type.

    Example:
        >>> decode_recipe({"calibration": {"batch_size": 8}}, "ptq.toml").calibration.batch_size
        8
        >>> decode_recipe({"calibration": {"bach_size": 8}}, "ptq.toml")
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.RecipeKeyError: PTQ-RECIPE-002: ptq.toml: unknown key \
'calibration.bach_size' (did you mean 'batch_size'?)
        hint: [calibration] has: data, method, batch_size, samples, set_aside, checkpoint_every, \
activation_axis, allow_nonfinite
    """
    return decode_table(Recipe, table, where)


def merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with the keys of another laid over them; a list takes the place of the one there.

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
    """Return the dataclass that a table describes; what it leaves out has its default.

    Args:
        kind: the dataclass; its type hints say what each key may hold.
        table: the values by name.
        where: the file's name, for messages.

    Raises:
        RecipeKeyError: a key that the dataclass does not have.
        RecipeValueError: a value of the wrong type, or a key without default is missing.
    """
    decoded: Settings = decode_value(kind, table, "", _Toml(where))
    return decoded


@dataclass(frozen=True)
class _Toml:
    """Tables of TOML: what is left out has its default."""

    where: str
    table: str = TABLE[0]

    def require_keys(self, kind: type, table: Mapping[str, Any], place: str) -> None:
        known, prefix = [item.name for item in fields(kind)], f"{place}." if place else ""
        for key in table:
            if key not in known:
                section = f"[{place}]" if place else "the top level"
                raise RecipeKeyError(
                    f"{self.where}: unknown key '{prefix}{key}'{did_you_mean(key, known)}",
                    hint=f"{section} has: {', '.join(known)}",
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

    def require_agreement(self, made: Any, table: Mapping[str, Any], place: str) -> None:
        """Nothing in a table is derived from the rest of it."""

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

    def list_of(self, kind: Any) -> str:
        return f"a list of {WORDS.get(kind, TABLE)[1]}"

    def entry(self, place: str, _index: int) -> str:
        return place

    def refusal(self, value: Any, wanted: str, place: str) -> RecipeValueError:
        return RecipeValueError(
            f"{self.where}: '{place}' is {value!r:.80}, expected {wanted}", hint=f"correct '{place}'"
        )
