"""Limits are read strictly and decided at the limit itself."""

import math

import pytest

from ptq_cli.core.errors import GateError
from ptq_cli.recipe.schema import GateSettings
from ptq_cli.report import gate as gates
from ptq_cli.report.gate import GateResult, check_limits, parse_limits, verdict
from ptq_cli.report.measurement import Measurement


def decide(measurements: list[Measurement], gate: GateSettings) -> list[GateResult]:
    return gates.decide(measurements, gate, samples=1000)


def top1(of_float: float, of_quantized: float) -> Measurement:
    return Measurement("top1", "share", True, True, of_quantized, of_float)


def sqnr(value: float) -> Measurement:
    return Measurement("sqnr_db", "decibel", False, True, value)


ERROR = Measurement("max_abs_error", "number", False, False, 0.1)


@pytest.mark.parametrize(
    ("texts", "limits"),
    [
        ([], {}),
        (["top1=0.01"], {"top1": 0.01}),
        (["top1=0.01", "top5=1e-3"], {"top1": 0.01, "top5": 0.001}),
        ([" top1 = 0 "], {"top1": 0.0}),
        (["sqnr_db[a=b]=25"], {"sqnr_db[a=b]": 25.0}),
    ],
    ids=["none", "one", "two", "spaces", "equals-in-output-name"],
)
def test_limits_are_read(texts: list[str], limits: dict[str, float]) -> None:
    assert parse_limits(texts, "--max-drop") == limits


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["top1"], "--max-drop 'top1' is not of the form METRIC=NUMBER"),
        (["=0.1"], "--max-drop '=0.1' is not of the form METRIC=NUMBER"),
        ([""], "--max-drop '' is not of the form METRIC=NUMBER"),
        (["top1="], "--max-drop 'top1=': '' is no number"),
        (["top1=abc"], "--max-drop 'top1=abc': 'abc' is no number"),
        (["top1=nan"], "--max-drop top1=nan is not finite"),
        (["top1=inf"], "--max-drop top1=inf is not finite"),
        (["top1=1e999"], "--max-drop top1=inf is not finite"),
        (["top1=0.1", "top1=0.2"], "--max-drop names 'top1' twice"),
    ],
    ids=["no-equals", "no-metric", "empty", "no-number", "text", "nan", "inf", "overflow", "twice"],
)
def test_a_limit_that_is_none_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(GateError) as caught:
        parse_limits(texts, "--max-drop")
    assert caught.value.message == message
    assert caught.value.hint
    assert caught.value.exit_status == 2


def test_a_percentage_is_refused_with_what_to_write() -> None:
    with pytest.raises(GateError) as caught:
        parse_limits(["top1=1%"], "--max-drop")
    assert str(caught.value) == (
        "PTQ-GATE-001: --max-drop 'top1=1%' is a percentage, a plain number is wanted\n"
        "hint: a limit is in the metric's own unit: top1=0.01 is one percentage point"
    )


def test_a_negative_drop_is_refused_with_what_to_write() -> None:
    with pytest.raises(GateError, match=r"--max-drop top1=-0.01 is negative") as caught:
        parse_limits(["top1=-0.01"], "--max-drop")
    assert caught.value.hint == "write the largest drop without a sign: --max-drop top1=0.01"


def test_a_negative_minimum_is_a_limit() -> None:
    assert parse_limits(["sqnr_db=-3"], "--min") == {"sqnr_db": -3.0}


@pytest.mark.parametrize(
    "gate",
    [
        GateSettings(max_drop={"top1": math.nan}),
        GateSettings(min={"top1": math.inf}),
        GateSettings({"top1": -1.0}),
    ],
    ids=["nan-drop", "inf-min", "negative-drop"],
)
def test_limits_from_a_recipe_are_checked_too(gate: GateSettings) -> None:
    with pytest.raises(GateError, match=r"is not finite|is negative"):
        check_limits(gate)
    with pytest.raises(GateError, match=r"is not finite|is negative"):
        decide([top1(0.8, 0.8)], gate)


