"""``details.json`` keeps what it was given, and refuses what it was not."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ptq_cli.core.documents import parse_document, to_json
from ptq_cli.core.errors import ReportError
from ptq_cli.evaluation.document.details import ChangedSample, Changes, Details
from tests.each_case import each_case

SCHEMA = json.loads((Path(__file__).parents[4] / "docs" / "details.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SAMPLES = (
    ChangedSample(index=3, name="<b>/7.png", label=0, float_class=0, quantized_class=2, picture="aGFsbG8="),
    ChangedSample(index=5, name="8.png", label=2, float_class=0, quantized_class=2),
    ChangedSample(index=6, name="9.png", label=1, float_class=0, quantized_class=2),
    ChangedSample(index=8, name="a.png", label=None, float_class=0, quantized_class=2),
)
DETAILS = Details("2026-01-31T12:00:00Z", "b" * 64, ("a note",), Changes(4, ("cat", "dog", "é"), SAMPLES))


@pytest.mark.parametrize("details", [DETAILS, replace(DETAILS, changes=None, notes=())], ids=["all", "none"])
def test_what_was_written_is_read(details: Details) -> None:
    text = to_json(details)
    assert text.isascii()
    assert parse_document(Details, text.encode()) == details
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(json.loads(text))


def test_what_became_of_a_sample() -> None:
    assert [sample.effect for sample in SAMPLES] == ["lost", "gained", "still wrong", "changed"]


@each_case(
    "change, says",
    [
        ({"format": "ptq.report"}, 'its "format" is not "ptq.details"'),
        ({"format_version": 2}, "has format version 2, this ptq reads 1"),
        ({"format_version": True}, "has format version True"),
        ({"quantized_sha256": "abc"}, "'quantized_sha256' is 'abc'"),
        ({"changes": {"total": -1, "class_names": [], "samples": []}}, "'changes.total' is -1"),
        ({"extra": 1}, "'extra' is not a key"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], says: str) -> None:
    value = {**json.loads(to_json(DETAILS)), **change}
    with pytest.raises(ReportError, match=re.escape(says)):
        parse_document(Details, json.dumps(value).encode())
    assert not VALIDATOR.is_valid(value)


def test_a_picture_is_base64_and_nothing_that_could_end_an_attribute() -> None:
    value = json.loads(to_json(DETAILS))
    value["changes"]["samples"][0]["picture"] = '"><script>alert(1)</script>'
    with pytest.raises(ReportError, match=r"'changes.samples\[0\].picture'.*expected a picture in base64"):
        parse_document(Details, json.dumps(value).encode())
