"""An analysis survives its file, its schema says what its dataclasses say, nothing else passes for one."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptq_cli.core.documents import parse_document, read_document, to_json
from ptq_cli.core.errors import AnalysisError
from ptq_cli.evaluation.document.analysis_document import Analysis
from tests.each_case import each_case
from tests.measured import changed_json, validator

SCHEMA = validator("analysis")


def test_an_analysis_survives_its_file(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "analysis.json"
    path.write_text(to_json(analysis), encoding="utf-8")
    assert read_document(Analysis, path) == analysis


def test_what_ptq_writes_fits_the_schema(analysis: Analysis) -> None:
    SCHEMA.validate(json.loads(to_json(analysis)))
    plain = tuple(replace(layer, sensitivity=None) for layer in analysis.layers)
    SCHEMA.validate(json.loads(to_json(replace(analysis, metric=None, layers=plain))))


@each_case(
    "path, value",
    [
        ("samples/count", 0),
        ("tensors/0/kind", "tensor"),
        ("tensors/1/surprise", 1),
        ("layers/0/sensitivity/rank", 0),
    ],
)
def test_what_does_not_fit_is_refused_by_schema_and_reader(analysis: Analysis, path: str, value: Any) -> None:
    content = changed_json(analysis, path, value)
    assert not SCHEMA.is_valid(content)
    with pytest.raises(AnalysisError):
        parse_document(Analysis, json.dumps(content).encode())


def test_infinite_ratios_and_hostile_names_survive(analysis: Analysis) -> None:
    tensor = replace(analysis.tensors[0], name="\x1b[2J\u202eevil", sqnr_isolated_db=-math.inf)
    text = to_json(replace(analysis, tensors=(tensor,)))
    assert text.isascii() and "\x1b" not in text
    assert parse_document(Analysis, text.encode()).tensors == (tensor,)


def test_layers_are_ranked_by_their_rank(analysis: Analysis) -> None:
    backwards = replace(analysis, layers=tuple(reversed(analysis.layers)))
    assert [layer.name for layer in backwards.ranked()] == ["/conv1/Conv", "/fc/Gemm"]
