"""Reasons why a measured latency says little: runs are too short, or the machine does something else."""

from collections.abc import Sequence

from ptq_cli.core.memory import SHORTEST_RUN, too_spread
from ptq_cli.evaluation.latency import LatencyComparison, ModelLatency
from ptq_cli.plan.target.rules import ONNXRUNTIME, RUNTIME_TITLES
from ptq_cli.report.text.numbers import format_latency
from ptq_cli.runtime.machine import usable_cores

# Time over processor time of a single thread above which other work had the core for a fifth of it.
MOST_WAITING = 1.25


def latency_doubts(found: LatencyComparison, names: Sequence[str]) -> tuple[str, ...]:
    """Reasons why the numbers say little, if there are any."""
    return tuple(filter(None, (_too_short(found.models, names), _busy(found), _too_many(found.threads))))


def described(found: LatencyComparison) -> str:
    """Batch and the threads in words, and the runtime if it is not ONNX Runtime.

    Example:
        >>> from types import SimpleNamespace
        >>> described(SimpleNamespace(batch=8, threads=1, runtime="ONNX Runtime"))
        'batch 8, 1 thread'
        >>> described(SimpleNamespace(batch=1, threads=2, runtime="OpenVINO"))
        'batch 1, 2 threads, OpenVINO'
    """
    runtime = f", {found.runtime}" if found.runtime != RUNTIME_TITLES[ONNXRUNTIME] else ""
    return f"batch {found.batch}, {found.threads} thread{'' if found.threads == 1 else 's'}{runtime}"


def _too_short(models: Sequence[ModelLatency], names: Sequence[str]) -> str:
    short = [(item.p50, name) for item, name in zip(models, names, strict=True) if item.p50 < SHORTEST_RUN]
    if not short:
        return ""
    time, name = min(short)
    return (
        f"a run of '{name}' takes {format_latency(time)}, and a good part of that is the call itself: "
        "measure a larger --batch"
    )


def _busy(found: LatencyComparison) -> str:
    spread = too_spread(max(item.spread for item in found.models))
    if spread:
        return spread
    waiting = max(item.mean / max(item.processor, 1e-9) for item in found.models)
    if found.threads == 1 and waiting > MOST_WAITING:
        return (
            f"the machine is busy: a run takes {waiting:.1f} times its processor time; "
            "try again when it is idle, or compare the processor times"
        )
    return ""


def _too_many(threads: int) -> str:
    cores = usable_cores()
    if threads <= cores:
        return ""
    return f"{threads} threads share {cores} core{'' if cores == 1 else 's'}: a run waits for them in turn"
