"""Straight-through estimators: a step function forward, a useful gradient backward.

Rounding has gradient 0 almost everywhere, so nothing in front of it could learn. The straight-through
estimator puts another gradient in its place: the identity's for rounding, the clipped identity's for
clamping. The value that flows forward is untouched.
"""

from typing import Any

import torch

from ptq_cli.core.errors import UsageError


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - autograd's signature
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - likewise
        return grad_outputs[0]


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
        ctx.save_for_backward((x >= low) & (x <= high))
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (passes,) = ctx.saved_tensors
        return pass_where(passes, grad_outputs[0]), None, None


def round_straight_through(x: torch.Tensor) -> torch.Tensor:
    """Round half to even; the gradient is that of the identity: ``dy/dx = 1``.

    Shapes:
        x: any; the result has the same.

    Edge case:
        NaN and ±inf stay what they are; their gradient is 1 too.

    Source:
        Bengio, Léonard and Courville 2013, "Estimating or propagating gradients through stochastic
        neurons for conditional computation", section 3.1; SpikingJelly, ``activation_based.quantize``.

    Example:
        >>> x = torch.tensor([0.5, 1.5, -0.7], requires_grad=True)
        >>> y = round_straight_through(x)
        >>> y.tolist()
        [0.0, 2.0, -1.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [1.0, 1.0, 1.0]
    """
    rounded: torch.Tensor = _Round.apply(x)  # type: ignore[no-untyped-call]
    return rounded


def clamp_straight_through(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Clamp to ``[low, high]``; ``dy/dx = 1`` where ``low <= x <= high``, edges included, and 0 elsewhere.

    Shapes:
        x: any; the result has the same.

    Edge case:
        NaN stays NaN and gets gradient 0.

    Raises:
        UsageError: ``low > high``.

    Source:
        Bengio et al. 2013, section 3.1; SpikingJelly, ``activation_based.quantize``, ``clamp``.

    Example:
        >>> x = torch.tensor([-2.0, -1.0, 0.3, 1.0, 1.1], requires_grad=True)
        >>> y = clamp_straight_through(x, -1.0, 1.0)
        >>> y.tolist()
        [-1.0, -1.0, 0.30000001192092896, 1.0, 1.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [0.0, 1.0, 1.0, 1.0, 0.0]
    """
    if not low <= high:
        raise UsageError(f"a clamp's bounds must be ordered, got low {low} and high {high}")
    clamped: torch.Tensor = _Clamp.apply(x, low, high)  # type: ignore[no-untyped-call]
    return clamped


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
