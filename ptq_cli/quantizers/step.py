"""A grid without end: multiples of a step, and the counts of spikes that lie on it.

Computed in float32 for every float dtype.
"""

from typing import Any

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.grid import require_float
from ptq_cli.quantizers.straight_through import apply_straight_through, clamp_backward, fresh

_Gradients = tuple[torch.Tensor | None, ...]


def step_quantize(x: torch.Tensor, step: float) -> torch.Tensor:
    """Round to the nearest multiple of ``step``: ``round(x / step) * step``; ``dy/dx = 1``.

    Shapes: x: any; the result has the same, and its dtype.
    Units: step: as x.
    Edge case: Ties go to the even multiple. A negative step has the same grid; a step of 0 gives NaN. ±inf
        and NaN stay.

    Raises: QuantizerTypeError: x is not a float tensor.

    Source: SpikingJelly, ``activation_based.quantize.step_quantize``.

    Example:
        >>> x = torch.tensor([0.1, 0.125, 0.375], requires_grad=True)
        >>> y = step_quantize(x, 0.25)
        >>> y.tolist()
        [0.0, 0.0, 0.5]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [1.0, 1.0, 1.0]
    """
    require_float(x)
    return apply_straight_through(x, lambda value: step_quantize_forward(value, step))


def step_quantize_forward(x: torch.Tensor, step: float) -> torch.Tensor:
    """The values of ``step_quantize``, without its gradient.

    Shapes: x: any; the result has the same, and its dtype.
    Source: SpikingJelly, ``activation_based.quantize.step_quantize_forward``.

    Example:
        >>> step_quantize_forward(torch.tensor([2.0, 5.0]), 4.0).tolist()
        [0.0, 4.0]
    """
    # On x's device, so that a GPU divides too: by a number it would multiply with the reciprocal.
    width = torch.full((), step, device=x.device)
    return (torch.round(x.to(torch.float32) / width) * width).to(x.dtype)


class _SpikeCount(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, most: int, low: float, high: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.window = low, high
        # Adding 0.0 makes -0.0 to 0.0: whether a clamp keeps it differs from one vector unit to the next.
        return fresh(torch.round(x).clamp(0, most) + 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> _Gradients:
        (x,) = ctx.saved_tensors
        return clamp_backward(grad_outputs[0], x, *ctx.window), None, None, None


def multi_level_spike_count(
    x: torch.Tensor, max_spike_count: int, grad_window: tuple[float, float] | None = None
) -> torch.Tensor:
    """How many spikes a neuron fires: ``clamp(round(x), 0, max_spike_count)``.

    ``dy/dx = 1`` in ``grad_window``, edges included, and 0 elsewhere.

    Args:
        x: the membrane potential, in thresholds.
        max_spike_count: the largest count.
        grad_window: where the gradient passes; ``(0, max_spike_count)`` if None.

    Shapes: x: any; the result has the same, and its dtype.
    Edge case: Ties go to the even count. NaN stays NaN and gets gradient 0.

    Raises: QuantizerValueError: max_spike_count is below 1. QuantizerTypeError: x is not a float tensor.

    Source: SpikingJelly, ``activation_based.quantize.multi_level_spike_count``.

    Example:
        >>> x = torch.tensor([-0.7, 0.6, 2.5, 9.0], requires_grad=True)
        >>> y = multi_level_spike_count(x, 4)
        >>> y.tolist()
        [0.0, 1.0, 2.0, 4.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [0.0, 1.0, 1.0, 0.0]
    """
    require_float(x)
    if max_spike_count < 1:
        raise QuantizerValueError(f"a largest count of {max_spike_count} is too small, expected at least 1")
    low, high = grad_window or (0.0, float(max_spike_count))
    result: torch.Tensor = _SpikeCount.apply(x, max_spike_count, low, high)  # type: ignore[no-untyped-call]
    return result


def stochastic_round(
    x: torch.Tensor, precision: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Round to a multiple of ``precision``, up or down at random, so that the expectation is x.

    Up with the chance ``frac(x / precision)``. The result carries no gradient; ``round_through`` has one.

    Args:
        x: the tensor.
        precision: the distance of the multiples.
        generator: of the random numbers, on x's device; None is torch's own, as in ``torch.rand``.

    Shapes: x: any; the result has the same, and its dtype.
    Edge case: A multiple stays what it is, as do NaN and ±inf.

    Raises: QuantizerValueError: precision is not positive. QuantizerTypeError: x is not a float tensor.

    Source: QKeras, ``stochastic_round``; Gupta et al. 2015, "Deep learning with limited numerical precision",
        section 3.1.

    Example:
        >>> x = torch.full((10_000,), 0.3)
        >>> y = stochastic_round(x, 1.0, generator=torch.Generator().manual_seed(0))
        >>> y.unique().tolist(), abs(float(y.mean()) - 0.3) < 0.02
        ([0.0, 1.0], True)
    """
    require_float(x)
    if not precision > 0:
        raise QuantizerValueError(f"the precision must be positive, got {precision}")
    wide = x.detach().to(torch.float32)
    per_unit = torch.full((), 1.0 / precision, device=x.device)
    steps = wide * per_unit
    below = torch.floor(steps)
    chance = torch.rand(x.shape, generator=generator, device=x.device)
    # inf - inf is NaN, which is above no chance: an infinite value stays.
    return ((below + (steps - below > chance).to(torch.float32)) / per_unit).to(x.dtype)


def round_through(
    x: torch.Tensor,
    stochastic: bool = False,
    precision: float = 0.5,
    *,
    generator: torch.Generator | None = None,
    training: bool = True,
) -> torch.Tensor:
    """Round to an integer, half to even; or at random to a multiple of ``precision``; ``dy/dx = 1``.

    Args:
        x: the tensor.
        stochastic: round at random, as ``stochastic_round`` does, while training.
        precision: the distance of the multiples where rounding is at random; it has no effect elsewhere.
        generator: of the random numbers; None is torch's own.
        training: false for evaluation, which is deterministic whatever ``stochastic`` says.

    Shapes: x: any; the result has the same, and its dtype.
    Edge case: The result lies on the grid exactly; QKeras's ``x + (rounded - x)`` may miss it by one float32
        ulp. NaN and ±inf stay.
    Source: QKeras, ``_round_through``.

    Example:
        >>> x = torch.tensor([0.5, 1.3], requires_grad=True)
        >>> y = round_through(x)
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([0.0, 1.0], [1.0, 1.0])
        >>> generator = torch.Generator().manual_seed(0)
        >>> round_through(torch.full((4,), 0.4), stochastic=True, generator=generator).tolist()
        [0.5, 0.5, 0.5, 0.5]
        >>> round_through(torch.full((4,), 0.4), stochastic=True, training=False).tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    require_float(x)
    if stochastic and training:
        return apply_straight_through(
            x, lambda value: stochastic_round(value, precision, generator=generator)
        )
    return apply_straight_through(x, torch.round)
