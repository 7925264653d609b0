"""One layer's integers, scales and bias: what was decided, and what is solved from its rows in its place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.decide import LARGEST_BIAS
from ptq_cli.core.pair_sums import exceeds_pairs, mates_along
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.plan.sites import BiasSite
from ptq_cli.qdq.write.site_parameters import DecidedBias, DecidedConstants, Parameters
from ptq_cli.recover.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recover.layer_geometry import LayerData, RowsPart
from ptq_cli.recover.least_squares import (
    CenteredMoments,
    Factor,
    Quadratic,
    centered,
    factored,
    fit_least_squares,
    share_that_holds,
)
from ptq_cli.recover.quantized_layer import QuantizedLayer
from ptq_cli.recover.second_moments import Float64s, Int64s, SecondMoments, byte_moments, second_moments
from ptq_cli.runtime.products import multiplied_floats

BIAS_ROOM = 4  # times as large as it is a bias may become before its scale would be too small for it
EVERY = slice(None)
# Output channels with blocks of which weights and integers are held in float64 at once.
STATE_CHANNELS_AT_ONCE = 4096
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
NO_HELP = "the error on the held-out samples did not fall"


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerState:
    """A layer as it is.

    Attributes:
        weight: of the float model, with a row for each output channel.
        codes: its integers and scales.
        bias: in real units; None if there is none that can be changed.
        groups: how many parts of the channels are apart from each other.
        shape: of the weight, as the layer has it.

    Shapes: weight: (M, K); bias: (M,).
    """

    weight: Float64s
    codes: Codes
    bias: Float64s | None
    groups: int
    shape: tuple[int, ...]

    def part(self, group: int) -> slice:
        """Output channels of a group."""
        each = len(self.weight) // self.groups
        return slice(group * each, (group + 1) * each)


@dataclass(frozen=True, kw_only=True)
class SolvedLayer:
    """What was chosen for a layer.

    Attributes:
        before, after: error of its output, as a share of what its output varies by, on the rows that it was
            chosen from.
        damped: there were fewer rows than inputs.
        changed: something of it is another than before.
        decided: its weight and its bias.
    """

    before: float
    after: float
    damped: bool
    changed: bool
    decided: DecidedConstants = field(repr=False)


def layer_state(
    float_model: ir.Model, parameters: Parameters, layer: QuantizedLayer, own: slice = EVERY
) -> LayerState:
    """Return a layer's float weight with its integers, scales and bias.

    Of one without groups, some output channels may be asked for, if blocks of their inputs have scales.
    """
    geometry, item = layer.geometry, parameters.decided[layer.site]
    part = (slice(None), own) if geometry.transposed else (own,)
    with mapped(float_model.graph.initializers[layer.site.tensor]) as array:
        weight, shape = geometry.rows(array[part]), array.shape
    scale = item.scale(layer.site).astype(np.float64)
    if geometry.blocks > 1:
        scales = geometry.rows(scale[part])
    else:
        scales = np.broadcast_to(scale.reshape(-1, 1), (len(weight), 1))
    points, bias = item.zeros(layer.site), bias_values(float_model, parameters, layer)
    zeros = geometry.rows(points[part]) if points is not None else None
    integers = geometry.rows(item.stored.values()[part])
    return LayerState(
        weight=weight,
        codes=Codes(
            integers=integers - (zeros[:, geometry.block] if zeros is not None else 0),
            scales=scales.copy(),
            zeros=zeros,
        ),
        bias=bias[own] if bias is not None else None,
        groups=geometry.groups,
        shape=shape,
    )


def bias_values(float_model: ir.Model, parameters: Parameters, layer: QuantizedLayer) -> Float64s | None:
    """Return the bias that a layer adds, (M,), in real units; None if there is none that can be changed."""
    if layer.bias is None:
        return None
    if isinstance(layer.bias, BiasSite):
        return parameters.biases[layer.bias].values
    known = parameters.floats.get(layer.bias)
    if known is not None:
        return known.astype(np.float64)
    with mapped(float_model.graph.initializers[layer.bias]) as array:
        return array.astype(np.float64).reshape(-1)


def code_grid(
    layer: QuantizedLayer, state: LayerState, own: slice, step: float, largest: Float64s
) -> CodeGrid:
    """Return the integers and scales that channels may have: a bias of ``largest``, (M,), fits in int32."""
    least = np.full(len(state.weight), _SMALLEST_SCALE if layer.free else 0.0)
    if layer.free and state.bias is not None and isinstance(layer.bias, BiasSite):
        room = BIAS_ROOM * np.maximum(np.abs(state.bias), largest)
        least = np.maximum(least, room / (step * LARGEST_BIAS))
    site = layer.site
    return CodeGrid(
        lowest=int(site.format.qmin),
        highest=int(site.format.qmax),
        block=layer.geometry.block,
        least=least[own],
        free=layer.free,
        pair_partners=_pair_partners(layer, state),
        most=float(site.pairs.largest) if site.pairs is not None else np.inf,
    )


def _pair_partners(layer: QuantizedLayer, state: LayerState) -> Int64s | None:
    """Return with which other inputs each one is a pair in the kernel, alike for every output channel."""
    rule = layer.site.pairs
    if rule is None:
        return None
    # Of one output channel, wherever the layer has these.
    outputs = int(layer.geometry.transposed)
    shape = [1 if axis == outputs else size for axis, size in enumerate(state.shape)]
    flat = layer.geometry.rows(np.arange(math.prod(shape)).reshape(shape))[0].astype(np.int64)
    place = np.empty(len(flat) + 1, np.int64)
    place[flat], place[-1] = np.arange(len(flat)), -1
    return np.ascontiguousarray(place[mates_along(rule, shape)[flat]])


def decided_again(
    parameters: Parameters, layer: QuantizedLayer, codes: Codes, bias: Float64s | None, step: float
) -> DecidedConstants:
    """Return a layer's constants with other integers and scales.

    Without a new bias, (M,), the layer keeps the one that it has; ``step`` is of what it reads.
    """
    geometry, site, item = layer.geometry, layer.site, parameters.decided[layer.site]
    points, zeros, values = codes.arrays[2], None, codes.integers
    if not site.format.signed:
        zeros = geometry.in_place(points, item.scale(site).shape)
        values = np.empty(values.shape, np.float32 if site.as_pair else site.format.storage)
        for start in range(0, len(values), STATE_CHANNELS_AT_ONCE):  # A table has millions of them.
            own = slice(start, start + STATE_CHANNELS_AT_ONCE)
            values[own] = codes.integers[own] + points[own][:, geometry.block]
    integers = geometry.in_place(values, item.stored.shape)
    if site.pairs is not None and exceeds_pairs(integers, site.pairs):
        raise RuntimeError(f"two neighbors in '{site.tensor}' add up to more than {site.pairs.largest}")
    scale = geometry.in_place(codes.scales, item.scale(site).shape) if layer.free else None
    weights = {site: item.with_integers(site, integers, scale, zeros)}
    if layer.bias is None or bias is None:
        return DecidedConstants(decided=weights)
    if isinstance(layer.bias, str):
        return DecidedConstants(decided=weights, floats={layer.bias: bias.astype(np.float32)})
    # As the integer kernels compute it.
    steps = (np.float32(step) * codes.scales[:, 0].astype(np.float32)).astype(np.float32)
    found = DecidedBias.of(bias, steps)
    if not layer.free:
        found = replace(found, scale=parameters.biases[layer.bias].scale)
    return DecidedConstants(decided=weights, biases={layer.bias: found})


_STEPS = 32767  # on either side of 0, of targets and float inputs: 16 bits are finer than a layer's error
_JUDGED = 8  # channels of each group, at most, that say how far to go: it is one number for all of them


def solve_layer(
    float_model: ir.Model, parameters: Parameters, layer: QuantizedLayer, data: LayerData, *, threads: int
) -> SolvedLayer | str:
    """Return the best constants of a layer that are found, with any number of threads, or why it stays."""
    parts = data.read()
    if isinstance(parts, str):
        return parts
    return _Solution(float_model, parameters, layer, parts).solve(threads)


class _Solution:
    """One layer, on its way from moments to constants."""

    def __init__(
        self,
        float_model: ir.Model,
        parameters: Parameters,
        layer: QuantizedLayer,
        parts: tuple[list[RowsPart], list[RowsPart], list[RowsPart]],
    ) -> None:
        self._float_model, self._parameters, self._layer = float_model, parameters, layer
        self._learn, self._check, self._decide = parts
        self._state = layer_state(float_model, parameters, layer)
        self._parts = [self._state.part(group) for group in range(self._state.groups)]
        rows = [*self._learn, *self._check]
        # Of each channel's targets: their largest magnitude, and the step that makes integers of them.
        self._largest = np.max([np.abs(made).max(axis=0) for _, made in rows], axis=0).astype(np.float64)
        self._target_steps = _steps(self._largest)
        if layer.parameters is not None:
            self._step, self._zero = float(layer.parameters.scale), int(layer.parameters.zero_point)
        else:
            self._step, self._zero = _steps(np.max([np.abs(read).max() for read, _ in rows])).item(), 0

    def solve(self, threads: int) -> SolvedLayer | str:
        """Return the constants chosen, or why none are."""
        state, check = self._state, self._check
        sums = [self._moments(parts) for parts in (self._learn, check)]
        totals = [one.merge(other) for one, other in zip(*sums, strict=True)] if check else sums[0]
        moments = self._centered(totals)
        factors = [factored(item) for item in moments]
        share = self._share(sums[0], sums[1], [factor for _, factor in factors]) if check else 1.0
        quadratics = [
            fit_least_squares(item, state.weight[own], share=share, known=known)
            for own, item, known in zip(self._parts, moments, factors, strict=True)
        ]
        found, errors = self._search(quadratics, threads)
        bias = self._bias(found, moments)
        again = decided_again(self._parameters, self._layer, found, self._stored(bias), self._step)
        changed = again.differs(self._parameters, self._float_model)
        if changed and self._decide and not self._holds(found, bias):
            return NO_HELP
        return SolvedLayer(
            before=errors[0],
            after=errors[1],
            damped=totals[0].rows < state.weight.shape[1],
            changed=changed,
            decided=again,
        )

    def _moments(self, parts: Sequence[RowsPart]) -> list[SecondMoments]:
        """Return the moments of each group; exact, whatever the parts are."""
        totals: list[SecondMoments] = []
        for read, made in parts:
            if self._layer.parameters is not None and read.itemsize == 1:
                found = byte_moments(read, self._zero, made, self._target_steps, self._state.groups)
            else:
                found = self._float_moments(read, made)
            totals = [one.merge(other) for one, other in zip(totals, found, strict=True)] if totals else found
        return totals

    def _float_moments(
        self, read: npt.NDArray[np.generic], made: npt.NDArray[np.float32]
    ) -> list[SecondMoments]:
        size, inputs = self._state.weight.shape[1], read.astype(np.float64)
        is_integer = self._layer.parameters is not None
        inputs = inputs - self._zero if is_integer else np.rint(inputs / self._step)
        targets = np.rint(made.astype(np.float64) / self._target_steps)
        return [
            second_moments(inputs[:, group * size : (group + 1) * size], targets[:, own])
            for group, own in enumerate(self._parts)
        ]

    def _centered(self, moments: Sequence[SecondMoments], step: int = 1) -> list[CenteredMoments]:
        return [
            centered(
                item,
                input_step=self._step,
                target_step=self._target_steps[own][::step],
                has_bias=self._state.bias is not None,
            )
            for own, item in zip(self._parts, moments, strict=True)
        ]

    def _share(
        self, learned: Sequence[SecondMoments], checked: Sequence[SecondMoments], factors: Sequence[Factor]
    ) -> float:
        step = -(-len(self._state.weight) // (self._state.groups * _JUDGED))
        of_learned, of_checked = (
            self._centered(
                [replace(item, cross=item.cross[::step], targets=item.targets[::step]) for item in part], step
            )
            for part in (learned, checked)
        )
        weights = [self._state.weight[own][::step] for own in self._parts]
        return share_that_holds(of_learned, of_checked, weights, factors)

    def _search(self, quadratics: Sequence[Quadratic], threads: int) -> tuple[Codes, tuple[float, float]]:
        """Return the best integers and scales, and the error before and after as shares of what varies."""
        codes = self._state.codes
        found = Codes(integers=codes.integers.copy(), scales=codes.scales.copy())
        before = after = power = 0.0
        for own, quadratic in zip(self._parts, quadratics, strict=True):
            grid = code_grid(self._layer, self._state, own, self._step, self._largest)
            better, *errors = search_codes(quadratic, grid, codes.part(own), threads=threads)
            found.integers[own], found.scales[own] = better.integers, better.scales
            before, after = before + float(errors[0].sum()), after + float(errors[1].sum())
            power += float((quadratic.best * quadratic.pull).sum())
        power = power if power > 0.0 else 1.0
        return found, (before / power, after / power)

    def _bias(self, codes: Codes, moments: Sequence[CenteredMoments]) -> Float64s | None:
        if self._state.bias is None:
            return None
        weights, bias = codes.weights(self._layer.geometry.block), np.zeros(len(self._state.weight))
        for own, item in zip(self._parts, moments, strict=True):
            if (found := item.bias(weights[own])) is not None:
                bias[own] = found
        return bias

    def _stored(self, bias: Float64s | None) -> Float64s | None:
        """Return the bias that the graph is to hold; one that is added apart is not in what a layer makes."""
        if bias is None or self._state.bias is None:
            return None
        return bias + self._state.bias if self._layer.bias_apart else bias

    def _holds(self, found: Codes, bias: Float64s | None) -> bool:
        """Whether the layer's error falls on samples that nothing was learned from."""
        had = self._state.bias
        if had is not None and self._layer.bias_apart:
            had = np.zeros(len(had))
        block = self._layer.geometry.block
        after = self._error(found.weights(block), bias)
        return after < self._error(self._state.codes.weights(block), had)

    def _error(self, weights: Float64s, bias: Float64s | None) -> float:
        """Return the sum of the squares that what weights make is away from what they should."""
        groups, total = len(self._parts), 0.0
        step = self._step if self._layer.parameters is not None else 1.0
        turned = np.swapaxes((weights * step).reshape(groups, -1, weights.shape[1]), 1, 2).astype(np.float32)
        for read, made in self._decide:
            rows = (read.astype(np.float32) - self._zero).reshape(len(read), groups, -1)
            missed = multiplied_floats(np.swapaxes(rows, 0, 1), turned)
            missed -= np.swapaxes(made.reshape(len(made), groups, -1), 0, 1)
            if bias is not None:
                missed += bias.reshape(groups, 1, -1).astype(np.float32)
            total += float(np.square(missed, dtype=np.float64).sum())
        return total


def _steps(largest: Float64s) -> Float64s:
    return np.where(largest > 0.0, np.asarray(largest, np.float64) / _STEPS, 1.0)
