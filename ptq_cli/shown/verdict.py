"""The last lines of an export: accuracy, speed and size, each with its number, and a verdict."""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.gate_result import Times, inverse
from ptq_cli.recover.recovery_effects import ReachedAccuracy
from ptq_cli.report.text.numbers import share_of_float
from ptq_cli.report.text.speed import speed_lines


def verdict_lines(
    accuracy: ReachedAccuracy | None,
    sizes: tuple[int, int],
    times: Times | None = None,
    expected: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[str]:
    r"""Yield a line for accuracy, speed and size, and one that says whether the model has all of them.

    Without an ``accuracy`` nothing was compared, and nothing is judged. ``sizes`` are those of the float file
    and of the quantized one; ``expected`` is its speed over float by kind of processor.

    Example:
        >>> found = ReachedAccuracy(sqnr_db=14.2, goal_db=20.0, samples=32)
        >>> print(*verdict_lines(found, (4000, 1000)), sep="\n")
        accuracy: 14.2 dB at the worst output on 32 samples of the calibration data, 20 wanted
        size: 1 kB, 25.0 % of float
        below the goal: 14.2 of 20 dB, because nothing that was tried brings more
    """
    if accuracy is not None:
        yield _accuracy_line(accuracy)
    speeds = speed_lines(times) if times is not None else []
    for number, line in enumerate(speeds):
        yield line if number or line.startswith("note:") else f"speed: {line}"
    before, after = sizes
    yield f"size: {format_bytes(after)}, {share_of_float(after, before)}"
    if accuracy is not None:
        failed = [*_below(accuracy), *_slower(times, expected), *_larger(sizes)]
        yield "; ".join(failed) or f"PASS: at least {accuracy.goal_db:g} dB{_beside_float(times)}"


def _beside_float(times: Times | None) -> str:
    """Say what was measured, and no more: within a few percent both models are as fast."""
    verdict = times.latency.verdict if times is not None and times.latency is not None else ""
    speed = {"faster": ", faster than float", "equal": ", about as fast as float"}.get(verdict, "")
    return f"{speed}, and not larger" if speed else ", and not larger than float"


def _accuracy_line(found: ReachedAccuracy) -> str:
    if not math.isfinite(found.sqnr_db):
        return "accuracy: no output differs from the float model's, or none can be compared"
    samples = f"{found.samples:,} sample{'s' if found.samples != 1 else ''} of the calibration data"
    return f"accuracy: {found.sqnr_db:.1f} dB at the worst output on {samples}, {found.goal_db:g} wanted"


def _below(found: ReachedAccuracy) -> Iterator[str]:
    if found.sqnr_db < found.goal_db:
        why = "nothing that was tried brings more"
        yield f"below the goal: {found.sqnr_db:.1f} of {found.goal_db:g} dB, because {why}"


def _slower(times: Times | None, expected: Mapping[str, float]) -> Iterator[str]:
    latency = times.latency if times is not None else None
    if latency is not None and latency.verdict == "slower":
        elsewhere = [
            f"with {name.upper()} about {speed:.2f}" for name, speed in expected.items() if speed > 1.0
        ]
        times_as_fast = f"{inverse(latency.ratio):.2f} times as fast"
        yield ", ".join([f"slower than float on this machine, {times_as_fast}", *elsewhere[-1:]])


def _larger(sizes: tuple[int, int]) -> Iterator[str]:
    before, after = sizes
    if after > before:
        yield f"larger than float, {share_of_float(after, before)}"
