"""Pass: weights and biases are stored as integers behind a DequantizeLinear, or behind a Gather."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import PerAxes
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, every_node, short_name
from ptq_cli.models.integer_operators import KERNEL_INPUTS, KERNEL_PARAMETERS, MICROSOFT
from ptq_cli.plan.sites import BiasSite, Plan, WeightSite
from ptq_cli.qdq.write.block_weights import in_place_of_blocks
from ptq_cli.qdq.write.dynamic_layers import CHANNELS, DynamicLayers, spread
from ptq_cli.qdq.write.integer_storage import WeightIntegers, add_integers
from ptq_cli.qdq.write.pair_nodes import (
    add_computed,
    add_initializer,
    make_cast,
    make_dequantize,
    make_mul,
    make_quantize,
    put_in_front,
)
from ptq_cli.qdq.write.site_parameters import DecidedBias, DecidedConstants, DecidedWeight, Parameters
from ptq_cli.qdq.write.two_level_blocks import add_two_levels
from ptq_cli.qdq.write.weight_quantizer import HALF_BYTE, StoredWeight


@dataclass(frozen=True)
class Place:
    """The initializers of a constant: integers, or the floats that a QuantizeLinear reads, and others."""

    values: str
    scale: str
    zeros: str = ""
    turned: bool = False
    """All of these are transposed, as the table has them that is the weight, too."""


Places = Mapping[WeightSite | BiasSite, Place]
"""Of the constants behind a DequantizeLinear; other forms are not in it."""


def store_constants(model: ir.Model, plan: Plan, parameters: Parameters) -> Places:
    """Store the weights and biases of a plan as integers, and return where.

    Requires: every site names a constant and a node that reads it. Ensures: the node reads a
    DequantizeLinear of integers, a product of integers and a scale, or a Gather from a codebook, or became an
    operator that reads the integers, or several that make integers of its activations, too; layers that share
    a constant and its scale share what is stored; a float constant that nobody reads any more is gone.
    """
    replace_constants(model, parameters.floats)
    store = _Store(model.graph, Counter(site.tensor for site in plan.weights))
    nodes = {node.name: node for node in every_node(model.graph)}
    for site in plan.weights:
        store.weight(nodes[site.node], site, parameters.decided[site])
    for bias in plan.biases:
        store.bias(nodes[bias.node], bias, parameters.biases[bias])
    if any(site.kernel for site in plan.weights):
        model.graph.opset_imports.setdefault(MICROSOFT, 1)
    initializers = model.graph.initializers
    for name in plan.constants:
        if not initializers[name].uses() and not initializers[name].is_graph_output():
            del initializers[name]
    return store.places


def turned_places(places: Places, renamed: Mapping[str, str]) -> Places:
    """Return where constants are, some of which were renamed and transposed."""
    return {
        site: Place(renamed[item.values], renamed[item.scale], renamed.get(item.zeros, ""), turned=True)
        if item.values in renamed
        else item
        for site, item in places.items()
    }


def replaced_arrays(constants: DecidedConstants, places: Places) -> dict[str, Array]:
    """Return what a graph that was written holds of decided constants, by the initializers' names."""
    found = dict(constants.floats)
    for site, item in constants.decided.items():
        place = places[site]
        arrays = {place.values: item.on_grid() if site.as_pair else item.stored.array()}
        arrays[place.scale] = item.scale(site)
        if (zeros := item.zeros(site)) is not None:
            arrays[place.zeros] = zeros
        found |= {name: array.T for name, array in arrays.items()} if place.turned else arrays
    for bias, own in constants.biases.items():
        found[places[bias].values], found[places[bias].scale] = own.integers, own.scale
    return found


