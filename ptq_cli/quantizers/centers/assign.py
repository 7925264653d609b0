"""Non-uniform quantization to a list of centers: soft-to-hard vector quantization of single values.

The value is that of the nearest center; the gradient is that of the mean of all centers, weighted by the
softmax of their distances. A high temperature spreads the gradient over all centers, a low one leaves it to
the two nearest.
"""

from collections.abc import Iterator
from typing import Any

import torch

from ptq_cli.quantizers.centers.layout import lay_back, lay_out, require_temperature
from ptq_cli.quantizers.centers.order import nearest, sort_centers
from ptq_cli.quantizers.centers.softmax import center_gradient, count_gradient, sides_of, soften
from ptq_cli.quantizers.grid import require_no_nan
from ptq_cli.quantizers.straight_through import pass_where

PIECE = 1 << 17
"""Values computed at a time, so that what lies between input and output stays small."""

TABLE = 1 << 20
"""Pairs of centers computed at a time."""


class _Centers(torch.autograd.Function):
    """Rows of values to the nearest or the softmax-weighted center, with the gradient of the latter."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, centers: torch.Tensor, temperature: float, hard: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, centers)
        ctx.temperature = temperature
        result = torch.empty_like(rows)
        for row, columns in _pieces(rows, centers):
            own = centers[row]
            ordered = sort_centers(own)
            sides = sides_of(ordered, temperature) if not hard else None
            for column in columns:
                x = rows[row, column].to(centers.dtype).contiguous()
                if sides is None:
                    value = torch.where(torch.isnan(x), x, own.gather(-1, nearest(x, ordered)))
                else:
                    value = soften(x, ordered, sides, temperature).value
                result[row, column] = value.to(rows.dtype)
        return result

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        rows, centers = ctx.saved_tensors
        rows_gradient = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        centers_gradient = torch.zeros_like(centers) if ctx.needs_input_grad[1] else None
        for row, columns in _pieces(rows, centers):
            ordered = sort_centers(centers[row])
            sides = sides_of(ordered, ctx.temperature)
            sums = []
            for column in columns:
                x = rows[row, column].to(centers.dtype).contiguous()
                upstream = grad_outputs[0][row, column].to(centers.dtype)
                soft = soften(x, ordered, sides, ctx.temperature)
                if rows_gradient is not None:
                    # Beyond the outermost center nothing passes, an infinite gradient neither.
                    passed = pass_where(soft.slope != 0, upstream * soft.slope)
                    rows_gradient[row, column] = passed.to(rows.dtype)
                if centers_gradient is not None:
                    sums.append(count_gradient(soft, upstream, centers.shape[-1]))
            if centers_gradient is not None and sums:
                total = torch.stack(sums).sum(0)
                centers_gradient[row] = center_gradient(total, ordered, ctx.temperature)
        return rows_gradient, centers_gradient, None, None


def soft_assign(
    x: torch.Tensor,
    centers: torch.Tensor,
    temperature: float = 1.0,
    *,
    axis: int | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Return the mean of the centers, weighted by ``softmax(-|x - centers| / temperature)``.

    Both x and the centers get the gradient of that formula.

    Args:
        x: the tensor; float16 and bfloat16 are computed in float32 and cast back.
        centers: what to quantize to, in any order; equal ones count as often as they are there.
        temperature: how far the weights reach; towards 0 the result becomes that of the nearest center.
        axis: one list of centers for each index along it; None for one for the tensor.
        check: refuse NaN; has no effect in a compiled graph, which cannot raise.

    Shapes:
        x: any; the result has the same, and its dtype.
        centers: ``(n,)``, or ``(x.shape[axis], n)``, with n from 1 to 256.

    Units:
        temperature: that of x.

    Edge case:
        Beyond the outermost center the weights stay what they are at it, also for ±inf: gradient 0. A value
        equal to a center gets no gradient through that center's distance (``sign(0) = 0``). NaN stays NaN.

    Raises:
        QuantizerValueError: temperature is not positive; there is no center, more than 256, or one is not
            finite; or ``check`` and x holds NaN.
        AxisError: the axis is none of the tensor's.
        QuantizerShapeError: the centers' shape does not fit.
        QuantizerTypeError: one of the tensors is not a float tensor.

    Source:
        Agustsson et al. 2017, "Soft-to-hard vector quantization for end-to-end learning compressible
        representations", with the distance ``|x - c|`` for its square.

    Example:
        >>> centers = torch.tensor([-1.0, 0.0, 1.0])
        >>> [round(value, 4) for value in soft_assign(torch.tensor([0.0, 0.9]), centers, 0.1).tolist()]
        [0.0, 0.9997]
    """
    return _assign(x, centers, temperature, axis, check, hard=False)


