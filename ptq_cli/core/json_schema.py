"""JSON Schemas of documents, from the dataclasses and typed dictionaries that they are written from."""

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from ptq_cli.core.decoding import AtLeast

# What docstrings say about the attributes of a class, for pages and schemas that are made from them.


T = TypeVar("T")
BASES = "__described_with__"


def docstring(item: Any) -> str:
    """Return the docstring of a class or a function without its indentation.

    ``python -OO`` drops docstrings, and then it is read from the source.

    Example:
        >>> docstring(sentence).partition(" with")[0]
        'Return a description'
    """
    if sys.flags.optimize < 2:
        return inspect.getdoc(item) or ""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(item))).body
    return (ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None) or ""


def attribute_texts(kind: type) -> dict[str, str]:
    """Return the descriptions in the ``Attributes:`` of a docstring, by name, with their line breaks removed.

    Args:
        kind: a dataclass, or a ``TypedDict``; see ``described_with``.

    Raises:
        ValueError: an attribute is not described.

    Example:
        >>> from ptq_cli.core.tensors import TensorSpec
        >>> attribute_texts(TensorSpec)["name"]
        "the value's name in the graph."
    """
    texts = {key: text for base in getattr(kind, BASES, ()) for key, text in attribute_texts(base).items()}
    texts |= _described(docstring(kind))
    wanted = [item.name for item in fields(kind)] if is_dataclass(kind) else list(get_type_hints(kind))
    missing = [name for name in wanted if name not in texts]
    if missing:
        raise ValueError(f"{kind.__name__} does not describe {', '.join(missing)}")
    return {key: text.replace("``", "`") for key, text in texts.items()}


