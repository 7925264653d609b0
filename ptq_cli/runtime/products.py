"""Products of matrices by ONNX Runtime's kernels: of bytes, whether they saturate, and of floats."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from ptq_cli.core.tensors import Array
from ptq_cli.runtime.session import NO_ARENA, Session

Int32s = npt.NDArray[np.int32]
SIGN_OFFSET = 128  # turns an unsigned byte into a signed one, and back
TRIED = (1, 3, 64)  # sizes of matrices; there is a kernel for a single row, too


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
    return np.asarray(np.bitwise_xor(integers, SIGN_OFFSET, dtype=np.uint8)).view(np.int8)


def multiplied(left: Array, right: Array, left_zero: Array, right_zero: Array) -> Int32s:
    """Return the product of matrices of bytes.

    The left matrix is unsigned; whether the right one is signed decides the kernel.

    Shapes: left (…, M, K), right (…, K, N), the result (…, M, N).
    """
    inputs = {"left": left, "right": right, "left_zero": left_zero, "right_zero": right_zero}
    return _session(signed=right.dtype == np.int8).run(inputs)[0].astype(np.int32, copy=False)


def multiplied_floats(left: Array, right: Array) -> Any:
    """Return the product of matrices of float32 or of float64, the same for any number of threads.

    Shapes: left (M, K), right (K, N), the result (M, N).

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
    return Session(model.SerializeToString(), threads=1, place=NO_ARENA)


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
    return Session(model.SerializeToString(), threads=1, place=NO_ARENA)
