"""A report is held against limits, and decided at the limit itself."""

import math
from dataclasses import replace

import pytest

from ptq_cli.core.errors import BaselineError, GateError
from ptq_cli.evaluation import decide_gates as deciding
from ptq_cli.evaluation.decide_gates import samples_for_drop, samples_for_minimum
from ptq_cli.evaluation.document.gate_result import GateResult, Times
from ptq_cli.evaluation.document.measurement import Measurement, hits_to_text
from ptq_cli.evaluation.document.report_document import (
    AmaxSummary,
    CalibrationSummary,
    EvaluationSummary,
    ModelEntry,
    ModelSummary,
    Report,
    SaturatingLayer,
    Saturation,
)
from ptq_cli.evaluation.interval import ANYWHERE, Flips, Interval, drop_interval
from ptq_cli.recipe.sections import GateSettings
from tests.each_case import each_case, table
from tests.measured import gate_result, measurement


def report_of(*metrics: Measurement, size: int = 1_000_000, **model: str) -> Report:
    files = (ModelEntry("f.onnx", model.get("sha256", "a" * 64), 4), ModelEntry("q.onnx", "b" * 64, size))
    return Report(
        times=Times("2026-01-31T12:00:00Z"),
        versions={},
        model=ModelSummary(model.get("source", "model.pt"), *files),
        target="ort-cpu",
        amax=AmaxSummary("max", {}),
        calibration=CalibrationSummary("max", 1, "c"),
        evaluation=EvaluationSummary("eval.npz", 1000, model.get("data", "d")),
        metrics=metrics,
        layers=(),
        gates=(),
    )


def decide(measurements: list[Measurement], gate: GateSettings) -> list[GateResult]:
    return list(deciding.decide(report_of(*measurements), gate).gates)


def top1(of_float: float, of_quantized: float) -> Measurement:
    return measurement("top1", of_quantized, of_float)


def sqnr(value: float) -> Measurement:
    return measurement("sqnr_db", value)


ERROR = measurement("max_abs_error", 0.1)


@each_case(
    "of_float, of_quantized, limit, passed",
    [
        (0.83, 0.82, 0.01, True),
        (0.83, 0.8199, 0.01, False),
        (0.9, 0.9, 0.0, True),
        (0.9, 0.899999, 0.0, False),
        (0.8, 0.9, 0.0, True),
    ],
)
def test_max_drop(of_float: float, of_quantized: float, limit: float, passed: bool) -> None:
    (result,) = decide([top1(of_float, of_quantized)], GateSettings(max_drop={"top1": limit}))
    assert result == gate_result("top1", "max_drop", limit, of_float - of_quantized, interval=ANYWHERE)
    assert result.passed is passed


def test_every_hundredth_is_exact_at_its_limit() -> None:
    for percent in range(100):
        for drop in (1, 2, 3, 5, 7):
            measurement = top1((percent + drop) / 100, percent / 100)
            assert decide([measurement], GateSettings(max_drop={"top1": drop / 100}))[0].passed
            assert not decide([measurement], GateSettings(max_drop={"top1": drop / 100 - 1e-6}))[0].passed


@each_case(
    "value, passed", [(25.0, True), (24.9999, False), (math.inf, True), (-math.inf, False), (math.nan, False)]
)
def test_min(value: float, passed: bool) -> None:
    (result,) = decide([sqnr(value)], GateSettings(min={"sqnr_db": 25.0}))
    assert result.passed is passed


def test_a_minimum_is_of_the_quantized_model_and_nan_does_not_pass() -> None:
    (result,) = decide([top1(0.9, 0.7)], GateSettings(min={"top1": 0.8}))
    assert (result.value, result.passed) == (0.7, False)
    assert not decide([top1(math.nan, 0.9)], GateSettings(max_drop={"top1": 0.5}))[0].passed


def test_results_come_drops_first_in_the_order_given() -> None:
    gate = GateSettings(max_drop={"top1": 0.1}, min={"sqnr_db": 1.0, "top1": 0.1})
    results = decide([sqnr(30.0), top1(0.9, 0.9)], gate)
    assert [(r.metric, r.kind) for r in results] == [
        ("top1", "max_drop"),
        ("sqnr_db", "min"),
        ("top1", "min"),
    ]


def test_a_percentage_is_of_the_float_model() -> None:
    (result,) = decide([top1(0.80, 0.79)], GateSettings(max_drop={"top1": "1%"}))
    assert (result.limit, result.percent, result.passed) == (pytest.approx(0.008), 1.0, False)
    assert decide([top1(0.80, 0.792)], GateSettings(max_drop={"top1": "1%"}))[0].passed


@each_case("size, passed", [(999_999, True), (1_000_000, True), (1_000_001, False)])
def test_the_size_is_that_of_the_quantized_file(size: int, passed: bool) -> None:
    decided = deciding.decide(report_of(size=size), GateSettings(max_size="1MB"))
    (result,) = decided.gates
    assert result == gate_result("size", "max_size", 1_000_000.0, size)
    assert result.passed is passed


