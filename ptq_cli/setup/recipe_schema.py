"""The JSON Schema of a recipe, by which editors complete its keys and mark what is wrong."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin

from ptq_cli.amax.method_registry import AUTO_METHOD, METHODS
from ptq_cli.calibdata.image_decoding import CHANNELS as IMAGE_CHANNELS
from ptq_cli.calibdata.image_decoding import LAYOUTS
from ptq_cli.collectors.collector_registry import COLLECTORS
from ptq_cli.core.json_schema import docstring
from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS, REQUESTED_COMPARISONS
from ptq_cli.plan.target.target_file import target_names
from ptq_cli.recipe.declaration import REQUIRED, Setting
from ptq_cli.recipe.schema import SETTINGS, sections

# The newest that editors of TOML read.
_DRAFT = "http://json-schema.org/draft-07/schema#"
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}

LINK = r"\[([\w.]+)\]\([\w.]+\)"

# What a setting may be the name of, and the rooms that know those names.
_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "amax method": lambda: (AUTO_METHOD, *METHODS),
    "amax method of weights": lambda: METHODS,
    "collector": lambda: COLLECTORS,
    "image mode": lambda: IMAGE_CHANNELS,
    "layout": lambda: LAYOUTS,
    "metric": lambda: (*LABEL_METRICS, *REQUESTED_COMPARISONS),
    "target": target_names,
}


def names_of(key: str) -> tuple[str, ...]:
    """The texts that a setting, or an entry of its list, may be; none if it may be any.

    Example:
        >>> names_of("export.prefer"), names_of("amax.weight_method"), names_of("text.label_column")
        (('accuracy', 'latency', 'size'), ('max', 'percentile', 'entropy', 'mse'), ())
    """
    declared = SETTINGS[key]
    return tuple(_NAMES[declared.names]()) if declared.names else tuple(declared.choices)


def recipe_schema() -> str:
    """The schema as JSON, with a newline at the end."""
    schema = {
        "$schema": _DRAFT,
        "title": "A recipe of ptq",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"type": "array", "items": _section(name, kind)} if several else _section(name, kind)
            for name, kind, several in sections()
        },
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _section(name: str, kind: Any) -> dict[str, Any]:
    found = [item for key, item in SETTINGS.items() if key.partition(".")[0] == name]
    required = [item.key.partition(".")[2] for item in found if item.default is REQUIRED]
    return {
        "type": "object",
        "description": re.sub(LINK, r"\1", docstring(kind).splitlines()[0]),
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {item.key.partition(".")[2]: _schema(item) for item in found},
    }


def _schema(declared: Setting) -> dict[str, Any]:
    return {
        "description": declared.sentence(),
        **_values(declared.type, declared),
        **({} if declared.default in (None, REQUIRED) else {"default": declared.default}),
    }


def _values(kind: Any, declared: Setting) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):  # The settings of a layer have the keys of the section for all layers.
        return {**_section(declared.key.partition(".")[2], kind), "description": declared.help}
    if origin is list:
        return {"type": "array", "items": _values(arguments[0], declared)}
    if origin is dict:
        values = {} if arguments[1] is Any else _values(arguments[1], declared)
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if origin is UnionType:
        return {"anyOf": [_values(member, declared) for member in arguments]}
    if names := names_of(declared.key):
        known = {"enum": list(names)}
        return {"anyOf": [known, {"type": "string"}]} if declared.is_open else known
    return {"type": _SCALARS[kind], **_limits(kind, declared)}


def _limits(kind: Any, declared: Setting) -> dict[str, Any]:
    if kind not in (int, float):
        return {}
    limits = {"minimum": declared.low, "maximum": declared.high, "exclusiveMinimum": declared.above}
    return {
        name: limit for name, limit in limits.items() if limit is not None and limit != sys.float_info.max
    }