def quantize_to_centers(
    x: torch.Tensor,
    centers: torch.Tensor,
    temperature: float = 1.0,
    *,
    axis: int | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Return the nearest center; the gradient is that of ``soft_assign``, for x and for the centers.

    The arguments, shapes and errors are those of ``soft_assign``.

    Edge case:
        Half way between two centers the one of lower index wins, whatever their order; of equal centers the
        first one stands for all. ±inf saturates. NaN stays NaN.

    Raises:
        QuantizerValueError, AxisError, QuantizerShapeError, QuantizerTypeError: as ``soft_assign``.

    Source:
        Agustsson et al. 2017; Mentzer et al. 2018, "Conditional probability models for deep image
        compression": hard forward, soft backward.

    Example:
        >>> x = torch.tensor([0.4, 0.5, -7.0], requires_grad=True)
        >>> y = quantize_to_centers(x, torch.tensor([0.0, 1.0]))
        >>> y.tolist()
        [0.0, 0.0, 0.0]
        >>> y.sum().backward()
        >>> [round(slope, 4) for slope in x.grad.tolist()]
        [0.495, 0.5, 0.0]
    """
    return _assign(x, centers, temperature, axis, check, hard=True)


def hard_assign(x: torch.Tensor, centers: torch.Tensor, *, axis: int | None = None) -> torch.Tensor:
    """Return the index of the nearest center; integers carry no gradient.

    Shapes:
        x: any; the result has the same, as int64.
        centers: ``(n,)``, or ``(x.shape[axis], n)``.

    Edge case:
        As ``quantize_to_centers``. In a compiled graph, which cannot raise, NaN gets some index.

    Raises:
        QuantizerValueError: x holds NaN; or as ``soft_assign``.
        AxisError, QuantizerShapeError, QuantizerTypeError: as ``soft_assign``.

    Source:
        Agustsson et al. 2017.

    Example:
        >>> hard_assign(torch.tensor([0.4, 0.5, 9.0]), torch.tensor([1.0, 0.0])).tolist()
        [1, 0, 0]
    """
    if not torch.compiler.is_compiling():
        require_no_nan(x)
    rows, own = lay_out(x.detach(), centers.detach(), axis)
    result = torch.empty(rows.shape, dtype=torch.int64, device=rows.device)
    for row, columns in _pieces(rows, own):
        ordered = sort_centers(own[row])
        for column in columns:
            result[row, column] = nearest(rows[row, column].to(own.dtype).contiguous(), ordered)
    return lay_back(result, x.shape, axis)


def assignment_probabilities(
    x: torch.Tensor, centers: torch.Tensor, temperature: float = 1.0, *, axis: int | None = None
) -> torch.Tensor:
    """Return ``softmax(-|x - centers| / temperature)``: how much of each center is in ``soft_assign``.

    For looking at an assignment, or for the entropy of the centers in a loss. Unlike the other functions it
    holds a number for every value and center. Autograd differentiates it.

    Shapes:
        x: any; the result has the same, with one more axis for the centers.
        centers: ``(n,)``, or ``(x.shape[axis], n)``.

    Edge case:
        Beyond the outermost center the weights stay what they are at it. NaN gives NaN.

    Raises:
        QuantizerValueError, AxisError, QuantizerShapeError, QuantizerTypeError: as ``soft_assign``.

    Source:
        Agustsson et al. 2017.

    Example:
        >>> found = assignment_probabilities(torch.tensor([0.5]), torch.tensor([0.0, 1.0, 9.0]), 0.1)
        >>> [round(share, 4) for share in found[0].tolist()]
        [0.5, 0.5, 0.0]
    """
    require_temperature(temperature)
    rows, own = lay_out(x, centers, axis)
    lowest, highest = torch.aminmax(own.detach(), dim=-1, keepdim=True)
    inside = torch.minimum(torch.maximum(rows.to(own.dtype), lowest), highest)
    shares = torch.softmax(-(inside[:, :, None] - own[:, None, :]).abs() / temperature, dim=-1).to(x.dtype)
    if axis is None:
        return shares.reshape(*x.shape, own.shape[-1])
    lead = (*x.movedim(axis, 0).shape, own.shape[-1])
    return shares.reshape(lead).movedim(0, axis % x.ndim)


def _assign(
    x: torch.Tensor, centers: torch.Tensor, temperature: float, axis: int | None, check: bool, *, hard: bool
) -> torch.Tensor:
    require_temperature(temperature)
    rows, own = lay_out(x, centers, axis)
    if check and not torch.compiler.is_compiling():
        require_no_nan(x)
    result: torch.Tensor = _Centers.apply(rows, own, temperature, hard)  # type: ignore[no-untyped-call]
    return lay_back(result, x.shape, axis)


def _pieces(rows: torch.Tensor, centers: torch.Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Yield slices of rows, each with slices of columns; a compiler fuses the whole by itself."""
    count, length = rows.shape
    if torch.compiler.is_compiling():
        yield slice(None), [slice(None)]
        return
    height = max(1, min(TABLE // centers.shape[-1] ** 2, PIECE // max(length, 1)))
    width = max(1, PIECE // height)
    for start in range(0, count, height):
        yield (
            slice(start, start + height),
            [slice(left, left + width) for left in range(0, length, width)],
        )
