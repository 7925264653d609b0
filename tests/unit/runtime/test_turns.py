import numpy as np
import pytest

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.runtime import turns as module
from ptq_cli.runtime.turns import LEAST_TURNS, ROUNDS, RUNS_A_TURN, WARM_UP, take_rounds, take_turns

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


# Sessions are opened anew in each round, and another model's first.


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
    rounds = list(take_rounds(models, 2, BATCHES, seconds=2.0))
    assert models.orders == [[0, 1], [1, 0]] * (ROUNDS // 2)
    assert clock.now == pytest.approx(2.0, rel=0.1)
    logs = [np.log(np.divide(turns.seconds[1], turns.seconds[0])).mean() for turns in rounds]
    assert np.mean(logs) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("seconds", "opening"), [(0.001, 3.0), (0.2, 0.0)])
def test_what_takes_long_to_open_or_to_run_is_opened_once(clock, seconds, opening):
    models = Models(clock, seconds, opening)
    assert len(list(take_rounds(models, 2, BATCHES, seconds=10.0))) == 1
    assert clock.now < 15


@pytest.mark.parametrize(("opening", "rounds", "longest"), [(0.2, 8, 10.5), (0.6, 4, 10.5), (1.2, 4, 12)])
def test_opening_takes_no_more_than_half_of_the_time(clock, opening, rounds, longest):
    models = Models(clock, 0.005, opening)
    assert len(list(take_rounds(models, 2, BATCHES, seconds=10.0))) == rounds
    assert clock.now < longest


@pytest.mark.parametrize(("runs", "rounds", "counted"), [(45, 1, 45), (60, 4, 60), (4800, ROUNDS, 4800)])
def test_runs_are_shared_out(clock, runs, rounds, counted):
    found = list(take_rounds(Models(clock, 0.001), 2, BATCHES, runs=runs))
    assert len(found) == rounds
    assert sum(len(turn) for turns in found for turn in turns.seconds[0]) == counted


def test_lengths_that_make_no_sense_are_refused_before_anything_is_opened(clock):
    models = Models(clock, 0.001)
    with pytest.raises(RecipeValueError, match="seconds must be above 0, got nan"):
        list(take_rounds(models, 2, BATCHES, seconds=float("nan")))
    assert models.orders == []
