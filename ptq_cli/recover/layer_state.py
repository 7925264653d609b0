"""What was decided of a layer, as matrices, and what may be decided in its place."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.decide import LARGEST_BIAS
from ptq_cli.core.pair_sums import exceeds_pairs, mates_along
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.plan.sites import BiasSite
from ptq_cli.qdq.write.site_parameters import DecidedBias, DecidedConstants, Parameters
from ptq_cli.recover.code_search import CodeGrid, Codes
from ptq_cli.recover.quantized_layer import QuantizedLayer
from ptq_cli.recover.second_moments import Float64s, Int64s

BIAS_ROOM = 4  # times as large as it is a bias may become before its scale would be too small for it
EVERY = slice(None)
CHANNELS = 4096  # output channels with blocks of which weights and integers are held in float64 at once
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
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

    Shapes:
        weight: (M, K); bias: (M,).
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
    least = np.full(len(state.weight), SMALLEST_SCALE if layer.free else 0.0)
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
        for start in range(0, len(values), CHANNELS):  # A table has millions of them.
            own = slice(start, start + CHANNELS)
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
