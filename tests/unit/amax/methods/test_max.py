import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.amax.percentile import max_amax
from ptq_cli.collectors.max_collector import MaxCollector
from tests.each_case import each_case

FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1)


def statistics_of(values, collector=None):
    collector = collector or MaxCollector()
    assert collector.update(np.asarray(values, np.float32))
    return collector.statistics()


@given(values=FLOATS)
def test_is_the_largest_magnitude(values):
    assert max_amax(statistics_of(values)) == np.abs(np.asarray(values, np.float32)).max()


@each_case(
    "values, amax",
    [
        ([2.0, 3.0], 3.0),
        ([-2.0, -3.0], 3.0),
        ([-4.0, 3.0], 4.0),
        ([0.0, -0.0], 0.0),
        ([2.0**-149], 2.0**-149),
    ],
    ids=str,
)
def test_examples(values, amax):
    assert max_amax(statistics_of(values)) == amax


def test_of_nothing_is_zero():
    assert max_amax(MaxCollector().statistics()) == 0.0
