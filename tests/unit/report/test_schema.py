"""The published JSON Schema: it accepts what ptq writes and follows the dataclasses."""

import json
import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import jsonschema
import pytest

from ptq_cli.core.decoding import AtLeast
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.document.report_document import FORMAT, FORMAT_VERSION, Report, report_to_json

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SCALARS = {str: "string", int: "integer", bool: "boolean"}


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)  # raises if it is not one
    with pytest.raises(jsonschema.SchemaError):
        jsonschema.Draft202012Validator.check_schema({**SCHEMA, "required": "verdict"})


def test_what_ptq_writes_is_valid(report: Report) -> None:
    written = json.loads(report_to_json(report))
    assert [error.message for error in VALIDATOR.iter_errors(written)] == []
    assert list(VALIDATOR.iter_errors({**written, "written_by": "hand"}))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
def test_non_finite_values_are_valid(report: Report, value: float) -> None:
    odd = replace(
        report,
        metrics=(
            Measurement(
                name="sqnr_db",
                unit="decibel",
                needs_labels=False,
                higher_is_better=True,
                quantized_value=value,
                float_value=value,
            ),
        ),
        gates=(),
        layers=(),
    )
    VALIDATOR.validate(json.loads(report_to_json(odd)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "other"),
        ("format_version", 1),
        ("times/created", "yesterday"),
        ("times/latency", 2.0),
        ("verdict", "maybe"),
        ("float_layers", -1),
        ("versions/ptq", 1),
        ("model/float_model/sha256", "A" * 64),
        ("model/float_model/bytes", 0),
        ("amax/settings/percentile", "high"),
        ("metrics/0/quantized_value", None),
        ("metrics/0/unit", "apples"),
        ("metrics/0/surprise", 1),
        ("metrics/0/drop_interval/method", "guess"),
        ("metrics/0/flips/lost", -1),
        ("metrics/0/quantized_hits", "xyz"),
        ("metrics/0/by_class", [{}]),
        ("metrics/0/arguments", {"average": 1}),
        ("metrics/0/channel", 17),
        ("warnings", [{"code": "odd", "message": "", "hints": []}]),
        ("gates/0/samples_needed", 0),
        ("gates/0/verdict", "maybe"),
        ("gates/0/strict", 1),
        ("baseline", "old.json"),
        ("gates/0/kind", "max"),
        ("layers", {}),
        ("surprise", 1),
    ],
)
def test_what_is_broken_is_invalid(report: Report, path: str, value: Any) -> None:
    content = json.loads(report_to_json(report))
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    entry = content
    for key in parents:
        entry = entry[key]
    entry[last] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(content)


def test_every_key_is_required(report: Report) -> None:
    assert set(json.loads(report_to_json(report))) == set(SCHEMA["required"])


def test_the_schema_has_the_dataclasses_keys_and_types() -> None:
    header = {"format", "format_version"}
    assert SCHEMA["properties"]["format"]["const"] == FORMAT
    assert SCHEMA["properties"]["format_version"]["const"] == FORMAT_VERSION
    assert_object(Report, SCHEMA, extra=header)


def test_every_key_is_described() -> None:
    for name, described in {"": SCHEMA, **SCHEMA["$defs"]}.items():
        for key, entry in described.get("properties", {}).items():
            assert entry.get("description") or "$ref" in entry, f"{name}.{key}"


def assert_object(kind: Any, schema: dict[str, Any], extra: set[str] = frozenset()) -> None:
    derived = list(getattr(kind, "DERIVED", ()))
    hints = get_type_hints(kind, include_extras=True)
    keys = {*derived, *(field.name for field in fields(kind)), *extra}
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(schema["required"]) == keys, kind
    for field in fields(kind):
        assert_type(hints[field.name], schema["properties"][field.name])
    for name in derived:
        hint = get_type_hints(getattr(kind, name).fget, include_extras=True)["return"]
        if get_origin(hint) is Literal:
            assert_type(hint, schema["properties"][name])


def assert_type(kind: Any, schema: dict[str, Any]) -> None:
    if kind is float:
        assert schema.get("$ref") == "#/$defs/number", schema
        return
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    origin = get_origin(kind)
    if is_dataclass(kind):
        assert_object(kind, schema)
    elif origin is tuple:
        assert schema["type"] == "array"
        assert_type(get_args(kind)[0], schema["items"])
    elif origin is dict:
        assert schema["type"] == "object"
        assert_type(get_args(kind)[1], schema["additionalProperties"])
    elif origin in (UnionType, Union):
        (inner,) = (member for member in get_args(kind) if member is not NoneType)
        assert schema["anyOf"][1] == {"type": "null"}
        assert_type(inner, schema["anyOf"][0])
    elif origin is Literal:
        assert tuple(schema["enum"]) == get_args(kind)
    elif origin is Annotated:
        inner, rule = get_args(kind)
        assert_type(inner, schema)
        if isinstance(rule, AtLeast):
            assert schema["minimum"] == rule.low
        else:
            assert schema["pattern"] == f"^{rule.pattern}$"
    else:
        assert schema["type"] == SCALARS[kind]
