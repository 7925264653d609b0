"""Rounding to one of the two neighbors, with a chance that makes the expectation the value itself."""

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.grid import require_float
from ptq_cli.quantizers.straight_through import apply_straight_through


def stochastic_round(
    x: torch.Tensor, precision: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Round to a multiple of ``precision``, up or down at random, so that the expectation is x.

    Up with the chance ``frac(x / precision)``. The result carries no gradient; ``round_through`` has one.

    Args:
        x: the tensor.
        precision: the distance of the multiples.
        generator: of the random numbers, on x's device; None is torch's own, as in ``torch.rand``.

    Shapes:
        x: any; the result has the same, and its dtype.

    Edge case:
        A multiple stays what it is, as do NaN and ±inf.

    Raises:
        QuantizerValueError: precision is not positive.
        QuantizerTypeError: x is not a float tensor.

    Source:
        QKeras, ``stochastic_round``; Gupta et al. 2015, "Deep learning with limited numerical precision",
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

    Shapes:
        x: any; the result has the same, and its dtype.

    Edge case:
        The result lies on the grid exactly; QKeras's ``x + (rounded - x)`` may miss it by one float32 ulp.
        NaN and ±inf stay.

    Raises:
        QuantizerValueError, QuantizerTypeError: as ``stochastic_round``.

    Source:
        QKeras, ``_round_through``.

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
