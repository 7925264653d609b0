"""The plan below a limit: its order of preference, and that the estimate keeps the limit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.core.errors import MemoryLimitError
from ptq_cli.runtime.tapping.memory_plan import Needs, plan_memory, require_host_memory
from tests.each_case import each_case

MB = 10**6
NEEDS = Needs(
    reached=90 * MB,
    base=100 * MB,
    fixed=5 * MB,
    session=10 * MB,
    scratch=20 * MB,
    taps={"a": 40 * MB, "b": 30 * MB, "c": 10 * MB},
)


def plan(limit, **rest):
    return plan_memory(NEEDS, limit * MB, **{"most_samples": 8, "least_samples": 1, "at_once": 2, **rest})


@each_case(
    "limit, samples, at_once, groups",
    [(10_000, 8, 2, 1), (1_500, 2, 2, 1), (600, 1, 2, 1), (350, 1, 1, 1), (270, 1, 1, 2), (248, 1, 1, 2)],
)
def test_smaller_pieces_come_before_fewer_runs_and_these_before_more_passes(limit, samples, at_once, groups):
    found = plan(limit)
    assert (found.samples, found.at_once, len(found.groups)) == (samples, at_once, groups)
    assert found.peak <= limit * MB


def test_a_limit_that_cannot_be_met_says_what_would():
    with pytest.raises(MemoryLimitError) as caught:
        plan(200)
    assert caught.value.code == "PTQ-RUNTIME-002"
    assert caught.value.message.startswith("200 MB of memory is not enough: about 238 MB are needed")
    assert plan(250)  # The hint, in MiB, is rounded up.
    assert caught.value.hint == "--set runtime.max_memory=227MiB"
    assert plan_memory(NEEDS, 227 * 2**20, most_samples=1, least_samples=1, at_once=1)


def test_what_opening_the_model_took_counts_too():
    needs = replace(NEEDS, reached=300 * MB)
    with pytest.raises(MemoryLimitError, match="300 MB were taken to open the model") as caught:
        plan_memory(needs, 299 * MB, most_samples=1, least_samples=1, at_once=1)
    assert caught.value.hint == "--set runtime.max_memory=287MiB"


def test_on_a_device_only_the_host_is_estimated_and_nothing_is_planned():
    assert require_host_memory(900 * MB, 100 * MB, 1010 * MB) == 1010 * MB
    with pytest.raises(MemoryLimitError) as caught:
        require_host_memory(900 * MB, 100 * MB, 1009 * MB)
    assert caught.value.message == (
        "1.01 GB of the host's memory is not enough: about 1.01 GB are needed, 900 MB of them with the "
        "first samples on the device"
    )
    assert caught.value.hint == "--set runtime.max_memory=964MiB"


SIZES = st.dictionaries(st.text("abc", min_size=1), st.integers(1, 100), min_size=1, max_size=9)


@given(st.integers(0, 50), SIZES, st.integers(1, 5000), st.integers(1, 9), st.integers(0, 2))
def test_the_estimate_keeps_the_limit_and_no_tensor_is_lost(base, taps, limit, most, at_once):
    needs = Needs(reached=0, base=base, fixed=3, session=5, scratch=7, taps=taps)
    try:
        found = plan_memory(needs, limit, most_samples=most, least_samples=1, at_once=at_once)
    except MemoryLimitError:
        assert limit < base + 1.1 * (3 + 5 + 7 + 2 * sum(taps.values())) + 1
        return
    assert found.peak <= limit
    assert sorted(name for group in found.groups for name in group) == sorted(taps)
    assert 1 <= found.samples <= most and found.at_once <= at_once
