"""Constants as a file stores them: integers behind what unpacks them, or as factors of a product."""

from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.integer_operators import RECURRENT
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.plan.already_quantized import FLOAT_MODEL
from ptq_cli.plan.graph_questions import is_constant

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
                hint=FLOAT_MODEL,
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
