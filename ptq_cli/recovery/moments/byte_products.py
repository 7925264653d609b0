"""Products of matrices of 8-bit integers, by the integer kernels of ONNX Runtime."""

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.runtime.sessions.byte_sums import Int32s, is_signed_exact, multiplied, signed_bytes

MOST_ROWS = 2**15
"""As many products of two integers of 8 bits and a sign, added up, are below 2^31."""


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
        self._zero: Array = np.asarray(zero, np.uint8)
        self._right, self._right_zero = self._rows, self._zero
        if is_signed_exact():
            self._right, self._right_zero = signed_bytes(self._rows), signed_bytes(self._zero)

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
        return multiplied(left, right, self._zero, self._right_zero)

    def sums(self) -> Int32s:
        """Return the sum of each column, less zero.

        Shapes:
            the result (K,) or (groups, K).
        """
        ones = np.ones((*self._rows.shape[:-2], 1, self._rows.shape[-2]), np.uint8)
        return multiplied(ones, self._rows, np.asarray(0, np.uint8), self._zero)[..., 0, :]
