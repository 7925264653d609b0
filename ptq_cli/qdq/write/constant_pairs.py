"""Passes: weights and biases stored as integers behind a DequantizeLinear or a Gather, tables shared too."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import PerAxes
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import every_node, short_name
from ptq_cli.models.pair_operators import KERNEL_INPUTS, KERNEL_PARAMETERS, MICROSOFT, dequantized_by
from ptq_cli.plan.embedding_tables import TiedTable
from ptq_cli.plan.sites import BiasSite, Plan, WeightSite
from ptq_cli.qdq.read.stored_constants import DynamicPart, dynamic_parts, product_of
from ptq_cli.qdq.write.block_weights import add_two_levels, in_place_of_blocks
from ptq_cli.qdq.write.dynamic_layers import DynamicLayers, spread
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, put_in_front, take_place
from ptq_cli.qdq.write.site_parameters import DecidedBias, DecidedConstants, DecidedWeight, Parameters
from ptq_cli.qdq.write.weight_quantizer import HALF_BYTE, StoredWeight, add_integers, add_weight


@dataclass(frozen=True)
class StoredNames:
    """Names of a constant's initializers: integers, or the floats that a QuantizeLinear reads, and others.

    All of them are ``turned``, as the table has them, where a table of embeddings is the weight, too.
    """

    values: str
    scale: str
    zeros: str = ""
    turned: bool = False


# Names of the constants behind a DequantizeLinear or a product; other forms are not in it.
NamesBySite = Mapping[WeightSite | BiasSite, StoredNames]


def store_constants(model: ir.Model, plan: Plan, parameters: Parameters) -> NamesBySite:
    """Store the weights and biases of a plan as integers, and return the names of their initializers.

    Requires: every site names a constant and a node that reads it. Ensures: the node reads a
    DequantizeLinear of integers, a product of integers and a scale, or a Gather from a codebook, or became an
    operator that reads the integers, or several that make integers of its activations, too; layers that share
    a constant and its scale share what is stored; a float constant that nobody reads any more is gone.
    """
    replace_constants(model, parameters.floats)
    writer = _ConstantWriter(model.graph, Counter(site.tensor for site in plan.weights))
    nodes = {node.name: node for node in every_node(model.graph)}
    for site in plan.weights:
        writer.write_weight(nodes[site.node], site, parameters.decided[site])
    for bias in plan.biases:
        writer.write_bias(nodes[bias.node], bias, parameters.biases[bias])
    if any(site.kernel for site in plan.weights):
        model.graph.opset_imports.setdefault(MICROSOFT, 1)
    initializers = model.graph.initializers
    for name in plan.constants:
        if not initializers[name].uses() and not initializers[name].is_graph_output():
            del initializers[name]
    return writer.names


def turned_names(names: NamesBySite, renamed: Mapping[str, str]) -> NamesBySite:
    """Return the names of constants of which some were renamed and transposed."""
    return {
        site: StoredNames(renamed[item.values], renamed[item.scale], renamed.get(item.zeros, ""), turned=True)
        if item.values in renamed
        else item
        for site, item in names.items()
    }


def replaced_arrays(constants: DecidedConstants, names: NamesBySite) -> dict[str, Array]:
    """Return the arrays of decided constants in a written graph, by the initializers' names."""
    found = dict(constants.floats)
    for site, item in constants.decided.items():
        own = names[site]
        arrays = {own.values: item.on_grid(site) if site.as_pair else item.stored.array()}
        arrays[own.scale] = item.scale(site)
        if (zeros := item.zeros(site)) is not None:
            arrays[own.zeros] = zeros
        found |= {name: array.T for name, array in arrays.items()} if own.turned else arrays
    for bias, decided in constants.biases.items():
        found[names[bias].values], found[names[bias].scale] = decided.integers, decided.scale
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
    """Return a key that readers of one weight have in common if they can share its stored form."""
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
    home = node.graph if computed else None
    # ONNX Runtime merges a DequantizeLinear of blocks into its reader if nobody else reads the constant.
    reader = site.node if site.block_kernel else site.kernel
    form = (reader, bool(site.dynamic), node.attributes.get_int("transB", 0))
    return (site.tensor, site.axis, digest, site.block_size, form, home)


