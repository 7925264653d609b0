"""amax by mse for blocks of few values: a scale, and a zero point, by the error of the values themselves.

A histogram's bins for 32 values would take 250 times as long, and a weight has millions of blocks.
"""

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import compiled
from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters
from ptq_cli.core.formats import IntegerFormat, PerAxis

Floats = npt.NDArray[np.float32]

SHARES = np.arange(16, 65, dtype=np.float32) / 64
"""Scales that are tried, of the one that holds the whole block."""
POINTS = 3
"""Zero points that are tried with each: the nearest one and its neighbors."""


def mse_of_blocks(rows: FloatArray, format: IntegerFormat) -> QuantParameters:
    """Return the scales, and zero points if the format is unsigned, with the smallest squared errors.

    Shapes:
        rows: (blocks, values). The parameters': (blocks,).

    Edge case:
        Of equal errors the smallest scale wins. A block of zeros has scale 1.

    Example:
        >>> rows = np.float32([[-0.5, 0.5, 0.5, 0.5, 1.0], [0, 0, 0, 0, 0]])
        >>> mse_of_blocks(rows, IntegerFormat(2, signed=False)).zero_point.tolist()
        [1, 0]
    """
    scales, zeros = np.ones(len(rows), np.float32), np.zeros(len(rows), np.int64)
    ends = np.array([format.qmin, format.qmax], np.float32)
    best_of_blocks(np.ascontiguousarray(rows, np.float32), ends, SHARES, np.float32(ZERO_AMAX), scales, zeros)
    return QuantParameters(scales, zeros, format, PerAxis(0))


@compiled
def best_of_blocks(
    rows: Floats,
    ends: Floats,
    shares: Floats,
    least: np.float32,
    scales: Floats,
    zeros: npt.NDArray[np.int64],
) -> None:  # pragma: no cover - compiled
    """Write the best scale and zero point of each block; those of blocks below ``least`` stay.

    Shapes:
        rows: (B, V); ends: the lowest and the highest integer; shares: (S,); scales, zeros: (B,).
    """
    lowest, highest = ends[0], ends[1]
    points = POINTS if lowest == 0 else 1
    trial, zero = np.empty(shares.size * points, np.float32), np.zeros(shares.size * points, np.float32)
    for block in range(rows.shape[0]):
        low, high = min(rows[block].min(), np.float32(0)), max(rows[block].max(), np.float32(0))
        width = high - low if points > 1 else max(-low, high)
        if width <= least:
            continue
        for index in range(trial.size):
            trial[index] = shares[index // points] * width / highest
            if points > 1:
                near = np.rint(-low / trial[index]) + np.float32(index % points - 1)
                zero[index] = min(max(near, np.float32(0)), highest)
        errors = np.zeros(trial.size, np.float32)
        for value in rows[block]:
            for index in range(trial.size):  # Side by side, as vectors compute them.
                steps = np.rint(value / trial[index])
                steps = min(max(steps, lowest - zero[index]), highest - zero[index])
                missed = value - steps * trial[index]
                errors[index] += missed * missed
        best = np.argmin(errors)
        scales[block], zeros[block] = trial[best], np.int64(zero[best])
