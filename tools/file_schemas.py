"""JSON Schemas of documents, from their dataclasses and docstrings."""

import inspect
import json
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ptq_cli.core.attribute_texts import attribute_texts
from ptq_cli.core.json_values import AtLeast
from ptq_cli.report.analysis import analysis_document as analysis
from ptq_cli.report.document import details
from ptq_cli.report.evaluation import bench_document as bench

SCALARS = {str: "string", int: "integer", bool: "boolean"}
NUMBER = {
    "description": "JSON has no infinity and no NaN, so they are texts.",
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
}


def analysis_schema() -> str:
    """Return ``docs/analysis.schema.json``."""
    return _schema_of(analysis.Analysis, analysis.FORMAT, analysis.FORMAT_VERSION)


def bench_schema() -> str:
    """Return ``docs/bench.schema.json``."""
    return _schema_of(bench.Bench, bench.FORMAT, bench.FORMAT_VERSION)


def details_schema() -> str:
    """Return ``docs/details.schema.json``."""
    return _schema_of(details.Details, details.FORMAT, details.FORMAT_VERSION)


def _schema_of(kind: type, format: str, version: int) -> str:
    """Return the schema as JSON, with a newline at the end."""
    definitions: dict[str, Any] = {"number": NUMBER}
    body = _object(kind, definitions)
    header = {
        "format": {"description": "Says what the file is.", "const": format},
        "format_version": {"description": "Version of this format.", "const": version},
    }
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{format.replace('.', ':')}:{version}",
        "title": f"{format.replace('.', ' ')}, format version {version}",
    }
    body["required"] = [*header, *body["required"]]
    body["properties"] = {**header, **body["properties"]}
    used = json.dumps([body, definitions])
    kept = {name: item for name, item in definitions.items() if f'"#/$defs/{name}"' in used}
    return json.dumps({**head, **body, "$defs": kept}, indent=2, ensure_ascii=False) + "\n"


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, texts = get_type_hints(kind, include_extras=True), attribute_texts(kind)
    names = [field.name for field in fields(kind)]
    return {
        "description": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        "type": "object",
        "additionalProperties": False,
        "required": names,
        "properties": {
            name: {"description": _plain(texts[name]), **_schema(hints[name], definitions)} for name in names
        },
    }


def _plain(text: str) -> str:
    text = text.replace("`", "")
    return text[0].upper() + text[1:]


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = _object(kind, definitions)
        schema: dict[str, Any] = {"$ref": f"#/$defs/{name}"}
    elif origin is tuple:
        schema = {"type": "array", "items": _schema(arguments[0], definitions)}
    elif origin is dict:
        schema = {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    elif origin in (UnionType, Union):
        (inner,) = (member for member in arguments if member is not NoneType)
        schema = {"anyOf": [_schema(inner, definitions), {"type": "null"}]}
    elif origin is Literal:
        schema = {"enum": list(arguments)}
    elif origin is Annotated:
        schema = {**_schema(arguments[0], definitions), **_rule(arguments[1])}
    else:
        schema = {"$ref": "#/$defs/number"} if kind is float else {"type": SCALARS[kind]}
    return schema


def _rule(rule: Any) -> dict[str, Any]:
    return {"minimum": rule.low} if isinstance(rule, AtLeast) else {"pattern": f"^{rule.pattern}$"}
