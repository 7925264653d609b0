"""Proof: a quantized graph is well formed, whatever tool wrote it."""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at, sole_reader
from ptq_cli.models.pair_operators import (
    CONV_INTEGER,
    DEQUANTIZE,
    MATMUL_INTEGER,
    QUANTIZE,
    clips_integers,
    integers_of,
    is_dynamic_quantize,
    quantizer_of,
)
from ptq_cli.plan.left_layers import has_parameters_of
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import is_unpacked

TakesIntegers = Callable[[ir.Node], bool]


def structure_faults(model: ir.Model, takes_integers: TakesIntegers = lambda _: False) -> Iterator[str]:
    """Yield what is wrong with the Q/DQ structure of a model; nothing if it is correct.

    The rules: each QuantizeLinear is read, and only by DequantizeLinears with the same parameters, which may
    be behind a Clip of its integers, or by MatMulInteger (``_is_clamped_sum`` tells the one exception); each
    DequantizeLinear reads a QuantizeLinear or a constant, which may be unpacked first, and is read; scales
    are positive and finite. A model may also have integer inputs and outputs. An operator that
    ``takes_integers`` may be between the two, as a QLinearConv may if the runtime has one.
    """
    for node in every_node(model.graph):
        if node.op_type == QUANTIZE:
            yield from _quantize_faults(node, takes_integers)
        elif node.op_type == DEQUANTIZE:
            yield from _dequantize_faults(node, takes_integers)


def _quantize_faults(node: ir.Node, takes_integers: TakesIntegers) -> Iterator[str]:
    readers = [reader for reader, _ in integers_of(node).uses()]
    if not readers and not node.outputs[0].is_graph_output():
        yield f"'{node.name}' is not read by any node"
    for reader in readers:
        multiplies = reader.op_type in (CONV_INTEGER, MATMUL_INTEGER)
        if multiplies or clips_integers(reader) or takes_integers(reader):
            continue
        if reader.op_type != DEQUANTIZE:
            found = f"{reader.op_type} '{reader.name}'"
            yield f"'{node.name}' is read by {found}, which is not a DequantizeLinear"
        elif not has_parameters_of(node, reader) and not _is_clamped_sum(node, reader):
            yield f"'{reader.name}' does not have the parameters of '{node.name}'"


def _dequantize_faults(node: ir.Node, takes_integers: TakesIntegers) -> Iterator[str]:
    source, scale = node.inputs[0], node.inputs[1]
    if source is not None and not _is_integer(source, takes_integers):
        yield f"'{node.name}' reads neither a QuantizeLinear nor a constant"
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        yield f"'{node.name}' is not read by any node"
    values = scale.const_value.numpy() if scale is not None and scale.const_value is not None else None
    if values is not None and not ((values > 0) & (values < float("inf"))).all():
        yield f"'{node.name}' has a scale that is not positive and finite"


def _is_integer(source: ir.Value, takes_integers: TakesIntegers) -> bool:
    producer = source.producer()
    if quantizer_of(source) is not None or is_dynamic_quantize(producer):
        return True
    if producer is not None and clips_integers(producer):  # to fewer bits
        producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
    if producer is not None and takes_integers(producer):
        return True
    return is_unpacked(source) or source.is_graph_input()


def _is_clamped_sum(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Tell whether two nodes are the pair in ``x * clip(x + c, 0, d) * f``, with f in the second one's scale.

    The two have one zero point; and the pair stands between an Add of x and a Mul by the same x alone.
    """
    total = quantize.inputs[0].producer() if quantize.inputs[0] is not None else None
    product = sole_reader(dequantize.outputs[0])
    if total is None or product is None or (total.op_type, product.op_type) != ("Add", "Mul"):
        return False
    if input_at(quantize, 2) is not input_at(dequantize, 2) or grid_of(dequantize).parameters is None:
        return False
    factor = next((value for value in product.inputs if value is not dequantize.outputs[0]), None)
    return factor is not None and factor in total.inputs and sole_reader(total.outputs[0]) is quantize
