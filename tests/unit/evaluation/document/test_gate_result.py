"""A verdict follows from the value, the interval and strictness."""

import math

import pytest

from ptq_cli.evaluation.document.gate_result import GateResult, Kind, verdict
from ptq_cli.evaluation.interval import Interval
from tests.each_case import each_case
from tests.measured import gate_result

HELD = gate_result("top1", "max_drop", 0.1, 0.0)
MISSED = gate_result("sqnr_db", "min", 25.0, 20.0)


@pytest.mark.parametrize(
    ("results", "expected"),
    [([], "no gate"), ([HELD], "pass"), ([HELD, MISSED], "fail")],
    ids=["none", "all-held", "one-missed"],
)
def test_verdict(results: list[GateResult], expected: str) -> None:
    assert verdict(results) == expected


@each_case(
    "kind, value, ends, expected, passed",
    [
        ("max_drop", 0.005, (-0.01, 0.01), "pass", True),
        ("max_drop", 0.005, (-0.01, 0.83 - 0.82), "pass", True),
        ("max_drop", 0.005, (-0.01, 0.0101), "undecided", True),
        ("max_drop", 0.015, (0.009, 0.02), "undecided", False),
        ("max_drop", 0.02, (0.011, 0.03), "fail", False),
        ("max_regression", 0.02, (0.011, 0.03), "fail", False),
        ("min", 0.02, (0.011, 0.03), "pass", True),
        ("min", 0.02, (0.0, 0.03), "undecided", True),
        ("min", 0.005, (0.0, 0.03), "undecided", False),
        ("min", 0.005, (0.0, 0.009), "fail", False),
        ("min", 30.0, (29.0, math.inf), "pass", True),
    ],
)
def test_the_ends_of_the_interval_decide(kind, value, ends, expected, passed):
    result = gate_result("m", kind, 0.01, value, interval=Interval(*ends, "score"))
    assert (result.verdict, result.passed) == (expected, passed)
    strict = gate_result("m", kind, 0.01, value, interval=Interval(*ends, "score"), strict=True)
    assert (strict.verdict, strict.passed) == (expected, expected == "pass")


@pytest.mark.parametrize("kind", ["max_drop", "min", "max_regression"])
def test_nan_never_passes(kind: Kind) -> None:
    assert not gate_result("m", kind, 0.0, math.nan).passed
