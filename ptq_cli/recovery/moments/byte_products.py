"""Products of matrices of 8-bit integers, by the integer kernels of ONNX Runtime."""

import itertools
from functools import cache

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from ptq_cli.core.tensors import Array
from ptq_cli.runtime.sessions.session import Session

Int32s = npt.NDArray[np.int32]

MOST_ROWS = 2**15
"""As many products of two integers of 8 bits and a sign, added up, are below 2^31."""
SIGN = 128
"""What turns an unsigned byte into a signed one, and back."""
TRIED = (1, 3, 64)
"""Sizes of matrices that a processor's kernels are tried with: there is one for a single row, too."""


class ByteRows:
    """Rows of unsigned bytes, to be multiplied by parts of themselves.

    The kernels multiply unsigned by signed bytes, which takes half the time, where a trial shows that this
    processor adds them up without saturating; otherwise unsigned ones, which all add up exactly.

    Example:
        >>> rows = ByteRows(np.array([[2, 3], [1, 0]], np.uint8), 1)
        >>> rows.gram(0, 2, 2).tolist(), rows.sums().tolist()
        ([[1, 2], [2, 5]], [1, 1])
    """

    def __init__(self, rows: Array, zero: int) -> None:
        """Prepare the products.

        Args:
            rows: integers.
            zero: the integer that stands for 0.

        Shapes:
            rows: (R, K) or (groups, R, K), with R at most 2^15.
        """
        self._left = np.ascontiguousarray(np.swapaxes(rows, -1, -2))
        self._rows = np.ascontiguousarray(rows)
        self._zero, self._is_signed = np.asarray(zero, np.uint8), is_signed_exact()
        self._right = _signed(self._rows) if self._is_signed else self._rows

    def gram(self, first: int, last: int, width: int) -> Int32s:
        """Return the sums over the rows of the products of some columns with the first ones, less zero.

        Args:
            first: of some columns.
            last: before which they end.
            width: how many columns they are multiplied with.

        Shapes:
            the result (last - first, width), or (groups, last - first, width).
        """
        left, right = self._left[..., first:last, :], self._right[..., :width]
        return _multiplied(left, right, self._zero, signed=self._is_signed)

    def sums(self) -> Int32s:
        """Return the sum of each column, less zero.

        Shapes:
            the result (K,) or (groups, K).
        """
        ones = np.ones((*self._rows.shape[:-2], 1, self._rows.shape[-2]), np.uint8)
        nothing = np.asarray(0, np.uint8)
        inputs = {"left": ones, "right": self._rows, "left_zero": nothing, "right_zero": self._zero}
        return _session(signed=False).run(inputs)[0][..., 0, :].astype(np.int32, copy=False)


@cache
def is_signed_exact() -> bool:
    """Return whether this processor adds products of unsigned and signed bytes up without saturating."""
    zero = np.asarray(0, np.uint8)
    for size, value in itertools.product(TRIED, (0, 255)):
        left, right = np.full((size, 64), 255, np.uint8), np.full((64, size), value, np.uint8)
        wanted = _multiplied(left, right, zero, signed=False)
        if not np.array_equal(wanted, _multiplied(left, _signed(right), zero, signed=True)):
            return False
    return True


def _signed(integers: Array) -> Array:
    return np.asarray(np.bitwise_xor(integers, SIGN, dtype=np.uint8)).view(np.int8)


def _multiplied(left: Array, right: Array, zero: Array, *, signed: bool) -> Int32s:
    right_zero = _signed(zero) if signed else zero
    inputs = {"left": left, "right": right, "left_zero": zero, "right_zero": right_zero}
    return _session(signed=signed).run(inputs)[0].astype(np.int32, copy=False)


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
