"""Straight-through estimators: a step function forward, a useful gradient backward.

Rounding has gradient 0 almost everywhere, so nothing in front of it could learn. The straight-through
estimator puts another gradient in its place: the identity's for rounding, the clipped identity's for
clamping. The value that flows forward is untouched.

The names are SpikingJelly's, so ``round`` here is not Python's: import the module, or the names you need.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

_Gradients = tuple[torch.Tensor | None, ...]


def fresh(result: torch.Tensor) -> torch.Tensor:
    """The result of an autograd function's forward as a tensor that no operation handed through.

    In a graph that PyTorch 2.11 compiles, the gradient of one that was is 0: ``.to`` and ``sum_to_size`` hand
    their argument through where nothing changes. A compiler fuses the copy.
    """
    return result.clone() if torch.compiler.is_compiling() else result


class _StraightThrough(torch.autograd.Function):
    """Any function forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:  # noqa: ARG004 - autograd's signature
        return fresh(step(x))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> _Gradients:  # noqa: ARG004 - likewise
        return round_backward(grad_outputs[0]), None


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, min_value: float, max_value: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = min_value, max_value
        return fresh(torch.clamp(x, min_value, max_value))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> _Gradients:
        (x,) = ctx.saved_tensors
        return clamp_backward(grad_outputs[0], x, *ctx.bounds), None, None


