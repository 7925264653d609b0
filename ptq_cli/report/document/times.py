"""What differs between two reports of the same input: when they were made, and how long the models took."""

import math
import time
from dataclasses import dataclass
from typing import Annotated, Literal

from ptq_cli.core.documents.json_values import AtLeast, Matches
from ptq_cli.core.telling_times import SHORTEST_RUN
from ptq_cli.report.document.report_warning import ReportWarning
from ptq_cli.report.intervals.interval import Interval

Timestamp = Annotated[
    str,
    Matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a time such as 2026-01-31T12:00:00Z"),
]
Positive = Annotated[int, AtLeast(1)]
LatencyVerdict = Literal["faster", "slower", "equal", "too fast", "busy"]

EQUAL = 1.02
"""Two sessions of one model may differ by half a percent, and a user does not notice two."""
SWITCHED_OFF = "--no-latency"
"""Why there is no latency, where nobody wants one."""
UNDECIDED = 1.1
"""An interval that reaches from equal times to more than this says too little."""


@dataclass(frozen=True)
class OwnFileLatency:
    """How long the file that the user named takes, which ptq has not changed.

    Attributes:
        name: the file's name.
        own_ms: median. Milliseconds.
        ratio: the quantized model's time over this file's: below 1 the quantized model is faster.
        ratio_interval: of ``ratio``; None if nothing tells.
    """

    name: str
    own_ms: float
    ratio: float
    ratio_interval: Interval | None = None


@dataclass(frozen=True)
class LatencyCause:
    """Operators that take longer in the quantized model than in the float model.

    Attributes:
        what: the operators, and how they are computed, in words.
        float_ms: what they take in the float model. Milliseconds.
        quantized_ms: what they take in the quantized model, with the conversions around them. Milliseconds.
        share: ``quantized_ms`` over the time of the whole quantized model.
    """

    what: str
    float_ms: float
    quantized_ms: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long both models take for a batch, measured by turns on the machine that evaluated.

    Attributes:
        float_ms: median of the float model. Milliseconds.
        quantized_ms: median of the quantized model. Milliseconds.
        batch_size: samples a batch.
        threads: that computed.
        rounds: how many turns each model had.
        ratio: the quantized model's time over the float model's, the geometric mean of the rounds: below
            1 it is faster.
        ratio_interval: of ``ratio``; None if nothing tells.
        own: the same for the file that the user named; None if it is not an ONNX file.
        own_fault: why that file was not measured; empty otherwise.
        causes: where the quantized model loses time if it is slower, the largest loss first.
        warnings: that it is slower, with the causes.
    """

    float_ms: float
    quantized_ms: float
    batch_size: Positive
    threads: Positive
    rounds: Positive
    ratio: float
    ratio_interval: Interval | None = None
    own: OwnFileLatency | None = None
    own_fault: str = ""
    causes: tuple[LatencyCause, ...] = ()
    warnings: tuple[ReportWarning, ...] = ()

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

        Example:
            >>> times = {"float_ms": 3.0, "quantized_ms": 2.0, "batch_size": 1, "threads": 2, "rounds": 20}
            >>> Latency(**times, ratio=0.667, ratio_interval=Interval(0.65, 0.68, "student")).verdict
            'faster'
            >>> Latency(**times, ratio=0.8, ratio_interval=Interval(0.5, 1.28, "student")).verdict
            'busy'
        """
        if min(self.float_ms, self.quantized_ms) < SHORTEST_RUN * 1e3:
            return "too fast"
        return latency_verdict(self.ratio_interval)


def inverse(ratio: float) -> float:
    """Return one over a ratio of times; infinity of 0, which no clock measured.

    Example:
        >>> inverse(0.5), inverse(0.0)
        (2.0, inf)
    """
    return 1 / ratio if ratio > 0 else math.inf


def latency_verdict(interval: Interval | None) -> LatencyVerdict:
    """Return what the ratio of a model's time to another one's says; see ``Latency.verdict``.

    Example:
        >>> [latency_verdict(Interval(low, 1.05, "student")) for low in (0.5, 1.01, 1.03)]
        ['busy', 'equal', 'slower']
    """
    low, high = (interval.low, interval.high) if interval is not None else (0.0, math.inf)
    if low > EQUAL:
        return "slower"
    if high < 1 / EQUAL:
        return "faster"
    return "busy" if high > UNDECIDED or low < 1 / UNDECIDED else "equal"


@dataclass(frozen=True)
class Times:
    """The only part of a report that differs between two runs on the same input.

    Attributes:
        created: when the report was made, in UTC.
        latency: of the two models; None if it was not measured.
        not_measured: why there is no latency; empty otherwise.
    """

    created: Timestamp
    latency: Latency | None = None
    not_measured: str = ""

    @property
    def warnings(self) -> tuple[ReportWarning, ...]:
        """What a user should know of the times."""
        return self.latency.warnings if self.latency is not None else ()


def current_time() -> str:
    """Return the time as a report's ``created`` wants it: UTC, to the second.

    Example:
        >>> len(current_time())
        20
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