def replace_constants(model: ir.Model, arrays: Mapping[str, Array]) -> None:
    """Give initializers of a graph other values of the same type.

    A name that the graph does not have is passed over: a part of a graph has some of its constants.
    """
    for name, array in arrays.items():
        value = model.graph.initializers.get(name)
        if value is not None and value.dtype is not None:
            shape = value.const_value.shape.numpy() if value.const_value is not None else array.shape
            values = np.ascontiguousarray(array).astype(value.dtype.numpy()).reshape(shape)
            value.const_value = ir.Tensor(values, dtype=value.dtype, name=name)


def storage_key(node: ir.Node, site: WeightSite, item: DecidedWeight, *, alone: bool) -> tuple[object, ...]:
    """Return what readers of one weight that can share what is stored have in common."""
    stored = item.stored
    # One reader has nobody to share with, and a digest of a large weight takes its time.
    digest = b"" if alone else _digest(stored, item.parameters)
    computed = (
        stored.tensor_scale is not None
        or site.as_pair
        or site.as_product
        or stored.table is not None
        or stored.bits <= HALF_BYTE
    )
    # What nodes make of a constant is seen in their own graph, and the constant itself everywhere.
    place = node.graph if computed else None
    # ONNX Runtime merges a DequantizeLinear of blocks into its reader if nobody else reads the constant.
    reader = site.node if site.block_kernel else site.kernel
    form = (reader, bool(site.dynamic), node.attributes.get_int("transB", 0))
    return (site.tensor, site.axis, digest, site.block_size, form, place)


