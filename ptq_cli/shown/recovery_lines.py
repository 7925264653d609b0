"""What recovery did to a model, in lines."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ptq_cli.core.words import few
from ptq_cli.terminal.phrases import counted

if TYPE_CHECKING:
    from ptq_cli.pipeline.run_export import ExportResult
    from ptq_cli.recover.recovery_effects import (
        FloatLayers,
        LayerRecovery,
        RangesByEffect,
        Recovery,
        RungEffect,
    )

MOST_NAMES = 3


def export_recovery_lines(result: "ExportResult") -> Iterator[str]:
    """Yield what the rungs of an export did."""
    if result.ranges is not None:
        yield ranges_line(result.ranges)
    if result.float_layers is not None:
        yield from float_lines(result.float_layers)
    if result.recovery is not None:
        yield from recovery_lines(result.recovery)


def recovery_lines(recovery: "Recovery") -> Iterator[str]:
    """Yield what each rung recovered, and what it did not."""
    told: set[str] = set()
    for effect in recovery.effects:
        for line in _effect_lines(effect):
            if line not in told:  # Two rungs may refuse the same layers for the same reason.
                yield line
            told.add(line)


def _effect_lines(effect: "RungEffect") -> Iterator[str]:
    yield _summary(effect)
    if effect.damped and effect.kept:
        yield (
            f"note: {counted(len(effect.damped), 'layer')} ({_names(effect.damped)}) had fewer rows of "
            "data than inputs: more samples may help"
        )
    yield from refused_lines(effect.refused, "was not recovered", "were not recovered")


def refused_lines(refused: Mapping[str, str], one: str, several: str) -> Iterator[str]:
    """Yield a note for each reason why layers were left out."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in refused.items():
        reasons[reason].append(name)
    for reason, names in reasons.items():
        said = one if len(names) == 1 else several
        yield f"note: {counted(len(names), 'layer')} {said} ({_names(names)}): {reason}"


def ranges_line(ranges: "RangesByEffect") -> str:
    """Say what was chosen by its effect.

    Example:
        >>> from ptq_cli.recover.recovery_effects import RangesByEffect
        >>> found = RangesByEffect(
        ...     kept=True,
        ...     before=12.0,
        ...     after=18.51,
        ...     samples=16,
        ...     decided_by=8,
        ...     tensors=40,
        ...     methods={"x": "max"},
        ... )
        >>> print(ranges_line(found))
        chose the ranges of 1 of 40 tensors (ranges): output SQNR from 12.0 to 18.5 dB on 8 samples
    """
    if not ranges.tensors:
        return "note: no range was changed (ranges): each tensor has only one way to choose it"
    by = f"on {counted(ranges.decided_by, 'sample')}"
    if not ranges.changed:
        tried = f"of {counted(ranges.tensors, 'tensor')} was changed (ranges): none is better"
        return f"note: no range {tried} (output SQNR {_decibels(ranges.before)} dB {by})"
    change = f"output SQNR from {_decibels(ranges.before)} to {_decibels(ranges.after)} dB {by}"
    if ranges.kept:
        told = f", {len(ranges.within)} by what their readers tell apart" if ranges.within else ""
        return f"chose the ranges of {ranges.changed} of {ranges.tensors} tensors{told} (ranges): {change}"
    return f"note: no range was changed (ranges): it gained less than 0.1 dB, so it was not kept ({change})"


def float_lines(found: "FloatLayers") -> Iterator[str]:
    """Say which layers find ranges at each run for accuracy, or were left in float, and what that costs.

    Example:
        >>> from ptq_cli.recover.recovery_effects import FloatLayers
        >>> found = FloatLayers(layers=("stem",), before=12.0, after=18.5, decided_by=3, slower=0.07)
        >>> print(next(float_lines(found)))
        left 1 layer in float (stem), for about 7 % more time: SQNR of the worst output, but for what \
weights lose, from 12.0 to 18.5 dB on 3 samples
    """
    if found.refused:
        yield f"note: no layer was left in float: {found.refused}"
    done = []
    if found.dynamic:
        done.append(
            f"set ranges at each run for {counted(len(found.dynamic), 'layer')} ({_names(found.dynamic)})"
        )
    if found.layers:
        done.append(f"left {counted(len(found.layers), 'layer')} in float ({_names(found.layers)})")
    if done:
        time = f"about {100 * found.slower:.0f} % more time" if found.slower > 0.0 else "no more time"
        change = f"from {_decibels(found.before)} to {_decibels(found.after)} dB"
        yield (
            f"{' and '.join(done)}, for {time}: SQNR of the worst output, but for what weights lose, "
            f"{change} on {counted(found.decided_by, 'sample')}"
        )


def _summary(effect: "RungEffect") -> str:
    nothing = f"note: nothing was recovered ({effect.rung}):"
    if not effect.layers:
        return f"{nothing} no layer could be"
    if not effect.changed:
        return f"{nothing} no better integers, scales or biases were found"
    recovered = f"recovered {counted(len(effect.layers), 'layer')} ({effect.rung}):"
    if not effect.decided_by:
        typical = median(10.0 * math.log10(item.before / item.after) for item in _measured(effect))
        return f"{recovered} the error of a layer fell by {typical:.1f} dB (median); no samples were held out"
    by = f"on {counted(effect.decided_by, 'sample')}"
    change = f"output SQNR from {_decibels(effect.before)} to {_decibels(effect.after)} dB {by}"
    if effect.kept:
        return f"{recovered} {change}"
    return f"{nothing} it did not help, so it was not kept ({change})"


def _measured(effect: "RungEffect") -> Iterator["LayerRecovery"]:
    return (item for item in effect.layers.values() if item.before > 0.0 and item.after > 0.0)


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "infinitely many" if value > 0 else "no"


def _names(names: Sequence[str]) -> str:
    return few(names, MOST_NAMES)
