"""The one form in which a DequantizeLinear may have another scale than the QuantizeLinear that it reads."""

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at, sole_reader
from ptq_cli.qdq.read.pair_grids import grid_of


def is_clamped_sum(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Tell whether two nodes are the pair in ``x * clip(x + c, 0, d) * f``, with f in the second one's scale.

    Edge case:
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
