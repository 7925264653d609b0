"""Collectors by their names, and what is not finite counted where that is allowed."""

import numpy as np
import pytest

from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.tensor_statistics import NonFinite
from ptq_cli.core.errors import UnknownNameError

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
def test_each_method_makes_a_new_collector(method):
    assert make_collector(method) is not make_collector(method)


def test_unknown_method_names_the_nearest_and_all():
    with pytest.raises(UnknownNameError) as caught:
        make_collector("histgram")
    assert caught.value.message == "unknown method 'histgram' (did you mean 'histogram'?)"
    assert caught.value.hint == "known: histogram, max"
