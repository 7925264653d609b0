"""Quantized constants: what each was and is, and the model with those of the other; by ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.files.storing import LARGEST_BYTES, constant_bytes
from ptq_cli.models.graph_reading import FreshNames, every_node
from ptq_cli.models.pair_operators import CONV_INTEGER, DEQUANTIZE, DYNAMIC_LSTM, KERNEL_PARAMETERS, QUANTIZE
from ptq_cli.models.preparing.rewriting import add_constant
from ptq_cli.qdq.read.pair_grids import PairGrid, grid_of
from ptq_cli.qdq.read.stored_constants import DynamicPart, product_of
from ptq_cli.qdq.read.twin_graphs import (
    QuantizedConstant,
    TwinGraphs,
    computed_integers,
    output_as_int32,
    part_of,
)
from ptq_cli.runtime.session import Session

_WEIGHT = 1  # input of a Gemm


@dataclass(frozen=True, kw_only=True)
class ConstantValues:
    """One constant in both models, and what is stored of it; without integers and grid if that is a codebook.

    The float model holds it transposed if it ``is_turned``, which its Gemm turns.

    Shapes: floats, values and integers alike, where the integers are not those of one vector for (1, C).
    """

    floats: FloatArray
    values: FloatArray
    dtype: str
    integers: Array | None = None
    grid: PairGrid | None = None
    is_turned: bool = False

    @property
    def scale(self) -> Array | None:
        """The scale of the integers."""
        return self.grid.scale if self.grid is not None else None

    @property
    def axis(self) -> int | None:
        """Along which the scales are; None for one scale."""
        scale = self.scale
        return self.grid.axis if self.grid is not None and scale is not None and scale.ndim else None

    def spread(self, parameters: Array) -> Array:
        """Return scales or zero points so that they fit the values."""
        if parameters.ndim == 0 or self.grid is None:
            return parameters.reshape(())
        axis, block_size = self.grid.axis, self.grid.block_size
        if block_size:
            spread = np.repeat(parameters, block_size, axis=axis)
            return spread.take(range(self.values.shape[axis]), axis=axis)
        if parameters.ndim > 1:  # Of each direction and channel of a recurrent layer.
            return parameters[..., np.newaxis]
        shape = [1] * self.values.ndim
        shape[axis] = -1
        return parameters.reshape(shape)


def constant_values(twins: TwinGraphs, constant: QuantizedConstant) -> ConstantValues:
    """Return the values of a constant, as ONNX Runtime computes them from the file as it stands."""
    node, dtype = constant.node, _stored_type(constant)
    if node.op_type == DYNAMIC_LSTM:
        return _of_kernel(twins, constant)
    if (part := twins.dynamic.get(node.name or "")) is not None:
        return _of_dynamic(twins, constant, part)
    restoring = next(
        (item for item in constant.sources if item.op_type == DEQUANTIZE or product_of(item)), None
    )
    product = product_of(restoring)
    integers = (
        product.integers if product is not None else restoring.inputs[0] if restoring is not None else None
    )
    found = _computed(twins, constant.sources, constant.value, integers)
    values, floats = found[0].astype(np.float32), _floats(constant)
    is_gemm_weight = (node.op_type, constant.input_index) == ("Gemm", _WEIGHT)
    is_turned = (
        is_gemm_weight and node.attributes.get_int("transB", 0) == 0 and _is_transposed(twins, constant)
    )
    floats = floats.T if is_turned else floats
    if floats.shape != values.shape:  # Gemm lets a bias of one element stand for a vector.
        floats = np.broadcast_to(floats.reshape(-1), values.shape)
    made = ConstantValues(floats=floats, values=values, dtype=dtype, is_turned=is_turned)
    if restoring is None:
        return replace(made, dtype=f"{dtype} in a table")
    return replace(made, integers=found[1], grid=_grid_of(restoring))


def _floats(constant: QuantizedConstant) -> FloatArray:
    with mapped(constant.floats) as array:
        return array.astype(np.float32)


def _grid_of(node: ir.Node) -> PairGrid:
    product = product_of(node)
    if product is None:
        return grid_of(node)
    scale = product.scale.const_value
    array = scale.numpy() if scale is not None else None
    # It has the weight's axes, the last of size 1.
    return _symmetric_grid(array[..., 0] if array is not None and array.ndim else array, product.stored.dtype)


def _symmetric_grid(scale: Array | None, dtype: ir.DataType | None) -> PairGrid:
    """Return the grid of a recurrent layer's weight, [directions, channels, inputs]; its zero point is 0.

    Shapes: scale: (D, C); (1, C) or (1,) if the directions share it; or ().
    """
    own = scale[0] if scale is not None and scale.ndim and len(scale) == 1 else scale
    zeros = None if own is None else np.zeros(own.shape, np.int64)
    return PairGrid(scale=own, zero_point=zeros, dtype=dtype or ir.DataType.INT8, axis=1, block_size=0)


def _of_kernel(twins: TwinGraphs, constant: QuantizedConstant) -> ConstantValues:
    """Return a weight that DynamicQuantizeLSTM reads as integers, [directions, inputs, channels]."""
    scale = constant.node.inputs[KERNEL_PARAMETERS[constant.input_index]]
    if scale is None or scale.const_value is None:
        raise ValueError("a weight that ptq wrote has a constant scale")
    array = scale.const_value.numpy()
    # One for each direction is the same for all: the operator has no other form of one scale.
    grid = _symmetric_grid(array[:1] if array.ndim == 1 else array, constant.stored.dtype)
    found = _computed(twins, constant.sources, constant.value, constant.value)[-1]
    return _on_grid(constant, np.ascontiguousarray(found.swapaxes(1, 2)), grid)


def _on_grid(constant: QuantizedConstant, integers: Array, grid: PairGrid) -> ConstantValues:
    floats, dtype = _floats(constant), _stored_type(constant)
    made = ConstantValues(floats=floats, values=floats, dtype=dtype, integers=integers, grid=grid)
    steps = made.spread(np.asarray(grid.scale)).astype(np.float32)
    return replace(made, values=integers.astype(np.float32) * steps)


def _of_dynamic(twins: TwinGraphs, constant: QuantizedConstant, part: DynamicPart) -> ConstantValues:
    """Return a weight that MatMulInteger or ConvInteger reads as integers; those of a Gemm may be turned."""
    integers = _computed(twins, constant.sources, part.integers, part.integers)[-1]
    axis = 0 if part.product.op_type == CONV_INTEGER else integers.ndim - 1
    if _is_transposed(twins, constant):
        integers, axis = np.ascontiguousarray(integers.swapaxes(-1, -2)), integers.ndim - 2
    assert part.scale.const_value is not None  # noqa: S101 - it was found as a constant
    scale = part.scale.const_value.numpy()
    scale = scale.reshape(-1) if scale.ndim else scale
    dtype = constant.stored.dtype or ir.DataType.INT8
    zeros = np.zeros(scale.shape, np.int64)
    grid = PairGrid(scale=scale, zero_point=zeros, dtype=dtype, axis=axis, block_size=0)
    return _on_grid(constant, integers, grid)


def _is_transposed(twins: TwinGraphs, constant: QuantizedConstant) -> bool:
    before = next(node for node in every_node(twins.float_model.graph) if node.name == constant.node.name)
    return before.attributes.get_int("transB", 0) == 1


def _computed(
    twins: TwinGraphs, sources: Sequence[ir.Node], value: ir.Value, integers: ir.Value | None
) -> list[Array]:
    """Compute a constant with ONNX Runtime: its values, then its integers as int32."""
    if not sources:
        return [computed_integers(twins.quantized_model, (), value, {})]
    part = part_of(twins.quantized_model, sources, (), [value])
    if integers is not None:
        output_as_int32(part, integers.name)
    return Session(serialize(part), threads=1, optimize=False).run({})


def _stored_type(constant: QuantizedConstant) -> str:
    """Return the type of the integers that the file holds, or that it makes of floats as it is loaded."""
    first = constant.sources[0] if constant.sources else None
    is_made = first is not None and first.op_type == QUANTIZE
    dtype = grid_of(first).dtype if first is not None and is_made else constant.stored.dtype
    return dtype.name.lower() if dtype is not None else ""


def with_float_activations(twins: TwinGraphs) -> ir.Model | None:
    """Return the float model with the values that the integers of its weights and biases stand for.

    None if no constant is quantized, or if they are too many for a model in memory.
    """
    if not twins.constants or constant_bytes(twins.float_model) > LARGEST_BYTES:
        return None
    return _with_constants(twins, twins.float_model, of_floats=False)


def with_float_weights(twins: TwinGraphs) -> ir.Model | None:
    """Return the quantized model with the float model's weights and biases.

    None if no activation is quantized, if a layer makes integers of them at each run, which no float weight
    goes with, or as ``with_float_activations``.
    """
    makes_integers = twins.dynamic or any(item.node.op_type == DYNAMIC_LSTM for item in twins.constants)
    if makes_integers or not (twins.pairs or twins.containers):
        return None
    if constant_bytes(twins.float_model) > LARGEST_BYTES:
        return None
    return _with_constants(twins, twins.quantized_model, of_floats=True)


def _with_constants(twins: TwinGraphs, model: ir.Model, *, of_floats: bool) -> ir.Model:
    made = model.clone()
    names = FreshNames.of(made.graph)
    nodes = {node.name: node for node in every_node(made.graph)}
    for constant in twins.constants:
        node, found = nodes[constant.node.name], constant_values(twins, constant)
        array = found.floats if of_floats else (found.values.T if found.is_turned else found.values)
        dtype = constant.floats.dtype or ir.DataType.FLOAT
        array = np.asarray(array.astype(dtype.numpy()), order="C")
        value = add_constant(node.graph, array, f"{constant.tensor}.other", names)
        node.replace_input_with(constant.input_index, value)
    return made
