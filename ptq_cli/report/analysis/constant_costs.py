"""How a weight or a bias uses its integers, and what their quantization costs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.numbers.arithmetic import FloatArray
from ptq_cli.qdq.read.constant_values import ConstantValues
from ptq_cli.report.analysis.sums import Float64Array, NoiseSums, channel_imbalance, range_used

LARGEST_HISTOGRAM = 1 << 16
"""Integers of more values have too fine steps to be what costs accuracy."""
HALF_OF_A_BIAS = 2**29
"""In steps. A weight's scale is widened until its bias has 2^30 at most (``qdq.write.weight_decisions``)."""
WIDER = 1.01
"""A scale this much above what the weight's largest value needs was widened."""


@dataclass(frozen=True, kw_only=True)
class ConstantUse:
    """What was found out about one constant.

    Attributes:
        sqnr_db: of its values against the float model's, decibels.
        clipped: share of values outside the range, 0 to 1.
        low, high: the ends of the range; None without a scale.
        used: share of the range that the middle 99.9 % of the values occupy; None for int32, without a scale.
        imbalance: largest magnitude of a channel over the median channel's; None without channels.
        levels: how many values an integer can have; 0 without a scale.
        clip_share: share of the noise that comes of values outside the range, 0 to 1.
        widened: share of the channels whose scale is wider than their values need.
    """

    sqnr_db: float
    clipped: float
    low: float | None
    high: float | None
    used: float | None
    imbalance: float | None
    levels: int
    clip_share: float
    widened: float


def use_of(constant: ConstantValues, channel_axis: int | None) -> ConstantUse:
    """Return how a constant uses its integers.

    Args:
        constant: its values.
        channel_axis: of the output channels, where its scale does not tell; None if there are none.
    """
    noise = NoiseSums()
    noise.update(constant.floats[None], constant.values[None], 1)
    amax = _channel_amax(constant.floats, channel_axis if constant.axis is None else constant.axis)
    imbalance = channel_imbalance(amax)
    grid = constant.grid
    if constant.integers is None or grid is None or grid.scale is None or grid.zero_point is None:
        return ConstantUse(
            sqnr_db=noise.sqnr_db,
            clipped=0.0,
            low=None,
            high=None,
            used=None,
            imbalance=imbalance,
            levels=0,
            clip_share=0.0,
            widened=0.0,
        )
    scale, zeros = (constant.spread(array).astype(np.float64) for array in (grid.scale, grid.zero_point))
    least, greatest = _limits(constant)
    ends = (least - zeros) * scale, (greatest - zeros) * scale
    half = scale / 2
    outside = (constant.floats < ends[0] - half) | (constant.floats > ends[1] + half)
    levels = greatest - least + 1
    histogram = None
    if levels <= LARGEST_HISTOGRAM:
        histogram = np.bincount((constant.integers - least).reshape(-1), minlength=levels)
    return ConstantUse(
        sqnr_db=noise.sqnr_db,
        clipped=float(np.count_nonzero(outside)) / max(1, constant.floats.size),
        low=float(np.min(ends[0])),
        high=float(np.max(ends[1])),
        used=None if histogram is None else range_used(histogram),
        imbalance=imbalance,
        levels=levels,
        clip_share=_share_of_noise(constant, outside),
        widened=_widened(constant, amax, greatest),
    )


def overflowing(bias: ConstantValues) -> bool:
    """Return whether a bias is so large in steps that the weight's scale had to follow it."""
    return bias.integers is not None and bool((np.abs(bias.integers) >= HALF_OF_A_BIAS).any())


def _limits(constant: ConstantValues) -> tuple[int, int]:
    """Return the least and the greatest integer of a constant's format, as its integers show it.

    The file says how wide they are stored; of weights of 5 bits in bytes only the integers tell.
    """
    integers = constant.integers if constant.integers is not None else np.zeros(1)
    if constant.dtype == "int32":
        return -(2**31) + 1, 2**31 - 1
    if constant.dtype.startswith("u") and integers.min() >= 0:
        return 0, _ones(int(integers.max()))
    # A scale like 2^-5 may use -128, which has no counterpart.
    greatest = _ones(max(int(integers.max()), -int(integers.min()) - 1))
    return min(-greatest, int(integers.min())), greatest


def _ones(greatest: int) -> int:
    """Return the least 2^k - 1 that is not below a number."""
    return (1 << max(1, greatest.bit_length())) - 1


def _channel_amax(values: FloatArray, axis: int | None) -> Float64Array | None:
    if axis is None or not values.size or values.ndim <= axis:
        return None
    others = tuple(index for index in range(values.ndim) if index != axis)
    amax: Float64Array = np.abs(values).max(axis=others).astype(np.float64)
    return amax


def _share_of_noise(constant: ConstantValues, outside: npt.NDArray[np.bool_]) -> float:
    noise = (constant.floats.astype(np.float64) - constant.values) ** 2
    total = float(noise.sum())
    return float(noise[outside].sum()) / total if total else 0.0


def _widened(constant: ConstantValues, amax: Float64Array | None, greatest: int) -> float:
    scale = constant.scale
    if constant.grid is None or scale is None or amax is None or constant.grid.block_size or scale.ndim > 1:
        return 0.0
    needed = np.asarray(amax if scale.ndim else amax.max()) / greatest
    with_values = needed > 0
    wider = with_values & (scale.astype(np.float64) > WIDER * needed)
    return float(np.count_nonzero(wider)) / max(1, np.size(needed))