def bias_key(site: BiasSite, item: DecidedBias) -> tuple[object, ...]:
    """Return a key that biases have in common if they can share their stored form."""
    return (site.tensor, item.scale.ndim, "bias", item.scale.tobytes())


def _digest(stored: StoredWeight, parameters: QuantParameters | None) -> bytes:
    """Digest of a stored form: readers of one weight may have other settings."""
    integers = stored.array()
    digest = hashlib.sha256(f"{stored.bits} {integers.dtype}".encode())
    for array in (integers, stored.table, None if parameters is None else parameters.scale):
        if array is not None:
            digest.update(array.tobytes())
    return digest.digest()


class _ConstantWriter:
    """Adds integer constants to a graph, each once."""

    def __init__(self, graph: ir.Graph, readers: Mapping[str, int]) -> None:
        self.names: dict[WeightSite | BiasSite, StoredNames] = {}
        self._new, self._readers = NewNodes(graph), readers
        self._stored: dict[tuple[object, ...], tuple[ir.Value, ...]] = {}
        self._dynamic = DynamicLayers(self._new)

    def write_weight(self, node: ir.Node, site: WeightSite, item: DecidedWeight) -> None:
        key = storage_key(node, site, item, alone=self._readers[site.tensor] == 1)
        if key not in self._stored:
            self._stored[key] = self._add_weight(node, site, item)
        integers, *rest = self._stored[key]
        has_values = item.parameters is None or item.stored.tensor_scale is not None
        if has_values or (site.as_product and not site.kernel and not site.dynamic):
            node.replace_input_with(site.input_index, integers)
            if not has_values:
                cast, scale = _factors(integers)
                self.names[site] = StoredNames(cast, scale)
        elif site.kernel:
            _read_by_kernel(node, site, self._stored[key])
        elif site.dynamic:
            self._dynamic.write(node, site, integers, rest[0])
        else:
            producer = integers.producer()
            source = integers if producer is None else producer.inputs[0]
            if source is not None:
                scale, zeros = rest[0].name or "", rest[1].name or "" if len(rest) > 1 else ""
                self.names[site] = StoredNames(source.name or "", scale, zeros)
            self._restore(node, site, self._stored[key], site.axis, site.block_size)

    def write_bias(self, node: ir.Node, site: BiasSite, item: DecidedBias) -> None:
        key = bias_key(site, item)
        if key not in self._stored:
            arrays = {"quantized": item.integers, "scale": item.scale}
            self._stored[key] = tuple(self._add(site, arrays))
        values, scale = self._stored[key]
        self.names[site] = StoredNames(values.name or "", scale.name or "")
        self._restore(node, site, self._stored[key], 0 if item.scale.ndim else None)

    def _add_weight(self, node: ir.Node, site: WeightSite, item: DecidedWeight) -> tuple[ir.Value, ...]:
        """Add the constants of a weight; return its values, or integers, scale and zero point."""
        found, stored, tensor = item.parameters, item.stored, site.tensor
        # What is computed in float needs no int8.
        as_int8 = site.block_size is None
        # Constants are in the main graph, where all readers see them; but ONNX Runtime looks for blocks
        # that a kernel reads only in the graph of the kernel's node, and refuses models with others.
        home = node.graph if site.block_kernel and isinstance(node.graph, ir.Graph) else self._new.graph
        if found is None:
            return (add_weight(self._new, node, tensor, stored, as_int8=as_int8, home=home),)
        if stored.tensor_scale is not None or site.kernel or site.dynamic or site.as_product:
            return self._add_own_form(node, site, stored, found)
        constants = {"scale": item.scale(site)}
        if site.block_size is None:
            constants["zero_point"] = found.zero_point.astype(found.format.storage)
        if site.as_pair:
            # On the grid already, so that the integers are these however a runtime rounds.
            source = self._new.computed(
                f"{short_name(tensor)}.on_grid", stored.shape, lambda: item.on_grid(site)
            )
            scale, zeros = self._add(site, constants)
            quantize = self._new.quantize(source, scale, zeros, short_name(tensor), site.axis)
            return (put_in_front(node, quantize), scale, zeros)
        values = add_weight(self._new, node, tensor, stored, as_int8=as_int8, home=home)
        return (values, *self._add(site, constants, home), *self._add_zeros(site, stored, found, home))

    def _add_zeros(
        self, site: WeightSite, stored: StoredWeight, found: QuantParameters, home: ir.Graph
    ) -> tuple[ir.Value, ...]:
        """Add the zero points of blocks, which have the type of the integers; without them they are 0."""
        if site.block_size is None or site.format.signed:
            return ()
        zeros = in_place_of_blocks(found.zero_point, stored.shape, site).astype(np.uint8)
        name = self._new.claim(f"{short_name(site.tensor)}.zero_point")
        return (add_integers(home, name, zeros, stored.bits),)

    def _add_own_form(
        self, node: ir.Node, site: WeightSite, stored: StoredWeight, found: QuantParameters
    ) -> tuple[ir.Value, ...]:
        """Add a weight that has no DequantizeLinear with a scale per channel."""
        if stored.tensor_scale is not None:
            return (add_two_levels(self._new, node, site, stored, found.scale),)
        if site.kernel:
            integers = add_weight(self._new, node, site.tensor, in_kernel_layout(stored))
            return (integers, *self._add(site, kernel_parameters(found, stored.shape[0])))
        if site.as_product and not site.dynamic:
            return (self._add_product(node, site, stored, found),)
        if node.attributes.get_int("transB", 0) == 1:
            stored = replace(stored, integers=np.ascontiguousarray(stored.array().swapaxes(-1, -2)))
        scale: Array = found.scale
        if node.op_type == "Conv" and scale.ndim:
            scale = spread(scale, len(stored.shape))
        return (add_weight(self._new, node, site.tensor, stored), *self._add(site, {"scale": scale}))

    def _add_product(
        self, node: ir.Node, site: WeightSite, stored: StoredWeight, found: QuantParameters
    ) -> ir.Value:
        """Add integers and a scale, with the Cast and the Mul that make floats of them."""
        integers = add_weight(self._new, node, site.tensor, stored, as_int8=False)
        shape = found.granularity.broadcast_shape(stored.shape)
        (scale,) = self._add(site, {"scale": found.scale.reshape(shape)})
        given = {"dtype": ir.DataType.FLOAT, "shape": integers.shape}
        to = {"to": int(ir.DataType.FLOAT)}
        floats = self._new.put(node, "Cast", [integers], f"{site.tensor}/Cast", attributes=to, **given)
        return self._new.put(node, "Mul", [floats, scale], f"{site.tensor}/Mul", **given)

    def _add(
        self, site: WeightSite | BiasSite, arrays: Mapping[str, Array], home: ir.Graph | None = None
    ) -> list[ir.Value]:
        prefix = short_name(site.tensor)
        return [self._new.constant(f"{prefix}.{suffix}", array, home) for suffix, array in arrays.items()]

    def _restore(
        self,
        node: ir.Node,
        site: WeightSite | BiasSite,
        stored: Sequence[ir.Value],
        axis: int | None,
        block_size: int | None = None,
    ) -> None:
        restored = self._new.dequantize(stored[0], stored[1:], short_name(site.tensor), axis, block_size)
        node.replace_input_with(site.input_index, put_in_front(node, restored))


