"""A float model's channels get the factors that its quantized form gains from; it computes what it did."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.choice import grid_of_range
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import BYTE
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.rescaling.scale_rules import trace_scales
from ptq_cli.models.rescaling.scale_spaces import ScaleSpace, rescale, scale_spaces
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import constant, decide_all
from ptq_cli.recover.channel_factors import TINY, SpaceFactors, find_factors, sample_spaces
from ptq_cli.recover.output_noise import LimitedMetric, MetricGain, Noise, gain_interval, noise_of, sqnr_of
from ptq_cli.recover.recovery_context import RecoverySamples
from ptq_cli.recover.recovery_effects import LITTLE, Rescaling
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap

_SAME = 1e-5  # largest difference of an output, as a share of its largest value, that counts as rounding
_Range = tuple[float, float]
_Kind = Callable[[ScaleSpace], bool]


@dataclass(frozen=True)
class RescalingSamples:
    """What was seen of a quantized form on the samples to decide by: its noise by piece, and a metric."""

    noise: Sequence[Noise]
    watch: LimitedMetric | None


@dataclass(frozen=True)
class RescaledModel:
    """What became of a model's channels.

    Attributes:
        model: the model with factors, or as it was.
        told: what was done, but for the number of samples.
        seen: of the model's quantized form on the samples to decide by; None if it did not run.
    """

    model: ir.Model
    told: Rescaling
    seen: RescalingSamples | None


@dataclass(frozen=True, kw_only=True)
class QuantizedForm:
    """The quantized form of a model that factors are chosen and judged for.

    Attributes:
        plan: of the form that factors are chosen for.
        samples: to take ranges from, and to decide by.
        bits: of weights.
        judged: the plan of the form that decides, if it is another.
        by_row: whether each row has a scale of its own there.
        watch: begins to follow a metric, which decides before the SQNR where its interval tells a gain from a
            loss.
    """

    plan: Plan
    samples: RecoverySamples
    bits: int
    judged: Plan | None = None
    by_row: bool = False
    watch: Callable[[], LimitedMetric] | None = None
    threads: int

    def in_integers(self, model: ir.Model) -> StoredModel:
        """Return the form that decides."""
        plan, samples = self.judged or self.plan, self.samples
        pieces = (*samples.decide, *samples.fit)
        ranges = tensor_ranges(model, plan.measured, pieces, threads=self.threads)
        return plainly_quantized(model, plan, ranges, self.bits)

    def outputs(self, model: StoredModel) -> Iterator[Sequence[Array]]:
        """Yield a model's outputs of each piece to decide by."""
        session = Session(model, threads=self.threads)
        for piece in self.samples.decide:
            yield session.run(piece)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def rescale_model(
    model: ir.Model,
    form: QuantizedForm,
    rung: str,
    kind: _Kind,
    *,
    least_gain: float | None = None,
    known: RescalingSamples | None = None,
) -> RescaledModel:
    """Return a model with factors for its channels, if its quantized form is better for them.

    Requires: a prepared model. Ensures: the nodes and the names of all values are what they were, and on
    the samples to decide by its outputs are the same to 1e-5.

    ``kind`` says which spaces the ``rung`` means. The interval of the SQNR's gain must lie above
    ``least_gain`` dB; with None above 0, or a gain of 0.1 dB is enough. ``known`` is what was seen of the
    model's quantized form, if another kind of spaces has run it on these samples.

    Edge case: Where values overflow or are not finite, errors are not numbers, and nothing is kept for them.
    """
    rescaled = model.clone()
    trace = trace_scales(rescaled.graph)
    spaces = [space for space in scale_spaces(trace) if kind(space)]
    chosen: Sequence[SpaceFactors] = ()
    if spaces:
        found = sample_spaces(model, spaces, form.plan, form.samples, threads=form.threads)
        chosen = find_factors(spaces, found, form.bits, by_row=form.by_row)
    if not chosen:
        return RescaledModel(model, Rescaling(rung=rung, possible=len(spaces), strengths={}), known)
    rescale(rescaled.graph, trace, _by_root(chosen))
    # One model's outputs at a time: logits of a language model are larger than its constants.
    wanted = list(form.outputs(serialize(model)))
    difference = _difference(zip(wanted, form.outputs(serialize(rescaled)), strict=True))

    def see(item: ir.Model) -> RescalingSamples:
        noise, follower = list[Noise](), form.watch() if form.watch is not None else None
        for one, other in zip(wanted, form.outputs(form.in_integers(item)), strict=True):
            noise.append(noise_of(one, other))
            if follower is not None:
                follower.add(other)
        return RescalingSamples(noise, follower)

    without, within = known or see(model), see(rescaled)
    before, after = sqnr_of(without.noise), sqnr_of(within.noise)
    gain = gain_interval(without.noise, within.noise)
    metric = within.watch.gain_over(without.watch) if within.watch and without.watch else None
    kept = difference <= _SAME and _is_better(after - before, gain[0], least_gain, metric)
    reason = ""
    if not difference <= _SAME:
        reason = f"the float model's own outputs would change by {difference:.1g} of their largest value"
    told = Rescaling(
        rung=rung,
        kept=kept,
        groups=len(chosen),
        possible=len(spaces),
        before=before,
        after=after,
        gain=gain,
        difference=difference,
        strengths={item.space.makers[0]: item.strength for item in chosen},
        reason=reason,
        metric=metric,
    )
    return RescaledModel(rescaled if kept else model, told, within if kept else without)


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


def _difference(pieces: Iterable[tuple[Sequence[Array], Sequence[Array]]]) -> float:
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


def tensor_ranges(
    model: ir.Model, tensors: Sequence[str], pieces: Iterable[Mapping[str, Array]], *, threads: int
) -> dict[str, _Range]:
    """Return the lowest and the highest value of tensors on some samples; 0 is always between them.

    Edge case: NaN counts as nothing.
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
    model: ir.Model, plan: Plan, ranges: Mapping[str, _Range], bits: int = BYTE
) -> StoredModel:
    """Return a model quantized with given ranges; the model stays as it is.

    Weights of fewer than 8 bits are on a grid of as many, stored as 8: this needs no newer opset.
    """

    def decide(site: ActivationSite) -> QuantParameters:
        ends = [ranges[name] for name in plan.members(site.source)]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        return grid_of_range(low, high, site.format, symmetric=site.symmetric)

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
