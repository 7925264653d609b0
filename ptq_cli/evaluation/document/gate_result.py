"""Gates, warnings and times of a report."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ptq_cli.core.documents import AtLeast, Matches
from ptq_cli.core.memory import SHORTEST_RUN
from ptq_cli.evaluation.interval import TOLERANCE, Interval

Kind = Literal[
    "max_drop",
    "min",
    "max_size",
    "max_regression",
    "max_latency_ratio",
    "max_ratio",
    "max_drift",
    "require_portable",
]
GateVerdict = Literal["pass", "fail", "undecided"]
Verdict = Literal["pass", "fail", "no gate"]

# Names in place of a metric's, for ``max_size``, ``max_latency_ratio`` and ``require_portable``.
SIZE_GATE, LATENCY_GATE, SATURATION_GATE = "size", "latency", "saturation"


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """One limit, and whether it was held."""

    DERIVED: ClassVar[tuple[str, ...]] = ("verdict", "passed")

    metric: Annotated[
        str,
        'The metric\'s name; "size" for max_size, "latency" for max_latency_ratio, "saturation" for '
        "require_portable.",
    ]
    kind: Annotated[
        Kind,
        '"max_drop" limits the drop from above, "min" the quantized model\'s value from below, "max_size" '
        'its file, "max_regression" how much worse it is than the baseline\'s, "max_latency_ratio" its '
        'time over the float model\'s, "max_ratio" its value over the float model\'s, "max_drift" how much '
        'worse recordings end than they begin, "require_portable" '
        "how many layers can saturate on x86 without VNNI.",
    ]
    limit: Annotated[float, "The limit, in the metric's unit, bytes, layers, or a ratio."]
    value: Annotated[
        float, "The drop, the value, the size, the regression, the number of layers or the ratio."
    ]
    interval: Annotated[
        Interval | None,
        "Where the value lies for the population: ANYWHERE if nothing tells; None if it is certain.",
    ] = None
    samples_needed: Annotated[
        Annotated[int, AtLeast(1)] | None,
        "About how many samples it takes until the interval ends at the limit.",
    ] = None
    percent: Annotated[float | None, "The limit as it was written, if that was a percentage."] = None
    strict: Annotated[bool, "Whether doubt is a failure."] = False

    @property
    def is_unknown(self) -> bool:
        """Whether nothing tells where the value lies for the population."""
        return self.interval is not None and math.isinf(self.interval.high - self.interval.low)

    @property
    def verdict(self) -> GateVerdict:
        """``"undecided"`` if the interval lies on both sides of the limit; without one, the value decides."""
        ends = (self.value,) if self.interval is None else (self.interval.low, self.interval.high)
        held = [is_held(self.kind, self.limit, end) for end in ends]
        return "pass" if all(held) else "undecided" if any(held) else "fail"

    @property
    def passed(self) -> bool:
        """What the gate does: in doubt the value decides, or strictness; NaN never passes."""
        if self.verdict == "undecided":
            return not self.strict and is_held(self.kind, self.limit, self.value)
        return self.verdict == "pass"


def is_held(kind: Kind, limit: float, value: float) -> bool:
    """Tell whether a value is within a limit; NaN never is."""
    return value >= limit - TOLERANCE if kind == "min" else value <= limit + TOLERANCE


def verdict(results: Sequence[GateResult]) -> Verdict:
    """``"pass"`` if every limit is held, ``"fail"`` if one is not, ``"no gate"`` without limits."""
    if not results:
        return "no gate"
    return "pass" if all(result.passed for result in results) else "fail"


@dataclass(frozen=True)
class Judgement:
    """What ``ptq gate`` prints."""

    DERIVED: ClassVar[tuple[str, ...]] = ("verdict",)

    gates: Annotated[tuple[GateResult, ...], "Each limit, with its result."]

    @property
    def verdict(self) -> Verdict:
        """``pass`` if every gate passed, ``fail`` if one did not, ``no gate`` without gates."""
        return verdict(self.gates)


WarningCode = Literal[
    "larger_than_float",
    "few_integers",
    "low_sqnr",
    "slower_than_float",
    "other_operators",
    "saturating_sums",
    "broken_rules",
    "output_left_out",
]


@dataclass(frozen=True)
class ReportWarning:
    """What a user should know although nothing failed."""

    code: Annotated[
        WarningCode,
        "Which of the warnings: larger_than_float, few_integers, low_sqnr, slower_than_float, "
        "other_operators, saturating_sums, broken_rules or output_left_out.",
    ]
    message: Annotated[str, "What was found, with the reasons."]
    hints: Annotated[tuple[str, ...], "What to try, most promising first."] = ()


Timestamp = Annotated[
    str,
    Matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a time such as 2026-01-31T12:00:00Z"),
]
Positive = Annotated[int, AtLeast(1)]
LatencyVerdict = Literal["faster", "slower", "equal", "too fast", "busy"]
EQUAL = 1.02  # two sessions of one model may differ by half a percent, and a user does not notice two
SWITCHED_OFF = "evaluation.latency is false"  # why there is no latency, where nobody wants one
UNDECIDED = 1.1  # an interval that reaches from equal times to more than this says too little


@dataclass(frozen=True)
class OwnFileLatency:
    """How long the file that the user named takes, which ptq has not changed."""

    name: Annotated[str, "The file's name."]
    own_ms: Annotated[float, "Median. Milliseconds."]
    ratio: Annotated[
        float, "The quantized model's time over this file's: below 1 the quantized model is faster."
    ]
    ratio_interval: Annotated[Interval | None, "Of ratio; None if nothing tells."] = None


@dataclass(frozen=True)
class LatencyCause:
    """Operators that take longer in the quantized model than in the float model."""

    what: Annotated[str, "The operators, and how they are computed, in words."]
    float_ms: Annotated[float, "What they take in the float model. Milliseconds."]
    quantized_ms: Annotated[
        float, "What they take in the quantized model, with the conversions around them. Milliseconds."
    ]
    share: Annotated[float, "Quantized_ms over the time of the whole quantized model."]


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long both models take for a batch, measured by turns on the machine that evaluated."""

    float_ms: Annotated[float, "Median of the float model. Milliseconds."]
    quantized_ms: Annotated[float, "Median of the quantized model. Milliseconds."]
    batch_size: Annotated[Positive, "Samples a batch."]
    threads: Annotated[Positive, "That computed."]
    rounds: Annotated[Positive, "How many turns each model had."]
    ratio: Annotated[
        float,
        "The quantized model's time over the float model's, the geometric mean of the rounds: below 1 it "
        "is faster.",
    ]
    ratio_interval: Annotated[Interval | None, "Of ratio; None if nothing tells."] = None
    own: Annotated[
        OwnFileLatency | None, "The same for the file that the user named; None if it is not an ONNX file."
    ] = None
    own_fault: Annotated[str, "Why that file was not measured; empty otherwise."] = ""
    causes: Annotated[
        tuple[LatencyCause, ...],
        "Where the quantized model loses time if it is slower, the largest loss first.",
    ] = ()
    warnings: Annotated[tuple[ReportWarning, ...], "That it is slower, with the causes."] = ()

    @property
    def speed_up(self) -> float:
        """How many times as fast as the float model the quantized one is."""
        return inverse(self.ratio)

    @property
    def verdict(self) -> LatencyVerdict:
        """What the measurement says.

        ``"too fast"``: a run is hardly longer than its call. ``"busy"``: the interval reaches from a
        difference of less than 2 % to one of more than 10 %. ``"equal"``: it reaches into less than 2 %, and
        not as far as 10 %.
        """
        if min(self.float_ms, self.quantized_ms) < SHORTEST_RUN * 1e3:
            return "too fast"
        return latency_verdict(self.ratio_interval)