def in_kernel_layout(stored: StoredWeight) -> StoredWeight:
    """Return a recurrent weight as DynamicQuantizeLSTM reads it: [directions, inputs, channels].

    Source: ONNX Runtime's ContribOperators.md, com.microsoft.DynamicQuantizeLSTM.
    """
    return replace(stored, integers=np.ascontiguousarray(stored.array().swapaxes(1, 2)))


def kernel_parameters(found: QuantParameters, directions: int) -> dict[str, Array]:
    """Return scale and zero point of a weight, for each direction: its own, or those that all share.

    Shapes: (directions, channels), or (directions,) for one scale.
    """
    own = isinstance(found.granularity, PerAxes)
    shape = found.scale.shape if own else (directions, *found.scale.shape)
    scale = np.broadcast_to(found.scale, shape).astype(np.float32)
    return {"scale": scale, "zero_point": np.zeros(shape, np.int8)}


def _read_by_kernel(node: ir.Node, site: WeightSite, stored: tuple[ir.Value, ...]) -> None:
    """Let the operator on integers take an LSTM's place, and read integers, scale and zero point.

    Requires: ``node`` is the LSTM that the site names, or became the operator with its other weight. Ensures:
    names, outputs and other inputs are as before.
    """
    if node.op_type != site.kernel:
        node.op_type, node.domain = site.kernel, MICROSOFT
        node.attributes.pop("layout", None)  # The operator does not have it, and it is 0.
        node.resize_inputs(KERNEL_INPUTS)
    scale = KERNEL_PARAMETERS[site.input_index]
    for index, value in zip((site.input_index, scale, scale + 1), stored, strict=True):
        node.replace_input_with(index, value)


