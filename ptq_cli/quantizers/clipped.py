"""The clipped straight-through estimator: any values forward, the gradient of a clamp backward."""

from typing import Any

import torch

from ptq_cli.quantizers.blocks import Chain, map_blocks
from ptq_cli.quantizers.straight_through import pass_where

Gradients = tuple[torch.Tensor | None, ...]


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
        return map_blocks(chain, x, *others)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Gradients:
        x, low, high = ctx.saved_tensors
        if low is None:
            return map_blocks(_pass_within, grad_outputs[0], x, high), None, None, None, None
        return map_blocks(_pass_between, grad_outputs[0], x, low, high), None, None, None, None


def clipped(
    chain: Chain, x: torch.Tensor, low: torch.Tensor | None, high: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    """Return ``chain(x, *others)``, with the upstream gradient where ``low <= x <= high``, and 0 elsewhere.

    Args:
        chain: computes the values, as in ``map_blocks``.
        x: the only argument that gets a gradient.
        low: from where on it passes, edge included; None for ``-high``, which is faster.
        high: up to where it passes, edge included.
        others: parameters of the chain.

    Shapes:
        x: any; the result has the same, and its dtype. low, high, others: broadcast to x.

    Edge case:
        NaN gets gradient 0. An infinite or NaN gradient that does not pass becomes 0.

    Source:
        NVIDIA pytorch-quantization, ``tensor_quant``.

    Example:
        >>> x = torch.tensor([-2.0, 0.6, 1.0], requires_grad=True)
        >>> y = clipped(torch.round, x, torch.tensor(-1.0), torch.tensor(1.0))
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([-2.0, 1.0, 1.0], [0.0, 1.0, 1.0])
    """
    result: torch.Tensor = _Clipped.apply(x, low, high, chain, others)  # type: ignore[no-untyped-call]
    return result


def _pass_within(gradient: torch.Tensor, x: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return pass_where(x.abs() <= high, gradient)


def _pass_between(
    gradient: torch.Tensor, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    return pass_where((x >= low) & (x <= high), gradient)
