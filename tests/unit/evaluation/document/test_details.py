"""``details.json`` keeps what it was given, and refuses what it was not."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from ptq_cli.core.documents import parse_document, to_json
from ptq_cli.core.errors import ReportError
from ptq_cli.evaluation.document.details import ChangedSample, Changes, Details
from tests.each_case import each_case
from tests.measured import changed_json, validator

SCHEMA = validator("details")
SAMPLES = (
    ChangedSample(index=3, name="<b>/7.png", label=0, float_class=0, quantized_class=2, picture="aGFsbG8="),
    ChangedSample(index=5, name="8.png", label=2, float_class=0, quantized_class=2),
    ChangedSample(index=6, name="9.png", label=1, float_class=0, quantized_class=2),
    ChangedSample(index=8, name="a.png", label=None, float_class=0, quantized_class=2),
)
DETAILS = Details("2026-01-31T12:00:00Z", "b" * 64, ("a note",), Changes(4, ("cat", "dog", "é"), SAMPLES))


@each_case("details", [DETAILS, replace(DETAILS, changes=None, notes=())])
def test_what_was_written_is_read(details: Details) -> None:
    text = to_json(details)
    assert text.isascii()
    assert parse_document(Details, text.encode()) == details
    SCHEMA.validate(json.loads(text))


def test_what_became_of_a_sample() -> None:
    assert [sample.effect for sample in SAMPLES] == ["lost", "gained", "still wrong", "changed"]


@each_case(
    "path, value, says",
    [
        ("quantized_sha256", "abc", "'quantized_sha256' is 'abc'"),
        ("changes/total", -1, "'changes.total' is -1"),
        ("changes/samples/0/picture", '"><script>alert(1)</script>', "expected a picture in base64"),
    ],
)
def test_what_does_not_fit_is_refused(path: str, value: Any, says: str) -> None:
    content = changed_json(DETAILS, path, value)
    with pytest.raises(ReportError, match=re.escape(says)):
        parse_document(Details, json.dumps(content).encode())
    assert not SCHEMA.is_valid(content)
