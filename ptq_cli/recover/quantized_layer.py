"""Layers whose weights can be chosen again; a model of which everything is decided, nothing written."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import InvalidOnnxError, UnsupportedFormatError
from ptq_cli.core.formats import BYTE, FloatFormat, IntegerFormat
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.graph_reading import every_node, input_at, sole_reader
from ptq_cli.models.opset import opset_of, raise_opset
from ptq_cli.placement.fastest_placement import LatencyPreference
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.embedding_tables import tied_tables
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.sites import ActivationSite, BiasSite, Plan, WeightSite
from ptq_cli.qdq.write.constant_pairs import NamesBySite, bias_key, storage_key
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recover.layer_geometry import LayerGeometry, layer_geometry
from ptq_cli.recover.recovery_effects import ChosenForms, FloatLayers, RangesByEffect, RungEffect


@dataclass(frozen=True, kw_only=True)
class DecidedModel:
    """A model of which everything is decided, and nothing is written.

    Attributes:
        model: the float model, in an opset that has the integers.
        plan: of the placement, with clamps exposed.
        unsearched: tensors whose method had only one candidate, with the method.
        reached: SQNR of the worst output before weights are chosen again, in dB; NaN if it was not measured.
        expected: how many times as fast as float it is by the table, by kind of processor.
        replaced: whether running models moved layers, or chose their ranges.
        bits: what the rung of this name gave weights, None if nothing.
        begun: the file that holds integers of a large model already; None of another.
    """

    model: ir.Model
    placement: Placement
    plan: Plan
    parameters: Parameters
    unsearched: Mapping[str, str]
    latency: LatencyPreference | None = None
    ranges: RangesByEffect | None = None
    float_layers: FloatLayers | None = None
    forms: ChosenForms | None = None
    reached: float = math.nan
    expected: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, int | None] = field(default_factory=dict)
    replaced: bool = False
    bits: RungEffect | None = None
    begun: ConstantsFile | None = None

    def write(self, model: ir.Model) -> NamesBySite:
        """Make a graph the quantized one, in place; return where it holds what was decided."""
        return quantize_in_place(model, self.plan, self.parameters)


def with_opset(model: ir.Model, opset: int, what: str) -> ir.Model:
    """Return the model in an opset that its placement needs; may change it."""
    if opset_of(model) >= opset:
        return model
    names = [node.name for node in every_node(model.graph)]
    hint = "use 5 to 8 bits without blocks, or export the model again with that opset"
    needs = "(which the target, 4-bit or 16-bit integers, or blocks need)"
    try:
        raised = raise_opset(model, opset, what)
    except InvalidOnnxError as error:
        raise InvalidOnnxError(f"{error.message} {needs}", hint=hint) from error
    if [node.name for node in every_node(raised.graph)] != names:
        raise InvalidOnnxError(
            f"converting '{what}' to opset {opset} {needs} changed its operators", hint=hint
        )
    return raised


_SHARED = "a weight that several layers share is left to all of them"
SHARED_BIAS = "a bias that is computed, or that several layers share, cannot be changed"
ONE_NUMBER = "a bias has to be one number for each output channel"
BIASED = ("Conv", "ConvTranspose", "Gemm")  # operators that have a bias as an input of their own


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

    @property
    def is_by_blocks(self) -> bool:
        """Whether it reads floats, and blocks of neighbors have scales that may be chosen."""
        geometry = self.geometry
        neighbors = np.repeat(np.arange(geometry.blocks), len(geometry.block) // geometry.blocks)
        is_plain = self.parameters is None and self.free and self.site.pairs is None and geometry.groups == 1
        return is_plain and geometry.blocks > 1 and np.array_equal(geometry.block, neighbors)


def require_integers(plan: Plan) -> None:
    """Refuse a plan with floats of few bits, which have no integers to choose from."""
    sites: tuple[WeightSite | ActivationSite, ...] = (*plan.weights, *plan.activations.values())
    for site in sites:
        if isinstance(site.format, FloatFormat):
            raise UnsupportedFormatError(
                f"'{site.tensor}' is stored as {site.format.name}; ranges and round need integers",
                hint="use ptq evaluate and ptq verify, and leave recovery.rungs=ranges and round out",
            )


def quantized_layers(
    float_model: ir.Model, made: DecidedModel
) -> tuple[dict[str, QuantizedLayer], dict[str, str]]:
    """Return the layers that can be recovered, and why the others cannot, both by name."""
    require_integers(made.plan)
    # Whether the scales may be any, of the weights whose integers are evenly spread.
    free = {
        site: isinstance(family, ScaledWeights)
        for site, family in made.placement.families.items()
        if family.is_even
    }
    finder = _Layers(float_model, made.plan, made.parameters)
    layers: dict[str, QuantizedLayer] = {}
    refused: dict[str, str] = {}
    for site in made.plan.weights:
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
        """Reason why a weight's form of storage keeps it as it is, or an empty string."""
        if site.dynamic:
            return "ranges of its activations are found at each run"
        if site.node not in self._nodes:
            return "layers inside other operators, such as an If, are not supported"
        if site not in free:
            return "the quantizer has no evenly spaced integers"
        if site.kernel:
            return "an operator of the runtime reads its integers, and has scales of its own"
        return _SHARED if site in self._shared else ""

    def layer(self, site: WeightSite, *, free: bool) -> QuantizedLayer | str:
        """Return the layer of a weight, or why its form keeps the weight from being chosen again."""
        node, shape = self._nodes[site.node], self._parameters.decided[site].stored.shape
        geometry = layer_geometry(node, site, shape)
        if isinstance(geometry, str):
            return geometry
        bias = self._bias(node, site)
        if isinstance(bias, str) and (reason := self._bias_refusal(node, site, shape)):
            return reason
        if isinstance(bias, BiasSite) and self._bias_keys[bias_key(bias, self._parameters.biases[bias])] > 1:
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
        return _SHARED if found.is_table and not found.is_by_blocks else found

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

    def _bias_refusal(self, node: ir.Node, site: WeightSite, shape: Sequence[int]) -> str:
        """Reason why a bias in float cannot be changed, or an empty string."""
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


def residual_input(model: ir.Model, layer: QuantizedLayer) -> str:
    """Return the name of the tensor that an Add adds to what a layer makes, and to nothing else of it.

    The Add of the layer's own bias may come between.

    Edge case: Without such an Add the name is empty.
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
