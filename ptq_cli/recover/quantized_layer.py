"""The layers whose weights can be chosen again, what was decided of them, and what else may be."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.finish import LARGEST_BIAS
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import UnsupportedFormatError
from ptq_cli.core.formats import FloatFormat, IntegerFormat
from ptq_cli.core.pair_sums import exceeds_pairs, mates_along
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.graph_reading import every_node, input_at, sole_reader
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.requests import tied_tables
from ptq_cli.plan.sites import ActivationSite, BiasSite, Plan, WeightSite
from ptq_cli.qdq.write.constant_pairs import bias_key, storage_key
from ptq_cli.qdq.write.site_parameters import DecidedBias, DecidedConstants, Parameters
from ptq_cli.qdq.write.weight_quantizer import BYTE
from ptq_cli.recover.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recover.layer_geometry import LayerGeometry, layer_geometry
from ptq_cli.recover.second_moments import Float64s, Int64s, Quadratic

SHARED = "a weight that several layers share is left to all of them"
SHARED_BIAS = "a bias that is computed, or that several layers share, cannot be changed"
ONE_NUMBER = "a bias has to be one number for each output channel"
BIASED = ("Conv", "ConvTranspose", "Gemm")
"""Operators that have a bias as an input of their own."""
BIAS_ROOM = 4
"""How many times as large as it is a bias may become before its scale would be too small for it."""
EVERY = slice(None)
CHANNELS = 4096
"""Output channels of which weights and integers are held in float64 at once, if they have blocks."""
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, kw_only=True)
class QuantizedLayer:
    """A layer whose weight can be chosen again.

    Attributes:
        name: the node's name.
        site: of the weight.
        geometry: how the weight meets its inputs.
        reads, makes: names of the tensors in the float model: what the layer reads, and its products.
        parameters: of what it reads; None if that is not quantized.
        bias: the site of a bias that is stored as integers, or the name of one that stays in float; None if
            there is none that can be changed.
        free: its scales may be chosen again, too.
        is_table: rows of its weight are looked up elsewhere, so that they should stay near to what they are.
    """

    name: str
    site: WeightSite
    geometry: LayerGeometry
    reads: str
    makes: str
    parameters: QuantParameters | None
    bias: BiasSite | str | None
    free: bool
    is_table: bool = False

    @property
    def bias_apart(self) -> bool:
        """Whether the bias is added by an operator of its own."""
        return isinstance(self.bias, BiasSite) and self.bias.node != self.site.node


def require_integers(plan: Plan) -> None:
    """Refuse a plan with floats of few bits, which have no integers to choose from."""
    sites: tuple[WeightSite | ActivationSite, ...] = (*plan.weights, *plan.activations.values())
    for site in sites:
        if isinstance(site.format, FloatFormat):
            raise UnsupportedFormatError(
                f"'{site.tensor}' is stored as {site.format.name}; --recover ranges and round need integers",
                hint="use ptq evaluate and ptq verify, and leave --recover ranges and round out",
            )


def quantized_layers(
    float_model: ir.Model, plan: Plan, parameters: Parameters, free: Mapping[WeightSite, bool]
) -> tuple[dict[str, QuantizedLayer], dict[str, str]]:
    """Return the layers that can be recovered, and why the others cannot, both by name.

    ``free`` says whether the scales of a weight may be chosen again; a weight whose quantizer has no evenly
    spread integers is not in it.
    """
    require_integers(plan)
    finder = _Layers(float_model, plan, parameters)
    layers: dict[str, QuantizedLayer] = {}
    refused: dict[str, str] = {}
    for site in plan.weights:
        reason = finder.refusal(site, free)
        found = reason or finder.layer(site, free=free[site])
        if isinstance(found, str):
            refused[site.node] = found
        else:
            layers[site.node] = found
    return layers, refused


class _Layers:
    """Finds what belongs to each weight of a plan."""

    def __init__(self, float_model: ir.Model, plan: Plan, parameters: Parameters) -> None:
        self._parameters = parameters
        self._nodes = {node.name: node for node in float_model.graph}
        every = {node.name: node for node in every_node(float_model.graph)}
        tied = set(_tied(float_model.graph, plan, parameters))
        self._tables = {site for site in tied if site.block_kernel}
        self._shared = {*_shared_weights(every, plan, parameters), *(tied - self._tables)}
        self._biases: dict[WeightSite, BiasSite] = {}
        for bias in plan.biases:
            self._biases.setdefault(bias.weight, bias)
        self._bias_keys = Counter(bias_key(bias, item) for bias, item in parameters.biases.items())
        stored: tuple[WeightSite | BiasSite, ...] = (*plan.weights, *plan.biases)
        self._stored = {(item.node, item.input_index) for item in stored}
        self._integer = {
            item.name for item in plan.layers if (item.quantized and not item.dynamic) or item.between_pairs
        }

    def refusal(self, site: WeightSite, free: Mapping[WeightSite, bool]) -> str:
        """Return why how it is stored keeps a weight from being chosen again, or an empty string."""
        if site.dynamic:
            return "ranges of its activations are found at each run"
        if site.node not in self._nodes:
            return "layers inside other operators, such as an If, are not supported"
        if site not in free:
            return "the quantizer has no evenly spaced integers"
        if site.kernel:
            return "an operator of the runtime reads its integers, and has scales of its own"
        return SHARED if site.as_product or site in self._shared else ""

    def layer(self, site: WeightSite, *, free: bool) -> QuantizedLayer | str:
        """Return the layer of a weight, or why its form keeps the weight from being chosen again."""
        node, shape = self._nodes[site.node], self._parameters.decided[site].stored.shape
        geometry = layer_geometry(node, site, shape)
        if isinstance(geometry, str):
            return geometry
        bias = self._bias(node, site)
        if isinstance(bias, str) and (reason := self._bias_refusal(node, site, shape)):
            return reason
        if isinstance(bias, BiasSite) and self._is_shared(bias):
            return SHARED_BIAS
        read = node.inputs[0]
        assert read is not None  # noqa: S101 - a layer with a weight reads something else, too
        reads = self._read_as(node, read)
        if not site.format.signed and (reads is not None or geometry.groups > 1 or geometry.blocks == 1):
            return "weights with zero points are left as they were rounded"
        found = QuantizedLayer(
            name=node.name or "",
            site=site,
            geometry=geometry,
            reads=read.name or "",
            makes=node.outputs[0].name or "",
            parameters=reads,
            bias=bias,
            free=free and (site.axis is not None or site.block_size is not None),
            is_table=site in self._tables,
        )
        return SHARED if found.is_table and not by_blocks(found) else found

    def _read_as(self, node: ir.Node, read: ir.Value) -> QuantParameters | None:
        """Return the parameters of what a layer reads; None if it reads floats."""
        found, producer = self._parameters.activations.get(read.name or ""), read.producer()
        is_integer = node.name in self._integer or (producer is not None and producer.name in self._integer)
        if found is None or not is_integer:
            return None
        whole = found.integers
        # A pair in a graph knows no narrow range.
        return replace(found, format=IntegerFormat(whole.bits, whole.signed))

    def _bias(self, node: ir.Node, site: WeightSite) -> BiasSite | str | None:
        plain = input_at(node, 2) if node.op_type in BIASED else None
        return self._biases.get(site, plain.name or "" if plain is not None else None)

    def _is_shared(self, bias: BiasSite) -> bool:
        return self._bias_keys[bias_key(bias, self._parameters.biases[bias])] > 1

    def _bias_refusal(self, node: ir.Node, site: WeightSite, shape: Sequence[int]) -> str:
        """Return why a bias in float cannot be changed, or an empty string."""
        plain = node.inputs[2]
        assert plain is not None  # noqa: S101 - the caller has looked
        uses = [use for use in plain.uses() if (use.node.name, use.idx) not in self._stored]
        if plain.const_value is None or plain.is_graph_output() or len(uses) != 1:
            return SHARED_BIAS
        channels = shape[site.axis] if site.axis is not None and site.block_size is None else None
        return ONE_NUMBER if channels is not None and plain.const_value.size != channels else ""


def _shared_weights(
    nodes: Mapping[str | None, ir.Node], plan: Plan, parameters: Parameters
) -> Iterator[WeightSite]:
    """Yield the weights of which one constant serves several layers."""
    readers = Counter(site.tensor for site in plan.weights)
    keys: dict[tuple[object, ...], list[WeightSite]] = {}
    for site in plan.weights:
        if readers[site.tensor] > 1:
            key = storage_key(nodes[site.node], site, parameters.decided[site], alone=False)
            keys.setdefault(key, []).append(site)
    yield from (site for sites in keys.values() if len(sites) > 1 for site in sites)


def _tied(graph: ir.Graph, plan: Plan, parameters: Parameters) -> Iterator[WeightSite]:
    """Yield the weights whose integers Gathers take rows of, too."""
    stored = {site.node for site in plan.weights}
    for item in tied_tables(graph, plan.weights):
        own = parameters.decided[item.site].stored
        if item.site.block_kernel:
            is_shared = not stored.issuperset(item.gathers)
        else:
            is_plain = own.bits == BYTE and own.table is None and own.tensor_scale is None
            is_shared = is_plain and item.site.block_size is None and not item.site.as_pair
        if is_shared:
            yield item.site


# What was decided of a layer, in matrix form, and what may be decided in its place.


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


def layer_state(
    float_model: ir.Model, parameters: Parameters, layer: QuantizedLayer, own: slice = EVERY
) -> LayerState:
    """Return what the float model holds of a layer, and what was decided of it.

    Of one without groups, some output channels may be asked for, if blocks of their inputs have scales.
    """
    geometry, item = layer.geometry, parameters.decided[layer.site]
    part = (slice(None), own) if geometry.transposed else (own,)
    with mapped(float_model.graph.initializers[layer.site.tensor]) as array:
        weight, shape = geometry.rows(array[part]), array.shape
    scale = item.scale(layer.site).astype(np.float64)
    scale = scale[part] if geometry.blocks > 1 else scale
    scales = (
        geometry.rows(scale)
        if geometry.blocks > 1
        else np.broadcast_to(scale.reshape(-1, 1), (len(weight), 1))
    )
    points, bias = item.zeros(layer.site), bias_values(float_model, parameters, layer)
    zeros = geometry.rows(points[part]) if points is not None else None
    return LayerState(
        weight=weight,
        codes=Codes(
            integers=geometry.rows(item.stored.values()[part])
            - (zeros[:, geometry.block] if zeros is not None else 0),
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
    """Return which integers and scales channels may have: a bias of ``largest``, (M,), fits in int32."""
    least = np.full(len(state.weight), SMALLEST_SCALE if layer.free else 0.0)
    if layer.free and state.bias is not None and isinstance(layer.bias, BiasSite):
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


def decided_again(
    parameters: Parameters, layer: QuantizedLayer, codes: Codes, bias: Float64s | None, step: float
) -> DecidedConstants:
    """Return what is decided of a layer with other integers and scales.

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