@pytest.mark.parametrize(
    ("of_float", "of_quantized", "limit", "passed"),
    [
        (0.83, 0.82, 0.01, True),
        (0.83, 0.8199, 0.01, False),
        (0.9, 0.9, 0.0, True),
        (0.9, 0.899999, 0.0, False),
        (0.8, 0.9, 0.0, True),
    ],
    ids=["exactly-at-the-limit", "above", "equal-at-zero", "one-in-a-million", "gain"],
)
def test_max_drop(of_float: float, of_quantized: float, limit: float, passed: bool) -> None:
    (result,) = decide([top1(of_float, of_quantized)], GateSettings(max_drop={"top1": limit}))
    assert result == GateResult("top1", "max_drop", limit, of_float - of_quantized)
    assert result.passed is passed


def test_every_hundredth_is_exact_at_its_limit() -> None:
    for percent in range(100):
        for drop in (1, 2, 3, 5, 7):
            measurement = top1((percent + drop) / 100, percent / 100)
            assert decide([measurement], GateSettings(max_drop={"top1": drop / 100}))[0].passed
            assert not decide([measurement], GateSettings(max_drop={"top1": drop / 100 - 1e-6}))[0].passed


@pytest.mark.parametrize(
    ("value", "passed"),
    [(25.0, True), (24.9999, False), (math.inf, True), (-math.inf, False), (math.nan, False)],
    ids=["at-the-limit", "below", "inf", "minus-inf", "nan"],
)
def test_min(value: float, passed: bool) -> None:
    (result,) = decide([sqnr(value)], GateSettings(min={"sqnr_db": 25.0}))
    assert result.passed is passed


def test_min_of_a_label_metric_is_of_the_quantized_model() -> None:
    (result,) = decide([top1(0.9, 0.7)], GateSettings(min={"top1": 0.8}))
    assert (result.value, result.passed) == (0.7, False)


def test_a_drop_of_nan_does_not_pass() -> None:
    assert not decide([top1(math.nan, 0.9)], GateSettings(max_drop={"top1": 1.0}))[0].passed


def test_results_come_drops_first_in_the_order_given() -> None:
    gate = GateSettings(max_drop={"top1": 0.1}, min={"sqnr_db": 1.0, "top1": 0.1})
    results = decide([sqnr(30.0), top1(0.9, 0.9)], gate)
    assert [(r.metric, r.kind) for r in results] == [
        ("top1", "max_drop"),
        ("sqnr_db", "min"),
        ("top1", "min"),
    ]


def test_a_metric_that_the_report_lacks_lists_those_it_has() -> None:
    with pytest.raises(GateError) as caught:
        decide([top1(0.9, 0.9), sqnr(30.0)], GateSettings(max_drop={"top5": 0.1}))
    assert str(caught.value) == (
        "PTQ-GATE-001: the report has no metric 'top5' (did you mean 'top1'?)\n"
        "hint: it has: top1, sqnr_db; evaluate with the metric, or gate one of these"
    )


def test_a_report_without_metrics_says_so() -> None:
    with pytest.raises(GateError) as caught:
        decide([], GateSettings(min={"top1": 0.1}))
    assert caught.value.hint.startswith("it has: none;")


def test_a_comparison_has_no_drop_to_limit() -> None:
    with pytest.raises(GateError) as caught:
        decide([sqnr(30.0)], GateSettings(max_drop={"sqnr_db": 1.0}))
    assert caught.value.message == "sqnr_db has no drop: it compares the models and has one value, 30"
    assert caught.value.hint == "use --min sqnr_db=…"


def test_no_hint_leads_to_a_minimum_of_an_error() -> None:
    with pytest.raises(GateError) as caught:
        decide([ERROR], GateSettings(max_drop={"max_abs_error": 1.0}))
    assert caught.value.hint == "gate sqnr_db or cosine instead"


def test_a_minimum_of_an_error_is_refused() -> None:
    with pytest.raises(GateError, match=r"--min max_abs_error=0.1 would pass the worse model"):
        decide([ERROR], GateSettings(min={"max_abs_error": 0.1}))


HELD = GateResult("top1", "max_drop", 0.1, 0.0)
MISSED = GateResult("sqnr_db", "min", 25.0, 20.0)


@pytest.mark.parametrize(
    ("results", "expected"),
    [([], "no gate"), ([HELD], "pass"), ([HELD, MISSED], "fail")],
    ids=["none", "all-held", "one-missed"],
)
def test_verdict(results: list[GateResult], expected: str) -> None:
    assert verdict(results) == expected
