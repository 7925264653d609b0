"""Documents: frozen dataclasses that are written as JSON and read again.

What a key means is in its annotation, ``Annotated[int, "Samples that were run."]``, where the schema finds
it. A class may name properties in ``DERIVED``: they are written for readers' convenience. On reading they
must agree with the fields, so that no file is accepted whose verdict contradicts its own numbers. A class
with a ``FORMAT`` says on top what it is. A field annotated with ``HIDDEN`` is for Python alone; one annotated
with ``str`` is written as its text.
"""

import builtins
import json
import math
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ptq_cli.core.errors import PtqError, ReportError
from ptq_cli.core.read_files import read_file

_T = TypeVar("_T")

HIDDEN = None  # Marks an ``Annotated`` field that the document leaves out.
# JSON has no such numbers, so they are texts.
NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_HINT = "run ptq evaluate again"


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """What a file says of itself, and what is said of a file that does not.

    Attributes:
        name: its ``"format"``.
        version: its ``"format_version"``; a change that adds or changes a key raises it.
        noun: what it is to the user, such as ``"report"``.
        error: what a file that does not fit raises.
        hint: how to get one that does.
    """

    name: str
    version: int
    noun: str
    error: type[PtqError] = ReportError
    hint: str = _HINT

    @property
    def header(self) -> dict[str, Any]:
        """The keys that come first."""
        return {"format": self.name, "format_version": self.version}


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


@cache
def header_of(kind: type) -> dict[str, Any]:
    """Header of a class' documents; empty if they are not files."""
    format = getattr(kind, "FORMAT", None)
    return format.header if isinstance(format, FileFormat) else {}


@cache
def keys_of(kind: type) -> tuple[str, ...]:
    """The keys of a class's documents without the header: derived ones first, a verdict above all."""
    return (*getattr(kind, "DERIVED", ()), *(item.name for item in fields(kind) if not _is(item, HIDDEN)))


@cache
def _texts_of(kind: type) -> frozenset[str]:
    return frozenset(item.name for item in fields(kind) if _is(item, str))


def _is(item: Field[Any], mark: object) -> bool:
    return any(found is mark for found in getattr(item.type, "__metadata__", ()))


def encode(value: Any) -> Any:
    """A value that ``json.dumps`` can write.

    Edge case: The keys of a dictionary are sorted, those of a dataclass are in the order of its fields. JSON
        has no infinity and no NaN: they become the strings ``"inf"``, ``"-inf"`` and ``"nan"``.
    """
    if is_dataclass(value) and not isinstance(value, type | os.PathLike):
        texts, body = _texts_of(type(value)), {key: getattr(value, key) for key in keys_of(type(value))}
        shown = {key: str(item) if key in texts else encode(item) for key, item in body.items()}
        return {**header_of(type(value)), **shown}
    match value:
        case os.PathLike():
            found: Any = os.fspath(value)
        case tuple() | list():
            found = [encode(entry) for entry in value]
        case Mapping():
            found = {str(key): encode(value[key]) for key in sorted(value)}
        case Enum():
            found = value.value
        case float() if not math.isfinite(value):
            found = str(float(value))
        case _ if hasattr(value, "tolist"):  # an array or a number of numpy, which is not imported here
            found = encode(value.tolist())
        case _:
            found = value
    return found


def to_json(value: Any) -> str:
    """A document as JSON: keys in a fixed order, two spaces, ASCII, a newline at the end.

    Edge case: ASCII only, so that a name from a model cannot control the terminal that shows the file.
    """
    return json.dumps(encode(value), indent=2, allow_nan=False) + "\n"


def rounded(value: float) -> float | None:
    """A number as the metadata of a model has it: to thousandths, or null if it is not finite."""
    return round(value, 3) if math.isfinite(value) else None


def read_document(kind: type[_T], path: Path) -> _T:
    """Read and check a file."""
    format: FileFormat = kind.FORMAT  # type: ignore[attr-defined]
    content = read_file(path, format.noun)
    try:
        return parse_document(kind, content)
    except format.error as error:
        raise format.error(f"{format.noun} '{path}': {error.message}", hint=error.hint) from error


