"""Constants as a file stores them, and layers that make integers of their activations at each run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.graph_reading import every_node, short_name
from ptq_cli.models.pair_operators import (
    CONV_INTEGER,
    DEQUANTIZE,
    MATMUL_INTEGER,
    OF_LAYER,
    OF_TENSOR,
    QUANTIZE,
    RECURRENT,
)
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.left_layers import PLAIN_FLOAT_MODEL
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates

FLOAT_PRODUCTS = {MATMUL_INTEGER: "MatMul", CONV_INTEGER: "Conv"}


@dataclass(frozen=True, kw_only=True)
class DynamicPart:
    """A layer that ptq wrote as several operators, of which the last has the layer's name.

    Its product multiplies integers; ``op`` is the operator of floats that the layer was.
    """

    node: ir.Node
    product: ir.Node
    op: str
    scale: ir.Value

    @property
    def integers(self) -> ir.Value:
        """The weight, as the product reads it."""
        value = self.product.inputs[1]
        assert value is not None  # noqa: S101 - a product has two factors
        return value


def dynamic_parts(model: ir.Model) -> dict[str, DynamicPart]:
    """Return the layers by name, in the order of the graph.

    Operators that another tool wrote for such a layer are layers of their own.
    """
    parts = (_part(node) for node in every_node(model.graph) if node.op_type in FLOAT_PRODUCTS)
    return {part.node.name or "": part for part in parts if part is not None}


def inside_parts(parts: Mapping[str, DynamicPart]) -> frozenset[ir.Node]:
    """Return the operators inside such layers: all that make integers or floats, and the products."""
    inside, waiting = set[ir.Node](), [part.node for part in parts.values()]
    while waiting:
        producers = (value.producer() for value in waiting.pop().inputs if value is not None)
        for before in producers:
            if before is not None and before not in inside and _is_inside(before):
                inside.add(before)
                waiting.append(before)
    return frozenset(inside)


def with_products(work: MultiplyAccumulates, parts: Mapping[str, DynamicPart]) -> MultiplyAccumulates:
    """Return the work of a graph's nodes, with that of each product under the name of its layer."""
    products = {part.product.name or "": name for name, part in parts.items()}
    counts = {name: count for name, count in work.counts.items() if name not in products}
    moved = {products[name]: count for name, count in work.counts.items() if name in products}
    unknown = {products.get(name, name): why for name, why in work.unknown.items()}
    return replace(work, counts=counts | moved, unknown=unknown)


def _part(product: ir.Node) -> DynamicPart | None:
    name, mark, _ = (product.name or "").rpartition(OF_LAYER)
    chain = list(_behind(product, name)) if mark else []
    scale = _weight_scale(chain)
    if not chain or short_name(chain[-1].name or "") != name or scale is None:
        return None
    is_gemm = chain[-1].op_type == "Add" and product.op_type == MATMUL_INTEGER
    op = "Gemm" if is_gemm else FLOAT_PRODUCTS[product.op_type]
    return DynamicPart(node=chain[-1], product=product, op=op, scale=scale)


def _behind(product: ir.Node, name: str) -> Iterator[ir.Node]:
    """Yield the operators from a product to the one that has the layer's name."""
    node: ir.Node | None = product
    while node is not None and short_name(node.name or "") != name:
        uses = list(node.outputs[0].uses())
        node = uses[0].node if len(uses) == 1 else None
        if node is not None:
            yield node


def _weight_scale(chain: Sequence[ir.Node]) -> ir.Value | None:
    """Return the constant that the integers are multiplied by, directly or in a product of scales."""
    for value in (value for node in chain if node.op_type == "Mul" for value in node.inputs):
        producer = value.producer() if value is not None else None
        factors = [value, *(producer.inputs if producer is not None and producer not in chain else ())]
        for item in factors:
            if item is not None and item.const_value is not None:
                return item
    return None


def _is_inside(node: ir.Node) -> bool:
    return any(mark in (node.name or "") for mark in (OF_LAYER, OF_TENSOR))


# Operators that may stand between a constant as it is stored and its DequantizeLinear.
UNPACKING = ("Cast", "Gather", "Add", "Identity", "Reshape", "Transpose")


