"""An analysis survives its file, its schema says what its dataclasses say, nothing else passes for one."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ptq_cli.core.documents import parse_document, read_document, to_json
from ptq_cli.core.errors import AnalysisError, InputFileError
from ptq_cli.evaluation.analysis.analysis_document import Analysis
from tests.each_case import each_case

SCHEMA = json.loads((Path(__file__).parents[4] / "docs" / "analysis.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def changed(analysis: Analysis, path: str, value: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(to_json(analysis))
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    entry: Any = content
    for key in parents:
        entry = entry[key]
    entry[last] = value
    return content


def test_an_analysis_survives_its_file(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "analysis.json"
    path.write_text(to_json(analysis), encoding="utf-8")
    assert read_document(Analysis, path) == analysis


def test_what_ptq_writes_fits_the_schema(analysis: Analysis) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(json.loads(to_json(analysis)))
    plain = tuple(replace(layer, sensitivity=None) for layer in analysis.layers)
    VALIDATOR.validate(json.loads(to_json(replace(analysis, metric=None, layers=plain))))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("created", "yesterday"),
        ("versions/ptq-cli", 1),
        ("models/float_model/sha256", "A" * 64),
        ("samples/count", 0),
        ("metric/sqnr_db", None),
        ("order", "size"),
        ("cost/variants", -1),
        ("tensors/0/kind", "tensor"),
        ("tensors/0/shape", ["N", 16]),
        ("tensors/0/clipped", None),
        ("tensors/0/cause", "bad luck"),
        ("tensors/1/surprise", 1),
        ("layers/0/sensitivity/rank", 0),
        ("layers/0/integer", 1),
        ("surprise", 1),
    ],
)
def test_what_does_not_fit_is_refused_by_schema_and_reader(analysis: Analysis, path: str, value: Any) -> None:
    content = changed(analysis, path, value)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(content)
    with pytest.raises(AnalysisError):
        parse_document(Analysis, json.dumps(content).encode())


@each_case(
    "content, said",
    [
        (b"{", "not valid JSON"),
        (b"[]", 'is not "ptq.analysis"'),
        (b'{"format": "ptq.report", "format_version": 2}', 'is not "ptq.analysis"'),
        (
            b'{"format": "ptq.analysis", "format_version": 4}',
            "it has format version 4, this ptq reads 1",
        ),
        (b'{"format": "ptq.analysis", "format_version": true}', "format version True"),
        (b'{"format": "ptq.analysis", "format_version": 1, "x": NaN}', "NaN is not JSON"),
        (b'{"format": "ptq.analysis", "format_version": 1}', "'created' is missing"),
    ],
)
def test_no_other_file_is_taken_for_one(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "analysis.json"
    path.write_bytes(content)
    with pytest.raises(AnalysisError, match=said) as caught:
        read_document(Analysis, path)
    assert "analysis.json" in caught.value.message
    assert "ptq analyze" in (caught.value.hint or "") or "analysis.json" in (caught.value.hint or "")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="analysis"):
        read_document(Analysis, tmp_path / "analysis.json")


def test_only_the_time_differs_between_runs(analysis: Analysis) -> None:
    later = to_json(replace(analysis, created="2027-01-01T00:00:00Z")).splitlines()
    differing = [line for line in to_json(analysis).splitlines() if line not in later]
    assert differing == ['  "created": "2026-01-31T12:00:00Z",']


def test_infinite_ratios_and_hostile_names_survive(analysis: Analysis) -> None:
    tensor = replace(analysis.tensors[0], name="\x1b[2J\u202eevil", sqnr_isolated_db=-math.inf)
    text = to_json(replace(analysis, tensors=(tensor,)))
    assert text.isascii() and "\x1b" not in text
    assert parse_document(Analysis, text.encode()).tensors == (tensor,)


def test_layers_are_ranked_by_their_rank(analysis: Analysis) -> None:
    backwards = replace(analysis, layers=tuple(reversed(analysis.layers)))
    assert [layer.name for layer in backwards.ranked()] == ["/conv1/Conv", "/fc/Gemm"]
