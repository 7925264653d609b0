"""The scale of each block beside a search that NumPy does."""

import numpy as np

from ptq_cli.amax.weight_ranges import SHARES, mse_of_blocks
from ptq_cli.core.arithmetic import fake_quantize
from ptq_cli.core.formats import IntegerFormat
from tests.each_case import each_case


def error_with(rows, scale, zero, format):
    steps = np.clip(np.rint(rows / scale) + zero, format.qmin, format.qmax) - zero
    return float(((steps * scale - rows.astype(np.float64)) ** 2).sum())


@each_case("bits, signed", [(4, True), (4, False), (2, True), (2, False), (8, True)])
def test_no_share_and_zero_point_is_better(bits, signed):
    format = IntegerFormat(bits, signed=signed)
    rows = np.random.default_rng(bits).standard_t(3, (12, 32)).astype(np.float32)
    rows[3] = np.abs(rows[3])
    found = mse_of_blocks(rows, format)
    missed = ((fake_quantize(rows, found) - rows.astype(np.float64)) ** 2).sum(axis=1)
    for row, own, zero in zip(rows, missed, found.zero_point, strict=True):
        low, high = min(row.min(), 0.0), max(row.max(), 0.0)
        whole = max(-low, high) if signed else high - low
        zeros = [0] if signed else range(format.qmax + 1)
        least = min(
            error_with(row, share * whole / format.qmax, z, format) for share in SHARES for z in zeros
        )
        # A zero point further from the nearest one than its neighbors is hardly ever better.
        assert own <= least * (1.05 if zero or not signed else 1.0001)


def test_blocks_of_zeros_have_scale_1_and_keep_the_others():
    rows = np.float32([[0, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]])
    found = mse_of_blocks(rows, IntegerFormat(4, signed=True))
    assert found.scale[[0, 2]].tolist() == [1.0, 1.0]
    assert found.zero_point.tolist() == [0, 0, 0]
    assert np.abs(fake_quantize(rows, found) - rows)[1].max() < 0.3
