"""Targets are tables, read strictly."""

from dataclasses import replace
from pathlib import Path

import pytest

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError, UnknownNameError
from ptq_cli.plan import target as target_module
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.rules import WeightRule
from ptq_cli.plan.target import load_target, target_names
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build

TABLE = """
name = "own"
description = "for tests"
opset = 13
[activation]
format = "uint8"
[weight]
format = "int8"
[op.Conv]
kind = "compute"
activations = [0]
weight = 1
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a table, and loads it."""
    monkeypatch.setattr(target_module, "TARGETS", tmp_path)

    def load(text: str):
        Path(tmp_path / "own.toml").write_text(text)
        return load_target("own")

    return load


def test_the_targets_that_there_are():
    assert "ort-cpu" in target_names()


def test_an_unknown_target_is_told_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown target 'ort-gpu' \(did you mean 'ort-cpu'\?\)"):
        load_target("ort-gpu")


def test_formats_of_ort_cpu(target):
    assert target.activation_format.name == "uint8"
    assert (target.weight_format.qmin, target.weight_format.qmax) == (-127, 127)
    assert not target.activation.symmetric


def test_a_table_is_read(own):
    assert own(TABLE).op["Conv"].weight == 1


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (
            "weight = 1",
            "wieght = 1",
            RecipeKeyError,
            r"own\.toml: unknown key 'op\.Conv\.wieght' \(did you mean 'weight'\?\)",
        ),
        (
            'kind = "compute"',
            'kind = "integer"',
            RecipeValueError,
            r"own\.toml: 'op\.Conv\.kind' is 'integer', one of 'compute', 'join', 'same', 'clamp', 'apart'",
        ),
        (
            "weight = 1",
            'output = "never"',
            RecipeValueError,
            r"'op\.Conv\.output' is 'never', one of 'always'",
        ),
        ("weight = 1", 'weight = "1"', RecipeValueError, "weight"),
        ("uint8", "uint9", RecipeValueError, r"'activation\.format' is 'uint9' \(did you mean 'uint8'\?\)"),
        ("opset = 13\n", "", RecipeValueError, "'opset' is missing"),
    ],
    ids=["key", "kind", "output", "type", "format", "missing"],
)
def test_a_faulty_table_is_refused(own, old, new, error, message):
    with pytest.raises(error, match=message):
        own(TABLE.replace(old, new, 1))


def test_a_target_without_scales_per_channel_gets_none(target):
    plan = make_plan(build(CASES["conv"].graph), replace(target, weight=WeightRule(per_axis=False)))
    assert [site.axis for site in plan.weights] == [None]
