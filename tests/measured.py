"""What was measured and decided, for tests that say of it only what they are about."""

from typing import Any

from ptq_cli.evaluation.document.gate_result import GateResult, Latency
from ptq_cli.evaluation.document.measurement import Measurement

KINDS = {
    "top1": ("share", True, True),
    "top5": ("share", True, True),
    "mse": ("number", True, False),
    "sqnr_db": ("decibel", False, True),
    "worst_channel_sqnr_db": ("decibel", False, True),
    "cosine": ("number", False, True),
    "top1_agreement": ("share", False, True),
    "max_abs_error": ("number", False, False),
    "perplexity": ("number", False, False),
}
"""Unit, whether it needs labels, whether higher is better; any other metric is a number that needs them."""


def measurement(name: str, quantized: float, of_float: float | None = None, **more: Any) -> Measurement:
    unit, needs_labels, higher = KINDS.get(name.partition("[")[0], ("number", True, True))
    kind = {"unit": unit, "needs_labels": needs_labels, "higher_is_better": higher}
    return Measurement(
        **{"name": name, "quantized_value": quantized, "float_value": of_float, **kind, **more}
    )


def gate_result(metric: str, kind: str, limit: float, value: float, **more: Any) -> GateResult:
    return GateResult(metric=metric, kind=kind, limit=limit, value=value, **more)  # type: ignore[arg-type]


def latency_of(ratio: float = 0.5, **more: Any) -> Latency:
    """A float model that takes 2 ms."""
    times = {"float_ms": 2.0, "quantized_ms": 2.0 * ratio, "ratio": ratio}
    return Latency(**{**times, "batch_size": 8, "threads": 2, "rounds": 20, **more})
