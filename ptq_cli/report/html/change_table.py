"""The samples that changed their class: counted by pair of classes, and as a list."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.evaluation.document.details import ChangedSample, Changes
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.latency.machine_profile import MachineProfile
from ptq_cli.report.text.tables import format_latency

MOST_SHOWN = 200
EFFECTS = ("lost", "gained", "still wrong", "changed")


@dataclass(frozen=True, kw_only=True)
class ChangeRow:
    """A sample: its name, its classes as text, the effect of the change, and its picture in base64."""

    name: str
    index: int
    label: str
    before: str
    after: str
    effect: str
    picture: str


@dataclass(frozen=True, kw_only=True)
class PairRow:
    """How many samples went from one class to another, and how many of them were lost and gained."""

    before: str
    after: str
    count: int
    lost: int
    gained: int


@dataclass(frozen=True, kw_only=True)
class ChangeView:
    """All that the page shows of the changed samples.

    Attributes:
        total: how many samples changed.
        effects: how many samples had each effect that occurs.
        pairs: the most frequent first.
        rows: the samples, the lost ones first.
        left_out: how many are not listed.
    """

    total: int
    effects: tuple[tuple[str, int], ...]
    pairs: tuple[PairRow, ...]
    rows: tuple[ChangeRow, ...]
    left_out: int


def change_view(changes: Changes) -> ChangeView:
    """Return what the page shows of the changes.

    Edge case:
        Counts by effect and by pair cover the samples that the details hold: the first thousand.

    Example:
        >>> changes = Changes(
        ...     1,
        ...     ("cat", "dog"),
        ...     (ChangedSample(index=0, name="a.png", label=0, float_class=0, quantized_class=1),),
        ... )
        >>> view = change_view(changes)
        >>> view.effects, view.pairs[0].before, view.rows[0].after
        ((('lost', 1),), 'cat', 'dog')
    """
    samples, names = changes.samples, changes.class_names
    effects = Counter(sample.effect for sample in samples)
    listed = sorted(
        samples, key=lambda sample: (EFFECTS.index(sample.effect), not sample.picture, sample.index)
    )
    return ChangeView(
        total=changes.total,
        effects=tuple((effect, effects[effect]) for effect in EFFECTS if effects[effect]),
        pairs=_pairs(samples, names),
        rows=tuple(_row(sample, names) for sample in listed[:MOST_SHOWN]),
        left_out=changes.total - min(len(listed), MOST_SHOWN),
    )


def _pairs(samples: Sequence[ChangedSample], names: Sequence[str]) -> tuple[PairRow, ...]:
    by_pair: dict[tuple[int, int], list[str]] = {}
    for sample in samples:
        by_pair.setdefault((sample.float_class, sample.quantized_class), []).append(sample.effect)
    ordered = sorted(by_pair.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        PairRow(
            before=_class(before, names),
            after=_class(after, names),
            count=len(found),
            lost=found.count("lost"),
            gained=found.count("gained"),
        )
        for (before, after), found in ordered[:MOST_SHOWN]
    )


def _row(sample: ChangedSample, names: Sequence[str]) -> ChangeRow:
    label = _class(sample.label, names) if sample.label is not None else ""
    before, after = _class(sample.float_class, names), _class(sample.quantized_class, names)
    return ChangeRow(
        name=sample.name,
        index=sample.index,
        label=label,
        before=before,
        after=after,
        effect=sample.effect,
        picture=sample.picture,
    )


def _class(index: int, names: Sequence[str]) -> str:
    return names[index] if index < len(names) else str(index)


# What each layer takes in float and in integers, as bars.


MOST_TIMES = 20
"""Layers with a row: the slowest ones."""


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """A layer: its times as text, and as shares of the longest time in percent.

    Attributes:
        anchor: of its row in the table of layers.
        name: the node's name.
        op: its operator.
        integer: whether this model computes it in integers.
        float_time, integer_time: as text; empty where the runtime merges it into another layer.
        float_share, integer_share: lengths of the bars.
    """

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
    """The slowest layers first.

    Attributes:
        rows: the layers.
        left_out: how many have no row.
        source: machine and settings of the measurement.
        whole: times of the whole model in float and in integers.
    """

    rows: tuple[TimeRow, ...]
    left_out: int
    source: str
    whole: str


def time_table(profile: MachineProfile, layers: Sequence[LayerEntry]) -> TimeTable | None:
    """Return what the layers take, by a profile of their model; None if it has none of them.

    Args:
        profile: of the float model that the layers are of.
        layers: in the order of the page's table.
    """
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
