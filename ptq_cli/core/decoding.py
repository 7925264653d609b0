"""Plain values become dataclasses, strictly, by the declared types of their fields.

JSON and TOML differ in their scalars, in the keys that may be left out and in their words; a ``Notation``
says what holds for one of them.
"""

import codecs
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from ptq_cli.core.errors import PtqError, RecipeSyntaxError, ReportError
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


# Frozen dataclasses to JSON values and back, checked strictly against the declared types of the fields.
#
# A class may name properties in ``DERIVED``: they are written for readers' convenience. On reading they
# must agree with the fields, so that no file is accepted whose verdict contradicts its own numbers.


_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_HINT = "run ptq evaluate again"


@dataclass(frozen=True)
class AtLeast:
    """Rule for an ``Annotated`` number: it is at least ``low``."""

    low: int

    def refusal(self, value: Any) -> str:
        """Why ``value`` breaks the rule, or an empty string."""
        return "" if value >= self.low else f"is {value}, expected at least {self.low}"


@dataclass(frozen=True)
class Matches:
    """Rule for an ``Annotated`` text: all of it matches ``pattern``; ``wanted`` describes that in words."""

    pattern: str
    wanted: str

    def refusal(self, value: Any) -> str:
        """Why ``value`` breaks the rule, or an empty string."""
        return "" if re.fullmatch(self.pattern, value) else f"is '{value[:80]}', expected {self.wanted}"


def encode(value: Any) -> Any:
    """Return a value that ``json.dumps`` can write: keys in the order of the fields, derived ones last.

    Edge case:
        JSON has no infinity and no NaN: they become the strings ``"inf"``, ``"-inf"`` and ``"nan"``.

    Example:
        >>> encode((1, math.inf, {"b": 1, "a": None}))
        [1, 'inf', {'a': None, 'b': 1}]
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {key: encode(getattr(value, key)) for key in _keys(type(value))}
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, dict):
        return {key: encode(value[key]) for key in sorted(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def decode(kind: Any, value: Any, where: str) -> Any:
    """Return the value of type ``kind`` that the JSON value ``value`` represents.

    Args:
        kind: a dataclass, ``tuple[T, ...]``, ``dict[str, T]``, ``T | None``, ``Literal``, ``Annotated`` with
            the rules above, str, bool, int or float.
        value: what ``json.loads`` gave.
        where: path of the value inside the document, for the message; empty at the top.

    Raises:
        ReportError: the value does not fit; the message says where.

    Example:
        >>> decode(tuple[float, ...], [1, "inf"], "limits")
        (1.0, inf)
    """
    return decode_value(kind, value, where, _JSON)


def _keys(kind: type) -> list[str]:
    return [*(field.name for field in fields(kind)), *getattr(kind, "DERIVED", ())]


class _Json:
    """Objects of JSON: every key is there."""

    table = "an object"

    def require_keys(self, kind: type, table: Mapping[str, Any], place: str) -> None:
        keys, prefix = _keys(kind), f"{place}." if place else ""
        for key in keys:
            if key not in table:
                raise ReportError(f"'{prefix}{key}' is missing", hint=_HINT)
        for key in table:
            if key not in keys:
                raise ReportError(f"'{prefix}{key[:80]}' is not a key of this format version", hint=_HINT)

    def require_agreement(self, made: Any, table: Mapping[str, Any], place: str) -> None:
        for key in getattr(made, "DERIVED", ()):
            found, expected = table[key], encode(getattr(made, key))
            # In Python 1 == True, but in a report a count is not a truth value.
            if found != expected or isinstance(found, bool) != isinstance(expected, bool):
                shown = f"{place}.{key}" if place else key
                raise ReportError(
                    f"'{shown}' is {_show(found)}, but the rest of the report says {_show(expected)}",
                    hint=_HINT,
                )

    def leaf(self, kind: Any, value: Any, place: str) -> Any:
        if get_origin(kind) is Literal:
            return _decode_literal(kind, value, place)
        if get_origin(kind) is Annotated:
            return _decode_annotated(kind, value, place)
        return _decode_scalar(kind, value, place)

    def list_of(self, _kind: Any) -> str:
        return "a list"

    def entry(self, place: str, index: int) -> str:
        return f"{place}[{index}]"

    def refusal(self, value: Any, wanted: str, place: str) -> ReportError:
        found = f"'{place}'" if place else "the document"
        return ReportError(f"{found} is {_show(value)}, expected {wanted}", hint=_HINT)


_JSON = _Json()


def _decode_literal(kind: Any, value: Any, where: str) -> Any:
    known = get_args(kind)
    _require(
        isinstance(value, str) and value in known, value, " or ".join(f"'{name}'" for name in known), where
    )
    return value


def _decode_annotated(kind: Any, value: Any, where: str) -> Any:
    inner, *rules = get_args(kind)
    result = decode(inner, value, where)
    for rule in rules:
        if refusal := rule.refusal(result):
            raise ReportError(f"'{where}' {refusal}", hint=_HINT)
    return result


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        return _decode_float(value, where)
    # bool is a subclass of int in Python, but true is not a number of samples.
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    _require(fits, value, {str: "a string", bool: "true or false", int: "a whole number"}[kind], where)
    is_sized = kind is not int or abs(value) < 2**63
    _require(is_sized, value, "a whole number of 64 bits", where)
    # Half of a surrogate pair is valid JSON, but cannot be written to a file or a terminal.
    is_writable = kind is not str or not any("\ud800" <= letter <= "\udfff" for letter in value)
    _require(is_writable, value, "text that UTF-8 can encode", where)
    return value


def _decode_float(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _require(is_number, value, "a number", where)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    _require(math.isfinite(number), value, "a number within the range of float64", where)
    return number


def _require(fits: bool, value: Any, wanted: str, where: str) -> None:
    if not fits:
        raise _JSON.refusal(value, wanted, where)


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    names = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return names[value]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def strict_json(content: bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises:
        ValueError: it is not JSON, or holds NaN or Infinity, which Python's own reader accepts.
        RecursionError: it is nested too deeply.

    Example:
        >>> strict_json(b'{"drop": NaN}')
        Traceback (most recent call last):
        ...
        ValueError: NaN is not JSON
    """
    # Editors of Windows begin UTF-8 with a byte order mark.
    return json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


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
