"""The scale that QKeras finds from a tensor: the least-squares one, or the power of two next to it."""

from dataclasses import dataclass, field

import torch

from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerTypeError, QuantizerValueError

EPSILON = 1e-7  # Keras' epsilon, which QKeras adds to a divisor, and to a scale before its logarithm.
_ITERATIONS = 5  # QKeras' own number of least-squares steps.
# Mantissa of the largest float32 below the square root of two, where log2 is half way.
SQRT2_MANTISSA = 0x3504F3


@dataclass(frozen=True, eq=False, kw_only=True)
class AutoScale:
    """The options of an alpha that is found from the tensor.

    Attributes:
        axis: one scale for each index along it; None for one for the tensor. A tensor of rank 1 has one scale
            with "auto", and, as QKeras has it, one for each element with "auto_po2".
        elements_per_scale: this many neighbors along the axis share the scale that least squares find.
        min_po2_exponent, max_po2_exponent: bounds of a power of two, in units of ``2^integer``.
        frozen: a scale that was reported before, to be used again.

    Raises: QuantizerValueError: elements_per_scale is not positive, or the bounds are not ordered.
        QuantizerTypeError: elements_per_scale without an axis.

    Example:
        >>> AutoScale().is_set, AutoScale(axis=0, max_po2_exponent=-2).is_set
        (False, True)
    """

    axis: int | None = -1
    elements_per_scale: int | None = None
    min_po2_exponent: int | None = None
    max_po2_exponent: int | None = None
    frozen: torch.Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.elements_per_scale is not None:
            if self.elements_per_scale < 1:
                raise QuantizerValueError(
                    f"elements_per_scale must be positive, got {self.elements_per_scale}"
                )
            if self.axis is None:
                raise QuantizerTypeError("elements_per_scale needs an axis, but axis is None")
        low, high = self.min_po2_exponent, self.max_po2_exponent
        if low is not None and high is not None and low > high:
            raise QuantizerValueError(f"min_po2_exponent {low} is above max_po2_exponent {high}")

    @property
    def is_set(self) -> bool:
        """Whether an option other than the axis is set."""
        return self._bounds_power_of_two or self.frozen is not None

    @property
    def _bounds_power_of_two(self) -> bool:
        options = (self.elements_per_scale, self.min_po2_exponent, self.max_po2_exponent)
        return any(option is not None for option in options)


def half_away(x: torch.Tensor, step: torch.Tensor, qmax: int) -> torch.Tensor:
    """Return ``sign(x) * min(floor(|x| / step + 0.5), qmax)``: halves go away from zero.

    Shapes: x: float32, any; step broadcasts to it; the result has x's shape.
    Edge case: A step of 0, which an all-zero channel has, gives 0.
    Source: QKeras 0.9.0, ``quantized_bits.__call__``.

    Example:
        >>> half_away(torch.tensor([0.25, -0.75, 9.0]), torch.tensor(0.5), 3).tolist()
        [1.0, -2.0, 3.0]
    """
    magnitude = torch.clamp(torch.floor(x.abs() / step + 0.5), max=qmax)
    integers = torch.sign(x) * magnitude
    return torch.where((x == 0) & (step == 0), 0.0, integers) + 0.0


def nearest_power_of_two(x: torch.Tensor) -> torch.Tensor:
    """Return ``2^round(log2(x))``, exactly: from the float's own exponent and mantissa.

    Shapes: x: positive normal float32, any; the result has the same.
    Edge case: Infinite and NaN give NaN.
    """
    bits = x.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) > SQRT2_MANTISSA).to(torch.int32)
    return torch.where(torch.isfinite(x), (exponent << 23).view(torch.float32), torch.nan)


def automatic_step(
    x: torch.Tensor, qmax: int, *, power_of_two: bool, auto: AutoScale, steps: float
) -> torch.Tensor:
    """The size of an integer step, found from the tensor.

    Without ``power_of_two``: ``max|x| / qmax``. With it: five rounds of quantizing, fitting the scale
    ``mean(x q) / mean(q q)`` to the integers, and taking the nearest power of two.

    Args:
        x: the tensor, divided by ``2^integer``.
        qmax: the largest integer.
        power_of_two: find a power of two.
        auto: the options.
        steps: how many steps a scale of 1 has, by which a frozen one is divided.

    Shapes: x: any; the result broadcasts to it, with size 1 where a scale is shared.
    Edge case: A channel of zeros has step 0, or ``2^-23`` as a power of two. One with NaN or infinities has
        NaN.
    Source: QKeras 0.9.0, ``quantized_bits.__call__`` and ``_get_least_squares_scale``.

    Example:
        >>> x = torch.tensor([[0.9, 0.1], [-0.6, 0.2]])
        >>> automatic_step(x, 7, power_of_two=True, auto=AutoScale(), steps=8.0).tolist()
        [[0.125, 0.03125]]
    """
    if not power_of_two and auto._bounds_power_of_two:
        raise QuantizerTypeError(
            "elements_per_scale and the bounds of the exponent are only for alpha 'auto_po2'"
        )
    axes = _shared_axes(x, auto.axis)
    if auto.frozen is not None:
        return auto.frozen.detach().to(x.device, torch.float32) / steps
    largest = torch.amax(x.abs(), axes, keepdim=True) if x.numel() else _empty_scale(x, axes)
    # By a tensor: a GPU turns the division by a number into a product with its reciprocal.
    levels = torch.full((), float(qmax), device=x.device)
    step = torch.where(torch.isfinite(largest), largest, torch.nan) / levels
    if not power_of_two:
        return step
    step = nearest_power_of_two(step + EPSILON)
    for _ in range(_ITERATIONS):
        step = _fitted(x, half_away(x, step, qmax), axes, auto)
    return step


def _shared_axes(x: torch.Tensor, axis: int | None) -> list[int]:
    if axis is None or x.ndim < 2:
        return list(range(x.ndim))
    if not -x.ndim <= axis < x.ndim:
        raise AxisError(f"axis {axis} is outside a tensor of shape {tuple(x.shape)}")
    return [index for index in range(x.ndim) if index != axis % x.ndim]


def _empty_scale(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    return x.new_zeros([1 if index in axes else size for index, size in enumerate(x.shape)])


def _fitted(x: torch.Tensor, q: torch.Tensor, axes: list[int], auto: AutoScale) -> torch.Tensor:
    """The power of two nearest to the least-squares scale."""
    if x.numel() == 0:
        xq = qq = _empty_scale(x, axes)
    elif x.ndim == 1 and auto.axis is not None:
        xq, qq = x * q, q * q
    else:
        xq, qq = (x * q).mean(axes, keepdim=True), (q * q).mean(axes, keepdim=True)
    if auto.elements_per_scale is not None and auto.axis is not None:
        xq, qq = (_grouped(value, auto.axis, auto.elements_per_scale) for value in (xq, qq))
    step = nearest_power_of_two(xq / (qq + EPSILON) + EPSILON)
    low, high = auto.min_po2_exponent, auto.max_po2_exponent
    step = step if low is None else torch.clamp(step, min=2.0**low)
    return step if high is None else torch.clamp(step, max=2.0**high)


def _grouped(value: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """The means of groups along an axis, each repeated for the members of its group."""
    axis %= value.ndim
    length = value.shape[axis]
    if length % size:
        raise QuantizerShapeError(
            f"elements_per_scale {size} does not divide the {length} elements of axis {axis}"
        )
    groups = value.reshape(*value.shape[:axis], length // size, size, *value.shape[axis + 1 :])
    return groups.mean(axis + 1, keepdim=True).expand_as(groups).flatten(axis, axis + 1)
