"""JSON Schemas of documents, from the dataclasses that they are written from."""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ptq_cli.core.documents import NON_FINITE, AtLeast, FileFormat, Matches, header_of, keys_of


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
_HEADER = {"format": "Says what the file is.", "format_version": "Version of this format."}
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