def stored_integers(node: ir.Node) -> ir.Value | None:
    """Return the constant that a DequantizeLinear reads, past what unpacks it; None if it is computed."""
    return _unpacked_from(node.inputs[0])


def _unpacked_from(value: ir.Value | None) -> ir.Value | None:
    while value is not None and value.const_value is None:
        producer = value.producer()
        value = producer.inputs[0] if producer is not None and producer.op_type in UNPACKING else None
    return value


def is_constant_pair(dequantize: ir.Node) -> bool:
    """Tell whether a DequantizeLinear is the second of a pair behind a constant."""
    producer = dequantize.inputs[0].producer() if dequantize.inputs[0] is not None else None
    source = producer.inputs[0] if producer is not None and producer.op_type == QUANTIZE else None
    return source is not None and is_constant(source)


def unpacking_nodes(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that only make of a constant, as it is stored, the integers of a DequantizeLinear."""
    nodes = list(every_node(model.graph))
    unpacked: set[ir.Value] = set()
    for node in nodes:
        if node.op_type in UNPACKING and all(
            item is None or item in unpacked or (item.producer() is None and item.const_value is not None)
            for item in node.inputs
        ):
            unpacked.update(node.outputs)
    found: set[ir.Node] = set()
    for node in reversed(nodes):  # Readers first: one walk, since thousands may stand in a row.
        readers = [use.node for output in node.outputs for use in output.uses()]
        is_read = readers and all(reader.op_type == DEQUANTIZE or reader in found for reader in readers)
        if product_of(node) is not None or (is_read and unpacked.issuperset(node.outputs)):
            found.add(node)
    return found


@dataclass(frozen=True)
class Product:
    """A constant that is restored as the product of a scale and of integers, of which a Cast makes floats.

    What the file holds is ``stored``, before it is unpacked.
    """

    integers: ir.Value
    stored: ir.Value
    scale: ir.Value


def product_of(node: ir.Node | None) -> Product | None:
    """Return the constant that a Mul restores; None for any other operator."""
    if node is None or node.op_type != "Mul" or len(node.inputs) != 2:
        return None
    floats, scale = node.inputs
    cast = floats.producer() if floats is not None else None
    integers = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    if integers is None or scale is None or not is_constant(scale) or not is_unpacked(integers):
        return None
    stored = _unpacked_from(integers)
    if stored is None or stored.dtype is None or not stored.dtype.is_integer():
        return None
    return Product(integers, stored, scale)


def is_stored_as_product(value: ir.Value | None) -> bool:
    """Tell whether a value is restored from integers by a Cast and a Mul."""
    return value is not None and product_of(value.producer()) is not None


def require_float_weights(model: ir.Model) -> None:
    """Refuse a model with recurrent layers whose weights are products of integers.

    Preparation folds such products, so that afterwards the weights look like floats and would be quantized
    twice.
    """
    for node in every_node(model.graph):
        if node.op_type in RECURRENT and any(map(is_stored_as_product, node.inputs)):
            raise NothingToQuantizeError(
                f"the model is already quantized: the weights of {node.op_type} '{node.name}' are integers",
                hint=PLAIN_FLOAT_MODEL,
            )


def is_unpacked(value: ir.Value | None) -> bool:
    """Tell whether a value is a constant, or one that is unpacked from constants; a missing one is, too."""
    return unpacking_of(value, UNPACKING) is not None


def unpacking_of(value: ir.Value | None, through: tuple[str, ...]) -> list[ir.Node] | None:
    """Return the operators of these types that make a value of constants, in order; None if others do."""
    order, seen = list[ir.Node](), set[ir.Node]()
    waiting: list[tuple[ir.Value | None, bool]] = [(value, False)]
    while waiting:
        item, is_ready = waiting.pop()
        producer = item.producer() if item is not None else None
        if is_ready and producer is not None:
            order.append(producer)
        elif item is not None and item.const_value is None and producer not in seen:
            if producer is None or producer.op_type not in through:
                return None
            seen.add(producer)
            waiting += [(item, True), *((source, False) for source in producer.inputs)]
    return order
