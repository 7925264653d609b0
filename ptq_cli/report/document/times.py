"""What differs between two reports of the same input: when they were made, and how long the models took."""

import time
from dataclasses import dataclass
from typing import Annotated

from ptq_cli.core.json_values import AtLeast, Matches
from ptq_cli.report.intervals.interval import Interval

Timestamp = Annotated[
    str,
    Matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a time such as 2026-01-31T12:00:00Z"),
]
Positive = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long both models take for a batch, measured by turns on the machine that evaluated.

    Attributes:
        float_ms: median of the float model. Milliseconds.
        quantized_ms: median of the quantized model. Milliseconds.
        batch_size: samples a batch.
        threads: that computed.
        rounds: how many turns each model had.
        ratio: the quantized model's time over the float model's, the geometric mean of the turns: below 1
            it is faster.
        ratio_interval: of ``ratio``; None if nothing tells.
    """

    float_ms: float
    quantized_ms: float
    batch_size: Positive
    threads: Positive
    rounds: Positive
    ratio: float
    ratio_interval: Interval | None = None


@dataclass(frozen=True)
class Times:
    """The only part of a report that differs between two runs on the same input.

    Attributes:
        created: when the report was made, in UTC.
        latency: of the two models; None if it was not measured.
    """

    created: Timestamp
    latency: Latency | None = None


def current_time() -> str:
    """Return the time as a report's ``created`` wants it: UTC, to the second.

    Example:
        >>> len(current_time())
        20
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
