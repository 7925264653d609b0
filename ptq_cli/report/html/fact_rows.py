"""The large figures of the page, its rows of facts, of changed samples and of the layers' times."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.gate_result import SWITCHED_OFF, Times
from ptq_cli.evaluation.document.report_document import ChangedSample, Changes, LayerEntry, Report
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.report.text.numbers import (
    Row,
    format_drop,
    format_latency,
    format_share,
    format_value,
    share_of_float,
)
from ptq_cli.report.text.speed import served_as, speed_lines


@dataclass(frozen=True, kw_only=True)
class MethodRange:
    """The range that one amax method chooses for a tensor."""

    method: str
    low: float
    high: float
    sqnr_db: float | None = None  # the SQNR that the histogram leads to expect; None without a histogram
    clipped: int | None = None  # how many values are certainly beyond the range; None without a histogram


@dataclass(frozen=True, kw_only=True)
class TensorEvidence:
    """An activation that is quantized, as the calibration saw it.

    Attributes:
        low, high: the smallest and the largest value seen; 0 counts as seen.
        zeros: how many of them were 0; None if only ranges were kept.
        ranges: the ranges that the amax methods choose from the same statistics.
        counts: values in equally wide bins from ``low`` to ``high``, without zeros; empty if no histogram was
            kept.
    """

    name: str
    format: str
    low: float
    high: float
    values: int
    zeros: int | None
    chosen: MethodRange
    ranges: tuple[MethodRange, ...]
    counts: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """What the graph says about a layer.

    Attributes:
        dtype: the type that its output is computed in.
        tensor: the quantized tensor that holds its output; empty if there is none.
        multiply_accumulates: of one sample, with sizes that the model leaves open assumed; None if that is
            not known.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    tensor: str = ""
    multiply_accumulates: int | None = None


@dataclass(frozen=True)
class Origin:
    """How the report can be made again."""

    command: str
    recipe: str = ""
    recipe_file: str = "recipe.toml"
    notes: tuple[str, ...] = ()  # what the command would not reproduce


@dataclass(frozen=True)
class Evidence:
    """All that the page shows in addition to the report."""

    origin: Origin
    layers: tuple[LayerEvidence, ...] = ()
    tensors: tuple[TensorEvidence, ...] = ()
    notes: tuple[str, ...] = ()  # what is missing about the tensors, and why

    @property
    def drawn(self) -> tuple[TensorEvidence, ...]:
        """The tensors that get a card: those for which the range of each method is known."""
        return tuple(tensor for tensor in self.tensors if tensor.ranges)


MOST_SHOWN = 200
EFFECTS = ("lost", "gained", "still wrong", "changed")


def change_view(changes: Changes) -> dict[str, Any]:
    """Counts of the changes by effect and by pair of classes, and the samples.

    Edge case: Counts by effect and by pair cover the samples that the details hold: the first thousand.

    Example:
        >>> lost = ChangedSample(index=0, name="a.png", label=0, float_class=0, quantized_class=1)
        >>> view = change_view(Changes(1, ("cat", "dog"), (lost,)))
        >>> view["effects"], view["pairs"], view["rows"] == [(lost, "cat", "cat", "dog")]
        ([('lost', 1)], [('cat', 'dog', 1, 1, 0)], True)
    """
    samples = changes.samples
    effects = Counter(sample.effect for sample in samples)
    listed = sorted(samples, key=lambda sample: (EFFECTS.index(sample.effect), sample.index))

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
    """Effects of each pair of classes, the most frequent pair first."""
    found: dict[tuple[int, int], list[str]] = {}
    for sample in samples:
        found.setdefault((sample.float_class, sample.quantized_class), []).append(sample.effect)
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


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


