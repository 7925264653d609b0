"""The layers whose weights can be chosen again, and the constants of a quantized graph that hold them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.pair_sums import exceeds_pairs, mates_along
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.graph_reading import input_at, sole_reader
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.qdq.read.twin_graphs import QuantizedConstant, TwinGraphs
from ptq_cli.recovery.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recovery.layer_geometry import LayerGeometry, layer_geometry
from ptq_cli.recovery.second_moments import Float64s, Int64s, Quadratic, quadratic_forms

SHARED_BIAS = "a bias that is computed, or that several layers share, cannot be changed"


@dataclass(frozen=True)
class IntegerConstant:
    """Where a quantized graph holds a constant.

    Attributes:
        values: name of the initializer with the integers, or with multiples of the scale.
        scale: name of that with the scale; empty of floats.
        multiples: ``values`` holds multiples of the scale, which a QuantizeLinear makes integers of.
    """

    values: str
    scale: str
    multiples: bool = False


@dataclass(frozen=True, kw_only=True)
class QuantizedLayer:
    """A layer whose weight can be chosen again.

    Attributes:
        name: the node's name.
        site: of the weight.
        geometry: how the weight meets its inputs.
        reads, makes: names of the tensors in the float model: what the layer reads, and its products.
        parameters: of what it reads; None if that is not quantized.
        weight: where the quantized graph holds the weight.
        bias: where it holds the bias; None if there is none that can be changed.
        bias_apart: the bias is added by an operator of its own.
        free: its scales may be chosen again, too.
    """

    name: str
    site: WeightSite
    geometry: LayerGeometry
    reads: str
    makes: str
    parameters: QuantParameters | None
    weight: IntegerConstant
    bias: IntegerConstant | None
    bias_apart: bool
    free: bool


def quantized_layers(
    twins: TwinGraphs, plan: Plan, free: Mapping[WeightSite, bool]
) -> tuple[dict[str, QuantizedLayer], dict[str, str]]:
    """Return the layers that can be recovered, and why the others cannot, both by name.

    Args:
        twins: the float and the quantized model.
        plan: of the quantized one.
        free: whether the scales of a weight may be chosen again; a weight whose quantizer has no evenly
            spread integers is not in it.
    """
    nodes = {node.name: node for node in twins.float_model.graph}
    constants = {(item.node.name, item.input_index): item for item in twins.constants}
    layers: dict[str, QuantizedLayer] = {}
    refused: dict[str, str] = {}
    for site in plan.weights:
        if site.dynamic:
            refused[site.node] = "its ranges are found at each run"
            continue
        constant = constants.get((site.node, site.input_index))
        node = nodes.get(site.node)
        if node is None:
            refused[site.node] = "layers inside other operators, such as an If, are not supported"
            continue
        if site not in free or constant is None:
            refused[site.node] = "the quantizer has no evenly spaced integers"
            continue
        found = _layer(twins, plan, node, site, constant, free=free[site])
        if isinstance(found, str):
            refused[site.node] = found
        else:
            layers[site.node] = found
    return layers, refused


def _layer(
    twins: TwinGraphs, plan: Plan, node: ir.Node, site: WeightSite, constant: QuantizedConstant, *, free: bool
) -> QuantizedLayer | str:
    if not site.format.signed:
        return "weights with zero points are left as they were rounded"
    if not constant.sources:
        return "an operator of the runtime reads its integers, and has scales of its own"
    place = _integers(constant)
    if place is None:
        return "a weight that several layers share is left to all of them"
    shape = tuple(constant.floats.const_value.shape.numpy()) if constant.floats.const_value else ()
    geometry = layer_geometry(node, site, shape)
    if isinstance(geometry, str):
        return geometry
    read = node.inputs[0]
    assert read is not None  # noqa: S101 - a layer with a weight reads something else, too
    source = constant.node.inputs[0]
    producer = source.producer() if source is not None else None
    pair = twins.pairs.get(read.name or "")
    is_paired = pair is not None and producer is not None and producer.inputs[0] is pair.integers
    bias = _bias(twins, plan, site, constant)
    if isinstance(bias, str):
        return bias
    return QuantizedLayer(
        name=node.name or "",
        site=site,
        geometry=geometry,
        reads=read.name or "",
        makes=node.outputs[0].name or "",
        parameters=pair.parameters if pair is not None and is_paired else None,
        weight=place,
        bias=bias.place if bias is not None else None,
        bias_apart=bias is not None and bias.is_apart,
        free=free and (site.axis is not None or site.block_size is not None),
    )


def _integers(constant: QuantizedConstant) -> IntegerConstant | None:
    """Return where a constant's integers lie, if nobody else reads them."""
    dequantize = constant.sources[-1]
    if dequantize.op_type != DEQUANTIZE or sole_reader(dequantize.outputs[0]) is None:
        return None
    value, scale = dequantize.inputs[0], dequantize.inputs[1]
    if value is None or scale is None or scale.const_value is None:
        return None
    multiples = False
    if value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in ("Cast", QUANTIZE) or sole_reader(value) is None:
            return None
        multiples = producer.op_type == QUANTIZE
        value = producer.inputs[0]
    if value is None or value.const_value is None or sole_reader(value) is None:
        return None
    if any(use.node not in constant.sources for use in scale.uses()):
        return None
    return IntegerConstant(value.name or "", scale.name or "", multiples)


