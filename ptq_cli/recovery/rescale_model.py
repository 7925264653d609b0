"""A float model's channels get the factors that its quantized form gains from; it computes what it did."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.decide import grid_of_range
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.rescaling.channel_ids import Factors
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import NO_CHANNEL, HeldChannels, ScaleSpace, rescale, scale_spaces
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import constant, decide_all
from ptq_cli.recovery.recovery_samples import (
    MetricGain,
    MetricWatch,
    Noise,
    RecoverySamples,
    gain_interval,
    noise_of,
    sqnr_of,
)
from ptq_cli.recovery.space_samples import Float32s, SpaceReader, SpaceSamples, sample_spaces
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap

# A model quantized as a target wants it, with the ranges of some samples, to measure a change by.


Range = tuple[float, float]
BYTE = 8
HIGHEST = np.float32(127.0)
TINY = 1e-30


def tensor_ranges(
    model: ir.Model, tensors: Sequence[str], pieces: Iterable[Mapping[str, Array]], *, threads: int
) -> dict[str, Range]:
    """Return the lowest and the highest value of tensors on some samples; 0 is always between them.

    Edge case:
        NaN counts as nothing.
    """
    fed = {value.name for value in model.graph.inputs}
    taps = [name for name in tensors if name not in fed]
    session = Session(tap(model, taps), threads=threads) if taps else None
    found = dict.fromkeys(tensors, (0.0, 0.0))
    for piece in pieces:
        made = dict(zip(taps, session.run(piece), strict=True)) if session is not None else {}
        for name in tensors:
            array = made.get(name, piece.get(name))
            if array is not None and array.size:
                low, high = found[name]
                found[name] = (min(low, float(array.min())), max(high, float(array.max())))
    return found


def plainly_quantized(
    model: ir.Model, plan: Plan, ranges: Mapping[str, Range], bits: int = BYTE
) -> StoredModel:
    """Return a model quantized with given ranges; the model stays as it is.

    Weights of fewer than 8 bits are on a grid of as many, stored as 8: this needs no newer opset.
    """

    def decide(site: ActivationSite) -> QuantParameters:
        ends = [ranges[name] for name in plan.members(site.source)]
        return _grid(site, min(low for low, _ in ends), max(high for _, high in ends))

    quantized = model.clone()
    if bits < BYTE:
        _round_weights(quantized, plan, bits)
    quantize_in_place(quantized, plan, decide_all(quantized, plan, decide))
    return serialize(quantized)


def _round_weights(model: ir.Model, plan: Plan, bits: int) -> None:
    for site in {site.tensor: site for site in plan.weights}.values():
        value = model.graph.initializers[site.tensor]
        with constant(value) as array:
            axes = None if site.axis is None else tuple(set(range(array.ndim)) - {site.axis % array.ndim})
            largest = np.maximum(np.abs(array).max(axis=axes, keepdims=True), TINY)
            step = largest / (2 ** (bits - 1) - 1)
            value.const_value = ir.tensor(
                (np.rint(array / step) * step).astype(array.dtype), name=site.tensor
            )


def _grid(site: ActivationSite, low: float, high: float, share: float = 1.0) -> QuantParameters:
    return grid_of_range(share * low, share * high, site.format, symmetric=site.symmetric)


# The factors of channels: a family of one strength for each space, tried on what its layers read.


STRENGTHS = (0.25, 0.5, 0.65, 0.8, 1.0)
"""0 gives all channels the same largest weight, 1 the same range."""
GAIN, GAIN_OF_FEW = 0.5, 0.9
"""A space keeps its channels unless the error falls below this share of what it was; with fewer bits, where
all noise is of activations, a little less is worth it."""
SHARES_OF_FEW = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3)
"""Of a tensor's range, tried where it has fewer bits: one that holds every value wastes most of 16 steps."""
STEPS_OF_FEW = 4
"""Factors in each octave with fewer bits: channels of ordinary networks are less than an octave apart, and
what these lose there is far above the float model's last bits."""


@dataclass(frozen=True, kw_only=True)
class SpaceFactors:
    """The factors that were chosen for a space.

    Attributes:
        space: the space.
        factors: of its channels.
        strength: that was best.
        before, after: error of what its readers make, as a share of what that varies by, without and with.
    """

    space: ScaleSpace
    factors: Factors
    strength: float
    before: float
    after: float