class _Store:
    """Adds integer constants to a graph, each once."""

    def __init__(self, graph: ir.Graph, readers: Mapping[str, int]) -> None:
        self.places: dict[WeightSite | BiasSite, Place] = {}
        self._graph = graph
        self._readers = readers
        self._names = FreshNames.of(graph)
        self._integers = WeightIntegers(graph, self._names)
        self._stored: dict[tuple[object, ...], tuple[ir.Value, ...]] = {}
        self._dynamic: DynamicLayers | None = None

    def weight(self, node: ir.Node, site: WeightSite, item: DecidedWeight) -> None:
        found, stored = item.parameters, item.stored
        key = storage_key(node, site, item, alone=self._readers[site.tensor] == 1)
        if found is not None and self._has_own_form(key, node, site, stored, found):
            return
        if key not in self._stored:
            self._stored[key] = self._added(node, site, item)
        if found is None:
            node.replace_input_with(site.input_index, self._stored[key][0])
            return
        integers, scale, *rest = self._stored[key]
        producer = integers.producer()
        source = integers if producer is None else producer.inputs[0]
        if source is not None:
            self.places[site] = Place(source.name or "", scale.name or "", rest[0].name or "" if rest else "")
        place = (node, site.input_index, site.tensor)
        self._read(*place, self._stored[key], site.axis, site.block_size)

    def _added(self, node: ir.Node, site: WeightSite, item: DecidedWeight) -> tuple[ir.Value, ...]:
        """Add the constants of a weight; return what a DequantizeLinear takes, or a codebook's values."""
        found, stored = item.parameters, item.stored
        constants: dict[str, Array] = {}
        if found is not None:
            constants["scale"] = item.scale(site)
            if site.block_size is None:
                constants["zero_point"] = found.zero_point.astype(found.format.storage)
        if found is not None and site.as_pair:
            # On the grid already, so that the integers are these however a runtime rounds.
            name = self._names.claim(f"{short_name(site.tensor)}.on_grid")
            source = add_computed(self._graph, name, stored.shape, item.on_grid)
            rest = self._add(site.tensor, constants)
            return (self._quantize(node, site, source, *rest), *rest)
        home = self._home(node, site)
        # What is computed in float needs no int8.
        values = self._integers.add(node, site.tensor, stored, as_int8=site.block_size is None, home=home)
        zeros = self._zeros_of_blocks(site, stored, found, home)
        return (values, *self._add(site.tensor, constants, home), *zeros)

    def _home(self, node: ir.Node, site: WeightSite) -> ir.Graph:
        """Return the graph that holds a weight's constants: the main one, where every reader sees them.

        ONNX Runtime looks for blocks that a kernel reads only in the graph of the kernel's node, and refuses
        a model that has them elsewhere.
        """
        return node.graph if site.block_kernel and isinstance(node.graph, ir.Graph) else self._graph

    def _zeros_of_blocks(
        self, site: WeightSite, stored: StoredWeight, found: QuantParameters | None, home: ir.Graph
    ) -> tuple[ir.Value, ...]:
        """Return the zero points of blocks, which have the type of the integers; without them they are 0."""
        if found is None or site.block_size is None or site.format.signed:
            return ()
        zeros = in_place_of_blocks(found.zero_point, stored.shape, site).astype(np.uint8)
        name = self._names.claim(f"{short_name(site.tensor)}.zero_point")
        return (add_integers(home, name, zeros, stored.bits),)

    def _has_own_form(
        self,
        key: tuple[object, ...],
        node: ir.Node,
        site: WeightSite,
        stored: StoredWeight,
        found: QuantParameters,
    ) -> bool:
        """Store a weight that has no DequantizeLinear with a scale per channel; return whether it is one."""
        if stored.tensor_scale is not None:
            if key not in self._stored:
                made = add_two_levels(self._graph, self._names, node, site, stored, found.scale)
                self._stored[key] = (made,)
            node.replace_input_with(site.input_index, self._stored[key][0])
            return True
        if not site.kernel and not site.as_product and not site.dynamic:
            return False
        if key not in self._stored:
            add = self._dynamic_weight if site.dynamic else self._product
            self._stored[key] = (self._kernel_weight if site.kernel else add)(node, site, stored, found)
        if site.kernel:
            read_by_kernel(node, site, self._stored[key])
        elif site.dynamic:
            self._dynamic = self._dynamic or DynamicLayers(self._graph, self._names)
            self._dynamic.write(node, site, *self._stored[key])
        else:
            node.replace_input_with(site.input_index, self._stored[key][0])
        return True

    def _kernel_weight(
        self, node: ir.Node, site: WeightSite, stored: StoredWeight, found: QuantParameters
    ) -> tuple[ir.Value, ...]:
        integers = self._integers.add(node, site.tensor, in_kernel_layout(stored))
        directions = stored.shape[0]
        return (integers, *self._add(site.tensor, kernel_parameters(found, directions)))

    def _dynamic_weight(
        self, node: ir.Node, site: WeightSite, stored: StoredWeight, found: QuantParameters
    ) -> tuple[ir.Value, ...]:
        if node.attributes.get_int("transB", 0) == 1:
            stored = replace(stored, integers=np.ascontiguousarray(stored.array().swapaxes(-1, -2)))
        integers = self._integers.add(node, site.tensor, stored)
        scale: Array = found.scale
        if node.op_type == "Conv" and scale.ndim:
            scale = spread(scale, len(stored.shape) - CHANNELS)
        return (integers, *self._add(site.tensor, {"scale": scale}))

    def _product(
        self, node: ir.Node, site: WeightSite, stored: StoredWeight, found: QuantParameters
    ) -> tuple[ir.Value, ...]:
        integers = self._integers.add(node, site.tensor, stored, as_int8=False)
        shape = found.granularity.broadcast_shape(stored.shape)
        (scale,) = self._add(site.tensor, {"scale": found.scale.reshape(shape)})
        return (add_product(self._names, node, site.tensor, (integers, scale)),)

    def _quantize(
        self, node: ir.Node, site: WeightSite, source: ir.Value, scale: ir.Value, zeros: ir.Value
    ) -> ir.Value:
        name = self._names.claim(f"{short_name(site.tensor)}/QuantizeLinear")
        quantize = make_quantize(source, scale, zeros, name, site.axis)
        put_in_front(node, quantize)
        return quantize.outputs[0]

    def bias(self, node: ir.Node, site: BiasSite, item: DecidedBias) -> None:
        key = bias_key(site, item)
        if key not in self._stored:
            self._stored[key] = self._add(site.tensor, {"quantized": item.integers, "scale": item.scale})
        values, scale = self._stored[key]
        self.places[site] = Place(values.name or "", scale.name or "")
        self._read(node, site.input_index, site.tensor, self._stored[key], 0 if item.scale.ndim else None)

    def _add(
        self, tensor: str, arrays: Mapping[str, Array], home: ir.Graph | None = None
    ) -> tuple[ir.Value, ...]:
        return tuple(
            add_initializer(home or self._graph, self._names.claim(f"{short_name(tensor)}.{suffix}"), array)
            for suffix, array in arrays.items()
        )

    def _read(
        self,
        node: ir.Node,
        index: int,
        tensor: str,
        stored: tuple[ir.Value, ...],
        axis: int | None,
        block_size: int | None = None,
    ) -> None:
        integers, scale, *zeros = stored
        name = self._names.claim(f"{short_name(tensor)}/DequantizeLinear")
        zero_point = zeros[0] if zeros else None
        dequantize = make_dequantize(integers, scale, zero_point, name, axis, block_size)
        put_in_front(node, dequantize)
        node.replace_input_with(index, dequantize.outputs[0])


