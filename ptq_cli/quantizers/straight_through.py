"""Straight-through estimators: a step function forward, a useful gradient backward.

Rounding has gradient 0 almost everywhere, so nothing in front of it could learn. The straight-through
estimator puts another gradient in its place: the identity's for rounding, the clipped identity's for
clamping. The value that flows forward is untouched.

The names are SpikingJelly's, so ``round`` here is not Python's: import the module, or the names you need.
"""

from collections.abc import Callable
from typing import Any

import torch

Gradients = tuple[torch.Tensor | None, ...]


class _StraightThrough(torch.autograd.Function):
    """Any function forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:  # noqa: ARG004 - autograd's signature
        return step(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Gradients:  # noqa: ARG004 - likewise
        return round_backward(grad_outputs[0]), None


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, min_value: float, max_value: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = min_value, max_value
        return torch.clamp(x, min_value, max_value)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Gradients:
        (x,) = ctx.saved_tensors
        return clamp_backward(grad_outputs[0], x, *ctx.bounds), None, None


def apply_straight_through(x: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return ``step(x)``; the gradient is that of the identity: ``dy/dx = 1``.

    Shapes:
        x: any; ``step`` must keep the shape, and must not change its argument.

    Source:
        Bengio, Léonard and Courville 2013, "Estimating or propagating gradients through stochastic
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

    Shapes:
        x: any; the result has the same.

    Edge case:
        NaN and ±inf stay what they are; their gradient is 1 too.

    Source:
        Bengio et al. 2013, section 3.1; SpikingJelly, ``activation_based.quantize.round``.

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

    Shapes:
        x: any; the result has the same.

    Edge case:
        NaN and ±inf stay what they are.

    Source:
        SpikingJelly, ``activation_based.quantize.ceil``.

    Example:
        >>> ceil(torch.tensor([0.5, -0.7, 2.0])).tolist()
        [1.0, -0.0, 2.0]
    """
    return apply_straight_through(x, torch.ceil)


def floor(x: torch.Tensor) -> torch.Tensor:
    """Round down; ``dy/dx = 1``.

    Shapes:
        x: any; the result has the same.

    Edge case:
        NaN and ±inf stay what they are.

    Source:
        SpikingJelly, ``activation_based.quantize.floor``.

    Example:
        >>> floor(torch.tensor([0.5, -0.7, 2.0])).tolist()
        [0.0, -1.0, 2.0]
    """
    return apply_straight_through(x, torch.floor)


def clamp(x: torch.Tensor, min_value: float, max_value: float) -> torch.Tensor:
    """Clamp to ``[min_value, max_value]``; ``dy/dx = 1`` inside, edges included, and 0 elsewhere.

    Shapes:
        x: any; the result has the same.

    Edge case:
        NaN stays NaN and gets gradient 0. Where ``min_value > max_value``, everything becomes ``max_value``,
        as in torch, and no gradient passes.

    Source:
        Bengio et al. 2013, section 3.1; SpikingJelly, ``activation_based.quantize.clamp``.

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
    """Return the gradient of ``round``, ``ceil`` and ``floor``: the upstream one.

    Shapes:
        grad_output: any; the result is it.

    Example:
        >>> round_backward(torch.tensor([2.0, -1.0])).tolist()
        [2.0, -1.0]
    """
    return grad_output


def clamp_backward(
    grad_output: torch.Tensor, x: torch.Tensor, min_value: float, max_value: float
) -> torch.Tensor:
    """Return the gradient of ``clamp``: the upstream one where ``min_value <= x <= max_value``, otherwise 0.

    Shapes:
        grad_output, x: the same; the result too.

    Edge case:
        An infinite or NaN gradient that does not pass becomes 0, which a product with the mask would not.

    Source:
        SpikingJelly, ``activation_based.quantize.clamp_backward``.

    Example:
        >>> clamp_backward(torch.tensor([2.0, float("inf")]), torch.tensor([1.0, 1.5]), -1.0, 1.0).tolist()
        [2.0, 0.0]
    """
    return pass_where((x >= min_value) & (x <= max_value), grad_output)


def pass_where(passes: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient where ``passes``, and 0 elsewhere.

    Shapes:
        passes, gradient: the same; the result too.

    Edge case:
        An infinite or NaN gradient that does not pass becomes 0, which a product with the mask would not.

    Source:
        NVIDIA pytorch-quantization, ``tensor_quant``: the backward of the clipped straight-through estimator.

    Example:
        >>> pass_where(torch.tensor([True, False]), torch.tensor([2.0, float("inf")])).tolist()
        [2.0, 0.0]
    """
    return torch.where(passes, gradient, torch.zeros((), dtype=gradient.dtype, device=gradient.device))