def inverse(ratio: float) -> float:
    """One over a ratio of times; infinity of 0, which no clock measured.

    Example:
        >>> inverse(0.5), inverse(0.0)
        (2.0, inf)
    """
    return 1 / ratio if ratio > 0 else math.inf


def latency_verdict(interval: Interval | None) -> LatencyVerdict:
    """Verdict on the ratio of a model's time to another one's; see ``Latency.verdict``."""
    low, high = (interval.low, interval.high) if interval is not None else (0.0, math.inf)
    if low > EQUAL:
        return "slower"
    if high < 1 / EQUAL:
        return "faster"
    return "busy" if high > UNDECIDED or low < 1 / UNDECIDED else "equal"


@dataclass(frozen=True)
class Times:
    """The only part of a report that differs between two runs on the same input."""

    created: Annotated[Timestamp, "When the report was made, in UTC."]
    latency: Annotated[Latency | None, "Of the two models; None if it was not measured."] = None
    not_measured: Annotated[str, "Why there is no latency; empty otherwise."] = ""
    processor: Annotated[
        str, "What evaluated, with the instructions of its integer kernels; empty if it is not known."
    ] = ""

    @property
    def latency_ratio(self) -> float | None:
        """The quantized model's time over the float model's; None if it was not measured."""
        return self.latency.ratio if self.latency is not None else None

    @property
    def warnings(self) -> tuple[ReportWarning, ...]:
        """What a user should know of the times."""
        return self.latency.warnings if self.latency is not None else ()


def current_time() -> str:
    """Time as a report's ``created`` wants it: UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