def test_a_limit_in_the_interval_is_undecided_and_strictness_decides() -> None:
    flips = Flips.counted(1000, lost=12, gained=8)
    measured = measurement("top1", 0.826, 0.83, drop_interval=drop_interval(flips), flips=flips)
    cases = ((0.01, "undecided", True), (0.002, "undecided", False), (0.02, "pass", True))
    for limit, verdict, passed in cases:
        (result,) = decide([measured], GateSettings(max_drop={"top1": limit}))
        assert (result.verdict, result.passed) == (verdict, passed)
        (result,) = decide([measured], GateSettings(max_drop={"top1": limit}, strict=True))
        assert (result.verdict, result.passed) == (verdict, verdict == "pass")


def with_hits(right: list[bool]) -> Measurement:
    share = sum(right) / len(right)
    return measurement("top1", share, 0.9, quantized_hits=hits_to_text(right))


NOW, EARLIER = (with_hits([index % 10 >= wrong for index in range(1000)]) for wrong in (2, 1))
REGRESSION = GateSettings(baseline="old.json", max_regression={"top1": 0.05})


def test_a_regression_is_paired_by_the_hits() -> None:
    decided = deciding.decide(report_of(NOW), REGRESSION, report_of(EARLIER))
    (result,) = decided.gates
    assert (result.kind, result.value) == ("max_regression", pytest.approx(0.1))
    assert result.interval == drop_interval(Flips.counted(1000, lost=100, gained=0))
    assert (result.verdict, result.passed) == ("fail", False)
    assert decided.baseline is not None and decided.baseline.quantized_sha256 == "b" * 64


def test_a_percentage_of_a_regression_is_of_the_baseline() -> None:
    gate = GateSettings(baseline="old.json", max_regression={"top1": "20%"})
    (result,) = deciding.decide(report_of(NOW), gate, report_of(EARLIER)).gates
    assert (result.limit, result.percent) == (pytest.approx(0.18), 20.0)


@each_case("before, after, value", [(sqnr(30.0), sqnr(28.5), 1.5), (ERROR, ERROR, 0.0)])
def test_a_regression_without_hits_has_no_interval(before, after, value):
    gate = GateSettings(baseline="old.json", max_regression={after.name: 1.0})
    (result,) = deciding.decide(report_of(after), gate, report_of(before)).gates
    assert (result.value, result.interval, result.passed) == (value, ANYWHERE, value <= 1.0)


@each_case(
    "baseline, message",
    [
        (
            report_of(EARLIER, source="other.pt", sha256="f" * 64),
            "a different model: 'other.pt', not 'model.pt'",
        ),
        (report_of(EARLIER, data="e"), "different data: 1000 samples of 'eval.npz' whose digest differs"),
        (report_of(sqnr(1.0)), "the baseline has no metric 'top1'"),
    ],
)
def test_a_baseline_that_says_nothing_is_refused(baseline: Report, message: str) -> None:
    with pytest.raises((BaselineError, GateError), match=message):
        deciding.decide(report_of(NOW), REGRESSION, baseline)


@each_case("changes", [{"source": "renamed.pt"}, {"sha256": "f" * 64}])
def test_a_renamed_or_retrained_model_is_the_same_model(changes: dict[str, str]) -> None:
    assert deciding.decide(report_of(NOW), REGRESSION, report_of(EARLIER, **changes)).verdict == "fail"


def perplexity(of_quantized: float, interval: Interval | None = None, of_float: float = 20.0) -> Measurement:
    return measurement("perplexity", of_quantized, of_float, ratio_interval=interval)


@each_case(
    "low, high, limit, verdict, passed, needed",
    [
        (1.0, 1.015, 1.02, "pass", True, 250),
        (1.0, 1.03, 1.02, "undecided", True, 4000),
        (1.0, 1.03, 1.005, "undecided", False, 4000),
        (1.006, 1.03, 1.005, "fail", False, 640),
    ],
)
def test_a_ratio_is_limited_by_its_paired_interval(low, high, limit, verdict, passed, needed) -> None:
    measured = perplexity(20.2, Interval(low, high, "bootstrap"))
    (result,) = decide([measured], GateSettings(max_ratio={"perplexity": limit}))
    assert (result.kind, result.limit, result.value) == ("max_ratio", limit, pytest.approx(1.01))
    assert (result.verdict, result.passed) == (verdict, passed)
    assert result.samples_needed == pytest.approx(needed, rel=0.01)
    (strict,) = decide([measured], GateSettings(max_ratio={"perplexity": limit}, strict=True))
    assert strict.passed is (verdict == "pass")


