"""What a quantized constant was and what it is now, computed by ONNX Runtime from the file as it stands."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.tensors import Array
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.models.stored import mapped, serialize
from ptq_cli.qdq.read.graph_parts import part_of
from ptq_cli.qdq.read.pair_grids import Grid, grid_of
from ptq_cli.qdq.read.twin_graphs import QuantizedConstant, TwinGraphs
from ptq_cli.runtime.session import Session


@dataclass(frozen=True, kw_only=True)
class ConstantValues:
    """One constant in both models.

    Attributes:
        floats: the float model's values.
        values: what the quantized model computes with.
        dtype: what is stored, such as ``int8`` or ``int4``.
        integers: the integers behind the values; None for values of a codebook.
        grid: scale and zero point of the integers, as the file has them; None for values of a codebook.

    Shapes:
        floats, values and integers alike, where the integers are not those of one vector for (1, C).
    """

    floats: FloatArray
    values: FloatArray
    dtype: str
    integers: Array | None = None
    grid: Grid | None = None

    @property
    def scale(self) -> Array | None:
        """The scale of the integers."""
        return self.grid.scale if self.grid is not None else None

    @property
    def axis(self) -> int | None:
        """Along which the scales are; None for one scale."""
        return (
            self.grid.axis if self.grid is not None and self.scale is not None and self.scale.ndim else None
        )

    def spread(self, parameters: Array) -> Array:
        """Return scales or zero points so that they fit the values."""
        if parameters.ndim == 0 or self.grid is None:
            return parameters.reshape(())
        axis, block_size = self.grid.axis, self.grid.block_size
        if block_size:
            spread = np.repeat(parameters, block_size, axis=axis)
            return spread.take(range(self.values.shape[axis]), axis=axis)
        shape = [1] * self.values.ndim
        shape[axis] = -1
        return parameters.reshape(shape)


def constant_values(twins: TwinGraphs, constant: QuantizedConstant) -> ConstantValues:
    """Return the values of a constant.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot compute them.
    """
    dequantize = next((node for node in constant.sources if node.op_type == DEQUANTIZE), None)
    part = part_of(twins.quantized_model, constant.sources, (), [constant.value])
    if dequantize is not None:
        # What it reads may be an initializer, which is no output: a Cast is.
        integers = part.graph.node(dequantize.name or "").inputs[0]
        cast = ir.node("Cast", [integers], {"to": ir.DataType.INT32})
        part.graph.append(cast)
        part.graph.outputs.append(cast.outputs[0])
    found = Session(serialize(part), threads=1, optimize=False).run({})
    values = found[0].astype(np.float32)
    with mapped(constant.floats) as array:
        floats = array.astype(np.float32)
    if floats.shape != values.shape:  # Gemm lets a bias of one element stand for a vector.
        floats = np.broadcast_to(floats.reshape(-1), values.shape)
    dtype = _stored_type(constant)
    if dequantize is None:
        return ConstantValues(floats=floats, values=values, dtype=f"{dtype} in a table")
    return ConstantValues(
        floats=floats, values=values, dtype=dtype, integers=found[1], grid=grid_of(dequantize)
    )


def _stored_type(constant: QuantizedConstant) -> str:
    """Return the type of the integers that the file holds, or that it makes of floats as it is loaded."""
    first = constant.sources[0]
    dtype = grid_of(first).dtype if first.op_type == QUANTIZE else constant.stored.dtype
    return dtype.name.lower() if dtype is not None else ""
