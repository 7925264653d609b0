"""Speed of a quantized model beside the float one, in words; and reasons to doubt a latency."""

from ptq_cli.evaluation.document.gate_result import (
    SWITCHED_OFF,
    Latency,
    LatencyCause,
    ReportWarning,
    Times,
    inverse,
    latency_verdict,
)
from ptq_cli.evaluation.interval import Interval
from ptq_cli.report.text.numbers import format_latency

LONGER = "ptq bench measures for longer"


def speed_lines(times: Times) -> list[str]:
    """A line of the quantized model beside the float one, and one of it beside the user's own file."""
    latency = times.latency
    if latency is None:
        said = times.not_measured not in ("", SWITCHED_OFF)
        return [f"note: the latency was not measured: {times.not_measured}"] if said else []
    lines = [_line(latency)]
    if latency.own is not None and latency.verdict != "too fast":
        value, between = _speed_up(latency.own.ratio, latency.own.ratio_interval)
        lines.append(f"{value} times as fast as your '{latency.own.name}'{between}")
    if latency.own_fault:
        lines.append(f"note: the latency of your own file was not measured: {latency.own_fault}")
    return lines


def slower_warning(latency: Latency, hint: str) -> ReportWarning | None:
    """Warning that a quantized model is slower than the float one or the user's file, if it is.

    Example:
        >>> from ptq_cli.evaluation.interval import Interval
        >>> cause = LatencyCause("HardSwish between integer layers", 0.31, 1.21, 0.48)
        >>> slow = Latency(float_ms=2.1, quantized_ms=2.5, batch_size=1, threads=2, rounds=30, ratio=1.18,
        ...     ratio_interval=Interval(1.13, 1.22, "student"), causes=(cause,))
        >>> slower_warning(slow, "ptq export --prefer latency").message
        'the quantized model is slower than float, 0.85 times as fast: HardSwish between integer layers \
takes 48 % of its time (1.21 ms, in the float model 310 µs)'
    """
    own = latency.own
    if latency.verdict == "slower":
        what = f"float, {inverse(latency.ratio):.2f} times as fast"
        causes = "; ".join(_cause(cause) for cause in latency.causes)
        what += f": {causes}" if causes else ""
    elif (
        own is not None and latency.verdict != "too fast" and latency_verdict(own.ratio_interval) == "slower"
    ):
        what = f"'{own.name}', {inverse(own.ratio):.2f} times as fast"
    else:
        return None
    return ReportWarning("slower_than_float", f"the quantized model is slower than {what}", (hint,))


def served_as(latency: Latency) -> str:
    """Write what was measured."""
    return f"at batch {latency.batch_size}, {latency.threads} thread{'s' if latency.threads != 1 else ''}"


def _line(latency: Latency) -> str:
    at = served_as(latency)
    if latency.verdict == "too fast":
        fastest = format_latency(min(latency.float_ms, latency.quantized_ms) / 1000)
        return f"too fast to compare with float: a run takes {fastest} {at}, which is mostly the call itself"
    value, between = _speed_up(latency.ratio, latency.ratio_interval)
    if latency.verdict == "faster":
        return f"{value} times as fast as float{between} {at}"
    if latency.verdict == "busy":
        said = f"the machine is too busy to tell whether it is faster than float: {value} times as fast"
        return f"{said}{between} {at}; {LONGER}"
    beside = "slower than float" if latency.verdict == "slower" else "about as fast as float"
    return f"{beside}: {value} times as fast{between} {at}"


def _speed_up(ratio: float, interval: Interval | None) -> tuple[str, str]:
    """Write how many times as fast a model is, from the ratio of its time to another one's."""
    between = (
        f" ({inverse(interval.high):.2f} to {inverse(interval.low):.2f})" if interval is not None else ""
    )
    return f"{inverse(ratio):.2f}", between


def _cause(cause: LatencyCause) -> str:
    own, before = (format_latency(time / 1000) for time in (cause.quantized_ms, cause.float_ms))
    beside = f"in the float model {before}" if cause.float_ms > 0 else "no time of its own in the float model"
    return f"{cause.what} takes {100 * cause.share:.0f} % of its time ({own}, {beside})"