def parse_document(kind: type[_T], content: bytes) -> _T:
    """Document that ``to_json`` wrote as ``content``.

    A class may have a method ``require_consistent``, which raises a ``ReportError`` where fields contradict
    each other.
    """
    format: FileFormat = kind.FORMAT  # type: ignore[attr-defined]
    try:
        value = strict_json(content)
    except (ValueError, RecursionError) as error:
        raise format.error(f"it is not valid JSON: {error}", hint=format.hint) from error
    if not isinstance(value, dict) or value.get("format") != format.name:
        said = f'it is JSON, but its "format" is not "{format.name}"'
        raise format.error(said, hint=f"pass the {format.name.rpartition('.')[2]}.json of a run")
    version = value.get("format_version")
    if isinstance(version, bool) or version != format.version:
        said = f"it has format version {str(version)[:40]}, this ptq reads {format.version}"
        raise format.error(said, hint=format.hint)
    try:
        found: _T = decode(kind, value, "")
        if check := getattr(found, "require_consistent", None):
            check()
    except ReportError as error:
        raise format.error(error.message, hint=format.hint) from error
    return found


def decode(kind: Any, value: Any, where: str) -> Any:
    """The value of type ``kind`` that the JSON value ``value`` represents.

    Example:
        >>> decode(tuple[float, ...], [1, "inf"], "limits")
        (1.0, inf)
    """
    if is_dataclass(kind):
        return _decode_object(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    match origin or kind:
        case typing.Annotated:
            found = _decode_annotated(arguments, value, where)
        case builtins.tuple | builtins.list as sequence:
            _require(isinstance(value, list), value, "a list", where)
            entries = enumerate(value)
            found = sequence(decode(arguments[0], item, f"{where}[{index}]") for index, item in entries)
        case builtins.dict:
            _require(isinstance(value, dict), value, "an object", where)
            pairs = ((_decode_scalar(str, key, where), item) for key, item in value.items())
            found = {key: decode(arguments[1], item, f"{where}.{key}") for key, item in pairs}
        case types.UnionType | typing.Union:
            (inner,) = (member for member in arguments if member is not NoneType)
            found = None if value is None else decode(inner, value, where)
        case typing.Literal:
            known = isinstance(value, str) and value in arguments
            _require(known, value, " or ".join(f"'{name}'" for name in arguments), where)
            found = value
        case builtins.float:
            found = _decode_float(value, where)
        case _:
            found = _decode_scalar(kind, value, where)
    return found


@cache
def _declared_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {item.name: hints[item.name] for item in fields(kind)}


def _decode_object(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), value, "an object", where)
    header, keys, prefix = header_of(kind), keys_of(kind), f"{where}." if where else ""
    for key in (*header, *keys):
        if key not in value:
            raise ReportError(f"'{prefix}{key}' is missing", hint=_HINT)
    for key in value:
        if key not in keys and key not in header:
            raise ReportError(f"'{prefix}{key[:80]}' is not a key of this format version", hint=_HINT)
    made = kind(
        **{name: decode(hint, value[name], prefix + name) for name, hint in _declared_types(kind).items()}
    )
    derived = {name: encode(getattr(made, name)) for name in getattr(kind, "DERIVED", ())}
    for key, expected in {**header, **derived}.items():
        found = value[key]
        # In Python 1 == True, but in a report a count is not a truth value.
        if found != expected or isinstance(found, bool) != isinstance(expected, bool):
            said = f"'{prefix}{key}' is {_show(found)}, but the rest of the report says {_show(expected)}"
            raise ReportError(said, hint=_HINT)
    return made


def _decode_annotated(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    inner, *rules = arguments
    result = decode(inner, value, where)
    for rule in rules:
        if isinstance(rule, AtLeast | Matches) and (refusal := rule.refusal(result)):
            raise ReportError(f"'{where}' {refusal}", hint=_HINT)
    return result


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
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
    if isinstance(value, str) and value in NON_FINITE:
        return NON_FINITE[value]
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
        found = f"'{where}'" if where else "the document"
        raise ReportError(f"{found} is {_show(value)}, expected {wanted}", hint=_HINT)


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def strict_json(content: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises: ValueError: it is not JSON, or holds NaN or Infinity, which Python's own reader accepts.
        RecursionError: it is nested too deeply.
    """
    # Editors of Windows begin UTF-8 with a byte order mark.
    return json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
