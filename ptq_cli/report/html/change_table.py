"""Tables of the page: the samples that changed their class, what devices gave, and the time of each layer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptq_cli.evaluation.document.details import ChangedSample, Changes
from ptq_cli.evaluation.document.device_document import DeviceAnswers
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.placement.machine_profile import MachineProfile
from ptq_cli.report.text.device_table import (
    NUMBERS,
    device_table,
    kernel_table,
    missed_lines,
    reference_line,
)
from ptq_cli.report.text.tables import format_latency

MOST_SHOWN = 200
EFFECTS = ("lost", "gained", "still wrong", "changed")


def change_view(changes: Changes) -> dict[str, Any]:
    """Return what the page shows of the changes: counts by effect and by pair of classes, and the samples.

    Edge case:
        Counts by effect and by pair cover the samples that the details hold: the first thousand.

    Example:
        >>> lost = ChangedSample(index=0, name="a.png", label=0, float_class=0, quantized_class=1)
        >>> view = change_view(Changes(1, ("cat", "dog"), (lost,)))
        >>> view["effects"], view["pairs"], view["rows"] == [(lost, "cat", "cat", "dog")]
        ([('lost', 1)], [('cat', 'dog', 1, 1, 0)], True)
    """
    samples = changes.samples
    effects = Counter(sample.effect for sample in samples)
    listed = sorted(
        samples, key=lambda sample: (EFFECTS.index(sample.effect), not sample.picture, sample.index)
    )

    def named(index: int | None) -> str:
        if index is None:
            return ""
        return changes.class_names[index] if index < len(changes.class_names) else str(index)

    return {
        "total": changes.total,
        "effects": [(effect, effects[effect]) for effect in EFFECTS if effects[effect]],
        "pairs": [
            (named(before), named(after), len(found), found.count("lost"), found.count("gained"))
            for (before, after), found in _by_pair(samples)[:MOST_SHOWN]
        ],
        "rows": [
            (item, named(item.label), named(item.float_class), named(item.quantized_class))
            for item in listed[:MOST_SHOWN]
        ],
        "left_out": changes.total - min(len(listed), MOST_SHOWN),
    }


def _by_pair(samples: Sequence[ChangedSample]) -> list[tuple[tuple[int, int], list[str]]]:
    """Return the effects of each pair of classes, the most frequent pair first."""
    found: dict[tuple[int, int], list[str]] = {}
    for sample in samples:
        found.setdefault((sample.float_class, sample.quantized_class), []).append(sample.effect)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


# What devices without ptq gave for the same model.


def device_view(found: DeviceAnswers, layers: Sequence[LayerEntry]) -> dict[str, Any]:
    """Return what the page shows of devices: a row for each, and the kernels of each that are not exact."""
    anchors = {layer.name: anchor for anchor, layer in enumerate(layers, 1)}
    table = device_table(found)
    kernels = [(item, *kernel_table(item)) for item in found.devices]
    return {
        "found": found,
        "header": table.header,
        "numbers": NUMBERS,
        "rows": [
            (row, anchors.get(item.first_difference or ""))
            for row, item in zip(table.rows, found.devices, strict=True)
        ],
        "reference": reference_line(found),
        "missed": missed_lines(found),
        "kernels": [(item, table, count) for item, table, count in kernels if count],
        "emulated": any(item.emulated for item in found.devices),
    }


# What each layer takes in float and in integers, as bars.


MOST_TIMES = 20
"""Layers with a row: the slowest ones."""


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """A layer: its times as text, empty where it is merged into another, and in percent of the longest."""

    anchor: int
    name: str
    op: str
    integer: bool
    float_time: str
    integer_time: str
    float_share: float
    integer_share: float


@dataclass(frozen=True, kw_only=True)
class TimeTable:
    """The slowest layers first; where they were measured, and what the whole model takes."""

    rows: tuple[TimeRow, ...]
    left_out: int
    source: str
    whole: str


def time_table(profile: MachineProfile, layers: Sequence[LayerEntry]) -> TimeTable | None:
    """Return what the layers take, by a profile of their model; None if it has none of them."""
    known = [
        (anchor, layer, times)
        for anchor, layer in enumerate(layers, 1)
        if (times := profile.nodes.get(layer.name)) is not None and max(times.floating, times.integer) > 0
    ]
    if not known:
        return None
    known.sort(key=lambda item: -max(item[2].floating, item[2].integer))
    longest = max(known[0][2].floating, known[0][2].integer)
    rows = tuple(
        TimeRow(
            anchor=anchor,
            name=layer.name,
            op=layer.op,
            integer=layer.integer,
            float_time=_time(times.floating),
            integer_time=_time(times.integer),
            float_share=round(100 * times.floating / longest, 1),
            integer_share=round(100 * times.integer / longest, 1),
        )
        for anchor, layer, times in known[:MOST_TIMES]
    )
    samples = "sample" if profile.batch == 1 else "samples"
    threads = "thread" if profile.threads == 1 else "threads"
    return TimeTable(
        rows=rows,
        left_out=len(known) - len(rows),
        source=f"{profile.machine}, {profile.runtime}, {profile.batch} {samples} a run, "
        f"{profile.threads} {threads}",
        whole=f"{_time(profile.floating)} in float, and {_time(profile.integer)} with every layer in "
        "integers that can be",
    )


def _time(microseconds: float) -> str:
    return format_latency(microseconds / 1e6) if microseconds > 0 else ""