MEASURED = {
    "top1": [top1(0.9, 0.8)],
    "sqnr": [sqnr(30.0)],
    "error": [ERROR],
    "perplexity": [perplexity(20.2)],
    "of zero": [perplexity(0.1, of_float=0.0)],
    "nothing": [],
}
REFUSED = table("""
  top1 | max_drop | top5=0.1 | the report has no metric 'top5' (did you mean 'top1'?) | it has top1; evaluate
  nothing | min | top1=0.1 | the report has no metric 'top1' | it has none;
  sqnr | max_drop | sqnr_db=1.0 | sqnr_db has no drop, because it compares the models and has one value, 30 \
        | use --min sqnr_db=…
  error | max_drop | max_abs_error=1.0 | max_abs_error has no drop | set a limit on sqnr_db or cosine instead
  error | min | max_abs_error=0.1 | --min max_abs_error=0.1 would pass the worse model | ~
  top1 | max_ratio | top1=1.02 | top1 has no ratio for a limit, because it is better when larger | use --m
  sqnr | max_ratio | sqnr_db=1.02 | sqnr_db has no ratio for a limit, because it compares the models | use --m
  of zero | max_ratio | perplexity=1.02 | because the float model's value is 0 | use --m
  perplexity | max_ratio | perplexity=0.0 | perplexity=0.0 is not a valid ratio | ~
  perplexity | max_ratio | perplexity=2% | perplexity=2% allows less than the float model | ~
""")


@each_case("measured, kind, limit, says, hint", REFUSED)
def test_a_limit_that_cannot_be_decided_is_refused(measured, kind, limit, says, hint):
    name, _, value = limit.partition("=")
    with pytest.raises(GateError) as caught:
        decide(MEASURED[measured], GateSettings(**{kind: {name: value if "%" in value else float(value)}}))
    assert says in caught.value.message and caught.value.hint.startswith(hint)


def test_a_value_without_an_interval_decides_nothing_and_equal_outputs_are_certain() -> None:
    for measured, limits in (
        (top1(0.9, 0.9), {"max_drop": {"top1": 0.1}}),
        (perplexity(20.2), {"max_ratio": {"perplexity": 1.02}}),
        (sqnr(40.0), {"min": {"sqnr_db": 20.0}}),
    ):
        (strict,) = decide([measured], GateSettings(**limits, strict=True))
        assert (strict.verdict, strict.passed) == ("undecided", False)
        assert decide([measured], GateSettings(**limits))[0].passed
    equal = replace(sqnr(math.inf), quantized_interval=Interval(math.inf, math.inf, "bootstrap"))
    assert decide([equal], GateSettings(min={"sqnr_db": 20.0}, strict=True))[0].verdict == "pass"


def test_a_portable_model_has_no_layer_that_can_saturate() -> None:
    layer = SaturatingLayer(name="fc", op="Gemm", pairs=3, of_pairs=8, channels=2, of_channels=4)
    gate = GateSettings(require_portable=True)
    report = report_of(sqnr(30.0))
    found = [
        deciding.decide(replace(report, saturation=saturation), gate)
        for saturation in (Saturation(3), Saturation(3, (layer,)))
    ]
    assert [(item.verdict, item.gates[0].value) for item in found] == [("pass", 0.0), ("fail", 1.0)]
    with pytest.raises(GateError, match="does not say which layers can saturate"):
        deciding.decide(report, gate)


def test_percentages_of_shares_and_ratios_are_limits() -> None:
    gate = GateSettings(min={"top1": "80%"}, max_ratio={"perplexity": "102%"})
    ratio, minimum = decide([perplexity(20.2), top1(0.83, 0.82)], gate)
    assert (ratio.limit, ratio.passed, minimum.limit, minimum.passed) == (1.02, True, 0.8, True)


def test_a_metric_of_another_name_that_is_a_share_is_known_by_its_unit() -> None:
    with pytest.raises(GateError, match="--max-drop accuracy=1: a drop of 100 points can never fail"):
        decide([replace(top1(0.9, 0.9), name="accuracy")], GateSettings(max_drop={"accuracy": 1.0}))
    own = replace(top1(90.0, 88.0), unit="number", computed_by="own.py:top1")
    assert decide([own], GateSettings(max_drop={"top1": 5.0}))[0].passed


TOP1 = measurement("top1", 0.826, 0.83, flips=Flips.counted(1000, lost=12, gained=8))
LOSS = measurement("loss", 1.2, 1.0, higher_is_better=False, drop_interval=Interval(0.1, 0.3, "bootstrap"))
SQNR = measurement("sqnr_db", 30.0, quantized_interval=Interval(28.0, 31.0, "bootstrap"))


def test_the_samples_that_are_needed() -> None:
    # 0.6 points from the limit with a standard error of 0.45 points, at the limit: (1.96 · 0.46 / 0.6)².
    assert samples_for_drop(TOP1, 0.01, samples=1000) == pytest.approx(2250, rel=0.1)
    assert samples_for_drop(LOSS, 0.4, samples=100) == 25, "a drop of an error is its growth"
    assert samples_for_drop(LOSS, 0.15, samples=100) == pytest.approx(400, abs=1)
    assert samples_for_minimum(SQNR, 29.0, samples=100) == 400, "the lower side"
    assert samples_for_drop(SQNR, 1.0, samples=10) is samples_for_minimum(ERROR, 1.0, samples=10) is None
