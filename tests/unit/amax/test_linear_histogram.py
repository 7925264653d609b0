import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.amax.linear_histogram import histogram_of_values, linear_view, side_candidates
from ptq_cli.collectors.max_collector import MaxCollector
from tests.collected import statistics_of
from tests.each_case import each_case

RNG = np.random.default_rng(44)
NORMAL = RNG.normal(size=50_000).astype(np.float32)
VALUES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


@given(values=VALUES, bins=st.integers(1, 300))
def test_view_keeps_every_count_whole(values, bins):
    array = np.asarray(values, np.float32)
    view = linear_view(statistics_of(array), bins)
    assert view.negative.sum() == np.count_nonzero(array < 0)
    assert view.positive.sum() == np.count_nonzero(array > 0)
    assert view.zeros == np.count_nonzero(array == 0)
    assert (view.negative >= 0).all() and (view.positive >= 0).all()
    assert view.bins == bins


def test_largest_value_lies_in_the_last_bin_whichever_its_sign():
    assert linear_view(statistics_of([1.0, -4.0]), 4).negative.tolist() == [0, 0, 0, 1]
    assert histogram_of_values([1.0, -4.0], 4).negative.tolist() == [0, 0, 0, 1]


def test_edge_belongs_to_the_upper_bin():
    for view in (linear_view(statistics_of([1.0, 2.0, 4.0]), 4), histogram_of_values([1.0, 2.0, 4.0], 4)):
        assert view.positive.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("values", [[], [0.0, -0.0]], ids=["no values", "only zeros"])
def test_nothing_to_see_has_no_counts(values):
    for view in (linear_view(statistics_of(values), 8), histogram_of_values(values, 8)):
        assert view.top == view.low == view.high == view.full_amax == 0
        assert not view.magnitudes.any()
        assert view.zeros == len(values)


def test_ranges_alone_have_no_view():
    collector = MaxCollector()
    collector.update(NORMAL)
    with pytest.raises(ValueError, match="only ranges were kept"):
        linear_view(collector.statistics())


@each_case(
    "occupied, start_bin, stride, kept",
    [
        (6, 2, 1, [2, 3, 4, 5, 6]),
        (6, 2, 3, [2, 5, 6]),
        (6, 6, 1, [6]),
        (6, 99, 1, [6]),
        (0, 2, 1, [0]),
        (1, 1, 1, [1]),
    ],
)
def test_candidates_of_a_side_end_with_the_whole_of_it(occupied, start_bin, stride, kept):
    counts = np.zeros(10, np.int64)
    counts[:occupied] = 1
    assert side_candidates(counts, start_bin, stride).tolist() == kept
