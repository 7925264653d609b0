"""One limit with what was measured, and the verdict on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents.json_values import AtLeast
from ptq_cli.report.intervals.interval import TOLERANCE, Interval

Kind = Literal[
    "max_drop", "min", "max_size", "max_regression", "max_latency_ratio", "max_ratio", "require_portable"
]
GateVerdict = Literal["pass", "fail", "undecided"]
Verdict = Literal["pass", "fail", "no gate"]

SIZE = "size"
"""Stands where a metric's name does, for the kind ``max_size``."""

LATENCY = "latency"
"""Likewise, for the kind ``max_latency_ratio``."""

SATURATION = "saturation"
"""Likewise, for the kind ``require_portable``."""


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """One limit, and whether it was held.

    Attributes:
        metric: the metric's name; ``"size"`` for ``max_size``, ``"latency"`` for ``max_latency_ratio``,
            ``"saturation"`` for ``require_portable``.
        kind: ``"max_drop"`` limits the drop from above, ``"min"`` the quantized model's value from below,
            ``"max_size"`` its file, ``"max_regression"`` how much worse it is than the baseline's,
            ``"max_latency_ratio"`` its time over the float model's, ``"max_ratio"`` its value over the float
            model's, ``"require_portable"`` how many layers can saturate on x86 without VNNI.
        limit: the limit, in the metric's unit, bytes, layers, or a ratio.
        value: the drop, the value, the size, the regression, the number of layers or the ratio.
        interval: where the value lies for the population: ``ANYWHERE`` if nothing tells; None if it is
            certain.
        samples_needed: about how many samples it takes until the interval ends at the limit.
        percent: the limit as it was written, if that was a percentage.
        strict: whether doubt is a failure.

    Example:
        >>> GateResult(metric="top1", kind="max_drop", limit=0.01, value=0.83 - 0.82).passed
        True
        >>> GateResult(
        ...     metric="top1",
        ...     kind="max_drop",
        ...     limit=0.01,
        ...     value=0.009,
        ...     interval=Interval(-0.002, 0.02, "score"),
        ... ).verdict
        'undecided'
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("verdict", "passed")

    metric: str
    kind: Kind
    limit: float
    value: float
    interval: Interval | None = None
    samples_needed: Annotated[int, AtLeast(1)] | None = None
    percent: float | None = None
    strict: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether nothing tells where the value lies for the population."""
        return self.interval is not None and math.isinf(self.interval.high - self.interval.low)

    @property
    def verdict(self) -> GateVerdict:
        """``"undecided"`` if the interval lies on both sides of the limit; without one, the value decides."""
        if self.interval is None:
            return "pass" if self._holds(self.value) else "fail"
        ends = {self._holds(self.interval.low), self._holds(self.interval.high)}
        if len(ends) > 1:
            return "undecided"
        return "pass" if ends == {True} else "fail"

    @property
    def passed(self) -> bool:
        """What the gate does: in doubt the value decides, or strictness; NaN never passes."""
        if self.verdict == "undecided":
            return not self.strict and self._holds(self.value)
        return self.verdict == "pass"

    def _holds(self, value: float) -> bool:
        if self.kind == "min":
            return value >= self.limit - TOLERANCE
        return value <= self.limit + TOLERANCE


def verdict(results: Sequence[GateResult]) -> Verdict:
    """Return ``"pass"`` if every limit is held, ``"fail"`` if one is not, ``"no gate"`` without limits.

    Example:
        >>> verdict([]), verdict([GateResult(metric="top1", kind="max_drop", limit=0.01, value=0.02)])
        ('no gate', 'fail')
    """
    if not results:
        return "no gate"
    return "pass" if all(result.passed for result in results) else "fail"
