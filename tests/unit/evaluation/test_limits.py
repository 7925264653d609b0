"""Limits are read strictly, from flags and from recipes."""

import math
import shlex

import pytest

from ptq_cli.core.errors import GateError
from ptq_cli.evaluation.document.measurement import GENERATED
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
from tests.each_case import each_case, table


@each_case(
    "texts, limits",
    [
        ([], {}),
        (["top1=0.01", "top5=1e-3"], {"top1": 0.01, "top5": 0.001}),
        ([" top1 = 0 "], {"top1": 0.0}),
        (["sqnr_db[a=b]=25"], {"sqnr_db[a=b]": 25.0}),
        (["top1=1%", "top5= 0.5 % "], {"top1": "1%", "top5": "0.5 %"}),
    ],
)
def test_limits_are_read(texts: list[str], limits: dict[str, float | str]) -> None:
    assert parse_limits(texts, "--max-drop") == limits


REFUSED = table("""
  --max-drop | top1 | --max-drop 'top1' is not of the form METRIC=NUMBER
  --max-drop | =0.1 | --max-drop '=0.1' is not of the form METRIC=NUMBER
  --max-drop | ~ | --max-drop '' is not of the form METRIC=NUMBER
  --max-drop | top1= | --max-drop 'top1=': '' is not a number
  --max-drop | top1=abc | --max-drop 'top1=abc': 'abc' is not a number
  --max-drop | top1=nan | --max-drop top1=nan is not finite
  --max-drop | top1=1e999 | --max-drop top1=inf is not finite
  --max-drop | top1=0.1 top1=0.2 | --max-drop names 'top1' twice
  --max-drop | top1=% | --max-drop top1=%: '' is not a number
  --max-drop | top1=x% | --max-drop top1=x%: 'x' is not a number
  --max-drop | top1=inf% | --max-drop top1=inf% is not finite
  --max-drop | top1=-0.01 | --max-drop top1=-0.01 is negative: only a model that got better would pass
  --max-regression | top1=-1% | --max-regression top1=-1% is negative: only a model that got better would pass
""")


@each_case("flag, texts, message", REFUSED)
def test_what_is_not_a_limit_is_refused(flag: str, texts: str, message: str) -> None:
    with pytest.raises(GateError) as caught:
        parse_limits(texts.split(" ") if texts else [""], flag)
    assert (caught.value.message, caught.value.exit_status) == (message, 2)
    assert caught.value.hint


def test_a_negative_drop_is_refused_with_what_to_write_and_a_negative_minimum_is_a_limit() -> None:
    with pytest.raises(GateError) as caught:
        parse_limits(["top1=-0.01"], "--max-drop")
    assert caught.value.hint == "write the limit without a sign: --max-drop top1=0.01"
    assert parse_limits(["sqnr_db=-3"], "--min") == {"sqnr_db": -3.0}


def test_a_percentage_is_of_the_value_before() -> None:
    assert [percentage(limit) for limit in ("1%", "0.5 %", 0.1)] == [1.0, 0.5, None]
    assert absolute_limit("1%", 0.83) == pytest.approx(0.0083)
    assert absolute_limit("10%", -2.0) == pytest.approx(0.2)


UNDECISIVE = table("""
  max_drop | top1=1 | a drop of 100 points can never fail, because top1 lies between 0 and 1 | top1=0.01
  max_drop | f1[a]=5 | a drop of 500 points can never fail, because f1[a] lies between 0 and 1 | f1[a]=0.05
  max_drop | f1=100% | a drop of 100% can never fail, because f1 lies between 0 and 1 | f1=1%
  max_regression | cosine=2 | a drop of 2 can never fail, because cosine lies between -1 and 1 | cosine=0.02
  min | top1=95 | can never pass: top1 lies between 0 and 1 | top1=0.95
""")


@each_case("kind, limit, says, meant", UNDECISIVE)
def test_a_limit_that_decides_nothing_is_refused(kind: str, limit: str, says: str, meant: str) -> None:
    name, _, value = limit.partition("=")
    flag = f"--{kind.replace('_', '-')}"
    baseline = "old.json" if kind == "max_regression" else None
    limits = {kind: {name: value if "%" in value else float(value)}}
    with pytest.raises(GateError) as caught:
        check_limits(GateSettings(**limits, baseline=baseline))
    colon = " " if says.startswith("can") else ": "
    assert caught.value.message == f"{flag} {shlex.quote(limit)}{colon}{says}"
    assert caught.value.hint == f"did you mean {flag} {shlex.quote(meant)}?"


@each_case(
    "gate, message",
    [
        (GateSettings(max_drop={"top1": "much"}), "--max-drop top1=much is a string, expected a number or"),
        (GateSettings(max_drop={"top1": math.nan}), "--max-drop top1=nan is not finite"),
        (GateSettings(max_drop={"top1": -1.0}), "--max-drop top1=-1.0 is negative"),
        (GateSettings(min={"top1": math.inf}), "--min top1=inf is not finite"),
        (GateSettings(min={"top1": 0.0}), "--min top1=0 can never fail: top1 lies between 0 and 1"),
        (GateSettings(max_size="big"), "--max-size 'big' is not a valid size"),
        (GateSettings(max_regression={"top1": 0.1}), "--max-regression needs an earlier report"),
        (GateSettings(baseline="old.json"), "a baseline has no effect without a limit"),
        (GateSettings(baseline="a", max_regression={"top1": -1.0}), "--max-regression top1=-1.0 is negative"),
    ],
)
def test_settings_that_decide_nothing_are_refused(gate: GateSettings, message: str) -> None:
    with pytest.raises(GateError) as caught:
        check_limits(gate)
    assert caught.value.message.startswith(message)
    assert caught.value.hint


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


def test_sizes() -> None:
    assert [size_limit(text) for text in ("1MB", "900KiB", "12")] == [1_000_000, 921_600, 12]


@each_case("text", ["", "0", "much", "-1MB", "1 XB", "9" * 400 + "MB", "nan"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(GateError, match=r"--max-size '.*' is not a valid size"):
        size_limit(text)
