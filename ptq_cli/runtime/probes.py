"""What ONNX Runtime computes on this machine, found out by running small models."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ptq_cli.core.errors import InvalidOnnxError, RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import serialize
from ptq_cli.runtime.session import Session

# Sums of products of bytes by ONNX Runtime's kernels, and whether those of this processor saturate.


Int32s = npt.NDArray[np.int32]

SIGN = 128
"""What turns an unsigned byte into a signed one, and back."""
TRIED = (1, 3, 64)
"""Sizes of matrices that a processor's kernels are tried with: there is one for a single row, too."""


@cache
def is_signed_exact() -> bool:
    """Return whether this processor adds products of unsigned and signed bytes up without saturating."""
    zero = np.asarray(0, np.uint8)
    for size, value in itertools.product(TRIED, (0, 255)):
        left, right = np.full((size, 64), 255, np.uint8), np.full((64, size), value, np.uint8)
        found = multiplied(left, signed_bytes(right), zero, signed_bytes(zero))
        if not np.array_equal(multiplied(left, right, zero, zero), found):
            return False
    return True


def signed_bytes(integers: Array) -> Array:
    """Return unsigned bytes less 128, as signed ones.

    Example:
        >>> signed_bytes(np.uint8([0, 255])).tolist()
        [-128, 127]
    """
    return np.asarray(np.bitwise_xor(integers, SIGN, dtype=np.uint8)).view(np.int8)


def multiplied(left: Array, right: Array, left_zero: Array, right_zero: Array) -> Int32s:
    """Return the product of matrices of bytes.

    The left matrix is unsigned; whether the right one is signed decides the kernel.

    Shapes:
        left (…, M, K), right (…, K, N), the result (…, M, N).
    """
    inputs = {"left": left, "right": right, "left_zero": left_zero, "right_zero": right_zero}
    return _session(signed=right.dtype == np.int8).run(inputs)[0].astype(np.int32, copy=False)


def multiplied_floats(left: Array, right: Array) -> Any:
    """Return the product of matrices of float32 or of float64, the same for any number of threads.

    Shapes:
        left (M, K), right (K, N), the result (M, N).

    Example:
        >>> multiplied_floats(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])).tolist()
        [[11.0]]
    """
    inputs = {"left": np.ascontiguousarray(left), "right": np.ascontiguousarray(right)}
    return _float_session(left.dtype == np.float64).run(inputs)[0]


@cache
def _float_session(double: bool) -> Session:
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    left, right, made = (
        helper.make_tensor_value_info(name, kind, None) for name in ("left", "right", "made")
    )
    node = helper.make_node("MatMul", ["left", "right"], ["made"])
    graph = helper.make_graph([node], "products", [left, right], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return Session(model.SerializeToString(), threads=1, arena=False)


@cache
def _session(*, signed: bool) -> Session:
    second = TensorProto.INT8 if signed else TensorProto.UINT8
    kinds = [("left", TensorProto.UINT8, None), ("right", second, None)]
    zeros = [("left_zero", TensorProto.UINT8, ()), ("right_zero", second, ())]
    made = helper.make_tensor_value_info("made", TensorProto.INT32, None)
    given = [helper.make_tensor_value_info(*item) for item in (*kinds, *zeros)]
    node = helper.make_node("MatMulInteger", [item.name for item in given], ["made"])
    graph = helper.make_graph([node], "products", given, [made])
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    # Whoever multiplies has a thread of his own, and what is kept for the next run would add up.
    return Session(model.SerializeToString(), threads=1, arena=False)


# What operators of other domains compute: ONNX's inference knows none of them, ONNX Runtime knows its own.
#
# Without the type of such a result, whatever reads it would stay float.


LARGE = 1024
"""Elements; shapes are inferred from small constants (axes, sizes), and never from larger ones."""


def know_foreign_types(model: ir.Model) -> int:
    """Note type and shape of what operators of other domains compute, and return of how many values.

    Where ONNX Runtime does not know an operator either, nothing is noted; running it says so.
    """
    values = {value.name: value for value in _unknown(model)}
    if not values:
        return 0
    asked = model.clone()
    _without_large_constants(asked.graph)
    found = {value.name: value for node in asked.graph for value in node.outputs}
    asked.graph.outputs[:] = [found[name] for name in values]
    try:
        specs = Session(serialize(asked), threads=1, optimize=False).output_specs
    except RuntimeFailedError:
        return 0
    for spec in specs:
        values[spec.name].type = ir.TensorType(ir.DataType.from_numpy(spec.dtype))
        values[spec.name].shape = ir.Shape(spec.shape)
    return len(specs)


def _unknown(model: ir.Model) -> list[ir.Value]:
    functions = {identifier[0] for identifier in model.functions}
    known = {"", "ai.onnx", *functions}
    nodes = [node for node in model.graph if node.domain not in known]
    return [value for node in nodes for value in node.outputs if value.name and value.type is None]


def _without_large_constants(graph: ir.Graph) -> None:
    """Make inputs of them, so that ONNX Runtime reads none."""
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.size < LARGE or value.is_graph_input():
            continue
        del graph.initializers[name]
        value.const_value = None
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        graph.inputs.append(value)


# Which opsets the ONNX Runtime that is installed knows.


SURELY_KNOWN = 22
"""Every ONNX Runtime that ptq runs with knows these; newer ones are tried."""


def require_known_opset(opset: int, what: str) -> None:
    """Check that ONNX Runtime can load a model of an opset."""
    if opset <= SURELY_KNOWN or _loads(opset):
        return
    newest = next(version for version in range(opset - 1, SURELY_KNOWN - 1, -1) if _loads(version))
    raise InvalidOnnxError(
        f"model '{what}' has opset {opset}, but the installed ONNX Runtime supports only {newest} and older",
        hint=f"export it with opset {newest}, or install a newer onnxruntime",
    )


def _loads(opset: int) -> bool:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "probe", [value], [result])
    # The oldest format that may hold it: a newer one than the runtime's is refused for another reason.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        Session(onnx.ModelProto.SerializeToString(model))
    except RuntimeFailedError:
        return False
    return True