def described_with(*bases: type) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a ``TypedDict`` that extends others, whose attributes are described there.

    Python does not keep which ones a ``TypedDict`` extends.

    Example:
        >>> from typing import TypedDict
        >>> class Named(TypedDict):
        ...     '''Something with a name.
        ...
        ...     Attributes:
        ...         name: what it is called.
        ...     '''
        ...
        ...     name: str
        >>> @described_with(Named)
        ... class Known(Named):
        ...     '''Something known.'''
        >>> attribute_texts(Known)
        {'name': 'what it is called.'}
    """

    def mark(kind: type[T]) -> type[T]:
        setattr(kind, BASES, bases)
        return kind

    return mark


def _described(text: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in text.partition("Attributes:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        if match := re.match(r"    (\w+(?:, \w+)*): (.*)", line):
            names = match[1].split(", ")
            texts |= dict.fromkeys(names, match[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def sentence(text: str) -> str:
    """Return a description with a capital letter at its beginning and a full stop at its end.

    Example:
        >>> sentence("bits per weight")
        'Bits per weight.'
    """
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ":")) else f"{text}."


DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCALARS = {str: "string", int: "integer", bool: "boolean"}
NUMBER = "number"
NUMBERS = {
    "description": "JSON has no infinity and no NaN, so they are texts.",
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
}


@dataclass(frozen=True)
class FileFormat:
    """Marks an ``Annotated`` dataclass whose document says its format and its version.

    Attributes:
        name: what ``"format"`` says.
        version: what ``"format_version"`` says.
    """

    name: str
    version: int


DocumentKind = Any
"""A dataclass, a ``TypedDict``, or a dataclass that is ``Annotated`` with a ``FileFormat``."""


def file_schema(kind: DocumentKind) -> str:
    """Return the schema of a file as JSON, with a newline at the end; it allows no other keys.

    Example:
        >>> from ptq_cli.report.document.details import FORMAT, FORMAT_VERSION, Details
        >>> json.loads(file_schema(Annotated[Details, FileFormat(FORMAT, FORMAT_VERSION)]))["$id"]
        'urn:ptq:details:1'
    """
    schemas = Schemas(strict=True)
    own, format = get_args(kind)
    head = {
        "$schema": DRAFT,
        "$id": f"urn:{format.name.replace('.', ':')}:{format.version}",
        "title": f"{format.name.replace('.', ' ')}, format version {format.version}",
    }
    return _as_json({**head, **schemas.document(own, format)}, schemas)


def documents_schema(title: str, kinds: Mapping[str, Sequence[DocumentKind]], *, strict: bool = False) -> str:
    """Return one schema with a definition for each name, as JSON with a newline at the end.

    Args:
        title: what the schema is of.
        kinds: what a document of this name may be.
        strict: whether keys that are not described are refused.

    Example:
        >>> from ptq_cli.report.document.gate_result import ReportWarning
        >>> schema = json.loads(documents_schema("warnings", {"warning": [ReportWarning]}))
        >>> schema["$defs"]["warning"]
        {'$ref': '#/$defs/ReportWarning'}
    """
    schemas = Schemas(strict=strict)
    named = {name: _any_of([schemas.reference(kind) for kind in each]) for name, each in kinds.items()}
    return _as_json({"$schema": DRAFT, "title": title, "$defs": named}, schemas)


def document_schema(title: str, kinds: Sequence[DocumentKind]) -> str:
    """Return the schema of one document as JSON, with a newline at the end.

    Example:
        >>> from ptq_cli.report.document.gate_result import ReportWarning
        >>> json.loads(document_schema("a warning", [ReportWarning]))["$ref"]
        '#/$defs/ReportWarning'
    """
    schemas = Schemas(strict=False)
    named = _any_of([schemas.reference(kind) for kind in kinds])
    return _as_json({"$schema": DRAFT, "title": title, **named}, schemas)


class Schemas:
    """Makes schemas, and keeps the definitions that they refer to.

    Args:
        strict: whether keys that are not described are refused.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.definitions: dict[str, Any] = {NUMBER: NUMBERS}

    def reference(self, kind: DocumentKind) -> dict[str, Any]:
        """Return a reference to the definition of a document, which is made if there is none yet."""
        origin: Any = get_origin(kind)
        own, format = get_args(kind) if origin is Annotated else (kind, None)
        name = own.__name__ if format is None else f"{own.__name__}Document"
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self._object(own) if format is None else self.document(own, format)
        return {"$ref": f"#/$defs/{name}"}

    def document(self, kind: type, format: FileFormat) -> dict[str, Any]:
        """Return the schema of a document with its format and its version."""
        body = self._object(kind)
        header = {
            "format": {"description": "Says what the file is.", "const": format.name},
            "format_version": {"description": "Version of this format.", "const": format.version},
        }
        body["required"] = [*header, *body["required"]]
        body["properties"] = {**header, **body["properties"]}
        return body

    def _object(self, kind: Any) -> dict[str, Any]:
        hints, texts = get_type_hints(kind, include_extras=True), attribute_texts(kind)
        names = [item.name for item in fields(kind)] if is_dataclass(kind) else list(hints)
        numbers = {"type": "number"} if is_typeddict(kind) else {"$ref": f"#/$defs/{NUMBER}"}
        properties = {name: _said(texts[name], self._of(hints[name], numbers)) for name in names}
        for name in getattr(kind, "DERIVED", ()):
            getter = getattr(kind, name).fget
            hint = get_type_hints(getter, include_extras=True)["return"]
            text = docstring(getter).split("\n\n")[0].replace("\n", " ").replace("``", "`")
            properties[name] = _said(text, self._of(hint, numbers))
        return {
            "description": docstring(kind).split("\n\n")[0].replace("\n", " ").replace("``", "`"),
            "type": "object",
            **({"additionalProperties": False} if self._strict else {}),
            "required": list(properties),
            "properties": properties,
        }

    def _of(self, kind: Any, numbers: dict[str, Any]) -> dict[str, Any]:
        origin, arguments = get_origin(kind), get_args(kind)
        if is_dataclass(kind) or is_typeddict(kind):
            schema = self.reference(kind)
        elif origin in (tuple, list):
            schema = {"type": "array", "items": self._of(arguments[0], numbers)}
        elif origin is dict:
            values = self._of(arguments[1], numbers)
            schema = {"type": "object", **({"additionalProperties": values} if values else {})}
        elif origin in (UnionType, Union):
            members = [self._of(member, numbers) for member in arguments if member is not NoneType]
            schema = {"anyOf": [*members, *([{"type": "null"}] if NoneType in arguments else [])]}
        elif origin is Literal:
            schema = {"enum": list(arguments)}
        elif origin is Annotated and isinstance(arguments[1], FileFormat):
            schema = self.reference(kind)
        elif origin is Annotated:
            schema = {**self._of(arguments[0], numbers), **_rule(arguments[1])}
        elif kind is Any:
            schema = {}
        else:
            schema = numbers if kind is float else {"type": SCALARS[kind]}
        return schema


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _said(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": sentence(text.replace("`", "")), **schema}


def _rule(rule: Any) -> dict[str, Any]:
    return {"minimum": rule.low} if isinstance(rule, AtLeast) else {"pattern": f"^{rule.pattern}$"}


def _as_json(body: dict[str, Any], schemas: Schemas) -> str:
    definitions = {**body.get("$defs", {}), **schemas.definitions}
    used = json.dumps([body, definitions])
    own = body.get("$defs", {})
    kept = {name: item for name, item in definitions.items() if name in own or f'"#/$defs/{name}"' in used}
    return json.dumps({**body, "$defs": kept}, indent=2, ensure_ascii=False) + "\n"