@dataclass(frozen=True)
class _Bias:
    place: IntegerConstant
    is_apart: bool


def _bias(twins: TwinGraphs, plan: Plan, site: WeightSite, weight: QuantizedConstant) -> _Bias | str | None:
    """Return where the bias of a layer lies; None without one, or why it cannot be changed."""
    channels = weight.floats.shape[site.axis] if site.axis is not None and weight.floats.shape else None
    for bias in plan.biases:
        if bias.weight != site:
            continue
        for constant in twins.constants:
            if (constant.node.name, constant.input_index) == (bias.node, bias.input_index):
                place = _integers(constant)
                return _Bias(place, bias.node != site.node) if place is not None else SHARED_BIAS
    plain = input_at(weight.node, 2) if weight.node.op_type in ("Conv", "ConvTranspose", "Gemm") else None
    if plain is None:
        return None
    if plain.const_value is None or sole_reader(plain) is None:
        return SHARED_BIAS
    if site.block_size is None and channels is not None and plain.const_value.size != channels:
        return "a bias has to be one number for each output channel"
    return _Bias(IntegerConstant(plain.name or "", ""), is_apart=False)


def constant_array(model: ir.Model, name: str) -> Array:
    """Return the values of an initializer, those of 4 bits as int8."""
    with mapped(model.graph.initializers[name]) as array:
        return (
            array.astype(np.int8) if array.dtype.itemsize == 1 and array.dtype.kind == "V" else array.copy()
        )


def is_changed(model: ir.Model, arrays: Mapping[str, Array]) -> bool:
    """Return whether a graph holds other values of one of these initializers."""
    held = {name: constant_array(model, name) for name in arrays}
    return any(not np.array_equal(held[name], arrays[name].astype(held[name].dtype)) for name in arrays)


def replace_constants(model: ir.Model, arrays: Mapping[str, Array]) -> None:
    """Give initializers of a graph other values of the same type.

    Edge case:
        A name that the graph does not have is passed over: a part of a graph has some of its constants.
    """
    for name, array in arrays.items():
        value = model.graph.initializers.get(name)
        if value is not None and value.dtype is not None:
            values = np.ascontiguousarray(array).astype(value.dtype.numpy())
            value.const_value = ir.Tensor(values, dtype=value.dtype, name=name)


# What a quantized graph holds of a layer, in matrix form, and other values of the same constants.


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


# Integers and scales for all groups of a layer, and what is told of them.


@dataclass(frozen=True, kw_only=True)
class SolvedLayer:
    """What was chosen for a layer.

    Attributes:
        before, after: error of its output, as a share of what its output varies by, on the rows that it was
            chosen from.
        damped: there were fewer rows than inputs.
        changed: one of its constants is another than before.
        constants: new values of the quantized graph's initializers, by name.
    """

    before: float
    after: float
    damped: bool
    changed: bool
    constants: Mapping[str, Array] = field(repr=False)


def search_layer(
    layer: QuantizedLayer,
    state: LayerState,
    quadratics: Sequence[Quadratic],
    step: float,
    largest: Float64s,
    *,
    threads: int,
) -> tuple[Codes, tuple[float, float]]:
    """Return the best integers and scales that are found, and the error before and after.

    Args:
        layer: of the model.
        state: as it is.
        quadratics: the objective of each group.
        step: of what it reads.
        largest: magnitude of what each channel makes.
        threads: share the channels; the result does not depend on them.

    Returns:
        Each error is a share of what the layer's output varies by.

    Shapes:
        largest: (M,).
    """
    block = layer.geometry.block
    found = Codes(integers=state.codes.integers.copy(), scales=state.codes.scales.copy())
    before = after = power = 0.0
    for group, quadratic in enumerate(quadratics):
        own = state.part(group)
        nearest = Codes(integers=state.codes.integers[own], scales=state.codes.scales[own])
        grid = code_grid(layer, state, own, step, largest)
        better = search_codes(quadratic, grid, nearest, threads=threads)
        found.integers[own], found.scales[own] = better.integers, better.scales
        before += float(quadratic.error(nearest.weights(block)).sum())
        after += float(quadratic.error(better.weights(block)).sum())
        power += float(quadratic_forms(quadratic.curvature, state.weight[own]).sum())
    power = power if power > 0.0 else 1.0
    return found, (before / power, after / power)


# What is added to a layer's output: the error of one can be made up for by the other.


def residual_input(model: ir.Model, layer: QuantizedLayer) -> str:
    """Return the name of the tensor that an Add adds to what a layer makes, and to nothing else of it.

    Args:
        model: the float model.
        layer: of it; the Add of its own bias may come between.

    Edge case:
        Without such an Add the name is empty.
    """
    value = next((out for node in model.graph for out in node.outputs if out.name == layer.makes), None)
    for _ in range(2):
        reader = sole_reader(value) if value is not None and not value.is_graph_output() else None
        if value is None or reader is None or reader.op_type != "Add":
            return ""
        other = next((item for item in reader.inputs if item is not value), None)
        if other is None:  # It is added to itself.
            return ""
        if not is_constant(other):
            return other.name or ""
        value = reader.outputs[0]
    return ""