def find_factors(
    spaces: Sequence[ScaleSpace], found: SpaceSamples, bits: int, *, by_row: bool = False
) -> list[SpaceFactors]:
    """Return factors for the spaces that gain from them, in order; each row may have a scale of its own."""
    readers = {name: _Trial(reader, bits, by_row=by_row) for name, reader in found.readers.items()}
    table = {name: np.ones(len(item.low)) for name, item in found.ranges.items()}
    chosen = []
    for space in spaces:
        trial = _SpaceTrial(space, readers, found, table, by_row=by_row)
        best = trial.best()
        if best is not None:
            chosen.append(best)
            trial.keep(best.factors)
    return chosen


class _Trial:
    """A reader whose output's error is measured."""

    def __init__(self, reader: SpaceReader, bits: int, *, by_row: bool) -> None:
        self.reader, self._by_row = reader, by_row
        self._highest = float(2 ** (bits - 1) - 1)
        self._read = reader.read()
        self._product = self._multiply(self._read, reader.weight)
        varied = (
            self._product - self._product.mean(axis=0, keepdims=True) if len(self._product) else self._product
        )
        self._signal = float(np.sum(varied.astype(np.float64) ** 2))

    @property
    def is_measured(self) -> bool:
        return self._signal > 0.0

    def weight_by_channel(self, count: int) -> Factors:
        """Return, of each index of the tensor, its largest weight beside what an output is made of."""
        weight = self._apart(np.abs(self.reader.weight))  # (groups, M / groups, K)
        spread = self._read.std(axis=0).reshape(len(weight), 1, -1) if len(self._read) else np.ones((1, 1, 1))
        size = np.sqrt(np.sum((weight * spread) ** 2, axis=2, keepdims=True))
        share = (weight / np.maximum(size, 1e-30)).max(axis=1).reshape(-1)
        found = np.zeros(count)
        np.maximum.at(found, self.reader.columns, share)
        return found

    def error(self, factors: Factors, low: Factors, high: Factors, noise: Factors) -> float:
        """Return the error of the output, as a share of what it varies by.

        Factors, ranges and ``noise``, the variance that other tensors add, are of each index; the latter two
        without factors.
        """
        scaled = factors[self.reader.columns].astype(np.float32)
        weight = self._rounded(
            self._apart(self.reader.weight) / scaled.reshape(self.reader.geometry.groups, 1, -1)
        ).reshape(self.reader.weight.shape)
        reads = self._roundings(
            self._read * scaled, float((low * factors).min()), float((high * factors).max())
        )
        missed = [self._multiply(read, weight) - self._product for read in reads]
        power = (self._apart(self.reader.weight).astype(np.float64) ** 2).sum(axis=1).reshape(-1)
        added = len(self._product) * float(np.sum(power * noise[self.reader.columns]))
        return (min(float(np.sum(item.astype(np.float64) ** 2)) for item in missed) + added) / self._signal

    def _roundings(self, read: Float32s, low: float, high: float) -> Iterator[Float32s]:
        """Yield what is read as the quantized model may round it, of which the best counts."""
        site = self.reader.activation
        if self._by_row:
            yield _on_own_scales(read)
            return
        for share in SHARES_OF_FEW if site.format.bits < BYTE else (1.0,):
            yield _on_grid(read, _grid(site, low, high, share))

    def _rounded(self, weight: Float32s) -> Float32s:
        axes = (0, 1, 2) if self.reader.site.axis is None else 2
        scale = np.maximum(np.abs(weight).max(axis=axes, keepdims=True) / self._highest, 1e-30)
        return np.asarray(np.rint(weight / scale) * scale, np.float32)

    def _apart(self, weight: Float32s) -> Float32s:
        return weight.reshape(self.reader.geometry.groups, -1, weight.shape[1])

    def _multiply(self, read: Float32s, weight: Float32s) -> Float32s:
        apart = self._apart(weight)
        columns = read.reshape(len(read), len(apart), -1).transpose(1, 0, 2)
        product = np.matmul(columns, apart.transpose(0, 2, 1)).transpose(1, 0, 2)
        return np.asarray(product.reshape(len(read), -1), np.float32)


