"""Plain values become dataclasses, strictly, by the declared types of their fields.

JSON and TOML differ in their scalars, in the keys that may be left out and in their words; a ``Notation``
says what holds for one of them.
"""

import codecs
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints

from ptq_cli.core.errors import PtqError, RecipeSyntaxError
from ptq_cli.core.read_files import read_file


class Notation(Protocol):
    """How one kind of file writes values, and what is said of one that does not fit."""

    @property
    def table(self) -> str:
        """What it calls a table, with an article."""

    def require_keys(self, kind: type, table: Mapping[str, Any], place: str) -> None:
        """Raise an error where a table has a key that a dataclass has not, or lacks one that it needs."""

    def require_agreement(self, made: Any, table: Mapping[str, Any], place: str) -> None:
        """Raise an error where the table contradicts the dataclass that was made of it."""

    def leaf(self, kind: Any, value: Any, place: str) -> Any:
        """Return a value that is neither a table nor a list, checked."""

    def list_of(self, kind: Any, /) -> str:
        """Return what is wanted where a list is declared."""

    def entry(self, place: str, index: int, /) -> str:
        """Return the place of a list's entry."""

    def refusal(self, value: Any, wanted: str, place: str) -> PtqError:
        """Return the error that says what was found and what was expected."""


def decode_value(kind: Any, value: Any, place: str, notation: Notation) -> Any:
    """Return the value of a declared type that a plain value stands for.

    Args:
        kind: a dataclass, ``list[T]``, ``tuple[T, ...]``, ``dict[str, T]``, ``T | None``, ``T | str``, or
            what the notation's ``leaf`` knows.
        value: of dicts, lists and scalars.
        place: of the value inside the document, for messages; empty at the top.
        notation: of the document.

    Raises:
        PtqError: the value does not fit; which error, the notation says.
    """
    if is_dataclass(kind):
        return _decode_object(kind, value, place, notation)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise notation.refusal(value, notation.list_of(arguments[0]), place)
        return origin(
            decode_value(arguments[0], item, notation.entry(place, index), notation)
            for index, item in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise notation.refusal(value, notation.table, place)
        return {
            notation.leaf(str, key, place): decode_value(arguments[1], item, f"{place}.{key}", notation)
            for key, item in value.items()
        }
    if origin in (UnionType, Union):  # the latter is what `Annotated[...] | None` becomes
        first, *others = arguments
        return value if isinstance(value, tuple(others)) else decode_value(first, value, place, notation)
    return notation.leaf(kind, value, place)


def _decode_object(kind: Any, value: Any, place: str, notation: Notation) -> Any:
    if not isinstance(value, Mapping):
        raise notation.refusal(value, notation.table, place)
    notation.require_keys(kind, value, place)
    hints, prefix = _declared_types(kind), f"{place}." if place else ""
    names = {field.name for field in fields(kind)}
    made = kind(
        **{
            key: decode_value(hints[key], item, prefix + key, notation)
            for key, item in value.items()
            if key in names
        }
    )
    notation.require_agreement(made, value, place)
    return made


@cache
def _declared_types(kind: type) -> dict[str, Any]:
    """Return the declared types of a class's fields by name, with their annotations."""
    return get_type_hints(kind, include_extras=True)


# TOML that a user wrote, as tables.


def read_toml(path: Path, what: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Args:
        path: the file.
        what: what it is to the user, such as ``"recipe"``.
        where: what messages about its content call it.

    Raises:
        InputFileError: it is missing, a folder, or cannot be read.
        RecipeSyntaxError: it is not TOML.
    """
    content = read_file(path, what)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise RecipeSyntaxError(f"{where} is text in UTF-16, expected UTF-8", hint="save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")  # with a byte order mark, as editors of Windows write it
        return tomllib.loads(text.replace("\r\n", "\n").replace("\r", "\n"))  # lines may end as on any system
    # Thousands of digits raise a plain ValueError, thousands of brackets a RecursionError.
    except (ValueError, RecursionError) as error:
        raise RecipeSyntaxError(f"{where} is not valid TOML: {error}", hint="see https://toml.io") from error
