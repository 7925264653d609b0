"""Constants that may lie on disk: mapped while they are read, and moved or cast as they are asked for."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array

Move = Callable[[Array], Array]
LAZY = (ir.ExternalTensor, ir.LazyTensor)


def moved_tensor(tensor: ir.TensorProtocol, move: Move, name: str) -> ir.TensorProtocol:
    """Return what ``move`` makes of a tensor; of one on disk nothing is read before it is asked for."""
    if not isinstance(tensor, LAZY):
        return ir.tensor(np.ascontiguousarray(move(tensor.numpy())), name=name)
    # What a move does to shape and type, it does to an array that takes no memory as well.
    like = move(np.broadcast_to(np.zeros((), tensor.dtype.numpy()), tensor.shape.numpy()))
    dtype = ir.DataType.from_numpy(like.dtype)

    def read() -> ir.TensorProtocol:
        try:
            return ir.Tensor(np.array(move(tensor.numpy()), order="C"), dtype=dtype, name=name)
        finally:
            release_tensor(tensor)

    return ir.LazyTensor(read, dtype, ir.Shape(like.shape), name=name)


def release_tensor(tensor: ir.TensorProtocol | None) -> None:
    """Let go of the memory that a tensor was mapped into."""
    if not isinstance(tensor, ir.ExternalTensor):
        return
    # A view that somebody still holds keeps the memory, which then goes with it.
    with contextlib.suppress(BufferError):
        tensor.release()
    tensor.raw = None


@contextlib.contextmanager
def mapped(value: ir.Value) -> Iterator[Array]:
    """Yield the array of a constant, and let go of it at the end: views of it must be gone by then.

    Raises:
        ValueError: the value is not a constant.
    """
    if value.const_value is None:
        raise ValueError(f"'{value.name}' is not a constant")
    try:
        yield value.const_value.numpy()
    finally:
        release_tensor(value.const_value)
