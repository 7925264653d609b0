"""What every collector of the registry promises."""

import numpy as np

from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from tests.each_case import each_case

RNG = np.random.default_rng(17)
VALUES = RNG.normal(size=(6, 40)).astype(np.float32)
BAD = {
    "nan": np.array([1.0, np.nan, 9.0], np.float32),
    "inf": np.array([np.inf], np.float32),
    "minus inf": np.array([[5.0], [-np.inf]], np.float32),
    "float16 inf": np.array([np.inf, 7.0], np.float16),
    "float64 beyond float32": np.array([1.0, 1e39]),
    "float64 nan": np.array([np.nan]),
    "0-d nan": np.array(np.nan, np.float32),
    "nan behind a new range": np.array([1e30, -1e30, np.nan], np.float32),
}

each_method = each_case("method", COLLECTORS)


@each_method
@each_case("array", BAD.values(), ids=BAD)
@each_case("before", [0, 1], ids=["at first", "after a batch"])
def test_what_is_not_finite_is_reported_and_not_added(method, array, before):
    collector = make_collector(method)
    for _ in range(before):
        assert collector.update(VALUES)
    kept = collector.statistics()

    assert collector.update(array) is False

    assert collector.statistics() == kept
    assert collector.update(VALUES) is True
    assert collector.statistics().count == (before + 1) * VALUES.size


@each_method
@each_case(
    "array",
    [VALUES, VALUES.astype(np.float16), VALUES.astype(np.float64), (VALUES * 50).astype(np.int8), VALUES > 0],
    ids=["float32", "float16", "float64", "int8", "bool"],
)
def test_range_and_count_are_those_of_the_values(method, array):
    collector = make_collector(method)

    assert collector.update(array)

    found = collector.statistics()
    assert (found.low, found.high) == (np.float32(array.min()), np.float32(array.max()))
    assert found.count == array.size
    assert found.minimum.dtype == found.maximum.dtype == np.float32


@each_method
def test_all_zero_first_batch_then_values(method):
    late, early = make_collector(method), make_collector(method)
    zeros = np.zeros((3, 5), np.float32)

    assert late.update(zeros) and late.update(VALUES)
    assert early.update(VALUES) and early.update(zeros)

    assert late.statistics() == early.statistics()
    assert late.statistics().high == VALUES.max()


@each_method
def test_all_zero_is_an_empty_range(method):
    collector = make_collector(method)

    assert collector.update(np.zeros(4, np.float32))

    assert (collector.statistics().low, collector.statistics().high) == (0.0, 0.0)


@each_method
def test_update_does_not_change_the_array(method):
    array = VALUES.copy()

    make_collector(method).update(array)

    np.testing.assert_array_equal(array, VALUES)


@each_method
def test_statistics_can_be_read_at_any_time(method):
    collector = make_collector(method)
    collector.update(VALUES)
    first = collector.statistics()

    assert collector.statistics() == first
    collector.update(VALUES * 3)
    assert first.count == VALUES.size and first.high == VALUES.max()


@each_method
def test_empty_collector_is_the_neutral_element(method):
    collector, nothing = make_collector(method), make_collector(method)
    collector.update(VALUES)
    nothing.update(np.zeros((0, 4), np.float32))
    kept, empty = collector.statistics(), nothing.statistics()

    assert kept.merge(empty) == empty.merge(kept) == kept
    assert empty.merge(empty) == empty and empty.count == 0
