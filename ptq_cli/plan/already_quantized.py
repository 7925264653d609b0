"""Parts of a model that are already quantized: they are kept, and nothing is quantized twice."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.integer_operators import DYNAMIC_LSTM
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE, QUANTIZING, dequantized_by, quantized_by

FLOAT_MODEL = "pass the float model that it was made from"


def quantizing_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that quantize or dequantize, and those that do it inside."""
    found = [node for node in every_node(graph) if node.op_type in (*QUANTIZING, DYNAMIC_LSTM)]
    alone = next((node for node in found if node.op_type != DYNAMIC_LSTM and not is_paired(node)), None)
    if alone is not None:
        raise quantized_already(alone)
    return found


def quantized_already(node: ir.Node) -> NothingToQuantizeError:
    """Return the error to raise for a model that leaves nothing to quantize."""
    return NothingToQuantizeError(
        f"the model is already quantized: it has {node.op_type} '{node.name}'", hint=FLOAT_MODEL
    )


def is_paired(node: ir.Node) -> bool:
    """Tell whether a node is one of a pair that quantizes and dequantizes, or dequantizes a constant.

    Only this form can be kept next to new pairs: a single QuantizeLinear, or one whose range is found at run
    time, feeds integer operators that the target's rules do not cover.
    """
    source = node.inputs[0]
    if node.op_type == QUANTIZE:
        readers = [use.node for use in node.outputs[0].uses()]
        restores = (reader.op_type == DEQUANTIZE and has_parameters_of(node, reader) for reader in readers)
        return bool(readers) and all(restores)
    if node.op_type != DEQUANTIZE or source is None:
        return False
    producer = source.producer()
    return source.const_value is not None or (producer is not None and producer.op_type == QUANTIZE)


def has_parameters_of(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Tell whether a DequantizeLinear has a QuantizeLinear's scale and zero point; a missing one is 0.

    Constants are compared by their values: other tools store one constant under two names.
    """
    scales = input_at(quantize, 1), input_at(dequantize, 1)
    zeros = input_at(quantize, 2), input_at(dequantize, 2)
    if not _same(*scales) or not (_same(*zeros) or (_is_zero(zeros[0]) and _is_zero(zeros[1]))):
        return False
    known = scales[0].const_value if scales[0] is not None else None
    is_single = known is not None and known.size == 1
    return is_single or all(
        quantize.attributes.get_int(name, usual) == dequantize.attributes.get_int(name, usual)
        for name, usual in (("axis", 1), ("block_size", 0))
    )


def _same(one: ir.Value | None, other: ir.Value | None) -> bool:
    if one is other:
        return True
    if one is None or other is None or one.const_value is None or other.const_value is None:
        return False
    if one.const_value.dtype != other.const_value.dtype:
        return False
    # One number may be stored with an axis or without.
    return np.array_equal(one.const_value.numpy().reshape(-1), other.const_value.numpy().reshape(-1))


def _is_zero(zeros: ir.Value | None) -> bool:
    return zeros is None or (zeros.const_value is not None and not np.any(zeros.const_value.numpy()))


def dequantized_refusal(value: ir.Value) -> str:
    """Return why a value that comes from a DequantizeLinear is left alone, or an empty string."""
    node = dequantized_by(value)
    return f"already quantized: '{value.name}' comes from DequantizeLinear '{node.name}'" if node else ""


def requantized_refusal(node: ir.Node) -> str:
    """Return why an operator whose result is already quantized is left alone, or an empty string."""
    readers = quantized_by(node.outputs[0])
    return f"already quantized: QuantizeLinear '{readers[0].name}' reads its result" if readers else ""
