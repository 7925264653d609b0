"""How far a model's outputs are from another's, as SQNR; and the metric that a recipe limits."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Protocol

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.errors import PtqError, UntrustedCodeError
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.evaluation.interval import Interval
from ptq_cli.evaluation.metrics.base import COMPARED, LabelMetric
from ptq_cli.evaluation.metrics.spec import metric_specs
from ptq_cli.evaluation.runs.judged import (
    FLOAT_MODEL,
    Judged,
    fitting_targets,
    judged_measurement,
    judged_metrics,
)
from ptq_cli.evaluation.runs.model_outputs import Place
from ptq_cli.models.batch_axes import noted_axes
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.text.numbers import format_interval, format_value
from ptq_cli.runtime.session import Kernels, Session

_AT_ONCE = 1 << 23  # values of an output that are compared at once
SEVERAL = 2  # of fewer gains there is no deviation
_KEPT = 1 << 26  # bytes of outputs kept for another choice; logits of a language model take gigabytes
Noise = Sequence[tuple[float, float]]  # the signal and the noise of each output of one piece
PieceInputs = Mapping[str, Array]
Outputs = Sequence[Sequence[Array]]
FLOATS_OF_OUTPUTS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def noise_of(wanted: Sequence[Array], found: Sequence[Array]) -> Noise:
    """Return the signal and the noise of each output of a piece.

    Edge case: Of an output of integers, noise is the share of those that differ. An output of another shape
        than wanted, as of detections, is all noise. A sequence of arrays does not count.
    """
    return [_sums(one, other) for one, other in zip(wanted, found, strict=True) if is_array(one)]


def sqnr_of(pieces: Sequence[Noise]) -> float:
    """Return the ratio of signal to noise of all outputs, in dB; noise counts as a share of its signal.

    Edge case: Equal outputs have infinitely many dB, NaN has minus infinity.
    """
    shares = _shares(pieces)
    return _decibels(math.fsum(shares) / len(shares) if shares else 0.0)


def lowest_of(pieces: Sequence[Noise]) -> float:
    """Return the SQNR of the worst output, in dB; otherwise as ``sqnr_of``.

    Example:
        >>> one, other = np.full(4, 10.0), np.full(4, 1.0)
        >>> pieces = [noise_of([one, other], [one + 1.0, other + 0.5])]
        >>> round(sqnr_of(pieces), 1), round(lowest_of(pieces), 1)
        (8.9, 6.0)
    """
    shares = _shares(pieces)
    return _decibels(math.nan if any(map(math.isnan, shares)) else max(shares, default=0.0))


def lowest_of_floats(model: ir.Model) -> Callable[[Sequence[Noise]], float]:
    """A measure of noise: SQNR of the worst output of floats, in dB.

    Edge case: If the shape of one depends on its values, or they are not finite, nothing is known: infinitely
        many. What integers lose is not told in dB.
    """
    tensors = [value for value in model.graph.outputs if not isinstance(value.type, ir.SequenceType)]
    chosen = [number for number, value in enumerate(tensors) if value.dtype in FLOATS_OF_OUTPUTS]

    def lowest(pieces: Sequence[Noise]) -> float:
        kept = [[piece[number] for number in chosen] for piece in pieces]
        known = all(math.isfinite(signal) and noise != math.inf for piece in kept for signal, noise in piece)
        return lowest_of(kept) if known else math.inf

    return lowest


def _shares(pieces: Sequence[Noise]) -> list[float]:
    return [_share(output) for output in zip(*pieces, strict=True)]


def _decibels(noise: float) -> float:
    if math.isnan(noise):
        return -math.inf
    return -10.0 * math.log10(noise) if noise > 0.0 else math.inf


def gain_interval(before: Sequence[Noise], after: Sequence[Noise]) -> tuple[float, float]:
    """Return the ends of about a 95 % interval of by how many dB ``sqnr_of`` rises; of paired pieces.

    Two standard errors around the gain, found by leaving out each piece in turn: an SQNR may hang on one
    sample out of many, whose gain says nothing of the next.

    Edge case: Of one piece, both ends are the gain. Gains that are not finite, of outputs without noise, do
        not count.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 11, the jackknife.

    Example:
        >>> before, alike, one = (
        ...     [noise_of([np.full(4, 10.0)], [np.full(4, 10.0 + error)]) for error in errors]
        ...     for errors in [(1.0, 1.1, 1.2), (0.5, 0.5, 0.6), (1.1, 1.2, 0.1)]
        ... )
        >>> [round(end, 1) for end in gain_interval(before, alike)]
        [5.7, 6.8]
        >>> [round(end, 1) for end in gain_interval(before, one)]
        [-3.5, 6.2]
    """

    def gain(but: int | None) -> float:
        one, two = (
            math.fsum(
                _share([own for number, own in enumerate(output) if number != but])
                for output in zip(*pieces, strict=True)
            )
            for pieces in (before, after)
        )
        if one > 0.0 and two > 0.0:
            return 10.0 * math.log10(one / two)
        return math.inf if one > 0.0 and two == 0.0 else math.nan

    left_out = [found for but in range(len(before)) if math.isfinite(found := gain(but))]
    whole, count = gain(None), len(left_out)
    if len(before) < SEVERAL or count < SEVERAL or not math.isfinite(whole):
        return whole, whole
    error = math.sqrt((count - 1) / count * math.fsum((item - np.mean(left_out)) ** 2 for item in left_out))
    return whole - 2.0 * error, whole + 2.0 * error


def _sums(one: Array, other: Array) -> tuple[float, float]:
    """Return the signal and the noise of a piece's output; infinite noise where it has another shape."""
    if one.shape != other.shape:
        return 0.0, math.inf
    if one.dtype.kind != "f":
        return one.size, float(np.count_nonzero(one != other))
    if one.size > _AT_ONCE and len(one) > 1:  # Logits are large, and three copies of them in float64 more so.
        parts = [_sums(one[row : row + 1], other[row : row + 1]) for row in range(len(one))]
        return math.fsum(signal for signal, _ in parts), math.fsum(noise for _, noise in parts)
    values = one.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of two infinities
        noise = np.sum((values - other.astype(np.float64)) ** 2)
    return float(np.sum(values * values)), float(noise)


