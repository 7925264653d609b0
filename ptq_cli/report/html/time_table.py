"""Time of each layer in float and in integers, as bars."""

from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.placement.machine_profile import MachineProfile
from ptq_cli.report.text.numbers import format_latency

MOST_TIMES = 20  # rows, of the slowest layers


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
    """Times of the layers by a profile of their model; None if it has none of them."""
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
