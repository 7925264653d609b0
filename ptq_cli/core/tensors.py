"""The name, dtype and shape that an array must have to be a model's input."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype and shape of a model's input or output.

    Attributes:
        name: the value's name in the graph.
        dtype: numpy dtype.
        shape: one entry per axis; None where any size is allowed.

    Example:
        >>> str(TensorSpec("x", np.dtype("float32"), (None, 3, 32, 32)))
        'x: float32[?, 3, 32, 32]'
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{format_shape(self.shape)}"


def is_array(output: object) -> bool:
    """Tell whether a model's output is an array, and not a sequence of arrays, which ONNX allows too.

    Example:
        >>> is_array(np.zeros(2)), is_array([np.zeros(2)])
        (True, False)
    """
    return isinstance(output, np.ndarray)


def format_shape(shape: tuple[int | None, ...]) -> str:
    """Write a shape for a message: ``[?, 3, 32, 32]``.

    Example:
        >>> format_shape((None, 3))
        '[?, 3]'
    """
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
