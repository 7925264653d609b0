"""The integers and scales whose products are nearest to the best real weights, as the inputs weigh them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ptq_cli.recovery.search.least_squares import Quadratic
from ptq_cli.recovery.search.search_kernels import search_channels
from ptq_cli.recovery.search.second_moments import Float64s, Int64s

SCALES = 36
SMALLEST_SCALE, LARGEST_SCALE = 0.4, 1.1
"""Of the one with which the largest integer stands for the largest weight."""
STARTS = 6
"""Scales whose integers are improved one by one."""
REFITS = 3
LARGE, FEWER_SCALES, FEWER_STARTS = 1200, 12, 2
"""Above so many inputs the time grows faster than what the further scales are worth."""
MUCH = 1e8
"""Channels times the square of the inputs: above it, too, there are fewer starts, and only the scales of the
best one are fitted again. That takes 0.4 times as long, and loses 0.1 dB of three at 4 bits."""
CHANNELS_AT_ONCE = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class Codes:
    """The integers of a layer's weights, and their scales.

    Attributes:
        integers: as float64.
        scales: one for each block of inputs; a layer without blocks has one block.

    Shapes:
        integers: (M, K); scales: (M, B).
    """

    integers: Float64s
    scales: Float64s

    def weights(self, block: Int64s) -> Float64s:
        """Return the real weights.

        Args:
            block: of each input.

        Shapes:
            block: (K,); the result (M, K).
        """
        return self.integers * self.scales[:, block]


@dataclass(frozen=True, eq=False, kw_only=True)
class CodeGrid:
    """What integers and scales are allowed.

    Attributes:
        lowest, highest: integers.
        block: the block of each input.
        least: the smallest scale of each channel.
        free: scales are searched; otherwise those that the weights have are kept.
        mates: with which other inputs each one is a pair; -1 for none.
        most: what the integers of two mates of one sign may add up to.

    Shapes:
        block: (K,); least: (M,); mates: (K, any).
    """

    lowest: int
    highest: int
    block: Int64s
    least: Float64s
    free: bool = True
    mates: Int64s | None = None
    most: float = np.inf


def search_codes(quadratic: Quadratic, grid: CodeGrid, nearest: Codes, *, threads: int = 1) -> Codes:
    """Return integers and scales that minimize the objective; never worse than those that are given.

    For each channel several scales are tried. At each, integers are found one after the other, each making up
    for what the earlier ones have lost (Babai's nearest plane); of few inputs, by trying all. The best are
    improved integer by integer until none can be changed alone, and the scale is fitted again, three times.

    Args:
        quadratic: the objective.
        grid: what is allowed.
        nearest: the integers and scales to be no worse than.
        threads: share the channels, which do not depend on each other: the result is the same.

    Edge case:
        A channel whose weights are all 0 stays as it is.

    Source:
        Babai, On Lovász' lattice reduction and the nearest lattice point problem (1986); Frantar et al., GPTQ
        (2023); Nair and Suggala, CDQuant (2024), for coordinate descent.

    Example:
        >>> from ptq_cli.recovery.search.centered_moments import centered
        >>> from ptq_cli.recovery.search.least_squares import fit_least_squares
        >>> from ptq_cli.recovery.search.second_moments import second_moments
        >>> x = np.array([[3.0, 3.0], [-3.0, -3.0], [2.0, 3.0], [-2.0, -3.0]] * 500)
        >>> weights = np.array([[1.4, 1.4]])
        >>> sums = second_moments(x, np.rint(x @ weights.T * 1e3))
        >>> means = centered(sums, input_step=1.0, target_step=np.full(1, 1e-3), has_bias=False)
        >>> objective = fit_least_squares(means, weights)
        >>> grid = CodeGrid(lowest=-4, highest=4, block=np.zeros(2, np.int64), least=np.zeros(1), free=False)
        >>> nearest = Codes(integers=np.ones((1, 2)), scales=np.ones((1, 1)))
        >>> found = search_codes(objective, grid, nearest)
        >>> found.integers.tolist()  # One is rounded up, since the other is rounded down.
        [[2.0, 1.0]]
    """
    channels, size = nearest.integers.shape
    integers, scales = nearest.integers.copy(), nearest.scales.copy()
    blocks = scales.shape[1]
    members = _members(grid.block, blocks)
    mates = grid.mates if grid.mates is not None else np.empty((size, 0), np.int64)
    is_much = channels * size**2 > MUCH
    tried = FEWER_SCALES if size > LARGE else SCALES
    starts = FEWER_STARTS if is_much or size > LARGE else STARTS
    factors = np.linspace(SMALLEST_SCALE, LARGEST_SCALE, tried) if grid.free else np.ones(1)

    def part(first: int) -> None:
        own = slice(first, first + CHANNELS_AT_ONCE)
        search_channels(
            quadratic.curvature,
            quadratic.lower,
            quadratic.best[own],
            quadratic.pull[own],
            _base(quadratic.best[own], scales[own], grid),
            grid.least[own],
            grid.block,
            members,
            np.array([grid.lowest, grid.highest, grid.most], np.float64),
            mates,
            factors,
            min(starts, len(factors)),
            REFITS if grid.free else 0,
            not is_much,
            integers[own],
            scales[own],
        )

    firsts = range(0, channels, CHANNELS_AT_ONCE)
    if len(firsts) == 1:
        part(0)
    else:
        with ThreadPoolExecutor(threads, "search") as pool:
            list(pool.map(part, firsts))
    return Codes(integers=integers, scales=scales)


def _base(best: Float64s, scales: Float64s, grid: CodeGrid) -> Float64s:
    """Return the scale of each block with which the largest integer stands for its largest weight.

    Two mates whose integers may add up to less than twice the largest one take as much as their sum needs.
    """
    if not grid.free:
        return scales.copy()
    largest = np.zeros(scales.shape)
    for channel in range(len(best)):
        np.maximum.at(largest[channel], grid.block, np.abs(best[channel]))
    for mate in grid.mates.T if grid.mates is not None else ():
        other = np.where(mate >= 0, best[:, mate], 0.0)
        sums = np.where(best * other > 0.0, np.abs(best + other), 0.0).max(axis=1, keepdims=True, initial=0.0)
        largest = np.maximum(largest, sums * (grid.highest / grid.most))
    return np.where(largest > 0.0, largest / grid.highest, scales)


def _members(block: Int64s, blocks: int) -> Int64s:
    """Return the inputs of each block; all blocks have as many.

    Shapes:
        block: (K,); the result (B, K / B).
    """
    order: Int64s = np.argsort(block, kind="stable").astype(np.int64)
    return order.reshape(blocks, -1)
