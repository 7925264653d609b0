"""The largest magnitude of a tensor in PyTorch, over all or some of its axes."""

from collections.abc import Sequence

import torch

from ptq_cli.core.errors import AxisError

Axes = int | Sequence[int] | None


def reduce_amax(x: torch.Tensor, axis: Axes = None, keepdims: bool = True) -> torch.Tensor:
    """Return the largest magnitude over ``axis``, without a gradient.

    Args:
        x: the tensor.
        axis: the axes that are reduced; None for all.
        keepdims: keep them with size 1, so that the result broadcasts to x.

    Shapes:
        x: any; the result is x's without the reduced axes, or with 1 there; () where one value remains.

    Units:
        As x.

    Edge case:
        No values have the largest magnitude 0. NaN is the largest.

    Raises:
        AxisError: x has no such axis, or it is named twice.

    Source:
        NVIDIA pytorch-quantization 2.2.1, ``utils.reduce_amax``.

    Example:
        >>> x = torch.tensor([[1.0, -3.0], [2.0, 0.0]])
        >>> reduce_amax(x).item(), reduce_amax(x, axis=1).tolist(), reduce_amax(x, 0, keepdims=False).tolist()
        (3.0, [[3.0], [2.0]], [2.0, 3.0])
    """
    axes = _axes(x, axis)
    magnitudes = x.detach().abs()
    for index in axes:
        if magnitudes.shape[index]:
            magnitudes = magnitudes.amax(dim=index, keepdim=True)
        else:
            magnitudes = magnitudes.sum(dim=index, keepdim=True)
    if magnitudes.numel() == 1:
        return magnitudes.reshape(())
    if keepdims:
        return magnitudes
    return magnitudes.reshape([size for index, size in enumerate(magnitudes.shape) if index not in axes])


def _axes(x: torch.Tensor, axis: Axes) -> list[int]:
    if axis is None:
        return list(range(x.ndim))
    named = [axis] if isinstance(axis, int) else list(axis)
    for index in named:
        if not -x.ndim <= index < x.ndim:
            raise AxisError(f"axis {index} is outside a tensor of shape {tuple(x.shape)}")
    axes = [index % x.ndim for index in named]
    if len(set(axes)) < len(axes):
        raise AxisError(f"the axes {tuple(named)} of a tensor of shape {tuple(x.shape)} name one axis twice")
    return axes
