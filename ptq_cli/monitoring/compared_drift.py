"""New data compared with a calibration: rows of tensors, limits, verdict, and the histograms of a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ptq_cli.amax.choice import expected_error
from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.evaluation.interval import TOLERANCE
from ptq_cli.monitoring.drift import (
    CELLS,
    CLIPPED,
    COUNT,
    FEWEST_BLOCKS,
    FEWEST_CALIBRATED,
    FEWEST_SAMPLES,
    LEAST_DISTANCE,
    Blocks,
    Chance,
    Drift,
    ExpectedSqnr,
    Grid,
    Movement,
    Resampled,
    TensorDrift,
    Values,
    chance_of,
    clipped_share,
    decibels,
    distances,
    noise,
    row_of,
)

_MOST_DRAWN, DRAWN_ANYWAY = 24, 4  # tensors that the page draws if some moved, and if none did


class Seen:
    """What new data left: rows of blocks, and the range of each tensor."""

    def __init__(self, grids: Mapping[str, Grid]) -> None:
        self.grids = grids
        self.blocks = Blocks()
        self.ranges: dict[str, TensorStatistics] = {}
        self.broken: dict[str, str] = {}  # first sample of the first batch with NaN or infinities, by tensor

    def add(self, found: Mapping[str, TensorStatistics], rows: Mapping[str, Values], batch: Batch) -> None:
        """Add what a batch left."""
        self.blocks.add(rows, batch.size)
        for name, item in found.items():
            plain = replace(item, histogram=None, zeros=0)
            before = self.ranges.get(name)
            self.ranges[name] = plain if before is None else before.merge(plain)
            if item.nonfinite.total:
                self.broken.setdefault(name, batch.names[0])


@dataclass(frozen=True, kw_only=True)
class Observed:
    """New data, and the calibration that they are compared with.

    Attributes:
        watched: parameters and the calibration's statistics, by tensor.
    """

    source: str
    inputs_only: bool
    exported: bool
    calibration_samples: int
    watched: Mapping[str, tuple[QuantParameters, TensorStatistics]]
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What must hold; None where nothing was asked.

    Units: max_clipped: share of a tensor's values, 0 to 1; min_expected_sqnr: decibels.
    """

    max_clipped: float | None = None
    min_expected_sqnr: float | None = None

    @property
    def asked(self) -> bool:
        """Whether there is one."""
        return self.max_clipped is not None or self.min_expected_sqnr is not None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Two histograms of a tensor.

    Attributes:
        low, high: the quantizer's range.
        calibrated, new: shares of all values, by cell.

    Shapes: edges: (N + 1,). calibrated, new: (N,).
    """

    name: str
    low: float
    high: float
    edges: Values
    calibrated: Values
    new: Values


def compare(observed: Observed, limits: Limits) -> tuple[Drift, tuple[Picture, ...]]:
    """Document, and the histograms that its page draws."""
    seen, count = observed.seen, observed.calibration_samples
    # None where only ranges were kept.
    calibrated = {
        name: row_of(seen.grids[name], statistics) if statistics.histogram is not None else None
        for name, (_, statistics) in observed.watched.items()
        if seen.ranges[name].count
    }
    known = {name: seen.grids[name] for name, row in calibrated.items() if row is not None}
    chance = chance_of(seen.blocks, known, count) if known and not _too_few(seen.blocks, count) else None
    rows = _Rows(observed, calibrated, chance)
    tensors = sorted((rows.tensor(name) for name in calibrated), key=_badness, reverse=True)
    drift = Drift(
        faults=(),
        doubt="",
        source=observed.source,
        samples=seen.blocks.samples,
        blocks=seen.blocks.count,
        calibration_samples=count,
        inputs_only=observed.inputs_only,
        exported=observed.exported,
        max_clipped=limits.max_clipped,
        min_expected_sqnr=limits.min_expected_sqnr,
        expected=rows.expected(),
        tensors=tuple(tensors),
    )
    faults = tuple(_faults(drift, observed))
    drift = replace(drift, faults=faults, doubt="" if faults or limits.asked else _doubt(drift, observed))
    drawn = drift.moved[:_MOST_DRAWN] or drift.tensors[:DRAWN_ANYWAY]
    pictures = (_picture(observed, item.name, calibrated[item.name]) for item in drawn)
    return drift, tuple(picture for picture in pictures if picture is not None)


def _too_few(blocks: Blocks, calibration_samples: int) -> str:
    """Reason why drift cannot be told from chance; empty if it can."""
    needed = (
        (blocks.samples, FEWEST_SAMPLES, "samples"),
        (blocks.count, FEWEST_BLOCKS, "batches"),
        (calibration_samples, FEWEST_CALIBRATED, "samples of the calibration"),
    )
    return next(
        (
            f"{found} {what} are too few to tell drift from chance, at least {least} are needed"
            for found, least, what in needed
            if found < least
        ),
        "",
    )


def _badness(tensor: TensorDrift) -> tuple[bool, float, float]:
    movement = tensor.movement
    distance = movement.distance if movement is not None else 0.0
    return movement is not None and movement.moved, distance, tensor.clipped


class _Rows:
    """The rows of the document, and the sums of noise that they share."""

    def __init__(
        self, observed: Observed, calibrated: Mapping[str, Values | None], chance: Chance | None
    ) -> None:
        self._observed, self._calibrated, self._chance = observed, calibrated, chance
        self._resampled = Resampled(observed.seen.blocks.count)
        self._noise: Values | None = None
        self._before = 0.0

    def tensor(self, name: str) -> TensorDrift:
        seen = self._observed.seen
        grid, sums = seen.grids[name], self._resampled.sums(seen.blocks.rows(name))
        parameters, statistics = self._observed.watched[name]
        old, now, clipped = self._calibrated[name], seen.ranges[name], clipped_share(sums)
        sqnr = before = movement = None
        if isinstance(parameters.format, IntegerFormat):
            ratios = noise(sums)
            self._noise = ratios if self._noise is None else self._noise + ratios
            sqnr = decibels(float(ratios[0]))
            if statistics.histogram is not None:
                before = expected_error(statistics, statistics.histogram, parameters).sqnr_db
                self._before += 10 ** (-before / 10)
        if old is not None:
            found = distances(grid, sums, old)
            movement = Movement(
                distance=float(found[0]),
                interval=self._resampled.interval(found),
                chance=self._chance.distances[name] if self._chance is not None else None,
                least=LEAST_DISTANCE,
            )
        return TensorDrift(
            name=name,
            format=parameters.format.name,
            range_low=grid.low,
            range_high=grid.high,
            low=now.low,
            high=now.high,
            calibration_low=statistics.low,
            calibration_high=statistics.high,
            clipped=float(clipped[0]),
            clipped_interval=self._resampled.interval(clipped),
            calibration_clipped=float(clipped_share(old)) if old is not None else None,
            sqnr_db=sqnr,
            calibration_sqnr_db=before,
            nonfinite=now.nonfinite,
            movement=movement,
        )

    def expected(self) -> ExpectedSqnr | None:
        """SQNR that the noise of all tensors leads to expect, once all rows were made."""
        if self._noise is None:
            return None
        with np.errstate(divide="ignore"):
            values = -10 * np.log10(self._noise)
        whole = all(row is not None for row in self._calibrated.values())
        return ExpectedSqnr(
            sqnr_db=float(values[0]),
            interval=self._resampled.interval(values),
            calibration_db=decibels(self._before) if whole else None,
        )


def _faults(drift: Drift, observed: Observed) -> Iterator[str]:
    # In the order of the graph: an input makes all that follows NaN.
    for name, (_, calibrated) in observed.watched.items():
        count = observed.seen.ranges[name].nonfinite.total
        if count and not calibrated.nonfinite.total:
            what = f"{count:,} values of '{name}' are" if count > 1 else f"1 value of '{name}' is"
            first = observed.seen.broken[name]
            yield f"{what} NaN or infinite, first in the batch of sample '{first}'"
            break
    limit = drift.max_clipped
    if limit is not None:
        over = sorted(
            (item for item in drift.tensors if item.clipped > limit + TOLERANCE),
            key=lambda item: -item.clipped,
        )
        if over:
            yield (
                f"{100 * over[0].clipped:.3g} % of '{over[0].name}' is clipped, more than "
                f"{100 * limit:g} %{_more(over)}"
            )
    least, expected = drift.min_expected_sqnr, drift.expected
    if least is not None and expected is not None and expected.sqnr_db < least - TOLERANCE:
        yield f"the expected SQNR is {expected.sqnr_db:.2f} dB, below {least:g} dB"
    if limit is None and least is None and drift.moved:
        worst = drift.moved[0]
        if worst.movement is not None and worst.movement.chance is not None:
            yield (
                f"'{worst.name}' has moved by {worst.movement.distance:.1f} steps of 8 bits, chance explains "
                f"{worst.movement.chance:.1f}{_more(drift.moved)}"
            )


def _more(tensors: Sequence[TensorDrift]) -> str:
    return (
        f"; so {'has' if len(tensors) == 2 else 'have'} {len(tensors) - 1:,} more" if len(tensors) > 1 else ""
    )


def _doubt(drift: Drift, observed: Observed) -> str:
    if all(item.movement is None for item in drift.tensors):
        return "the calibration kept only ranges, which do not tell whether values have moved"
    return _too_few(observed.seen.blocks, drift.calibration_samples)


def _picture(observed: Observed, name: str, calibrated: Values | None) -> Picture | None:
    if calibrated is None:
        return None
    seen, (_, statistics) = observed.seen, observed.watched[name]
    grid, new, found = seen.grids[name], seen.blocks.rows(name).sum(axis=0), seen.ranges[name]
    # What is clipped gets a cell on its side, unless that would leave no room for the others.
    width = grid.high - grid.low
    low = max(min(found.low, statistics.low), grid.low - width)
    high = min(max(found.high, statistics.high), grid.high + width)
    within = slice(0 if low < grid.low else 1, CELLS + 2 if high > grid.high else CELLS + 1)
    shares = [
        np.diff(row[1:CLIPPED], prepend=0.0, append=row[COUNT]) / row[COUNT] for row in (calibrated, new)
    ]
    edges = np.concatenate([[low], grid.edges, [high]])[within.start : within.stop + 1]
    return Picture(
        name=name,
        low=grid.low,
        high=grid.high,
        edges=edges,
        calibrated=shares[0][within],
        new=shares[1][within],
    )
