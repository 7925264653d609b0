"""Documents: frozen dataclasses that are written as JSON and read again, and their JSON Schemas.

What a key means is in its annotation, ``Annotated[int, "Samples that were run."]``, where the schema finds
it. A class may name properties in ``DERIVED``: they are written for readers' convenience. On reading they
must agree with the fields, so that no file is accepted whose verdict contradicts its own numbers. A class
with a ``FORMAT`` says on top what it is. A field annotated with ``HIDDEN`` is for Python alone; one annotated
with ``str`` is written as its text.
"""

import ast
import builtins
import inspect
import json
import math
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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


def docstring(item: Any) -> str:
    """The docstring of a class or a function without its indentation.

    ``python -OO`` drops docstrings, and then it is read from the source.
    """
    if sys.flags.optimize < 2:
        return inspect.getdoc(item) or ""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(item))).body
    return (ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None) or ""


_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {str: "string", int: "integer", bool: "boolean"}
_HEADER = {
    "format": "Says what the file is.",
    "format_version": "Version of this format.",
    "_type": "Says that it is a statement of in-toto.",
    "predicateType": "Says what the predicate is, with its version.",
}
NUMBER = {"$ref": "#/$defs/number"}
_NUMBERS = {
    "description": "JSON has no infinity and no NaN, so they are texts.",
    "anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}],
}


def file_schema(kind: type) -> str:
    """The schema of a file as JSON, with a newline at the end; it allows no other keys."""
    schemas = Schemas(strict=True)
    format: FileFormat = kind.FORMAT  # type: ignore[attr-defined]
    head = {
        "$schema": _DRAFT,
        "$id": f"urn:{format.name.replace('.', ':')}:{format.version}",
        "title": f"{format.name.replace('.', ' ')}, format version {format.version}",
    }
    return schemas.as_json({**head, **schemas.object(kind)})


def documents_schema(title: str, kinds: Mapping[str, Sequence[type]], *, strict: bool = False) -> str:
    """One schema with a definition for each name, as JSON with a newline at the end."""
    schemas = Schemas(strict=strict)
    named = {name: schemas.any_of(each) for name, each in kinds.items()}
    return schemas.as_json({"$schema": _DRAFT, "title": title, "$defs": named})


def document_schema(title: str, kinds: Sequence[type]) -> str:
    """The schema of one document as JSON, with a newline at the end."""
    schemas = Schemas(strict=False)
    return schemas.as_json({"$schema": _DRAFT, "title": title, **schemas.any_of(kinds)})


class Schemas:
    """Makes schemas, and keeps the definitions that they refer to; strict ones refuse other keys."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._made: dict[str, type] = {}
        self._definitions: dict[str, Any] = {"number": _NUMBERS}

    def any_of(self, kinds: Sequence[Any]) -> dict[str, Any]:
        """The schema of a value that is of one of the types."""
        schemas = [self.of(kind) for kind in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def object(self, kind: type) -> dict[str, Any]:
        """The schema of a dataclass."""
        header = {
            name: {"description": _HEADER[name], "const": value} for name, value in header_of(kind).items()
        }
        keys = {name: self._described(kind, name) for name in keys_of(kind)}
        return {
            "description": _summary(kind),
            "type": "object",
            **({"additionalProperties": False} if self._strict else {}),
            "required": [*header, *keys],
            "properties": {**header, **keys},
        }

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a value of a declared type."""
        origin, arguments = get_origin(kind), get_args(kind)
        if isinstance(kind, type) and is_dataclass(kind) and not issubclass(kind, PathLike):
            schema = self._reference(kind)
        elif origin is tuple:
            schema = {"type": "array", "items": self.of(arguments[0])}
        # From numpy 2.5 and Python 3.12 on, NDArray is an alias with a name of its own.
        elif getattr(origin, "__name__", "") in ("ndarray", "NDArray"):
            schema = {"type": "array", "items": NUMBER}
        elif origin in (dict, Mapping):
            values = self.of(arguments[1])
            schema = {"type": "object", **({"additionalProperties": values} if values else {})}
        elif origin in (UnionType, Union):
            members = [self.of(member) for member in arguments if member is not NoneType]
            schema = {"anyOf": [*members, *([{"type": "null"}] if NoneType in arguments else [])]}
        elif origin is Literal:
            schema = {"enum": list(arguments)}
        elif origin is Annotated:
            schema = self.of(arguments[0])
            for rule in arguments[1:]:
                schema = {**schema, **(_rule(rule) if isinstance(rule, AtLeast | Matches) else {})}
        elif kind is Any:
            schema = {}
        else:
            schema = NUMBER if kind is float else {"type": _SCALARS.get(kind, "string")}
        return schema

    def as_json(self, body: dict[str, Any]) -> str:
        """A schema with the definitions that it refers to."""
        own = body.get("$defs", {})
        definitions = {**own, **self._definitions}
        used = json.dumps([body, definitions])
        kept = {
            name: item for name, item in definitions.items() if name in own or f'"#/$defs/{name}"' in used
        }
        return json.dumps({**body, "$defs": kept}, indent=2, ensure_ascii=False) + "\n"

    def _reference(self, kind: type) -> dict[str, Any]:
        name = kind.__name__
        if self._made.setdefault(name, kind) is not kind:
            raise ValueError(f"{kind} and {self._made[name]} have the same name")
        if name not in self._definitions:
            self._definitions[name] = {}
            self._definitions[name] = self.object(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _described(self, kind: type, name: str) -> dict[str, Any]:
        item = getattr(kind, name, None)
        getter = getattr(item, "fget", None) or getattr(item, "func", None)
        if getter is not None:
            return {
                "description": _summary(getter),
                **self.of(get_type_hints(getter, include_extras=True)["return"]),
            }
        hint = get_type_hints(kind, include_extras=True)[name]
        texts = [entry for entry in getattr(hint, "__metadata__", ()) if isinstance(entry, str)]
        if not texts:
            raise ValueError(f"{kind.__name__} does not describe {name}")
        return {"description": texts[-1], **self.of(hint)}


def _summary(item: Any) -> str:
    return docstring(item).split("\n\n")[0].replace("\n", " ").replace("`", "")


def _rule(rule: AtLeast | Matches) -> dict[str, Any]:
    return {"minimum": rule.low} if isinstance(rule, AtLeast) else {"pattern": f"^{rule.pattern}$"}
