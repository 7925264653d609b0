"""The JSON Schema of a recipe, by which editors complete its keys and mark what is wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ptq_cli.amax.method_registry import AUTO as AUTO_METHOD
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.calibdata.images.checked_settings import CHANNELS, LAYOUTS
from ptq_cli.collectors.collector_registry import COLLECTORS
from ptq_cli.core.documents.attribute_texts import attribute_texts, docstring, sentence
from ptq_cli.plan.target.target_file import target_names
from ptq_cli.recipe.activation_modes import MODES
from ptq_cli.recipe.quantizer_settings import DTYPES, FAMILY_SETTINGS
from ptq_cli.recipe.recovery_rungs import ALL, AUTO, NONE, RUNGS
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import PREFERENCES

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The newest that editors of TOML read."""
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}

ONLY: Mapping[str, Sequence[str]] = {
    "image.mode": tuple(CHANNELS),
    "image.layout": LAYOUTS,
    "calibration.method": tuple(COLLECTORS),
    "amax.method": (AUTO_METHOD, *METHODS),
    "amax.weight_method": tuple(METHODS),
    "override.amax": (AUTO_METHOD, *METHODS),
    "override.weight_amax": tuple(METHODS),
    "weights.quantizer": tuple(FAMILY_SETTINGS),
    "activations.mode": tuple(MODES),
    "activations.quantizer": tuple(
        name for name, item in FAMILY_SETTINGS.items() if item.activations is not None
    ),
    "activations.dtype": DTYPES,
    "recovery.rungs": (*RUNGS, ALL, AUTO, NONE),
    "export.prefer": PREFERENCES,
}
"""The names that a setting, or an entry of its list, may have."""


def recipe_schema() -> str:
    """Return the schema as JSON, with a newline at the end.

    Example:
        >>> schema = json.loads(recipe_schema())
        >>> schema["properties"]["export"]["properties"]["prefer"]["enum"]
        ['accuracy', 'latency', 'size']
    """
    hints = get_type_hints(Recipe)
    sections = {item.name: _schema(hints[item.name], item.name) for item in fields(Recipe)}
    schema = {
        "$schema": DRAFT,
        "title": "A recipe of ptq",
        "type": "object",
        "additionalProperties": False,
        "properties": sections,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _schema(hint: Any, key: str) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _table(hint, key)
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], key)}
    if origin is dict:
        values = _schema(arguments[1], "")
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if origin in (Union, UnionType):
        members = [member for member in arguments if member is not NoneType]
        found = [_schema(member, key) for member in members]
        return found[0] if len(found) == 1 else {"anyOf": found}
    return _value(hint, key)


def _value(hint: Any, key: str) -> dict[str, Any]:
    if hint is Any:
        return {}
    if key == "quantization.target":  # It may be a file, too.
        return {"anyOf": [{"enum": list(target_names())}, {"type": "string"}]}
    return {"enum": list(ONLY[key])} if key in ONLY else {"type": SCALARS[hint]}


def _table(kind: Any, section: str) -> dict[str, Any]:
    hints, texts = get_type_hints(kind), attribute_texts(kind)
    summary = docstring(kind).splitlines()[0].partition(": ")[2]
    required = [
        item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING
    ]
    # The settings of a layer have the keys of the section for all layers.
    keys = {
        item.name: item.name if is_dataclass(_plain(hints[item.name])) else f"{section}.{item.name}"
        for item in fields(kind)
    }
    return {
        "type": "object",
        **({"description": sentence(summary)} if summary else {}),
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {
            item.name: {
                "description": sentence(texts[item.name]),
                **_schema(hints[item.name], keys[item.name]),
                **_default(item),
            }
            for item in fields(kind)
        },
    }


def _plain(hint: Any) -> Any:
    """Return a type without its None."""
    members = [member for member in get_args(hint) if member is not NoneType]
    return members[0] if get_origin(hint) in (Union, UnionType) and len(members) == 1 else hint


def _default(item: "Field[Any]") -> dict[str, Any]:
    value = item.default_factory() if item.default_factory is not MISSING else item.default
    return {} if value is MISSING or value is None else {"default": value}
