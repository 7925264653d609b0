"""Which constant stands behind a DequantizeLinear, past what unpacks it from how it is stored."""

from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.operators.integer_operators import RECURRENT
from ptq_cli.models.operators.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.plan.questions.already_quantized import FLOAT_MODEL
from ptq_cli.plan.questions.graph_questions import is_constant

UNPACKING = ("Cast", "Gather", "Add", "Identity", "Reshape", "Transpose")
"""What may stand between a constant as it is stored and its DequantizeLinear."""
FACTORS = 2


def stored_integers(node: ir.Node) -> ir.Value | None:
    """Return the constant that a DequantizeLinear reads, past what unpacks it; None if it is computed."""
    return _unpacked_from(node.inputs[0])


def _unpacked_from(value: ir.Value | None) -> ir.Value | None:
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in UNPACKING:
            return None
        value = producer.inputs[0]
    return value


def is_constant_pair(dequantize: ir.Node) -> bool:
    """Return whether a DequantizeLinear is the second of a pair behind a constant."""
    source = dequantize.inputs[0]
    producer = source.producer() if source is not None else None
    if producer is None or producer.op_type != QUANTIZE or producer.inputs[0] is None:
        return False
    return is_constant(producer.inputs[0])


def is_unpacking(node: ir.Node) -> bool:
    """Return whether a node only makes of a constant, as it is stored, the integers of a DequantizeLinear."""
    if product_of(node) is not None:
        return True
    found, seen = [node], {node}
    for step in found:  # Thousands may stand in a row, which is deeper than Python calls.
        if step.op_type not in UNPACKING or not all(map(is_unpacked, step.inputs)):
            return False
        readers = [use.node for output in step.outputs for use in output.uses()]
        if not readers:
            return False
        others = dict.fromkeys(reader for reader in readers if reader.op_type != DEQUANTIZE)
        found += [reader for reader in others if reader not in seen and product_of(reader) is None]
        seen.update(others)
    return True


@dataclass(frozen=True)
class Product:
    """A constant that is stored as integers, and restored as their product with a scale.

    Attributes:
        integers: what a Cast makes floats of.
        stored: the constant that the file holds, past what unpacks it.
        scale: what the floats are multiplied by.
    """

    integers: ir.Value
    stored: ir.Value
    scale: ir.Value


def product_of(node: ir.Node | None) -> Product | None:
    """Return what a Mul makes floats of, if it restores a constant; None for any other operator."""
    if node is None or node.op_type != "Mul" or len(node.inputs) != FACTORS:
        return None
    floats, scale = node.inputs
    cast = floats.producer() if floats is not None else None
    integers = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    if integers is None or scale is None or not is_constant(scale) or not is_unpacked(integers):
        return None
    stored = _unpacked_from(integers)
    dtype = stored.dtype if stored is not None else None
    if stored is None or dtype is None or not dtype.is_integer():
        return None
    return Product(integers, stored, scale)


def is_stored_as_product(value: ir.Value | None) -> bool:
    """Return whether a value is restored from integers by a Cast and a Mul."""
    return value is not None and product_of(value.producer()) is not None


def require_float_weights(model: ir.Model) -> None:
    """Refuse a model with recurrent layers whose weights are products of integers.

    Preparation folds such products, so that afterwards the weights look like floats and would be quantized
    twice.

    Raises:
        NothingToQuantizeError: there is such a layer.
    """
    for node in model.graph.all_nodes():
        if node.op_type in RECURRENT and any(map(is_stored_as_product, node.inputs)):
            raise NothingToQuantizeError(
                f"the model is already quantized: the weights of {node.op_type} '{node.name}' are integers",
                hint=FLOAT_MODEL,
            )


def is_unpacked(value: ir.Value | None) -> bool:
    """Return whether a value is a constant, or one that is unpacked from constants; a missing one is, too."""
    found, seen = [value], {value}
    for item in found:
        producer = item.producer() if item is not None else None
        if producer is None:
            if item is not None and item.const_value is None:
                return False
        elif producer.op_type in UNPACKING:
            found += [other for other in dict.fromkeys(producer.inputs) if other not in seen]
            seen.update(producer.inputs)
        else:
            return False
    return True