def apply_straight_through(x: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return ``step(x)``; the gradient is that of the identity: ``dy/dx = 1``.

    Shapes: x: any; ``step`` must keep the shape, and must not change its argument.
    Source: Bengio, Léonard and Courville 2013, "Estimating or propagating gradients through stochastic
        neurons for conditional computation", section 3.1.

    Example:
        >>> x = torch.tensor([-0.3, 2.0], requires_grad=True)
        >>> y = apply_straight_through(x, torch.sign)
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([-1.0, 1.0], [1.0, 1.0])
    """
    result: torch.Tensor = _StraightThrough.apply(x, step)  # type: ignore[no-untyped-call]
    return result


def round(x: torch.Tensor) -> torch.Tensor:
    """Round half to even; ``dy/dx = 1``.

    Shapes: x: any; the result has the same.
    Edge case: NaN and ±inf stay what they are; their gradient is 1 too.
    Source: Bengio et al. 2013, section 3.1; SpikingJelly, ``activation_based.quantize.round``.

    Example:
        >>> x = torch.tensor([0.5, 1.5, -0.7], requires_grad=True)
        >>> y = round(x)
        >>> y.tolist()
        [0.0, 2.0, -1.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [1.0, 1.0, 1.0]
    """
    return apply_straight_through(x, torch.round)


def ceil(x: torch.Tensor) -> torch.Tensor:
    """Round up; ``dy/dx = 1``.

    Shapes: x: any; the result has the same.
    Edge case: NaN and ±inf stay what they are.
    Source: SpikingJelly, ``activation_based.quantize.ceil``.

    Example:
        >>> ceil(torch.tensor([0.5, -0.7, 2.0])).tolist()
        [1.0, -0.0, 2.0]
    """
    return apply_straight_through(x, torch.ceil)


def floor(x: torch.Tensor) -> torch.Tensor:
    """Round down; ``dy/dx = 1``.

    Shapes: x: any; the result has the same.
    Edge case: NaN and ±inf stay what they are.
    Source: SpikingJelly, ``activation_based.quantize.floor``.

    Example:
        >>> floor(torch.tensor([0.5, -0.7, 2.0])).tolist()
        [0.0, -1.0, 2.0]
    """
    return apply_straight_through(x, torch.floor)


def clamp(x: torch.Tensor, min_value: float, max_value: float) -> torch.Tensor:
    """Clamp to ``[min_value, max_value]``; ``dy/dx = 1`` inside, edges included, and 0 elsewhere.

    Shapes: x: any; the result has the same.
    Edge case: NaN stays NaN and gets gradient 0. Where ``min_value > max_value``, everything becomes
        ``max_value``, as in torch, and no gradient passes.
    Source: Bengio et al. 2013, section 3.1; SpikingJelly, ``activation_based.quantize.clamp``.

    Example:
        >>> x = torch.tensor([-2.0, -1.0, 0.3, 1.0, 1.1], requires_grad=True)
        >>> y = clamp(x, -1.0, 1.0)
        >>> y.tolist()
        [-1.0, -1.0, 0.30000001192092896, 1.0, 1.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [0.0, 1.0, 1.0, 1.0, 0.0]
    """
    result: torch.Tensor = _Clamp.apply(x, min_value, max_value)  # type: ignore[no-untyped-call]
    return result


def round_backward(grad_output: torch.Tensor) -> torch.Tensor:
    """The gradient of ``round``, ``ceil`` and ``floor``: the upstream one.

    Shapes: grad_output: any; the result is it.

    Example:
        >>> round_backward(torch.tensor([2.0, -1.0])).tolist()
        [2.0, -1.0]
    """
    return grad_output


def clamp_backward(
    grad_output: torch.Tensor, x: torch.Tensor, min_value: float, max_value: float
) -> torch.Tensor:
    """The gradient of ``clamp``: the upstream one where ``min_value <= x <= max_value``, otherwise 0.

    Shapes: grad_output, x: the same; the result too.
    Edge case: An infinite or NaN gradient that does not pass becomes 0, which a product with the mask would
        not.
    Source: SpikingJelly, ``activation_based.quantize.clamp_backward``.

    Example:
        >>> clamp_backward(torch.tensor([2.0, float("inf")]), torch.tensor([1.0, 1.5]), -1.0, 1.0).tolist()
        [2.0, 0.0]
    """
    return pass_where((x >= min_value) & (x <= max_value), grad_output)


def pass_where(passes: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient where ``passes``, and 0 elsewhere.

    Shapes: passes, gradient: the same; the result too.
    Edge case: An infinite or NaN gradient that does not pass becomes 0, which a product with the mask would
        not.
    Source: NVIDIA pytorch-quantization, ``tensor_quant``: the backward of the clipped straight-through
        estimator.

    Example:
        >>> pass_where(torch.tensor([True, False]), torch.tensor([2.0, float("inf")])).tolist()
        [2.0, 0.0]
    """
    return torch.where(passes, gradient, torch.zeros((), dtype=gradient.dtype, device=gradient.device))


# Element by element over a tensor, in pieces that the cache holds.
#
# A chain of five operations over a tensor of 64 MB would read and write it five times; over pieces it reads
# it once and writes the result once, which is the least there is. What lies between is never as large as
# the tensor, in whatever dtype it is computed. A compiler fuses the chain by itself, and on a GPU pieces
# would only cost launches: there the chain runs once, over the whole.
# Elements: the piece, a result between and the output are 768 KiB in float32, below a second-level cache.
VALUES_AT_ONCE = 1 << 16

Chain = Callable[..., torch.Tensor]
_Tensors = tuple[torch.Tensor, ...]


def map_blocks(
    chain: Chain, x: torch.Tensor, *others: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return ``chain(x, *others)`` as ``dtype``, by default that of ``x``.

    Args:
        chain: computes each element from the same element of each tensor; must not keep or change them.
        x: what the result is like in shape and layout.
        others: tensors of the same shape, or parameters that broadcast against it.
        dtype: of the result.

    Shapes: x: any; others: broadcast to it. The chain is given tensors of x's rank.
    Edge case: A tensor without elements gives one.

    Example:
        >>> map_blocks(torch.add, torch.zeros(2, 3), torch.ones(3)).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    dtype = dtype or x.dtype
    others = tuple(other.reshape((1,) * (x.ndim - other.ndim) + other.shape) for other in others)
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= VALUES_AT_ONCE:
        return chain(x, *others).to(dtype)
    result = torch.empty_like(x, dtype=dtype)
    # In the order of memory, so that a piece is a run of it in any layout.
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    for target, *parts in _pieces(tuple(tensor.permute(order) for tensor in (result, x, *others)), 0):
        target.copy_(chain(*parts))
    return result


def _pieces(tensors: _Tensors, axis: int) -> Iterator[_Tensors]:
    """Yield the tensors in pieces along ``axis`` and the axes behind it."""
    whole = tensors[0]
    if whole.numel() <= VALUES_AT_ONCE or axis == whole.ndim:
        yield tensors
        return
    size = whole.shape[axis]
    rows = max(1, VALUES_AT_ONCE * size // whole.numel())
    for start in range(0, size, rows):
        count = min(rows, size - start)
        parts = (
            tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, start, count) for tensor in tensors
        )
        yield from _pieces(tuple(parts), axis + 1)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        low: torch.Tensor | None,
        high: torch.Tensor,
        chain: Chain,
        others: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        # x rather than the mask: it is there anyway, and a pass without a backward one need not compare.
        ctx.save_for_backward(x, low, high)
        return fresh(map_blocks(chain, x, *others))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> _Gradients:
        x, low, high = ctx.saved_tensors
        if low is None:
            return map_blocks(_pass_within, grad_outputs[0], x, high), None, None, None, None
        return map_blocks(_pass_between, grad_outputs[0], x, low, high), None, None, None, None


def clipped(
    chain: Chain, x: torch.Tensor, low: torch.Tensor | None, high: torch.Tensor, *parameters: torch.Tensor
) -> torch.Tensor:
    """Return ``chain(x, *parameters)``; the upstream gradient passes where ``low <= x <= high``.

    Args:
        chain: computes the values, as in ``map_blocks``.
        x: the only argument that gets a gradient.
        low: from where on it passes, edge included; None for ``-high``, which is faster.
        high: up to where it passes, edge included.
        parameters: of the chain; they and the bounds may be on another device than x.

    Shapes: x: any; the result has the same, and its dtype. low, high, parameters: broadcast to x.
    Edge case: NaN gets gradient 0. An infinite or NaN gradient that does not pass becomes 0.
    Source: NVIDIA pytorch-quantization, ``tensor_quant``.

    Example:
        >>> x = torch.tensor([-2.0, 0.6, 1.0], requires_grad=True)
        >>> y = clipped(torch.round, x, torch.tensor(-1.0), torch.tensor(1.0))
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([-2.0, 1.0, 1.0], [0.0, 1.0, 1.0])
    """
    low = None if low is None else low.to(x.device)
    high, *others = (tensor.to(x.device) for tensor in (high, *parameters))
    result: torch.Tensor = _Clipped.apply(x, low, high, chain, tuple(others))  # type: ignore[no-untyped-call]
    return result


def _pass_within(gradient: torch.Tensor, x: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return pass_where(x.abs() <= high, gradient)


def _pass_between(
    gradient: torch.Tensor, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    return pass_where((x >= low) & (x <= high), gradient)