def share_tables(model: ir.Model, tied: Sequence[TiedTable]) -> dict[str, str]:
    """Let Gathers take rows of integers, and dequantize these, where a layer has the table as its weight.

    Requires: the layers' weights are stored already. Ensures: of each table there is one constant of
    integers; a row has the values, to the bit, that the layer's DequantizeLinear gives. Where the layer reads
    the table turned, a Transpose turns it, which a runtime does once, as it loads.

    A weight that is stored as anything else than integers with a zero point of 0, such as indices into a
    codebook, shares nothing: the table stays as it is.

    Returns:
        of constants that are turned now, the name that each has, by the one that it had.
    """
    renamed: dict[str, str] = {}
    graph, new = model.graph, NewNodes(model.graph)
    nodes, parts = {node.name: node for node in every_node(graph)}, dynamic_parts(model)
    for item in tied:
        node, table = nodes[item.site.node], graph.initializers.get(item.table)
        gathers = [nodes[name] for name in item.gathers]
        dequantize = dequantized_by(node.inputs[item.site.input_index])
        if item.site.block_kernel and dequantize is not None:
            # A Gather whose table is stored by itself has nothing to share.
            gathers = [gather for gather in gathers if gather.inputs[0] is table]
            renamed |= _share_blocks(new, item, dequantize, gathers) if gathers else {}
        elif found := (
            _stored_apart(item.site, parts)
            or _plain_integers(dequantize)
            or _of_product(new, node.inputs[item.site.input_index])
        ):
            integers, scale = found
            integers = _turn(new, integers, f"{item.table}.quantized") if item.turned else integers
            for gather in gathers:
                _take_rows(new, gather, integers, scale)
        if gathers and table is not None and not table.uses():
            del graph.initializers[item.table]
    return renamed


def _share_blocks(
    new: NewNodes, item: TiedTable, dequantize: ir.Node, gathers: Sequence[ir.Node]
) -> dict[str, str]:
    """Let Gathers read a layer's weight in blocks, restored as the table has it; as ``share_tables``."""
    values, renamed = [value for value in dequantize.inputs if value is not None], {}
    if item.turned:
        before = [value.name or "" for value in values]
        parts = zip(values, ("quantized", "scale", "zero_point"), strict=False)
        values = [_turn(new, value, f"{item.table}.{part}") for value, part in parts]
        renamed = {old: value.name or "" for old, value in zip(before, values, strict=True)}
    size = dequantize.attributes.get_int("block_size", 0)
    for node in gathers:
        restored = new.dequantize(values[0], values[1:], node.name or "", 1, size)
        node.replace_input_with(0, put_in_front(node, restored))
    return renamed