def _share(sums: Iterable[tuple[float, float]]) -> float:
    signal = noise = 0.0
    for own_signal, own_noise in sums:
        if own_noise == math.inf:
            return 1.0
        signal, noise = signal + own_signal, noise + own_noise
    if signal > 0.0:
        return noise / signal
    return 0.0 if noise == 0.0 else 1.0


class NoiseJudge(Protocol):
    """Tells the SQNR of a quantized model's outputs on samples, in dB."""

    def __call__(
        self, model: StoredModel, *, integer_kernels: bool = True, at_least: float = -math.inf
    ) -> float:
        """Return the SQNR; of a model that surely has less than ``at_least``, minus infinity.

        That is seen with no noise on the pieces that are left, which then are not run. Without
        ``integer_kernels`` the model's pairs are computed as they are written.
        """


def model_sqnr(
    float_model: StoredModel,
    pieces: Sequence[PieceInputs],
    *,
    threads: int = 1,
    of: Callable[[Sequence[Noise]], float] = sqnr_of,
    known: dict[str, Outputs] | None = None,
    name: str = "",
) -> NoiseJudge:
    """Return a judge of quantized models: SQNR of the outputs on samples, in dB, as ``of`` measures it.

    What the float model makes of them is kept in ``known`` by a name, if that is little.
    """
    known = {} if known is None else known
    if name in known:
        wanted = known[name]
    else:
        with _all_run(float_model, pieces, threads) as outputs:
            wanted = list(outputs)
    if sum(array.nbytes for piece in wanted for array in piece if is_array(array)) <= _KEPT:
        known[name] = wanted
    silent = [[(signal, 0.0) for signal, _ in noise_of(piece, piece)] for piece in wanted]

    def sqnr(model: StoredModel, *, integer_kernels: bool = True, at_least: float = -math.inf) -> float:
        noise: list[Noise] = [*silent]
        with _all_run(model, pieces, threads, integer_kernels=integer_kernels) as outputs:
            for number, found in enumerate(outputs):
                noise[number] = noise_of(wanted[number], found)
                if of(noise) < at_least:
                    return -math.inf
        return of(noise)

    return sqnr


@contextmanager
def _all_run(
    model: StoredModel, pieces: Sequence[PieceInputs], threads: int, *, integer_kernels: bool = True
) -> Iterator[Iterator[list[Array]]]:
    """Give a model's outputs for each piece, in order; what was not asked for when it ends is not run."""
    session = Session(model, threads=1, kernels=Kernels(integers=integer_kernels))
    with ThreadPoolExecutor(threads, "ranges") as pool:
        ahead = deque(pool.submit(session.run, dict(piece)) for piece in pieces)
        try:
            yield (ahead.popleft().result() for _ in pieces)  # Each goes with who asked for it.
        finally:
            for run in ahead:
                run.cancel()


_FEWEST_SAMPLES = 8  # of fewer an interval is too narrow to decide by


