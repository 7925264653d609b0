"""Sums of products of what a layer reads with itself and with what it should make, in exact integers.

Once the ranges of activations are decided, what a layer reads are integers. Their sums of products are
integers too, so that they are the same in whichever order, batches or parts they are added.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

EXACT = 2**53
"""Up to this float64 holds every integer, whichever order a library adds in."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SecondMoments:
    """What least squares needs to know of a layer's inputs and targets.

    Attributes:
        rows: how many pairs of an input and a target were seen.
        gram: sum of the products of the inputs with each other.
        cross: sum of the products of the targets with the inputs.
        inputs, targets: their sums.

    Shapes:
        gram: (K, K); cross: (M, K); inputs: (K,); targets: (M,).

    Units:
        Integer steps of the inputs and of the targets.
    """

    rows: int
    gram: Int64s
    cross: Int64s
    inputs: Int64s
    targets: Int64s

    def merge(self, other: "SecondMoments") -> "SecondMoments":
        """Return the moments of both parts; exact, so the order does not matter."""
        return SecondMoments(
            rows=self.rows + other.rows,
            gram=self.gram + other.gram,
            cross=self.cross + other.cross,
            inputs=self.inputs + other.inputs,
            targets=self.targets + other.targets,
        )


def second_moments(inputs: Float64s, targets: Float64s) -> SecondMoments:
    """Return the moments of some rows.

    The products are those of float64 matrices: every sum on the way is an integer below 2^53, which float64
    holds exactly, so the result does not depend on the library, its threads, or how the rows are split.

    Shapes:
        inputs: (rows, K); targets: (rows, M); both hold integers.

    Edge case:
        No rows have moments of 0.

    Example:
        >>> x, y = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([[5.0], [-2.0]])
        >>> found = second_moments(x, y)
        >>> found.gram.tolist(), found.cross.tolist(), found.inputs.tolist()
        ([[10, -1], [-1, 5]], [[-1, 12]], [4, 1])
    """
    largest = max(np.abs(inputs).max(initial=1.0), np.abs(targets).max(initial=1.0))
    rows = max(1, int(EXACT / largest**2))
    found: SecondMoments | None = None
    for start in range(0, max(1, len(inputs)), rows):
        x, y = inputs[start : start + rows], targets[start : start + rows]
        part = SecondMoments(
            rows=len(x),
            gram=(x.T @ x).astype(np.int64),
            cross=(y.T @ x).astype(np.int64),
            inputs=x.sum(axis=0).astype(np.int64),
            targets=y.sum(axis=0).astype(np.int64),
        )
        found = part if found is None else found.merge(part)
    assert found is not None  # noqa: S101 - there is at least one part
    return found
