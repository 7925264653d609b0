import numpy as np
import pytest

from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.max_collector import HistogramCollector, MaxCollector


def statistics(collector, values):
    assert collector.update(np.asarray(values, np.float32))
    return collector.statistics()


def test_merge_per_axis_keeps_channels_apart():
    one = statistics(make_collector("max", axis=1), [[1.0, -5.0]])
    two = statistics(make_collector("max", axis=1), [[-1.0, 7.0]])
    merged = one.merge(two)
    assert merged.channels.minimum.tolist() == [-1.0, -5.0]
    assert merged.channels.maximum.tolist() == [1.0, 7.0]
    assert (merged.low, merged.high) == (-5.0, 7.0)


def test_channels_of_two_axes_do_not_merge():
    one, two = (statistics(make_collector("max", axis=axis), np.ones((1, 2, 2))) for axis in (1, 2))
    with pytest.raises(ValueError, match=r"^the channels of axis 1 and those of axis 2 do not merge$"):
        one.merge(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param(MaxCollector(), HistogramCollector(), id="with and without histogram"),
        pytest.param(MaxCollector(), make_collector("max", axis=1), id="per tensor and per axis"),
        pytest.param(
            make_collector("max", axis=1),
            make_collector("histogram", axis=1),
            id="channels with and without histogram",
        ),
    ],
)
def test_statistics_that_were_kept_differently_do_not_merge(one, two):
    with pytest.raises(ValueError, match="statistics that were kept differently do not merge"):
        one.statistics().merge(two.statistics())


@pytest.mark.parametrize(("first", "second"), [(3, 1), (1, 3), (2, 3)])
def test_different_numbers_of_channels_do_not_merge(first, second):
    one = statistics(make_collector("max", axis=1), np.ones((1, first)))
    two = statistics(make_collector("max", axis=1), np.ones((1, second)))
    with pytest.raises(ValueError, match=f"^axis 1 had {first} channels and now has {second}$"):
        one.merge(two)


def test_statistics_compare_by_content():
    one, same = (statistics(HistogramCollector(), [1.0, 2.0]) for _ in range(2))
    assert one == same
    assert one != statistics(HistogramCollector(), [1.0, 3.0])
    assert one != statistics(MaxCollector(), [1.0, 2.0])
    assert one != "statistics"
