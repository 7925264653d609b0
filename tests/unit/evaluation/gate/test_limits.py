"""Limits are read strictly."""

import math

import pytest

from ptq_cli.core.errors import GateError
from ptq_cli.evaluation.decide_gates import samples_for_drop, samples_for_minimum
from ptq_cli.evaluation.document.generation import GENERATED
from ptq_cli.evaluation.interval import Flips, Interval
from ptq_cli.evaluation.limits import (
    BOUNDS,
    absolute_limit,
    bounds_of,
    check_limits,
    parse_limits,
    percentage,
    size_limit,
)
from ptq_cli.evaluation.metrics.metric_registry import (
    LABEL_METRICS,
    PAIR_METRICS,
    REQUESTED_COMPARISONS,
    make_label_metric,
)
from ptq_cli.recipe.sections import GateSettings
from tests.each_case import each_case
from tests.measured import measurement


@each_case(
    "texts, limits",
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


@each_case(
    "texts, message",
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


@each_case(
    "text, flag, message",
    [
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


@each_case(
    "gate, message, hint",
    [
        (
            GateSettings(max_drop={"top1": 1.0}),
            "--max-drop top1=1: a drop of 100 points can never fail, because top1 lies between 0 and 1",
            "did you mean --max-drop top1=0.01?",
        ),
        (
            GateSettings(max_drop={"top5[a]": 5.0}),
            "--max-drop top5[a]=5: a drop of 500 points can never fail, because top5[a] lies between 0 and 1",
            "did you mean --max-drop top5[a]=0.05?",
        ),
        (
            GateSettings(max_drop={"f1": "100%"}),
            "--max-drop f1=100%: a drop of 100% can never fail, because f1 lies between 0 and 1",
            "did you mean --max-drop f1=1%?",
        ),
        (
            GateSettings(max_regression={"cosine": 2.0}, baseline="old.json"),
            "--max-regression cosine=2: a drop of 2 can never fail, because cosine lies between -1 and 1",
            "did you mean --max-regression cosine=0.02?",
        ),
        (
            GateSettings(min={"top1": 0.0}),
            "--min top1=0 can never fail: top1 lies between 0 and 1",
            "for example: --min top1=0.8",
        ),
        (
            GateSettings(min={"top1": 95.0}),
            "--min top1=95 can never pass: top1 lies between 0 and 1",
            "did you mean --min top1=0.95?",
        ),
    ],
    ids=["drop", "output", "percentage", "regression", "minimum", "minimum that none keeps"],
)
def test_a_limit_that_decides_nothing_is_refused(gate: GateSettings, message: str, hint: str) -> None:
    with pytest.raises(GateError) as caught:
        check_limits(gate)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_limits_at_which_a_metric_can_still_fail() -> None:
    check_limits(GateSettings(max_drop={"cosine": 1.0, "mse": 100.0, "r2": 2.0, "top1": 0.99, "mae": "200%"}))
    check_limits(GateSettings(min={"top1": 1.0, "f1": "80%", "cosine": -0.5, "sqnr_db": -3.0}))
    check_limits(GateSettings(max_drop={"top1": 5.0}), {"top1": None})


def test_the_bounds_are_those_of_the_metrics() -> None:
    shares = [name for name in LABEL_METRICS if make_label_metric(name, {}).unit == "share"]
    assert {bounds_of(name) for name in (*shares, "top7", "top1_agreement")} == {(0.0, 1.0)}
    known = {**LABEL_METRICS, **REQUESTED_COMPARISONS, **PAIR_METRICS}
    assert set(BOUNDS) <= {*known, GENERATED}
    open_ended = {name for name in known if bounds_of(name) is None}
    of_value = {"sqnr_db", "worst_channel_sqnr_db", "kl_divergence", "max_abs_error"}
    assert open_ended == {"mse", "mae", "r2", "perplexity", *of_value}


def test_a_limit_on_a_metric_that_was_named_for_another_output_says_what_to_write() -> None:
    with pytest.raises(GateError, match=r"named as top1\[cls\]") as caught:
        check_limits(GateSettings(max_drop={"top1": "2%"}), {"top1[cls]": (0.0, 1.0)})
    assert caught.value.hint == "write --max-drop 'top1[cls]=2%'"
    check_limits(GateSettings(max_drop={"top1": 0.02}), {"top1[cls]": (0.0, 1.0), "top1": (0.0, 1.0)})


@pytest.mark.parametrize(("text", "size"), [("1MB", 1_000_000), ("900KiB", 921_600), ("12", 12)])
def test_sizes(text: str, size: int) -> None:
    assert size_limit(text) == size


@each_case("text", ["", "0", "much", "-1MB", "1 XB", "9" * 400 + "MB", "nan"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(GateError, match=r"--max-size '.*' is not a valid size"):
        size_limit(text)


@each_case(
    "gate, message",
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


TOP1 = measurement("top1", 0.826, 0.83, flips=Flips.counted(1000, lost=12, gained=8))
LOSS = measurement("loss", 1.2, 1.0, higher_is_better=False, drop_interval=Interval(0.1, 0.3, "bootstrap"))
SQNR = measurement("sqnr_db", 30.0, quantized_interval=Interval(28.0, 31.0, "bootstrap"))
LARGEST = measurement("max_abs_error", 0.1)


def test_a_drop_of_hits_counts_flips() -> None:
    # 0.6 points from the limit with a standard error of 0.45 points, at the limit: (1.96 · 0.46 / 0.6)².
    assert samples_for_drop(TOP1, 0.01, samples=1000) == pytest.approx(2250, rel=0.1)


def test_a_drop_of_an_error_is_its_growth() -> None:
    assert LOSS.drop == pytest.approx(0.2)
    assert samples_for_drop(LOSS, 0.4, samples=100) == 25
    assert samples_for_drop(LOSS, 0.15, samples=100) == pytest.approx(400, abs=1)


def test_a_minimum_takes_the_lower_side() -> None:
    assert samples_for_minimum(SQNR, 29.0, samples=100) == 400


def test_what_has_no_interval_names_no_number() -> None:
    assert samples_for_drop(SQNR, 1.0, samples=10) is None
    assert samples_for_minimum(LARGEST, 1.0, samples=10) is None