def headline(report: Report, evidence: Evidence) -> Iterator[Row]:
    """Label, value and line below of the figures at the top: a drop, a comparison, size, and work."""
    paired = next((metric for metric in report.metrics if metric.drop is not None), None)
    if paired is not None and paired.drop is not None and paired.float_value is not None:
        before, drop = format_value(paired.float_value, paired.unit), format_drop(paired.drop, paired.unit)
        value = format_value(paired.quantized_value, paired.unit)
        yield paired.name, value, f"float {before}, drop {drop}"
    compared = next((metric for metric in report.metrics if metric.drop is None), None)
    if compared is not None:
        value = format_value(compared.quantized_value, compared.unit)
        worst = next((metric for metric in report.metrics if metric.channel is not None), None)
        detail = f", worst channel {format_value(worst.quantized_value, worst.unit)}" if worst else ""
        yield compared.name, value, f"quantized against float{detail}"
    sizes = report.model.float_bytes, report.model.quantized_model.bytes
    share = share_of_float(sizes[1], sizes[0])
    yield "file size", share, " → ".join(format_bytes(size) for size in sizes)
    layers = f"{report.quantized_layers:,} of {len(report.layers):,}"
    work = {layer.name: layer.multiply_accumulates or 0 for layer in evidence.layers}
    total = sum(work.get(layer.name, 0) for layer in report.layers)
    if not total:
        stay = f"{report.float_layers} stay{'s' if report.float_layers == 1 else ''} float"
        yield "layers on integers", layers, stay
        return
    integer = sum(work.get(layer.name, 0) for layer in report.layers if layer.integer)
    yield "work on integers", format_share(integer, total), f"multiply-accumulates; {layers} layers"


def time_rows(report: Report, analysis: Analysis | None) -> tuple[Row, ...]:
    """Dates and measured times, which differ between two runs on the same input."""
    rows = [("report made", report.times.created)]
    if analysis is not None:
        rows.append(("analysis made", analysis.created))
    return (*rows, *_latency_rows(report.times))


def _latency_rows(times: Times) -> Iterator[Row]:
    latency = times.latency
    if latency is None:
        why = f": {times.not_measured}" if times.not_measured else ""
        how = (
            "; ptq evaluate --set evaluation.latency=true measures it"
            if times.not_measured in ("", SWITCHED_OFF)
            else ""
        )
        yield "latency", f"not measured{why}{how}"
        return
    yield "latency", "; ".join(speed_lines(times))
    turns = f"{served_as(latency)}, median of {latency.rounds} turns"
    yield "float", f"{format_latency(latency.float_ms / 1000)} {turns}"
    yield "quantized", format_latency(latency.quantized_ms / 1000)
    if latency.own is not None:
        yield latency.own.name, format_latency(latency.own.own_ms / 1000)
    for warning in times.warnings:
        yield "warning", warning.message
        yield from (("next", hint) for hint in warning.hints)


def origin_rows(report: Report) -> tuple[Row, ...]:
    """Models, settings, data and versions, with full hashes."""
    model, calibration, evaluation = report.model, report.calibration, report.evaluation
    rows = [
        ("model", model.source),
        ("float model", f"{model.float_model.name}, SHA-256 {model.float_model.sha256}"),
        ("quantized model", f"{model.quantized_model.name}, SHA-256 {model.quantized_model.sha256}"),
        ("target", report.target),
        ("amax", report.amax.text),
        (
            "calibration",
            f"{calibration.method}, {calibration.samples:,} {evaluation.noun(calibration.samples)}, "
            f"data {calibration.data_digest}",
        ),
        (
            "evaluation",
            f"{evaluation.source}, {evaluation.samples:,} {evaluation.noun(evaluation.samples)}, "
            f"data {evaluation.data_digest}",
        ),
    ]
    if report.baseline is not None:
        rows.append(
            ("baseline", f"made {report.baseline.created}, SHA-256 {report.baseline.quantized_sha256}")
        )
    rows += [(f"{name} version", version) for name, version in sorted(report.versions.items())]
    return tuple(rows)
