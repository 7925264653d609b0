"""Limits are read strictly."""

import math

import pytest

from ptq_cli.core.errors import GateError
from ptq_cli.recipe.sections.evaluation_sections import GateSettings
from ptq_cli.report.gate.limits import absolute_limit, check_limits, parse_limits, percentage, size_limit


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
        (["top1="], "--max-drop 'top1=': '' is not a number"),
        (["top1=abc"], "--max-drop 'top1=abc': 'abc' is not a number"),
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


def test_a_percentage_is_of_the_value_before() -> None:
    limits = parse_limits(["top1=1%", "top5= 0.5 % "], "--max-drop")
    assert limits == {"top1": "1%", "top5": "0.5 %"}
    assert [percentage(limit) for limit in limits.values()] == [1.0, 0.5]
    assert absolute_limit(limits["top1"], 0.83) == pytest.approx(0.0083)
    assert absolute_limit("10%", -2.0) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("text", "flag", "message"),
    [
        ("top1=80%", "--min", "--min top1=80% is not a plain number"),
        ("top1=%", "--max-drop", "--max-drop 'top1=%': '' is not a number"),
        ("top1=x%", "--max-drop", "--max-drop 'top1=x%': 'x' is not a number"),
        ("top1=inf%", "--max-drop", "--max-drop top1=inf% is not finite"),
        (
            "top1=-1%",
            "--max-regression",
            "--max-regression top1=-1% is negative: only a model that got better",
        ),
    ],
)
def test_a_percentage_that_is_none_is_refused(text: str, flag: str, message: str) -> None:
    with pytest.raises(GateError) as caught:
        parse_limits([text], flag)
    assert caught.value.message.startswith(message)
    assert caught.value.hint


@pytest.mark.parametrize(("text", "size"), [("1MB", 1_000_000), ("900KiB", 921_600), ("12", 12)])
def test_sizes(text: str, size: int) -> None:
    assert size_limit(text) == size


@pytest.mark.parametrize("text", ["", "0", "much", "-1MB", "1 XB", "9" * 400 + "MB", "nan"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(GateError, match=r"--max-size '.*' is not a valid size"):
        size_limit(text)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (
            GateSettings(max_drop={"top1": "much"}),
            "--max-drop top1='much' is a string, expected a number or a percent",
        ),
        (GateSettings(max_size="big"), "--max-size 'big' is not a valid size"),
        (GateSettings(max_regression={"top1": 0.1}), "--max-regression needs an earlier report"),
        (GateSettings(baseline="old.json"), "a baseline has no effect without a limit"),
        (GateSettings(baseline="a", max_regression={"top1": -1.0}), "--max-regression top1=-1.0 is negative"),
    ],
    ids=["text", "size", "no-baseline", "no-regression", "negative"],
)
def test_settings_that_decide_nothing_are_refused(gate: GateSettings, message: str) -> None:
    with pytest.raises(GateError) as caught:
        check_limits(gate)
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_a_negative_drop_is_refused_with_what_to_write() -> None:
    with pytest.raises(GateError, match=r"--max-drop top1=-0.01 is negative") as caught:
        parse_limits(["top1=-0.01"], "--max-drop")
    assert caught.value.hint == "write the limit without a sign: --max-drop top1=0.01"


def test_a_negative_minimum_is_a_limit() -> None:
    assert parse_limits(["sqnr_db=-3"], "--min") == {"sqnr_db": -3.0}


@pytest.mark.parametrize(
    "gate",
    [
        GateSettings(max_drop={"top1": math.nan}),
        GateSettings(min={"top1": math.inf}),
        GateSettings(max_drop={"top1": -1.0}),
    ],
    ids=["nan-drop", "inf-min", "negative-drop"],
)
def test_limits_from_a_recipe_are_checked_too(gate: GateSettings) -> None:
    with pytest.raises(GateError, match=r"is not finite|is negative"):
        check_limits(gate)