# Integers and scales for all groups of a layer, and what is told of them.


def by_blocks(layer: QuantizedLayer) -> bool:
    """Return whether a layer reads floats, and blocks of neighbors have scales that may be chosen."""
    geometry = layer.geometry
    neighbors = np.repeat(np.arange(geometry.blocks), len(geometry.block) // geometry.blocks)
    is_plain = layer.parameters is None and layer.free and layer.site.pairs is None and geometry.groups == 1
    return is_plain and geometry.blocks > 1 and np.array_equal(geometry.block, neighbors)


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

    Each error is a share of what the layer's output varies by. ``quadratics`` are the groups' objectives,
    ``step`` is of what the layer reads, ``largest``, (M,), what its channels make.
    """
    found = Codes(integers=state.codes.integers.copy(), scales=state.codes.scales.copy())
    before = after = power = 0.0
    for group, quadratic in enumerate(quadratics):
        own = state.part(group)
        grid = code_grid(layer, state, own, step, largest)
        better, *errors = search_codes(quadratic, grid, state.codes.part(own), threads=threads)
        found.integers[own], found.scales[own] = better.integers, better.scales
        before, after = before + float(errors[0].sum()), after + float(errors[1].sum())
        power += float((quadratic.best * quadratic.pull).sum())
    power = power if power > 0.0 else 1.0
    return found, (before / power, after / power)


# What is added to a layer's output: the error of one can be made up for by the other.


def residual_input(model: ir.Model, layer: QuantizedLayer) -> str:
    """Return the name of the tensor that an Add adds to what a layer makes, and to nothing else of it.

    The Add of the layer's own bias may come between.

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