class _SpaceTrial:
    """One space, whose strengths are tried."""

    def __init__(
        self,
        space: ScaleSpace,
        readers: Mapping[str, _Trial],
        found: SpaceSamples,
        table: Mapping[str, Factors],
        *,
        by_row: bool,
    ) -> None:
        self._space, self._found, self._table, self._by_row = space, found, table, by_row
        self._held = [item for item in space.held if item.name in found.ranges]
        names = {item.name for item in self._held}
        self._has_few_bits = any(found.sites[name].format.bits < BYTE for name in names)
        self._trials = [
            trial
            for item in space.readers
            if (trial := readers.get(item.name)) is not None
            and trial.is_measured
            and trial.reader.activation.tensor in names
        ]

    def best(self) -> SpaceFactors | None:
        """Return the best factors, or None where they gain too little."""
        if not self._trials:
            return None
        ones = np.ones(len(self._space.roots))
        before = self._error(ones)
        tried = [(self._factors(strength), strength) for strength in STRENGTHS]
        errors = [self._error(factors) for factors, _ in tried]
        index = int(np.argmin(errors))
        if not errors[index] < (GAIN_OF_FEW if self._has_few_bits else GAIN) * before:
            return None
        factors, strength = tried[index]
        return SpaceFactors(
            space=self._space, factors=factors, strength=strength, before=before, after=errors[index]
        )

    def keep(self, factors: Factors) -> None:
        """Let the spaces that follow see these factors."""
        for item in self._held:
            self._table[item.name][:] = self._at(item, factors)

    def _at(self, item: HeldChannels, factors: Factors) -> Factors:
        """Return the factor of each index of a tensor."""
        own = item.channels != NO_CHANNEL
        return np.where(own, factors[item.channels], self._table[item.name])

    def _error(self, factors: Factors) -> float:
        # Of few bits the noise of whole ranges would hide what the readers' own best ranges gain.
        noise = {} if self._has_few_bits else self._noise(factors)
        total = 0.0
        for trial in self._trials:
            tensor = trial.reader.activation.tensor
            item = next(item for item in self._held if item.name == tensor)
            found = self._found.ranges[tensor]
            own = self._found.sites[tensor].source
            others = sum((part for source, part in noise.items() if source != own), np.zeros(len(factors)))
            added = np.where(item.channels != NO_CHANNEL, others[item.channels], 0.0)
            total += trial.error(self._at(item, factors), found.low, found.high, added)
        return total

    def _noise(self, factors: Factors) -> dict[str, Factors]:
        """Return what rounding adds to each channel, before it got its factor, by the source of the grid."""
        noise: dict[str, Factors] = {}
        # Where rows get their scales at each run, nothing between layers is rounded.
        for item in self._held if not self._by_row else ():
            found, site, at = (
                self._found.ranges[item.name],
                self._found.sites[item.name],
                self._at(item, factors),
            )
            if site.source in noise:
                continue
            grid = _grid(site, float((found.low * at).min()), float((found.high * at).max()))
            own = np.unique(item.channels[item.channels != NO_CHANNEL])
            noise[site.source] = np.zeros(len(factors))
            noise[site.source][own] = float(grid.scale) ** 2 / 12.0 / factors[own] ** 2
        return noise

    def _factors(self, strength: float) -> Factors:
        count = len(self._space.roots)
        reach, weight = np.zeros(count), np.zeros(count)
        for trial in self._trials:
            item = next(item for item in self._held if item.name == trial.reader.activation.tensor)
            found = self._found.ranges[item.name]
            own = item.channels != NO_CHANNEL
            if not self._has_few_bits:
                np.maximum.at(reach, item.channels[own], np.maximum(-found.low, found.high)[own])
            by_index = trial.weight_by_channel(len(found.low))
            np.maximum.at(weight, item.channels[own], by_index[own])
        if self._has_few_bits:
            reach = self._mean_reach(count)
        alive = (reach > 0.0) & (weight > 0.0)
        if not alive.any():
            return np.ones(count)
        factors = weight[alive] ** (1.0 - strength) / reach[alive] ** strength
        factors *= reach[alive].max() / (factors * reach[alive]).max()
        # Powers of two, of 8 bits: products and sums of the float model keep every bit.
        finer = STEPS_OF_FEW if self._has_few_bits else 1
        steps = np.rint(np.log2(factors) * finer) / finer
        result = np.full(count, 2.0 ** steps.min())  # What was always 0 is made no larger than the others.
        result[alive] = 2.0**steps
        return result

    def _mean_reach(self, count: int) -> Factors:
        """Return how far each channel reaches, as a geometric mean over the tensors of the space.

        Those that are only added count, too: with few bits an Add loses as much as what a layer reads.
        """
        reach, tensors = np.zeros(count), np.zeros(count)
        for item in self._held:
            found, own = self._found.ranges[item.name], item.channels != NO_CHANNEL
            far = np.maximum(-found.low, found.high)
            np.add.at(reach, item.channels[own], np.log(np.maximum(far / max(far.max(), TINY), TINY))[own])
            np.add.at(tensors, item.channels[own], 1.0)
        return np.where(tensors > 0.0, np.exp(reach / np.maximum(tensors, 1.0)), 0.0)


