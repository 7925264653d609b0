"""Element by element over a tensor, in pieces that the cache holds.

A chain of five operations over a tensor of 64 MB would read and write it five times; over pieces it reads it
once and writes the result once, which is the least there is. What lies between is never as large as the
tensor, in whatever dtype it is computed. A compiler fuses the chain by itself, and on a GPU pieces would only
cost launches: there the chain runs once, over the whole.
"""

from collections.abc import Callable, Iterator

import torch

BLOCK = 1 << 16
"""Elements: the piece, a result between and the output are 768 KiB in float32, below a second-level cache."""

Chain = Callable[..., torch.Tensor]
Tensors = tuple[torch.Tensor, ...]


def map_blocks(
    chain: Chain, x: torch.Tensor, *others: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return ``chain(x, *others)`` as ``dtype``, by default that of ``x``.

    Args:
        chain: computes each element from the same element of each tensor; must not keep or change them.
        x: what the result is like in shape and layout.
        others: tensors of the same shape, or parameters that broadcast against it.
        dtype: of the result.

    Shapes:
        x: any; others: broadcast to it. The chain is given tensors of x's rank.

    Edge case:
        A tensor without elements gives one.

    Example:
        >>> map_blocks(torch.add, torch.zeros(2, 3), torch.ones(3)).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    dtype = dtype or x.dtype
    others = tuple(other.reshape((1,) * (x.ndim - other.ndim) + other.shape) for other in others)
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= BLOCK:
        return chain(x, *others).to(dtype)
    result = torch.empty_like(x, dtype=dtype)
    # In the order of memory, so that a piece is a run of it in any layout.
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    for target, *parts in _pieces(tuple(tensor.permute(order) for tensor in (result, x, *others)), 0):
        target.copy_(chain(*parts))
    return result


def _pieces(tensors: Tensors, axis: int) -> Iterator[Tensors]:
    """Yield the tensors in pieces along ``axis`` and the axes behind it."""
    whole = tensors[0]
    if whole.numel() <= BLOCK or axis == whole.ndim:
        yield tensors
        return
    size = whole.shape[axis]
    rows = max(1, BLOCK * size // whole.numel())
    for start in range(0, size, rows):
        count = min(rows, size - start)
        parts = (
            tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, start, count) for tensor in tensors
        )
        yield from _pieces(tuple(parts), axis + 1)
