import numpy as np
import pytest

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.runtime import timing as module
from ptq_cli.runtime.timing import (
    LEAST_TURNS,
    ROUNDS,
    RUNS_A_TURN,
    WARM_UP,
    Duration,
    repeat_with_new_sessions,
    time_interleaved,
)

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
    time_interleaved(sessions, BATCHES, Duration(runs=4))
    assert log[2 * WARM_UP :] == [(name, index // 2 % 2) for index, name in enumerate("abbaabba")]


def test_a_short_run_after_another_models_is_not_counted(clock):
    log = []
    sessions = [Timed(clock, 0.001, log=log, name=name) for name in "ab"]
    found = time_interleaved(sessions, BATCHES, Duration(seconds=1.0))
    first = log[2 * WARM_UP :][: 2 * (RUNS_A_TURN + 1)]
    assert [name for name, _ in first] == ["a"] * (RUNS_A_TURN + 1) + ["b"] * (RUNS_A_TURN + 1)
    assert {len(runs) for model in found.seconds for runs in model} == {RUNS_A_TURN}


def test_the_time_is_kept_and_long_runs_have_their_turns_all_the_same(clock):
    found = time_interleaved([Timed(clock, 0.1), Timed(clock, 0.1)], BATCHES, Duration(seconds=10.0))
    assert clock.now == pytest.approx(10.0, rel=0.1)
    assert len(found.seconds[0]) > 40
    slow = time_interleaved([Timed(clock, 100.0)], BATCHES, Duration(seconds=1.0))
    assert [len(runs) for runs in slow.seconds[0]] == [1] * LEAST_TURNS


def test_it_ends_before_the_time_with_as_many_runs_as_are_enough(clock):
    found = time_interleaved(
        [Timed(clock, 0.001), Timed(clock, 0.001)], BATCHES, Duration(seconds=10.0, most_runs=30)
    )
    assert [sum(map(len, model)) for model in found.seconds] == [30, 30]
    assert clock.now < 0.2
    slow = time_interleaved([Timed(clock, 1.0)], BATCHES, Duration(seconds=10.0, most_runs=30))
    assert LEAST_TURNS < sum(map(len, slow.seconds[0])) < 30, "the time ends it"


def test_progress_counts_samples(clock):
    seen = []
    time_interleaved([Timed(clock, 1.0)], BATCHES, Duration(runs=3), progress=seen.append)
    assert [(item.done, item.total) for item in seen] == [(0, None), (4, 12), (8, 12), (12, 12)]


@pytest.mark.parametrize(
    ("length", "found"),
    [({"seconds": item}, "seconds must be above 0") for item in (0.0, -1.0, float("inf"), float("nan"))]
    + [({"runs": 0}, "runs must be at least 1, got 0")],
)
def test_lengths_that_make_no_sense_are_refused(length, found):
    with pytest.raises(RecipeValueError, match=found):
        Duration(**length)


class Models:
    """Opens sessions of one speed, but that the one which is opened later is faster, as on real machines."""

    def __init__(self, clock, seconds, opening=0.0, models=2):
        self.clock, self.seconds, self.opening, self.models = clock, seconds, opening, models
        self.orders = []

    def __call__(self, order):
        self.orders.append(list(order))
        self.clock.now += self.opening
        opened = {
            index: Timed(self.clock, self.seconds * (1 - 0.01 * rank)) for rank, index in enumerate(order)
        }
        return [opened[index] for index in range(self.models)]


def test_each_model_is_opened_first_as_often_as_another(clock):
    models = Models(clock, 0.001)
    rounds = list(repeat_with_new_sessions(models, 2, BATCHES, Duration(seconds=2.0)))
    assert models.orders == [[0, 1], [1, 0]] * (ROUNDS // 2)
    assert clock.now == pytest.approx(2.0, rel=0.1)
    logs = [np.log(np.divide(turns.seconds[1], turns.seconds[0])).mean() for turns in rounds]
    assert np.mean(logs) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("seconds", "opening"), [(0.001, 3.0), (0.2, 0.0)])
def test_what_takes_long_to_open_or_to_run_is_opened_once(clock, seconds, opening):
    models = Models(clock, seconds, opening)
    assert len(list(repeat_with_new_sessions(models, 2, BATCHES, Duration(seconds=10.0)))) == 1
    assert clock.now < 15


@pytest.mark.parametrize(("opening", "rounds", "longest"), [(0.2, 8, 10.5), (0.6, 4, 10.5), (1.2, 4, 12)])
def test_opening_takes_no_more_than_half_of_the_time(clock, opening, rounds, longest):
    models = Models(clock, 0.005, opening)
    assert len(list(repeat_with_new_sessions(models, 2, BATCHES, Duration(seconds=10.0)))) == rounds
    assert clock.now < longest


@pytest.mark.parametrize(("runs", "rounds", "counted"), [(45, 1, 45), (60, 4, 60), (4800, ROUNDS, 4800)])
def test_runs_are_shared_out(clock, runs, rounds, counted):
    found = list(repeat_with_new_sessions(Models(clock, 0.001), 2, BATCHES, Duration(runs=runs)))
    assert len(found) == rounds
    assert sum(len(turn) for turns in found for turn in turns.seconds[0]) == counted