def _on_grid(values: Float32s, grid: QuantParameters) -> Float32s:
    scale, zero = np.float32(grid.scale), np.float32(int(grid.zero_point))
    steps = np.rint(values / scale) + zero
    return np.asarray((np.clip(steps, grid.format.qmin, grid.format.qmax) - zero) * scale, np.float32)


def _on_own_scales(values: Float32s) -> Float32s:
    """Round rows as the dynamic form does, each with the scale of its largest value; 0 stays 0."""
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True, initial=0.0) / HIGHEST, TINY)
    return np.asarray(np.rint(values / scale) * scale, np.float32)


SAME = 1e-5
"""The largest difference of an output, as a share of its largest value, that counts as rounding."""

LITTLE = 0.1
"""In dB: a smaller gain has to be sure."""

Kind = Callable[[ScaleSpace], bool]


@dataclass(frozen=True)
class Seen:
    """What was seen of a quantized form on the samples to decide by: its noise by piece, and a metric."""

    noise: Sequence[Noise]
    watch: MetricWatch | None


@dataclass(frozen=True, kw_only=True)
class RescaledModel:
    """What became of a model's channels.

    Attributes:
        model: the model with factors, or as it was.
        spaces: how many groups of channels could have got factors.
        chosen: those that did, or would have.
        kept: whether the model has them.
        before, after: SQNR of the quantized model's outputs on the samples to decide by, in dB.
        gain: the ends of the 95 % interval of their difference.
        difference: of the float model's outputs on these, as a share of their largest value.
        seen: of the model's quantized form on these; None if it did not run.
        metric: how much a watched metric gained.
    """

    model: ir.Model
    spaces: int
    chosen: Sequence[SpaceFactors]
    kept: bool = False
    before: float = float("nan")
    after: float = float("nan")
    gain: tuple[float, float] = (float("nan"), float("nan"))
    difference: float = 0.0
    seen: Seen | None = None
    metric: MetricGain | None = None


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def rescale_model(
    model: ir.Model,
    plan: Plan,
    samples: RecoverySamples,
    bits: int,
    kind: Kind,
    *,
    judged: Plan | None = None,
    by_row: bool = False,
    least_gain: float | None = None,
    watch: Callable[[], MetricWatch] | None = None,
    known: Seen | None = None,
    threads: int,
) -> RescaledModel:
    """Return a model with factors for its channels, if its quantized form is better for them.

    Requires: a prepared model. Ensures: the nodes and the names of all values are what they were, and on
    the samples to decide by its outputs are the same to 1e-5.

    ``kind`` says which spaces are meant; ``judged`` is the plan of the quantized form that decides, if it is
    another, and ``by_row`` whether each row has a scale of its own there. The interval of its SQNR's gain
    must lie above ``least_gain`` dB; with None above 0, or a gain of 0.1 dB is enough. ``watch`` begins to
    follow a metric, which decides before the SQNR where its interval tells a gain from a loss. ``known`` is
    what was seen of the model's quantized form, if another kind of spaces has run it on these samples.

    Edge case:
        Where values overflow or are not finite, errors are not numbers, and nothing is kept for them.
    """
    rescaled = model.clone()
    trace = trace_scales(rescaled.graph)
    spaces = [space for space in scale_spaces(trace) if kind(space)]
    found = sample_spaces(model, spaces, plan, samples, threads=threads) if spaces else None
    chosen = find_factors(spaces, found, bits, by_row=by_row) if found is not None else []
    if not chosen:
        return RescaledModel(model=model, spaces=len(spaces), chosen=(), seen=known)
    rescale(rescaled.graph, trace, _by_root(chosen))
    # One model's outputs at a time: logits of a language model are larger than its constants.
    wanted = list(_outputs(serialize(model), samples, threads))
    difference = _difference(zip(wanted, _outputs(serialize(rescaled), samples, threads), strict=True))

    def see(item: ir.Model) -> Seen:
        integers = _in_integers(item, judged or plan, samples, bits, threads)
        noise, follower = list[Noise](), watch() if watch is not None else None
        for one, other in zip(wanted, _outputs(integers, samples, threads), strict=True):
            noise.append(noise_of(one, other))
            if follower is not None:
                follower.add(other)
        return Seen(noise, follower)

    without, within = known or see(model), see(rescaled)
    before, after = sqnr_of(without.noise), sqnr_of(within.noise)
    gain = gain_interval(without.noise, within.noise)
    metric = within.watch.gain_over(without.watch) if within.watch is not None else None
    kept = difference <= SAME and _is_better(after - before, gain[0], least_gain, metric)
    return RescaledModel(
        model=rescaled if kept else model,
        spaces=len(spaces),
        chosen=chosen,
        kept=kept,
        before=before,
        after=after,
        gain=gain,
        difference=difference,
        seen=within if kept else without,
        metric=metric,
    )


