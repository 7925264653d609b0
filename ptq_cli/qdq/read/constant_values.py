"""What a quantized constant was and what it is now, computed by ONNX Runtime from the file as it stands."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.tensors import Array
from ptq_cli.qdq.read.twin_graphs import DEQUANTIZE, QUANTIZE, QuantizedConstant, Reading
from ptq_cli.runtime.session import Session

INTEGERS = "integers"


@dataclass(frozen=True, kw_only=True)
class ConstantValues:
    """One constant in both models.

    Attributes:
        floats: the float model's values.
        values: what the quantized model computes with.
        integers: the integers behind them; None for values of a codebook.
        scale: of the integers, as the file has it; None for values of a codebook.
        zero_point: likewise; None for 0.
        axis: along which the scales are; None for one scale.
        block_size: elements along the axis that have one scale; 0 where a whole channel has.
        dtype: what is stored, such as ``int8`` or ``int4``.

    Shapes:
        floats, values and integers alike, where the integers are not those of one vector for (1, C).
    """

    floats: FloatArray
    values: FloatArray
    integers: Array | None
    scale: Array | None
    zero_point: Array | None
    axis: int | None
    block_size: int
    dtype: str

    def spread(self, parameters: Array) -> Array:
        """Return scales or zero points so that they fit the values."""
        if parameters.ndim == 0 or self.axis is None:
            return parameters.reshape(())
        if self.block_size:
            spread = np.repeat(parameters, self.block_size, axis=self.axis)
            return spread.take(range(self.values.shape[self.axis]), axis=self.axis)
        shape = [1] * self.values.ndim
        shape[self.axis] = -1
        return parameters.reshape(shape)


def constant_values(
    reading: Reading, quantized_model: onnx.ModelProto, constant: QuantizedConstant
) -> ConstantValues:
    """Return the values of a constant.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot compute them.
    """
    arrays = {item.name: item for item in reading.graph.initializer}
    held = next(item for item in reading.float_graph.initializer if item.name == constant.tensor)
    floats = numpy_helper.to_array(held).astype(np.float32)
    dequantize = next((node for node in constant.sources if node.op_type == DEQUANTIZE), None)
    stored = _stored(constant, arrays)
    outputs = [helper.make_tensor_value_info(constant.value, onnx.TensorProto.FLOAT, None)]
    nodes = list(constant.sources)
    if dequantize is not None:
        # What a DequantizeLinear reads may be an initializer, which is no output: an Identity is.
        nodes.append(helper.make_node("Cast", [dequantize.input[0]], [INTEGERS], to=onnx.TensorProto.INT32))
        outputs.append(helper.make_tensor_value_info(INTEGERS, onnx.TensorProto.INT32, None))
    used = {name for node in nodes for name in node.input if name in arrays}
    graph = helper.make_graph(nodes, "constant", [], outputs, [arrays[name] for name in sorted(used)])
    model = helper.make_model(
        graph, opset_imports=quantized_model.opset_import, ir_version=quantized_model.ir_version
    )
    found = Session(model.SerializeToString(), threads=1, optimize=False).run({})
    values = found[0].astype(np.float32)
    if floats.shape != values.shape:  # Gemm lets a bias of one element stand for a vector.
        floats = np.broadcast_to(floats.reshape(-1), values.shape)
    if dequantize is None:
        return ConstantValues(
            floats=floats,
            values=values,
            integers=None,
            scale=None,
            zero_point=None,
            axis=None,
            block_size=0,
            dtype=f"{stored} in a table",
        )
    return _with_scale(dequantize, arrays, floats, values, found[1], stored)


def _with_scale(
    node: onnx.NodeProto,
    arrays: dict[str, onnx.TensorProto],
    floats: FloatArray,
    values: FloatArray,
    integers: Array,
    stored: str,
) -> ConstantValues:
    scale = numpy_helper.to_array(arrays[node.input[1]]).astype(np.float32)
    has_zeros = len(node.input) > 2 and node.input[2] in arrays
    zeros = numpy_helper.to_array(arrays[node.input[2]]).astype(np.int64) if has_zeros else None
    attributes = {item.name: item.i for item in node.attribute}
    axis = attributes.get("axis", 1) if scale.ndim else None
    block = attributes.get("block_size", 0)
    return ConstantValues(
        floats=floats,
        values=values,
        integers=integers,
        scale=scale,
        zero_point=zeros,
        axis=axis,
        block_size=block,
        dtype=stored,
    )


def _stored(constant: QuantizedConstant, arrays: dict[str, onnx.TensorProto]) -> str:
    """Return the type of the integers that the file holds, or that it makes of floats as it is loaded."""
    node = constant.sources[0]
    first = node.input[2 if node.op_type == QUANTIZE else 0]
    name = helper.tensor_dtype_to_string(arrays[first].data_type)
    return name.removeprefix("TensorProto.").lower()
