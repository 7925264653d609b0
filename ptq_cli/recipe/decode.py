"""Tables of plain values become settings, strictly: an unknown key or a wrong type is an error."""

import dataclasses
import sys
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError, did_you_mean
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
        hint: [calibration] has: data, method, batch_size, samples, checkpoint_every, activation_axis, \
allow_nonfinite
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


def decode_table(kind: type[Settings], table: Mapping[str, Any], where: str, prefix: str = "") -> Settings:
    """Return the dataclass that a table describes; what it leaves out has its default.

    Args:
        kind: the dataclass; its type hints say what each key may hold.
        table: the values by name.
        where: the file's name, for messages.
        prefix: the section the table stands in, with a dot at its end.

    Raises:
        RecipeKeyError: a key that the dataclass does not have.
        RecipeValueError: a value of the wrong type, or a key without default is missing.
    """
    hints = typing.get_type_hints(kind)
    known = [item.name for item in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            section = f"[{prefix.rstrip('.')}]" if prefix else "the top level"
            raise RecipeKeyError(
                f"{where}: unknown key '{prefix}{key}'{did_you_mean(key, known)}",
                hint=f"{section} has: {', '.join(known)}",
            )
    values = {}
    for key, value in table.items():
        values[key] = _decode_value(hints[key], value, f"{prefix}{key}", where)
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        # An empty path would be resolved to the recipe's folder, and read as one of images.
        if item.metadata.get("location") and values.get(item.name) == "":
            raise _wrong_type(f"{prefix}{item.name}", "", "a path", where)
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and item.name not in values:
            raise RecipeValueError(f"{where}: '{prefix}{item.name}' is missing", hint=f"add '{item.name}'")
    return kind(**values)


def _decode_value(kind: Any, value: Any, name: str, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise _wrong_type(name, value, TABLE[0], where)
        return decode_table(typing.cast(type[Any], kind), value, where, f"{name}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        if not isinstance(value, list):
            raise _wrong_type(name, value, _words(kind), where)
        return [_decode_value(arguments[0], item, name, where) for item in value]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong_type(name, value, TABLE[0], where)
        return {
            # What a metric of the user's is given, it alone knows.
            key: item if arguments[1] is Any else _decode_value(arguments[1], item, f"{name}.{key}", where)
            for key, item in value.items()
        }
    if origin is not None:  # Only X | None and number | string are left.
        is_other = isinstance(value, arguments[1])
        return value if is_other else _decode_value(arguments[0], value, name, where)
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong_type(name, value, _words(kind), where)
    return value


def _words(kind: Any) -> str:
    arguments = typing.get_args(kind)
    return f"a list of {WORDS.get(arguments[0], TABLE)[1]}" if arguments else WORDS[kind][0]


def _wrong_type(name: str, value: object, wanted: str, where: str) -> RecipeValueError:
    return RecipeValueError(
        f"{where}: '{name}' is {value!r:.80}, expected {wanted}", hint=f"correct '{name}'"
    )
