import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.amax.entropy import (
    entropy_amax,
    entropy_range,
    natural_log,
    window_divergences,
    without_spike,
)
from ptq_cli.amax.linear_histogram import LinearHistogram, histogram_of_values

RNG = np.random.default_rng(45)
NORMAL = RNG.normal(size=60_000)


def divergence(counts, start, stop, levels):
    """The definition, bin by bin: sum(p log(p / q) - p + q) over counts divided by their total."""
    counts = np.asarray(counts, np.float64)
    kept, size = counts[start:stop], stop - start
    p = kept.copy()
    p[0] += counts[:start].sum()
    p[-1] += counts[stop:].sum()
    q = np.zeros(size)
    groups = np.arange(size) * min(levels, size) // size
    for group in np.unique(groups):
        occupied = (groups == group) & (kept > 0)
        if occupied.any():
            q[occupied] = kept[groups == group].sum() / occupied.sum()
    if ((p > 0) & (q == 0)).any() or not kept.any():
        return np.inf
    some = p > 0
    total = counts.sum()
    return (p[some] * np.log(p[some] / q[some])).sum() / total - p.sum() / total + q.sum() / total


COUNTS = st.lists(st.one_of(st.just(0), st.integers(0, 1000)), min_size=1, max_size=24).filter(any)


@given(counts=COUNTS, levels=st.integers(1, 12), data=st.data())
def test_divergence_is_the_definition_s(counts, levels, data):
    start = data.draw(st.integers(0, len(counts) - 1))
    stop = data.draw(st.integers(start + 1, len(counts)))
    (found,) = window_divergences(np.array(counts), np.array([start]), np.array([stop]), levels)
    assert found == pytest.approx(divergence(counts, start, stop, levels), abs=1e-12)


@given(counts=COUNTS, levels=st.integers(1, 12), start=st.integers(1, 12), stride=st.integers(1, 4))
def test_amax_is_the_last_least_of_brute_force(counts, levels, start, stride):
    histogram = one_sided(np.array(counts))
    smooth = without_spike(histogram.positive)
    stops = np.arange(min(start, len(counts)), len(counts) + 1, stride)
    if not smooth.any() or levels >= len(counts):
        return
    expected = [divergence(smooth, 0, stop, levels) for stop in stops]
    least = min(expected)
    found = entropy_amax(histogram, levels, start_bin=start, stride=stride)
    if not np.isfinite(least):
        assert (found.amax, found.candidates) == (histogram.top, 1)
        return
    last = max(stop for stop, value in zip(stops, expected, strict=True) if value <= least + 1e-12)
    assert found.amax == last * histogram.width
    assert found.candidates == np.isfinite(expected).sum()


def one_sided(counts):
    top = float(counts.size)
    return LinearHistogram(
        negative=np.zeros_like(counts), positive=counts, top=top, low=0.0, high=top, zeros=0
    )


@given(
    negative=st.lists(st.integers(0, 50), min_size=6, max_size=12),
    positive=st.lists(st.integers(0, 50), min_size=6, max_size=12),
    levels=st.integers(2, 8),
)
def test_neither_end_of_a_range_can_be_bettered_alone(negative, positive, levels):
    size = max(len(negative), len(positive))
    sides = [np.array(side + [0] * (size - len(side))) for side in (negative, positive)]
    if not (sides[0][1:].any() and sides[1][1:].any()):
        return
    extents = [int(np.flatnonzero(side)[-1]) + 1 for side in sides]
    histogram = LinearHistogram(
        negative=sides[0],
        positive=sides[1],
        top=float(size),
        low=-float(extents[0]),
        high=float(extents[1]),
        zeros=0,
    )
    choice = entropy_range(histogram, levels, start_bin=2)
    counts = np.concatenate(
        [without_spike(sides[0][: extents[0]])[::-1], without_spike(sides[1][: extents[1]])]
    )
    if levels >= counts.size or not counts.any():
        return
    left, right = round(-choice.low), round(choice.high)
    found = divergence(counts, extents[0] - left, extents[0] + right, levels)
    if not np.isfinite(found):
        assert choice.candidates == 1
        return
    others = [
        divergence(counts, extents[0] - end, extents[0] + right, levels)
        for end in [*range(min(2, extents[0]), extents[0]), extents[0]]
    ] + [
        divergence(counts, extents[0] - left, extents[0] + end, levels)
        for end in [*range(min(2, extents[1]), extents[1]), extents[1]]
    ]
    assert found <= min(others) + 1e-9


def test_each_tail_is_clipped_by_itself():
    # An outlier on one side only: clipping both at one magnitude would keep the other side's tail or cut it.
    values = np.concatenate([NORMAL, [30.0]])
    choice = entropy_range(histogram_of_values(values), 256)
    assert choice.high < 6
    assert choice.low == pytest.approx(NORMAL.min(), rel=0.1)


@pytest.mark.parametrize("gap", [5.0, 50.0])
def test_empty_low_bins_do_not_clip_everything(gap):
    # The reference picks a tiny amax: its divergence is NaN where nothing is kept, and 0 where one bin is.
    values = np.abs(NORMAL) + gap
    choice = entropy_amax(histogram_of_values(values), 128)
    assert choice.amax > gap + 3


@pytest.mark.parametrize("values", [[3.0] * 50, [-1.0, 1.0], [0.0, 0.0, 2.0]], ids=str)
def test_too_few_bins_leave_one_candidate_and_the_whole_range(values):
    histogram = histogram_of_values(values)
    for choice in (entropy_amax(histogram, 128), entropy_range(histogram, 256)):
        assert choice.candidates == 1
        assert choice.amax == max(np.abs(values))


@given(st.floats(1e-300, 1e300))
def test_the_logarithm_is_within_a_unit_in_the_last_place(x):
    # Whose bits are the same everywhere: a library's are only as near.
    assert abs(natural_log(x) - math.log(x)) <= math.ulp(math.log(x))


BITS = [
    "-0x1.5963447f87fb5p+9",
    "-0x1.26bb1bbb55515p+1",
    "-0x1.62e42fefa39f1p-2",
    "-0x1.62e42fefa39ebp-2",
    "0x1.193ea7aad030ap+0",
    "0x1.2d79559791e31p+3",
    "0x1.57cd0e7026820p+5",
]


def test_the_logarithm_has_these_bits():
    values = (1e-300, 0.1, 0.7071067811865475, 0.7071067811865477, 3.0, 12345.678, 2.0**62)
    assert [natural_log(value).hex() for value in values] == BITS
