"""The integers of a weight: as they are, two or four in a byte, as indices into a table, or in a file."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import ConstantsFile, named_alike
from ptq_cli.models.files.storing import lies_apart
from ptq_cli.models.graph_reading import register_constant
from ptq_cli.models.names import short_name
from ptq_cli.qdq.write.new_nodes import NewNodes
from ptq_cli.qdq.write.weight_quantizer import BYTE, HALF_BYTE, StoredWeight

PACKED_OPSET = 21  # the first in which Cast reads INT4 and UINT4
PART = 1 << 20  # integers that are packed at once: whole bytes of them


def add_integers(graph: ir.Graph, name: str, array: Array, bits: int) -> ir.Value:
    """Add a constant of integers of so many bits: two or four in a byte where these are few."""
    array = np.asarray(array, order="C")
    tensor = ir.Tensor(array, name=name)
    if bits <= HALF_BYTE:
        dtype = _packed_type(array, bits)
        tensor = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype, name=name)
    return register_constant(graph, tensor)


def _packed_type(array: Array, bits: int) -> ir.DataType:
    signed = np.issubdtype(array.dtype, np.signedinteger)
    return ir.DataType[f"{'INT' if signed else 'UINT'}{bits}"]


def add_weight(
    new: NewNodes,
    reader: ir.Node,
    tensor: str,
    stored: StoredWeight,
    *,
    as_int8: bool = True,
    home: ir.Graph | None = None,
) -> ir.Value:
    """Add a weight's integers in front of ``reader``; return the value that a DequantizeLinear takes.

    With ``as_int8`` packed ones are cast to int8; ``home`` is the graph that holds them, if that is a nested
    one. Of a table of floats it returns the weight's values. A runtime folds what is added as it loads.
    """
    prefix, shape = short_name(tensor), ir.Shape(stored.shape)

    def put(op_type: str, inputs: list[ir.Value], dtype: ir.DataType | None, to: int = 0) -> ir.Value:
        given = {"attributes": {"to": to} if to else {}, "dtype": dtype, "shape": shape}
        return new.put(reader, op_type, inputs, f"{prefix}/{op_type}", **given)

    name = new.claim(f"{prefix}.{'quantized' if stored.table is None else 'indices'}")
    if isinstance(stored.integers, ir.ExternalTensor):
        integers = register_constant(home or new.graph, named_alike(stored.integers, name))
    else:
        integers = add_integers(home or new.graph, name, stored.integers, stored.bits)
    if stored.table is None:
        if stored.bits > HALF_BYTE or not as_int8:
            return integers
        # Integer kernels are for int8. The runtime casts once, as it loads, and finds one.
        return put("Cast", [integers], ir.DataType.INT8, ir.DataType.INT8)
    positions = put("Cast", [integers], ir.DataType.INT32, ir.DataType.INT32)
    if stored.offsets is not None:
        offsets = new.constant(f"{prefix}.offsets", stored.offsets.astype(np.int32))
        positions = put("Add", [positions, offsets], ir.DataType.INT32)
    table = new.constant(f"{prefix}.table", stored.table)
    return put("Gather", [table, positions], table.dtype)


WeightStorage = Callable[[StoredWeight, str], StoredWeight]
"""Given what is stored of a weight and the weight's name, returns the same from where it is kept."""


def in_memory(stored: StoredWeight, _name: str) -> StoredWeight:
    """Return a weight itself, which stays in memory."""
    return stored


class StreamedWeights:
    """Writes large integers into the file that the quantized model will have them in, as each is decided.

    A weight whose integers are stored in another form, as 4-bit floats are, stays in memory.
    """

    def __init__(self, file: ConstantsFile) -> None:
        self._file = file

    def __call__(self, stored: StoredWeight, name: str) -> StoredWeight:
        """Return a weight whose integers are in the file, if they are large."""
        array = stored.integers
        if isinstance(array, ir.ExternalTensor) or stored.tensor_scale is not None:
            return stored
        if not lies_apart(array.size * stored.bits // BYTE):
            return stored
        is_packed = stored.bits <= HALF_BYTE
        dtype = _packed_type(array, stored.bits) if is_packed else ir.DataType.from_numpy(array.dtype)
        written = self._file.write(_blocks(array, dtype, is_packed), dtype, array.shape, name)
        return replace(stored, integers=written)


def _blocks(array: Array, dtype: ir.DataType, is_packed: bool) -> Iterator[bytes | memoryview]:
    flat = np.ascontiguousarray(array).reshape(-1)
    if not is_packed:
        yield flat.view(np.uint8).data
        return
    for start in range(0, flat.size, PART):
        yield ir.Tensor(flat[start : start + PART].astype(dtype.numpy()), dtype=dtype).tobytes()