def bias_key(site: BiasSite, item: DecidedBias) -> tuple[object, ...]:
    """Return what biases that can share what is stored have in common."""
    return (site.tensor, item.scale.ndim, "bias", item.scale.tobytes())


def _digest(stored: StoredWeight, parameters: QuantParameters | None) -> bytes:
    """Return what tells two ways to store one weight apart: its readers may have other settings."""
    integers = stored.array()
    digest = hashlib.sha256(f"{stored.bits} {integers.dtype}".encode())
    arrays = [integers, stored.table, None if parameters is None else parameters.scale]
    for array in arrays:
        if array is not None:
            digest.update(array.tobytes())
    return digest.digest()


def in_kernel_layout(stored: StoredWeight) -> StoredWeight:
    """Return a weight as DynamicQuantizeLSTM reads it: [directions, inputs, channels].

    Source: ONNX Runtime's ContribOperators.md, com.microsoft.DynamicQuantizeLSTM.
    """
    return replace(stored, integers=np.ascontiguousarray(stored.array().swapaxes(1, 2)))


def kernel_parameters(found: QuantParameters, directions: int) -> dict[str, Array]:
    """Return scale and zero point of a weight, for each direction: its own, or those that all share.

    Shapes:
        (directions, channels), or (directions,) for one scale.
    """
    own = isinstance(found.granularity, PerAxes)
    shape = found.scale.shape if own else (directions, *found.scale.shape)
    return {
        "scale": np.broadcast_to(found.scale, shape).astype(np.float32),
        "zero_point": np.zeros(shape, np.int8),
    }


def read_by_kernel(node: ir.Node, site: WeightSite, stored: tuple[ir.Value, ...]) -> None:
    """Let the operator on integers take a node's place, and read integers, scale and zero point.

    Requires: ``node`` is the LSTM that the site names, or became the operator with its other weight. Ensures:
    names, outputs and other inputs are as before.
    """
    if node.op_type != site.kernel:
        node.op_type, node.domain = site.kernel, MICROSOFT
        node.attributes.pop("layout", None)  # The operator does not have it, and it is 0.
        node.resize_inputs(KERNEL_INPUTS)
    integers, scale, zero_point = stored
    place = KERNEL_PARAMETERS[site.input_index]
    for index, value in ((site.input_index, integers), (place, scale), (place + 1, zero_point)):
        node.replace_input_with(index, value)


def add_product(
    names: FreshNames, reader: ir.Node, tensor: str, factors: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """Add the Cast and the Mul that make floats of integers and a scale, and return the floats."""
    integers, scale = factors
    cast = make_cast(integers, ir.DataType.FLOAT, names.claim(f"{tensor}/Cast"))
    product = make_mul(cast.outputs[0], scale, names.claim(f"{tensor}/Mul"))
    put_in_front(reader, cast, product)
    return product.outputs[0]
