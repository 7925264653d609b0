"""Layers that make integers of their activations at each run, with their operators."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.integer_operators import CONV_INTEGER, MATMUL_INTEGER, OF_LAYER, OF_TENSOR
from ptq_cli.models.names import short_name
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
