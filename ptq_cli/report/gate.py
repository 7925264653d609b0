"""Limits on metrics, and the decision whether the quantized model holds them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.errors import GateError, did_you_mean
from ptq_cli.recipe.schema import GateSettings
from ptq_cli.report.codec import AtLeast
from ptq_cli.report.intervals.interval import TOLERANCE
from ptq_cli.report.measurement import Measurement
from ptq_cli.report.resolution import samples_for_drop, samples_for_minimum

Kind = Literal["max_drop", "min"]
Verdict = Literal["pass", "fail", "no gate"]

MAX_DROP_FLAG = "--max-drop"
MIN_FLAG = "--min"


@dataclass(frozen=True)
class GateResult:
    """One limit, and whether it was held.

    Attributes:
        metric: the metric's name.
        kind: ``"max_drop"`` limits the drop from above, ``"min"`` the quantized model's value from below.
        limit: the limit, in the metric's unit.
        value: the drop, or the quantized model's value.
        samples_needed: about how many samples it takes until the value's interval ends at the limit.

    Example:
        >>> GateResult("top1", "max_drop", limit=0.01, value=0.83 - 0.82).passed
        True
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("passed",)

    metric: str
    kind: Kind
    limit: float
    value: float
    samples_needed: Annotated[int, AtLeast(1)] | None = None

    @property
    def passed(self) -> bool:
        """Whether the value holds the limit, within 1e-9; NaN never does."""
        if self.kind == "max_drop":
            return self.value <= self.limit + TOLERANCE
        return self.value >= self.limit - TOLERANCE


def parse_limits(texts: Sequence[str], flag: str) -> dict[str, float]:
    """Read ``top1=0.01`` texts, as ``--max-drop`` and ``--min`` take them.

    Units:
        that of the metric; 0.01 of a share is one point.

    Edge case:
        The last ``=`` divides, since an output's name in ``sqnr_db[a=b]=25`` may hold one.

    Raises:
        GateError: a text is not ``METRIC=NUMBER``, a number is not finite, a drop is negative, or a metric is
            named twice.

    Example:
        >>> parse_limits(["top1=0.01", "top5=0.005"], "--max-drop")
        {'top1': 0.01, 'top5': 0.005}
    """
    limits: dict[str, float] = {}
    for text in texts:
        metric, equals, number = (part.strip() for part in text.rpartition("="))
        if not equals or not metric:
            raise GateError(f"{flag} '{text}' is not of the form METRIC=NUMBER", hint=_example(flag))
        if metric in limits:
            raise GateError(f"{flag} names '{metric}' twice", hint="keep one of the two limits")
        limits[metric] = _number(number, text, flag)
        _require_limit(metric, limits[metric], flag)
    return limits


def check_limits(gate: GateSettings) -> None:
    """Refuse limits that no model could be judged by; limits from a recipe never passed ``parse_limits``.

    Raises:
        GateError: a limit is not finite, or a drop is negative.

    Example:
        >>> check_limits(GateSettings(max_drop={"top1": 0.01}))
    """
    for flag, limits in ((MAX_DROP_FLAG, gate.max_drop), (MIN_FLAG, gate.min)):
        for metric, limit in limits.items():
            _require_limit(metric, limit, flag)


def decide(measurements: Sequence[Measurement], gate: GateSettings, samples: int) -> list[GateResult]:
    """Hold the measurements against every limit: drops first, each group in the order given.

    Args:
        measurements: what was measured.
        gate: the limits.
        samples: on how many samples.

    Units:
        those of the metrics; comparisons are within 1e-9 of the limit.

    Edge case:
        A value that equals its limit passes; NaN never does.

    Raises:
        GateError: a limit is not finite or a negative drop, the report lacks its metric, the metric has no
            drop, or a minimum is asked of an error.

    Example:
        >>> top1 = Measurement("top1", "share", True, True, quantized_value=0.82, float_value=0.83)
        >>> [result.passed for result in decide([top1], GateSettings(max_drop={"top1": 0.01}), samples=100)]
        [True]
    """
    check_limits(gate)
    by_name = {measurement.name: measurement for measurement in measurements}
    drops = [_decide_drop(_find(metric, by_name), limit, samples) for metric, limit in gate.max_drop.items()]
    minima = [_decide_min(_find(metric, by_name), limit, samples) for metric, limit in gate.min.items()]
    return drops + minima


def verdict(results: Sequence[GateResult]) -> Verdict:
    """Return ``"pass"`` if every limit is held, ``"fail"`` if one is not, ``"no gate"`` without limits.

    Example:
        >>> verdict([]), verdict([GateResult("top1", "max_drop", limit=0.01, value=0.02)])
        ('no gate', 'fail')
    """
    if not results:
        return "no gate"
    return "pass" if all(result.passed for result in results) else "fail"


def _number(number: str, text: str, flag: str) -> float:
    if number.endswith("%"):
        raise GateError(
            f"{flag} '{text}' is a percentage, a plain number is wanted",
            hint="a limit is in the metric's own unit: top1=0.01 is one percentage point",
        )
    try:
        return float(number)
    except ValueError:
        raise GateError(f"{flag} '{text}': '{number}' is no number", hint=_example(flag)) from None


def _require_limit(metric: str, limit: float, flag: str) -> None:
    if not math.isfinite(limit):
        raise GateError(f"{flag} {metric}={limit} is not finite", hint=_example(flag))
    # A model better than its float one is a surprise, not a requirement: the sign is a slip.
    if flag == MAX_DROP_FLAG and limit < 0:
        raise GateError(
            f"{flag} {metric}={limit} is negative: only a model that gained by quantization would pass",
            hint=f"write the largest drop without a sign: {flag} {metric}={-limit}",
        )


def _example(flag: str) -> str:
    return f"for example: {flag} {'sqnr_db=25' if flag == MIN_FLAG else 'top1=0.01'}"


def _find(metric: str, by_name: dict[str, Measurement]) -> Measurement:
    if metric not in by_name:
        raise GateError(
            f"the report has no metric '{metric}'{did_you_mean(metric, list(by_name))}",
            hint=f"it has: {', '.join(by_name) or 'none'}; evaluate with the metric, or gate one of these",
        )
    return by_name[metric]


def _decide_drop(measurement: Measurement, limit: float, samples: int) -> GateResult:
    name, drop = measurement.name, measurement.drop
    if drop is None:
        value = f"{measurement.quantized_value:.4g}"
        hint = (
            f"use {MIN_FLAG} {name}=…" if measurement.higher_is_better else "gate sqnr_db or cosine instead"
        )
        raise GateError(
            f"{name} has no drop: it compares the models and has one value, {value}",
            hint=hint,
        )
    return GateResult(name, "max_drop", float(limit), drop, samples_for_drop(measurement, limit, samples))


def _decide_min(measurement: Measurement, limit: float, samples: int) -> GateResult:
    name = measurement.name
    if not measurement.higher_is_better:
        raise GateError(
            f"{MIN_FLAG} {name}={limit:g} would pass the worse model: {name} is better when smaller",
            hint=f"gate sqnr_db or cosine instead, such as {MIN_FLAG} sqnr_db=25",
        )
    needed = samples_for_minimum(measurement, limit, samples)
    return GateResult(name, "min", float(limit), measurement.quantized_value, needed)
