"""Collectors that one call feeds keep what each would keep that is fed alone."""

import numpy as np
import pytest

from ptq_cli.collectors import histogram_collector
from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.histogram_collector import SharedMemory, together

RNG = np.random.default_rng(11)
NAMES = ("small", "larger", "relu", "zeros", "one")


def pieces():
    """Arrays of three pieces: their largest octaves grow, and one tensor is empty in the first piece."""
    for scale in (1.0, 0.1, 300.0):
        noise = RNG.normal(0, scale, (3, 2000)).astype(np.float32)
        one = np.float32([] if scale == 1.0 else [scale])
        yield {
            "small": noise[0, :7],
            "larger": noise[1],
            "relu": np.maximum(noise[2], 0),
            "zeros": np.zeros(40, np.float32),
            "one": one,
        }


def shared(arrays, names=NAMES):
    """Lay arrays into one piece of memory, with gaps that hold what no collector may see."""
    gap = np.full(3, np.nan, np.float32)
    parts, spans, at = [], {}, 0
    for name in names:
        parts += [gap, arrays[name]]
        spans[name] = (at + gap.size, at + gap.size + arrays[name].size)
        at = spans[name][1]
    return SharedMemory(np.concatenate([*parts, gap]).view(np.uint32), spans)


def fed_alone(method, fed):
    collectors = {name: make_collector(method) for name in NAMES}
    for arrays in fed:
        for name, array in arrays.items():
            collectors[name].update(array)
    return {name: collector.statistics() for name, collector in collectors.items()}


@pytest.mark.parametrize("method", COLLECTORS)
def test_statistics_are_those_of_collectors_that_are_fed_alone(method):
    fed = list(pieces())
    collectors = {name: make_collector(method) for name in NAMES}
    group = together(collectors)
    for arrays in fed:
        assert group.update(shared(arrays)) == []
    assert {name: one.statistics() for name, one in collectors.items()} == fed_alone(method, fed)


@pytest.mark.parametrize("method", COLLECTORS)
def test_nothing_of_a_tensor_that_is_not_finite_is_added(method):
    first, second, _ = pieces()
    collectors = {name: make_collector(method) for name in NAMES}
    group = together(collectors)
    group.update(shared(first))
    bad = {**second, "larger": second["larger"].copy(), "zeros": np.float32([0, np.nan])}
    bad["larger"][-1] = np.inf
    assert sorted(group.update(shared(bad))) == ["larger", "zeros"]
    good = {name: array for name, array in second.items() if name not in ("larger", "zeros")}
    assert {name: one.statistics() for name, one in collectors.items()} == fed_alone(method, [first, good])


def test_more_values_than_a_slot_counts(monkeypatch):
    monkeypatch.setattr(histogram_collector, "_SLOT_LIMIT", 1500)
    fed = list(pieces())
    collectors = {name: make_collector("histogram") for name in NAMES}
    group = together(collectors)
    for arrays in fed:
        group.update(shared(arrays))
    found = {name: one.statistics() for name, one in collectors.items()}
    monkeypatch.undo()
    assert found == fed_alone("histogram", fed)


def test_collectors_of_different_kinds_are_fed_alone():
    assert together({"x": make_collector("max"), "y": make_collector("histogram")}) is None
    assert together({"x": make_collector("max", allow_nonfinite=True)}) is None
