import numpy as np
import pytest

from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.tensor_statistics import NonFinite

BAD = np.float32([[np.nan, 1.0, -np.inf], [np.inf, -3.0, 0.0], [np.nan, 2.0, 4.0]])
FINITE = BAD[np.isfinite(BAD)]

each_method = pytest.mark.parametrize("method", COLLECTORS)


@each_method
def test_what_is_not_finite_is_counted_and_the_rest_as_if_alone(method):
    collector, alone = make_collector(method, allow_nonfinite=True), make_collector(method)
    assert collector.update(BAD) and alone.update(FINITE)
    found, wanted = collector.statistics(), alone.statistics()
    assert found.nonfinite == NonFinite(nan=2, positive=1, negative=1)
    assert (found.count, found.zeros, found.low, found.high) == (5, wanted.zeros, -3.0, 4.0)
    assert found.histogram == wanted.histogram
    assert not found.dead and not found.rangeless


@each_method
def test_channels_alone_do_not_allow_what_is_not_finite(method):
    collector = make_collector(method, axis=1)
    assert collector.update(np.ones((2, 3), np.float32))
    before = collector.statistics()
    assert not collector.update(BAD)
    assert collector.statistics() == before


def test_value_that_only_float64_holds_counts_as_infinite():
    collector = make_collector("histogram", allow_nonfinite=True)
    assert collector.update(np.array([1e39, -1e39, 1.0]))
    assert collector.statistics().nonfinite == NonFinite(positive=1, negative=1)
