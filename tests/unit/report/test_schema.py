"""The published JSON Schema: it accepts what ptq writes and follows the dataclasses."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ptq_cli.core.documents import to_json
from ptq_cli.evaluation.document.report_document import Report
from tests.measured import measurement

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)  # raises if it is not one
    with pytest.raises(jsonschema.SchemaError):
        jsonschema.Draft202012Validator.check_schema({**SCHEMA, "required": "verdict"})


def test_what_ptq_writes_is_valid(report: Report) -> None:
    written = json.loads(to_json(report))
    assert [error.message for error in VALIDATOR.iter_errors(written)] == []
    assert list(VALIDATOR.iter_errors({**written, "written_by": "hand"}))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
def test_non_finite_values_are_valid(report: Report, value: float) -> None:
    odd = replace(report, metrics=(measurement("sqnr_db", value, value),), gates=(), layers=())
    assert list(VALIDATOR.iter_errors(json.loads(to_json(odd)))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("times/created", "yesterday"),
        ("float_layers", -1),
        ("metrics/0/unit", "apples"),
        ("metrics/0/quantized_hits", "xyz"),
        ("metrics/0/by_class", [{}]),
        ("gates/0/strict", 1),
        ("surprise", 1),
    ],
)
def test_what_is_broken_is_invalid(report: Report, path: str, value: Any) -> None:
    content = json.loads(to_json(report))
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    entry = content
    for key in parents:
        entry = entry[key]
    entry[last] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(content)


def test_every_key_is_required(report: Report) -> None:
    assert set(json.loads(to_json(report))) == set(SCHEMA["required"])


def test_every_key_is_described() -> None:
    for name, described in {"": SCHEMA, **SCHEMA["$defs"]}.items():
        for key, entry in described.get("properties", {}).items():
            assert entry.get("description") or "$ref" in entry, f"{name}.{key}"
