"""Grid of a QuantizeLinear or DequantizeLinear of any file: scale, zero point, type, axis."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import INT8, INT16, UINT8, UINT16, IntegerFormat
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    QUANTIZE,
    clips_integers,
    integer_clip_behind,
    quantizer_of,
)

SCALE_TOLERANCE = 1e-3  # of a bias, relative to the product of the two that integer kernels take for it
FORMATS = {
    ir.DataType.UINT8: UINT8,
    ir.DataType.INT8: INT8,
    ir.DataType.UINT16: UINT16,
    ir.DataType.INT16: INT16,
    ir.DataType.UINT4: IntegerFormat(4, signed=False),
    ir.DataType.INT4: IntegerFormat(4, signed=True),
    ir.DataType.UINT2: IntegerFormat(2, signed=False),
    ir.DataType.INT2: IntegerFormat(2, signed=True),
}


@dataclass(frozen=True, kw_only=True)
class PairGrid:
    """The parameters of one node: one scale, or one for each index along ``axis``; None if computed.

    Attributes:
        block_size: elements along the axis that have one scale; 0 if a whole index has.
        bits: that a Clip between the two nodes of a pair keeps the integers within; 0 without one.
    """

    scale: Array | None
    zero_point: npt.NDArray[np.int64] | None
    dtype: ir.DataType
    axis: int
    block_size: int
    bits: int = 0

    @property
    def format(self) -> IntegerFormat | None:
        """The integers; None if they are of another type."""
        found = FORMATS.get(self.dtype)
        return replace(found, bits=self.bits) if found is not None and self.bits else found

    @property
    def type_name(self) -> str:
        """The name of the integers' type, as messages have it."""
        return self.dtype.name.lower()

    @property
    def per_axis(self) -> bool:
        """Tell whether there is more than one scale."""
        return self.scale is not None and self.scale.size > 1

    @property
    def parameters(self) -> QuantParameters | None:
        """Parameters for the arithmetic; None with several scales, a computed one, or another type."""
        format = self.format
        if format is None or self.scale is None or self.zero_point is None:
            return None
        if self.scale.size != 1 or self.zero_point.size != 1:
            return None
        return QuantParameters(self.scale.astype(np.float32).reshape(()), self.zero_point.reshape(()), format)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The smallest and the largest real number; None if there are no ``parameters``."""
        found = self.parameters
        if found is None:
            return None
        zero, scale = int(found.zero_point), float(found.scale)
        return (found.format.qmin - zero) * scale, (found.format.qmax - zero) * scale

    def equals(self, other: "PairGrid") -> bool:
        """Tell whether two grids are known to be the same."""
        return (
            self.dtype == other.dtype
            and self.bits == other.bits
            and _equal(self.scale, other.scale)
            and _equal(self.zero_point, other.zero_point)
        )


def grid_of(node: ir.Node) -> PairGrid:
    """Return the grid of a QuantizeLinear or DequantizeLinear; a zero point that is left out is 0."""
    scale, zeros = (_array(input_at(node, index)) for index in (1, 2))
    if zeros is None and input_at(node, 2) is None and scale is not None:
        zeros = np.zeros(scale.shape, np.int64)
    return PairGrid(
        scale=scale,
        zero_point=zeros.astype(np.int64) if zeros is not None else None,
        dtype=_integers_of(node),
        axis=node.attributes.get_int("axis", 1),
        block_size=node.attributes.get_int("block_size", 0),
        bits=_bits_of(node),
    )


def _bits_of(node: ir.Node) -> int:
    """Return how many bits a Clip keeps the integers of a pair within; 0 without one."""
    if node.op_type == QUANTIZE:
        clip = integer_clip_behind(node)
    else:
        clip = node.inputs[0].producer() if node.inputs[0] is not None else None
    if clip is None or not clips_integers(clip):
        return 0
    high = _array(input_at(clip, 2))
    most = int(high.item()) if high is not None and high.size == 1 else 0
    # Those of two's complement have a bit for the sign.
    return most.bit_length() + int(high is not None and high.dtype.kind == "i")


def _integers_of(node: ir.Node) -> ir.DataType:
    """Return the type of a pair's integers: files of other tools often hold no types of computed tensors."""
    zeros, source = input_at(node, 2), node.inputs[0]
    if zeros is not None and zeros.dtype is not None:
        return zeros.dtype
    if node.op_type == DEQUANTIZE and source is not None:
        if source.dtype is not None:
            return source.dtype
        if (quantize := quantizer_of(source)) is not None:
            return _integers_of(quantize)
    return ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)


def _array(value: ir.Value | None) -> Array | None:
    return value.const_value.numpy() if value is not None and value.const_value is not None else None


def _equal(one: Array | None, other: Array | None) -> bool:
    # One number may be stored with an axis or without.
    return one is not None and other is not None and np.array_equal(one.reshape(-1), other.reshape(-1))


def has_scale_of_products(bias: ir.Node, source: ir.Node, weight: ir.Node) -> bool:
    """Tell whether a bias has the scale of its input times that of its weight, or one of them is computed."""
    scales = [grid_of(item).scale for item in (bias, source, weight)]
    if any(scale is None for scale in scales):
        return True
    found, one, other = (np.asarray(scale, np.float64) for scale in scales)
    wanted = (one * other).reshape(-1)
    if found.size not in (1, wanted.size) and wanted.size != 1:
        return False
    return bool(np.allclose(found.reshape(-1), wanted, rtol=SCALE_TOLERANCE, atol=0.0))
