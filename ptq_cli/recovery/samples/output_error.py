"""How far a model's outputs are from those of another, as one number."""

import math
from collections.abc import Sequence

import numpy as np

from ptq_cli.core.tensors import Array, is_array


def output_sqnr(wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    """Return the ratio of signal to noise of all outputs, in dB; noise counts as a share of its signal.

    Args:
        wanted: of each piece, the outputs of the float model.
        found: the same of the other model.

    Edge case:
        Of an output of integers, noise is the share of those that differ. An output of another shape than
        wanted, as of detections, is all noise. A sequence of arrays does not count. Equal outputs have
        infinitely many dB, NaN has minus infinity.

    Example:
        >>> round(output_sqnr([[np.array([3.0, 4.0])]], [[np.array([3.0, 4.05])]]), 6)
        40.0
        >>> output_sqnr([[np.array([1, 2])]], [[np.array([1, 3])]])
        3.010299956639812
    """
    shares = [
        _noise_share([piece[index] for piece in wanted], [piece[index] for piece in found])
        for index in range(len(wanted[0]) if wanted else 0)
        if is_array(wanted[0][index])
    ]
    noise = math.fsum(shares) / len(shares) if shares else 0.0
    if math.isnan(noise):
        return -math.inf
    return -10.0 * math.log10(noise) if noise > 0.0 else math.inf


def _noise_share(wanted: Sequence[Array], found: Sequence[Array]) -> float:
    signal = noise = 0.0
    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape:
            return 1.0
        if one.dtype.kind != "f":
            signal += one.size
            noise += float(np.count_nonzero(one != other))
            continue
        values = one.astype(np.float64)
        signal += float(np.sum(values * values))
        noise += float(np.sum((values - other.astype(np.float64)) ** 2))
    if signal > 0.0:
        return noise / signal
    return 0.0 if noise == 0.0 else 1.0
