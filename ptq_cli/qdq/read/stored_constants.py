"""Which constant stands behind a DequantizeLinear, past what unpacks it from how it is stored."""

import onnx_ir as ir

from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.plan.graph_questions import is_constant

UNPACKING = ("Cast", "Gather", "Add", "Identity", "Reshape", "Transpose")
"""What may stand between a constant as it is stored and its DequantizeLinear."""


def stored_integers(node: ir.Node) -> ir.Value | None:
    """Return the constant that a DequantizeLinear reads, past what unpacks it; None if it is computed."""
    value = node.inputs[0]
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
    if node.op_type not in UNPACKING or not all(map(is_unpacked, node.inputs)):
        return False
    readers = [use.node for output in node.outputs for use in output.uses()]
    return bool(readers) and all(reader.op_type == DEQUANTIZE or is_unpacking(reader) for reader in readers)


def is_unpacked(value: ir.Value | None) -> bool:
    """Return whether a value is a constant, or one that is unpacked from constants; a missing one is, too."""
    producer = value.producer() if value is not None else None
    if producer is not None:
        return producer.op_type in UNPACKING and all(map(is_unpacked, producer.inputs))
    return value is None or value.const_value is not None
