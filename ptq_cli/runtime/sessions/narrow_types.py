"""What ONNX Runtime must leave out to compute pairs of float16, or of floats of few bits, as the file says.

It has QuantizeLinear and DequantizeLinear for these types, but its optimizer takes them for integers. Of each
float bias between quantized tensors it makes one of int32, whose scale is the product of two: of float16 ones
that becomes 0. A Relu before a QuantizeLinear to E4M3 it takes for needless. A MatMul of E4M3 values
goes to its kernel for int8, so that the model cannot be loaded.
"""

from dataclasses import dataclass

import onnx
from onnx import TensorProto

from ptq_cli.models.operators.pair_operators import DEQUANTIZE

BIAS_QUANTIZATION = "WeightBiasQuantization"
"""ONNX Runtime's name for that step of its optimizer."""
FEW_BITS = frozenset({TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1})
NARROW = FEW_BITS | {TensorProto.FLOAT16, TensorProto.BFLOAT16}


@dataclass(frozen=True)
class LeftOut:
    """What of ONNX Runtime's optimizer must not run on a model.

    Attributes:
        optimizers: names of its steps.
        everything: the optimizer as a whole.
    """

    optimizers: tuple[str, ...] = ()
    everything: bool = False


def left_out(content: bytes) -> LeftOut:
    """Return what of ONNX Runtime's optimizer would change what a serialized model computes.

    Edge case:
        Of a model whose pairs have integers and scales of float32, nothing.

    Example:
        >>> left_out(b"")
        LeftOut(optimizers=(), everything=False)
    """
    if DEQUANTIZE.encode() not in content:
        return LeftOut()
    graph = onnx.ModelProto.FromString(content).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    read = {types.get(name) for node in graph.node if node.op_type == DEQUANTIZE for name in node.input}
    if not read & NARROW:
        return LeftOut()
    return LeftOut((BIAS_QUANTIZATION,), everything=bool(read & FEW_BITS))
