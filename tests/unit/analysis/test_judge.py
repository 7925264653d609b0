"""What is kept of a tensor, beside numpy on all of its values at once."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptq_cli.analysis.judge import (
    ExactSum,
    NoiseSums,
    QuantizationSums,
    blocks,
    channel_imbalance,
    decibels,
    range_used,
)
from ptq_cli.core.arithmetic import QuantParameters, fake_quantize, parameters_from_range
from ptq_cli.core.formats import INT8, UINT8, IntegerFormat
from ptq_cli.core.tensors import Array
from tests.each_case import each_case

FORMATS = st.sampled_from([INT8, UINT8, IntegerFormat(16, signed=False)])
TENSORS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6)),
    elements=st.floats(-1000, 1000, width=32),
)


def sqnr_db(wanted: Array, found: Array) -> float:
    signal = np.sum(wanted.astype(np.float64) ** 2)
    noise = np.sum((wanted.astype(np.float64) - found.astype(np.float64)) ** 2)
    if noise == 0:
        return math.inf
    return float(10 * np.log10(signal / noise)) if signal else -math.inf


@given(TENSORS, FORMATS, st.floats(0.01, 2000), st.floats(0.01, 2000))
def test_isolated_sqnr_is_numpys(values: Array, format_: IntegerFormat, low: float, high: float) -> None:
    parameters = parameters_from_range(-low, high, format_)
    sums = QuantizationSums(parameters, 1)
    sums.update(values, len(values))
    expected = sqnr_db(values, fake_quantize(values, parameters))
    assert sums.sqnr_db == pytest.approx(expected, rel=1e-9)
    assert sums.count == values.size == sums.integers.sum()
    steps = np.rint(values / parameters.scale) + parameters.zero_point
    assert sums.clipped == np.count_nonzero((steps < format_.qmin) | (steps > format_.qmax))


@given(TENSORS, st.integers(1, 4))
def test_how_samples_are_batched_changes_no_bit(values: Array, size: int) -> None:
    parameters = parameters_from_range(-100.0, 200.0, UINT8)
    whole, parts = QuantizationSums(parameters, 1), QuantizationSums(parameters, 1)
    noise, noise_parts = NoiseSums(), NoiseSums()
    whole.update(values, len(values))
    noise.update(values, np.round(values), len(values))
    for start in range(0, len(values), size):
        part = values[start : start + size]
        parts.update(part, len(part))
        noise_parts.update(part, np.round(part), len(part))
    assert (parts.sqnr_db, parts.clip_share, parts.clipped) == (
        whole.sqnr_db,
        whole.clip_share,
        whole.clipped,
    )
    assert np.array_equal(parts.integers, whole.integers)
    assert parts.channel_amax is not None and np.array_equal(parts.channel_amax, whole.channel_amax)  # type: ignore[arg-type]
    assert noise_parts.sqnr_db == noise.sqnr_db


def test_sqnr_by_hand() -> None:
    # Scale 1: 0.5 rounds to 0, 1.5 to 2, 3 is exact; 300 is clipped to 255. Noise 0.25 + 0.25 + 45² = 2025.5.
    sums = QuantizationSums(
        QuantParameters(np.float32(1.0).reshape(()), np.int64(0).reshape(()), UINT8), None
    )
    sums.update(np.float32([[0.5, 1.5, 3.0, 300.0]]), 1)
    assert sums.sqnr_db == pytest.approx(10 * math.log10((0.25 + 2.25 + 9 + 90000) / 2025.5))
    assert sums.clip_share == pytest.approx(2025 / 2025.5)
    assert (sums.clipped, sums.count) == (1, 4)
    assert sums.integers[[0, 2, 3, 255]].tolist() == [1, 1, 1, 1]
    assert sums.channel_amax is None


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [([[0.0]], [[0.0]], math.inf), ([[0.0]], [[1.0]], -math.inf), ([[3.0, 4.0]], [[3.0, 4.5]], 20.0)],
)
def test_noise_by_hand(wanted: list[list[float]], found: list[list[float]], expected: float) -> None:
    sums = NoiseSums()
    sums.update(np.float32(wanted), np.float32(found), 1)
    assert sums.sqnr_db == pytest.approx(expected)


def test_channels_are_along_their_axis() -> None:
    sums = QuantizationSums(parameters_from_range(-1.0, 1.0, INT8), -1)
    sums.update(np.float32([[[1.0, -9.0], [2.0, 3.0]], [[0.0, 0.0], [-5.0, 1.0]]]), 2)
    assert sums.channel_amax is not None and sums.channel_amax.tolist() == [5.0, 9.0]


@each_case(
    "counts, expected",
    [([0, 0], 0.0), ([7, 0, 0], 0.0), ([1, 0, 1], 1.0), ([1, 10000, 1, 0, 0], 0.0), ([5, 90, 5, 0, 0], 0.5)],
)
def test_how_much_of_the_range_is_used(counts: list[int], expected: float) -> None:
    assert range_used(np.array(counts)) == expected


@each_case("amax, expected", [(None, None), ([2.0], None), ([0.0, 0.0, 5.0], None), ([1.0, 2.0, 9.0], 4.5)])
def test_imbalance(amax: list[float] | None, expected: float | None) -> None:
    assert channel_imbalance(None if amax is None else np.array(amax)) == expected


def test_blocks_hold_whole_samples_and_all_of_them() -> None:
    values = np.arange(3 * 70000, dtype=np.float32).reshape(3, 70000)
    found = list(blocks(values, 3))
    assert [block.shape for block in found] == [(1, 70000)] * 3
    assert np.array_equal(np.concatenate(found), values)
    assert [block.shape for block in blocks(values, 2)] == [(1, 3 * 70000)], "not so many samples"
    assert [block.shape for block in blocks(np.float32(3.0), 1)] == [(1, 1)]


NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20)


def total(numbers: list[float]) -> ExactSum:
    result = ExactSum()
    for number in numbers:
        result.add(number)
    return result


@given(NUMBERS)
def test_the_sum_is_the_nearest_float_of_the_real_one(numbers: list[float]) -> None:
    real = sum((Fraction(number) for number in numbers), Fraction())
    try:
        expected = float(real)
    except OverflowError:
        expected = math.inf if real > 0 else -math.inf
    assert total(numbers).value == expected


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="cannot be added exactly"):
        ExactSum().add(number)


def test_decibels_of_very_large_sums() -> None:
    assert decibels(1e300, 1e-300) == pytest.approx(6000)
