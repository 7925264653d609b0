import numpy as np
import pytest

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.runtime import turns as module
from ptq_cli.runtime.turns import LEAST_TURNS, RUNS_A_TURN, WARM_UP, take_turns

BATCHES = [{"x": np.zeros((4, 2), np.float32)}, {"x": np.ones((4, 2), np.float32)}]


class Clock:
    """A machine that takes as long as it is told to, and tells no other time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module.time, "process_time", lambda: 2 * self.now)


class Timed:
    """A session that takes some seconds, and more of them as the machine slows down."""

    def __init__(self, clock, seconds, drift=0.0, log=None, name=""):
        self.clock, self.seconds, self.drift, self.log, self.name = clock, seconds, drift, log, name

    def run(self, batch):
        self.clock.now += self.seconds * (1 + self.drift * self.clock.now)
        if self.log is not None:
            self.log.append((self.name, batch["x"][0, 0]))


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_the_order_changes_from_turn_to_turn_and_so_does_the_batch(clock):
    log = []
    sessions = [Timed(clock, 0.1, log=log, name=name) for name in "ab"]
    take_turns(sessions, BATCHES, runs=4)
    assert log[2 * WARM_UP :] == [(name, index // 2 % 2) for index, name in enumerate("abbaabba")]


def test_a_short_run_after_another_models_is_not_counted(clock):
    log = []
    sessions = [Timed(clock, 0.001, log=log, name=name) for name in "ab"]
    found = take_turns(sessions, BATCHES, seconds=1.0)
    first = log[2 * WARM_UP :][: 2 * (RUNS_A_TURN + 1)]
    assert [name for name, _ in first] == ["a"] * (RUNS_A_TURN + 1) + ["b"] * (RUNS_A_TURN + 1)
    assert {len(runs) for model in found.seconds for runs in model} == {RUNS_A_TURN}


def test_a_model_alone_empties_no_caches(clock):
    log = []
    found = take_turns([Timed(clock, 0.001, log=log)], BATCHES, runs=30)
    assert len(log) == WARM_UP + sum(map(len, found.seconds[0]))


def test_as_many_runs_are_counted_as_were_asked_for(clock):
    found = take_turns([Timed(clock, 0.001), Timed(clock, 0.002)], BATCHES, runs=100)
    assert [sum(map(len, model)) for model in found.seconds] == [102, 102]  # three a turn


def test_the_time_is_kept_and_long_runs_have_their_turns_all_the_same(clock):
    found = take_turns([Timed(clock, 0.1), Timed(clock, 0.1)], BATCHES, seconds=10.0)
    assert clock.now == pytest.approx(10.0, rel=0.1)
    assert len(found.seconds[0]) > 40
    slow = take_turns([Timed(clock, 100.0)], BATCHES, seconds=1.0)
    assert [len(runs) for runs in slow.seconds[0]] == [1] * LEAST_TURNS


def test_it_ends_before_the_time_with_as_many_runs_as_are_enough(clock):
    found = take_turns([Timed(clock, 0.001), Timed(clock, 0.001)], BATCHES, seconds=10.0, most_runs=30)
    assert [sum(map(len, model)) for model in found.seconds] == [30, 30]
    assert clock.now < 0.2
    slow = take_turns([Timed(clock, 1.0)], BATCHES, seconds=10.0, most_runs=30)
    assert LEAST_TURNS < sum(map(len, slow.seconds[0])) < 30, "the time ends it"


def test_a_long_run_warms_up_once(clock):
    log = []
    take_turns([Timed(clock, 2.0, log=log)], BATCHES, runs=1)
    assert len(log) == 2


def test_processor_time_is_kept_beside_the_clocks(clock):
    found = take_turns([Timed(clock, 1.0)], BATCHES, runs=3)
    clocks, processors = (np.ravel(times[0]) for times in (found.seconds, found.processors))
    np.testing.assert_allclose(processors, 2 * clocks)


def test_progress_counts_samples(clock):
    seen = []
    take_turns([Timed(clock, 1.0)], BATCHES, runs=3, progress=seen.append)
    assert [(item.done, item.total) for item in seen] == [(0, None), (4, 12), (8, 12), (12, 12)]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(clock, seconds):
    with pytest.raises(RecipeValueError, match="seconds must be above 0"):
        take_turns([Timed(clock, 1.0)], BATCHES, seconds=seconds)


def test_no_runs_are_refused(clock):
    with pytest.raises(RecipeValueError, match="runs must be at least 1, got 0"):
        take_turns([Timed(clock, 1.0)], BATCHES, runs=0)
