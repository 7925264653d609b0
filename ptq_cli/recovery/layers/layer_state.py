"""What a quantized graph holds of a layer, in matrix form, and other values of the same constants."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.numbers.pair_sums import exceeds_pairs, mates_along
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recovery.layers.quantized_layer import QuantizedLayer, constant_array
from ptq_cli.recovery.search.code_search import CodeGrid, Codes
from ptq_cli.recovery.search.second_moments import Float64s, Int64s

LARGEST_BIAS = 2**30
"""In steps. Half of int32: the other half is for the products that the kernel adds to it."""
BIAS_ROOM = 4
"""How many times as large as it is a bias may become before its scale would be too small for it."""
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


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
        """Return which output channels are of a group."""
        each = len(self.weight) // self.groups
        return slice(group * each, (group + 1) * each)


def layer_state(twins: TwinGraphs, layer: QuantizedLayer) -> LayerState:
    """Return what both graphs hold of a layer."""
    geometry, model = layer.geometry, twins.quantized_model
    with mapped(twins.float_model.graph.initializers[layer.site.tensor]) as array:
        weight, shape = geometry.rows(array), array.shape
    scale = constant_array(model, layer.weight.scale).astype(np.float64)
    scales = (
        geometry.rows(scale)
        if geometry.blocks > 1
        else np.broadcast_to(scale.reshape(-1, 1), (len(weight), 1))
    )
    values = geometry.rows(constant_array(model, layer.weight.values))
    integers = np.rint(values / scales[:, geometry.block]) if layer.weight.multiples else values
    bias = None
    if layer.bias is not None:
        bias = constant_array(model, layer.bias.values).astype(np.float64).reshape(-1)
        if layer.bias.scale:
            bias = bias * constant_array(model, layer.bias.scale).astype(np.float64).reshape(-1)
    return LayerState(
        weight=weight,
        codes=Codes(integers=integers, scales=scales.copy()),
        bias=bias,
        groups=geometry.groups,
        shape=shape,
    )


def code_grid(
    layer: QuantizedLayer, state: LayerState, own: slice, step: float, largest: Float64s
) -> CodeGrid:
    """Return which integers and scales some channels of a layer may have.

    Args:
        layer: of the model.
        state: as it is.
        own: the channels.
        step: of what the layer reads.
        largest: magnitude of what each channel makes: its bias has to fit in int32.

    Shapes:
        largest: (M,).
    """
    least = np.full(len(state.weight), SMALLEST_SCALE if layer.free else 0.0)
    if layer.free and state.bias is not None and layer.bias is not None and layer.bias.scale:
        room = BIAS_ROOM * np.maximum(np.abs(state.bias), largest)
        least = np.maximum(least, room / (step * LARGEST_BIAS))
    format = layer.site.format
    return CodeGrid(
        lowest=int(format.qmin),
        highest=int(format.qmax),
        block=layer.geometry.block,
        least=least[own],
        free=layer.free,
        mates=_mates(layer, state),
        most=float(layer.site.pairs.largest) if layer.site.pairs is not None else np.inf,
    )


def _mates(layer: QuantizedLayer, state: LayerState) -> Int64s | None:
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


def new_constants(
    twins: TwinGraphs, layer: QuantizedLayer, codes: Codes, bias: Float64s | None, step: float
) -> dict[str, Array]:
    """Return new values of a quantized graph's initializers, by name.

    Args:
        twins: both models.
        layer: of them.
        codes: its new integers and scales.
        bias: its new bias; None leaves the one that it has, if it has any that can be changed.
        step: of what it reads.

    Shapes:
        bias: (M,).
    """
    graph, place, geometry = twins.quantized_model.graph, layer.weight, layer.geometry
    integers = codes.weights(geometry.block) if place.multiples else codes.integers
    shape = _shape(graph.initializers[place.values])
    rule = layer.site.pairs
    if rule is not None and exceeds_pairs(geometry.in_place(codes.integers, shape), rule):
        raise RuntimeError(f"two neighbors in '{layer.site.tensor}' add up to more than {rule.largest}")
    constants = {place.values: geometry.in_place(integers, shape)}
    if layer.free:
        constants[place.scale] = geometry.in_place(codes.scales, _shape(graph.initializers[place.scale]))
    if layer.bias is None or bias is None:
        return constants
    shape = _shape(graph.initializers[layer.bias.values])
    if not layer.bias.scale:
        return constants | {layer.bias.values: bias.reshape(shape)}
    # As the integer kernels compute it.
    scale = (np.float32(step) * codes.scales[:, 0].astype(np.float32)).astype(np.float32)
    ends = np.iinfo(np.int32)
    steps = np.clip(np.rint(bias / scale.astype(np.float64)), ends.min, ends.max)
    constants[layer.bias.values] = steps.reshape(shape)
    if layer.free:
        constants[layer.bias.scale] = scale.reshape(_shape(graph.initializers[layer.bias.scale]))
    return constants


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(value.const_value.shape.numpy()) if value.const_value is not None else ()