def _stored_apart(site: WeightSite, parts: Mapping[str, DynamicPart]) -> tuple[ir.Value, ir.Value] | None:
    """Return integers and scale of a weight that an operator on integers reads; None of any other."""
    part = parts.get(site.node)
    if part is None or part.integers.const_value is None or part.integers.dtype != ir.DataType.INT8:
        return None
    return part.integers, part.scale


def _plain_integers(dequantize: ir.Node | None) -> tuple[ir.Value, ir.Value] | None:
    """Return integers and scale of a restored weight; None if these are not int8 with a zero point of 0."""
    if dequantize is None or "block_size" in dequantize.attributes:
        return None
    integers, scale, zeros = (*dequantize.inputs, None)[:3]
    if integers is None or integers.const_value is None or integers.dtype != ir.DataType.INT8:
        return None
    if scale is None or scale.const_value is None or zeros is None or zeros.const_value is None:
        return None
    return None if zeros.const_value.numpy().any() else (integers, scale)


def _of_product(new: NewNodes, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """Return integers and scale, (C,), of a weight that a Cast and a Mul restore; None of any other."""
    product = product_of(value.producer()) if value is not None else None
    if product is None or product.integers.const_value is None or product.integers.dtype != ir.DataType.INT8:
        return None
    assert product.scale.const_value is not None  # noqa: S101 - a product has a constant scale
    scale = product.scale.const_value.numpy()
    rows = scale.reshape(-1) if scale.size > 1 else scale.reshape(())
    return product.integers, new.constant(f"{short_name(product.scale.name or '')}.rows", rows)


def _turn(new: NewNodes, turned: ir.Value, name: str) -> ir.Value:
    """Store a matrix turned, under another name, and turn it back for those that read it."""
    assert turned.const_value is not None  # noqa: S101 - it was found plain
    integers, claimed = new.constant(name, turned.const_value.numpy().T), new.claim(f"{name}/Transpose")
    perm = {"perm": [1, 0]}
    node = new_node("Transpose", [integers], claimed, attributes=perm, dtype=turned.dtype, shape=turned.shape)
    turned.replace_all_uses_with(node.outputs[0])
    new.graph.insert_before(next(iter(new.graph)), [node])
    del new.graph.initializers[turned.name or ""]
    return integers


def _take_rows(new: NewNodes, gather: ir.Node, integers: ir.Value, scale: ir.Value) -> None:
    """Replace a Gather of floats by one of integers and what makes floats of them; the last has its name."""
    indices, name, shape = gather.inputs[1], gather.name, gather.outputs[0].shape
    to_float = {"to": int(ir.DataType.FLOAT)}

    def put(op_type: str, inputs: list[ir.Value | None], part: str, **of: Any) -> ir.Value:
        return new.put(gather, op_type, inputs, f"{name}/{part}", **of)

    rows = put(
        "Gather", [integers, indices], "rows", attributes={"axis": 0}, dtype=integers.dtype, shape=shape
    )
    steps, values = (
        scale,
        put("Cast", [rows], "Cast", attributes=to_float, dtype=ir.DataType.FLOAT, shape=shape),
    )
    if scale.shape is not None and len(scale.shape):
        own = put("Gather", [scale, indices], "scales", attributes={"axis": 0}, dtype=scale.dtype)
        last = new.constant(f"{name}.last", np.array([-1], np.int64))
        steps = put("Unsqueeze", [own, last], "Unsqueeze", dtype=scale.dtype)
    take_place(gather, ir.node("Mul", [values, steps], name=name))


def _factors(product: ir.Value) -> tuple[str, str]:
    """Return the names of the integers and of the scale that a product is of."""
    multiply = product.producer()
    assert multiply is not None  # noqa: S101 - ``_add_product`` made it
    floats, scale = multiply.inputs
    cast = floats.producer() if floats is not None else None
    assert cast is not None and cast.inputs[0] is not None and scale is not None  # noqa: S101
    return cast.inputs[0].name or "", scale.name or ""