def _is_better(gain: float, low: float, least_gain: float | None, metric: MetricGain | None) -> bool:
    """Say whether a change is kept: by a metric that is sure, or else by a gain in dB, at least ``low``."""
    if metric is not None and metric.is_sure:
        return metric.gain[0] > 0.0
    # Where the interval leaves open whether it helps, what was measured decides of one that was asked for.
    is_worth = least_gain is None and gain >= LITTLE
    return gain > 0.0 and (low > (least_gain or 0.0) or is_worth)


def _by_root(chosen: Sequence[SpaceFactors]) -> dict[int, float]:
    """Return the factor of each channel, by its number in the trace."""
    return {
        int(root): float(factor)
        for item in chosen
        for root, factor in zip(item.space.roots, item.factors, strict=True)
    }


Outputs = Sequence[Array]


def _outputs(model: StoredModel, samples: RecoverySamples, threads: int) -> Iterator[Outputs]:
    """Yield the outputs of each piece to decide by."""
    session = Session(model, threads=threads)
    for piece in samples.decide:
        yield session.run(piece)


def _in_integers(
    model: ir.Model, plan: Plan, samples: RecoverySamples, bits: int, threads: int
) -> StoredModel:
    ranges = tensor_ranges(model, plan.measured, (*samples.decide, *samples.fit), threads=threads)
    return plainly_quantized(model, plan, ranges, bits)


def _difference(pieces: Iterable[tuple[Outputs, Outputs]]) -> float:
    """Return the largest difference of an output's number, as a share of the output's largest value."""
    largest: dict[int, float] = {}
    differing: dict[int, float] = {}
    for wanted, found in pieces:
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            if not is_array(one) or one.dtype.kind != "f":
                continue
            if one.shape != other.shape:
                return float("inf")
            largest[index] = max(largest.get(index, 0.0), float(np.max(np.abs(one), initial=0.0)))
            if np.array_equal(one, other):  # As powers of two make it; logits of a language model are many.
                continue
            # In float64 the largest float32 values do not overflow.
            with np.errstate(invalid="ignore"):
                difference = np.where(one == other, 0.0, np.abs(np.subtract(one, other, dtype=np.float64)))
            differing[index] = max(differing.get(index, 0.0), float(np.max(difference, initial=0.0)))
    return max((differing[index] / max(largest[index], 1e-30) for index in differing), default=0.0)
