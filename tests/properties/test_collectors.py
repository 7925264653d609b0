"""Statistics are a commutative monoid: the same bytes for every batch size, order and grouping."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.tensor_statistics import EMPTY, from_values, thin
from tests.collected import saved
from tests.day import examples

FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, float(np.finfo(np.float32).max)]),
    st.floats(-8, 8, width=32),
)
BATCHES = st.lists(st.lists(FLOATS, max_size=12), min_size=1, max_size=6)
each_collector = pytest.mark.parametrize("make", COLLECTORS.values(), ids=COLLECTORS)


def statistics_of(make, *batches):
    collector = make()
    for batch in batches:
        values = np.asarray(batch, np.float32)
        assert collector.update(np.stack([values, -values], axis=1))
    return collector.statistics()


ANY = st.one_of(FLOATS, st.sampled_from([np.nan, np.inf, -np.inf]))


@pytest.mark.parametrize("method", COLLECTORS)
@given(batches=st.lists(st.lists(ANY, max_size=12), min_size=1, max_size=6), data=st.data())
def test_counts_of_what_is_not_finite_merge_as_all_else(method, batches, data):
    make = partial(make_collector, method, allow_nonfinite=True)
    joined = [value for batch in batches for value in batch]
    wanted = statistics_of(make, joined)
    shuffled = data.draw(st.permutations(batches))
    assert saved(statistics_of(make, *shuffled)) == saved(wanted)
    assert saved(grouped([statistics_of(make, batch) for batch in shuffled], data.draw)) == saved(wanted)
    assert wanted.nonfinite.nan == 2 * np.count_nonzero(np.isnan(joined))
    assert wanted.nonfinite.positive == wanted.nonfinite.negative == np.count_nonzero(np.isinf(joined))
    assert wanted.count + wanted.nonfinite.total == 2 * len(joined)


def grouped(parts, draw):
    """Merge the parts two by two, in an order that hypothesis draws."""
    parts = list(parts)
    while len(parts) > 1:
        first = parts.pop(draw(st.integers(0, len(parts) - 1)))
        second = parts.pop(draw(st.integers(0, len(parts) - 1)))
        parts.append(first.merge(second))
    return parts[0]


@each_collector
@examples(50)
@given(batches=BATCHES, data=st.data())
def test_split_order_and_grouping_leave_the_bytes_as_they_are(make, batches, data):
    joined = [value for batch in batches for value in batch]
    wanted = saved(statistics_of(make, joined))
    shuffled = data.draw(st.permutations(batches))
    parts = [statistics_of(make, batch) for batch in shuffled]
    assert saved(statistics_of(make, *batches)) == wanted
    assert saved(statistics_of(make, *shuffled)) == wanted
    assert saved(statistics_of(make, data.draw(st.permutations(joined)))) == wanted
    assert saved(grouped(parts, data.draw)) == wanted


@given(values=st.lists(FLOATS))
def test_kernel_counts_as_the_definition_does(values):
    found = statistics_of(lambda: make_collector("histogram"), values)
    both = np.asarray(values, np.float32)
    assert found.histogram == from_values(np.stack([both, -both]))


@given(values=st.lists(FLOATS))
def test_edges_of_some_bin_contain_each_value(values):
    histogram = from_values(values)
    low, high = histogram.lower_edges().astype(np.float64), histogram.upper_edges()
    for value in np.abs(np.asarray(values, np.float32)):
        assert value == 0 or ((low <= value) & (value < high)).any()


BINS = st.lists(st.tuples(st.integers(0, (255 << 11) - 1), st.booleans(), st.integers(0, 2**50)), max_size=30)


def keys_and_counts(bins):
    keys = np.array([key | (negative << 19) for key, negative, _ in bins], np.uint32)
    return keys, np.array([count for _, _, count in bins], np.int64)


@given(one=BINS, two=BINS)
def test_thinning_before_or_after_joining_is_the_same(one, two):
    a, b = thin(*keys_and_counts(one)), thin(*keys_and_counts(two))
    joined = thin(*keys_and_counts(one + two))
    assert a.merge(b) == joined
    assert thin(joined.keys, joined.counts) == joined
    assert joined.counts.sum() == a.counts.sum() + b.counts.sum()
    assert a.merge(EMPTY) == EMPTY.merge(a) == a