@dataclass(frozen=True, kw_only=True)
class MetricGain:
    """How much better a metric is of one quantized form than of another, on the same samples."""

    name: Annotated[str, "The metric."]
    unit: Annotated[Literal["share", "decibel", "number"], "Of the values; a share is from 0 to 1."]
    before: Annotated[float, "The quantized model's value without the rung."]
    after: Annotated[float, "With it."]
    gain: Annotated[tuple[float, float], "The ends of the 95 % interval of the gain; above 0 is better."]

    @property
    def is_sure(self) -> bool:
        """Whether the interval tells a gain from a loss."""
        return self.gain[0] > 0.0 or self.gain[1] < 0.0

    def values(self) -> dict[str, object]:
        """Return it for the metadata of a model, in so many digits as no number of threads changes."""
        before, after, low, high = (float(f"{x:.4g}") for x in (self.before, self.after, *self.gain))
        return {"name": self.name, "values": [before, after], "gain": [low, high]}


def limited_metric(
    recipe: Recipe, model: ir.Model, pieces: Sequence[Batch]
) -> Callable[[], "LimitedMetric"] | None:
    """Return a factory of watches of the first limited metric that these samples have a value of.

    None if no metric is limited that has a value for each model, or the samples lack its labels, or are few.
    """
    limited, outputs = recipe.gate.metrics, [value.name or "" for value in model.graph.outputs]
    if not limited or sum(piece.size for piece in pieces) < _FEWEST_SAMPLES:
        return None
    have_labels = all(piece.labels is not None for piece in pieces)
    for spec in metric_specs(recipe.evaluation.metrics, recipe.metric, limited):
        if spec.name not in limited or (spec.needs_labels and not have_labels):
            continue
        try:
            (judged,) = judged_metrics([spec], outputs)
            leads = noted_axes(model).get(judged.output_name, 0) == 0
            if leads and judged.make().targets not in COMPARED:
                return partial(LimitedMetric, judged, pieces)
        except UntrustedCodeError:
            raise
        except PtqError:  # The evaluation says what is wrong with it.
            continue
    return None


class LimitedMetric:
    """Follows a metric over the outputs of one quantized form, piece by piece."""

    def __init__(self, judged: Judged, pieces: Sequence[Batch]) -> None:
        self._judged, self._pieces = judged, pieces
        self._metric: LabelMetric | None = judged.make()
        self._seen = 0

    def add(self, outputs: Sequence[Array]) -> None:
        """Take the outputs of the next piece; once they do not fit the metric, it is not followed."""
        place = Place(self._pieces[self._seen], self._seen)
        output, self._seen = outputs[self._judged.output], self._seen + 1
        if self._metric is None or not is_array(output):
            self._metric = None
            return
        try:
            self._metric.update(*fitting_targets(self._metric, self._judged.spec.name, output, place))
        except PtqError:
            self._metric = None

    def gain_over(self, other: "LimitedMetric") -> MetricGain | None:
        """Gain over another form, from paired samples; None where they cannot tell."""
        name, samples = self._judged.spec.name, sum(piece.size for piece in self._pieces)
        if self._metric is None or other._metric is None:
            return None
        with suppress(PtqError):
            pair = {FLOAT_MODEL: other._metric, name: self._metric}
            found = judged_measurement(self._judged, pair, name, (), samples)
            drop = found.drop_interval
            if drop is not None and found.float_value is not None and math.isfinite(drop.low + drop.high):
                return MetricGain(
                    name=name,
                    unit=found.unit,
                    before=found.float_value,
                    after=found.quantized_value,
                    gain=(0.0 - drop.high, 0.0 - drop.low),
                )
        return None


def gain_in_words(metric: MetricGain, samples: str = "") -> str:
    """Say by how much a metric rose or fell on ``samples``, or that it may be chance.

    Example:
        >>> found = MetricGain(name="top1", unit="share", before=0.5, after=0.75, gain=(0.125, 0.375))
        >>> gain_in_words(found, "24 samples")
        'top1 from 50.00 % to 75.00 % on 24 samples, a gain of 12.50 to 37.50 points with 95 % confidence'
        >>> gain_in_words(MetricGain(name="perplexity", unit="number", before=33, after=32, gain=(-1, 2)))
        'perplexity from 33 to 32, which may be chance'
    """
    before, after = (format_value(value, metric.unit) for value in (metric.before, metric.after))
    change = f"{metric.name} from {before} to {after}"
    if not metric.is_sure:
        return f"{metric.name} stays at {after}" if before == after else f"{change}, which may be chance"
    low, high = metric.gain
    kind, ends = ("gain", (low, high)) if low > 0.0 else ("loss", (-high, -low))
    span = format_interval(Interval(*ends, "bootstrap"), metric.unit)
    unit = " points" if metric.unit == "share" else ""
    return f"{change} on {samples}, a {kind} of {span}{unit} with 95 % confidence"
