import numpy as np
import pytest

from ptq_cli.collectors.histogram import HistogramCollector
from ptq_cli.collectors.max import MaxCollector
from ptq_cli.core.granularity import PerAxis


def statistics(collector, values):
    assert collector.update(np.asarray(values, np.float32))
    return collector.statistics()


def test_merge_adds_counts_and_widens_ranges():
    one = statistics(HistogramCollector(), [0.0, 1.0, -2.0])
    two = statistics(HistogramCollector(), [0.0, 0.0, 5.0])

    merged = one.merge(two)

    assert (merged.count, merged.zeros, merged.low, merged.high) == (6, 3, -2.0, 5.0)
    assert merged == statistics(HistogramCollector(), [0.0, 1.0, -2.0, 0.0, 0.0, 5.0])


def test_merge_per_axis_keeps_channels_apart():
    one = statistics(MaxCollector(PerAxis(1)), [[1.0, -5.0]])
    two = statistics(MaxCollector(PerAxis(1)), [[-1.0, 7.0]])

    merged = one.merge(two)

    assert merged.minimum.tolist() == [-1.0, -5.0] and merged.maximum.tolist() == [1.0, 7.0]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param(MaxCollector(), HistogramCollector(), id="with and without histogram"),
        pytest.param(MaxCollector(), MaxCollector(PerAxis(0)), id="per tensor and per axis"),
        pytest.param(MaxCollector(PerAxis(1)), MaxCollector(PerAxis(0)), id="two axes"),
    ],
)
def test_statistics_that_were_kept_differently_do_not_merge(one, two):
    with pytest.raises(ValueError, match="statistics that were kept differently do not merge"):
        one.statistics().merge(two.statistics())


@pytest.mark.parametrize(("first", "second"), [(3, 1), (1, 3), (2, 3)])
def test_different_numbers_of_channels_do_not_merge(first, second):
    one = statistics(MaxCollector(PerAxis(1)), np.ones((1, first)))
    two = statistics(MaxCollector(PerAxis(1)), np.ones((1, second)))

    with pytest.raises(ValueError, match=f"^axis 1 had {first} channels and now has {second}$"):
        one.merge(two)


def test_statistics_compare_by_content():
    one, same = (statistics(HistogramCollector(), [1.0, 2.0]) for _ in range(2))

    assert one == same
    assert one != statistics(HistogramCollector(), [1.0, 3.0])
    assert one != statistics(MaxCollector(), [1.0, 2.0])
    assert one != "statistics"
