"""Sessions are opened anew in each round, and another model's first."""

import numpy as np
import pytest

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.runtime.turns import ROUNDS, take_rounds
from tests.unit.runtime.test_turns import BATCHES, Clock, Timed


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


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


def test_of_three_models_a_multiple_of_three_rounds_is_taken(clock):
    models = Models(clock, 0.001, models=3)
    assert len(list(take_rounds(models, 3, BATCHES, seconds=5.0))) == 6


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


def test_enough_runs_end_a_round_before_its_time(clock):
    found = list(take_rounds(Models(clock, 0.001), 2, BATCHES, seconds=10.0, most_runs=24))
    assert [sum(map(len, turns.seconds[0])) for turns in found] == [24] * ROUNDS
    assert clock.now < 1.0


def test_runs_of_what_takes_long_to_open_are_of_one_round(clock):
    assert len(list(take_rounds(Models(clock, 0.001, opening=1.0), 2, BATCHES, runs=480))) == 1


def test_one_model_has_no_ratio_and_one_round(clock):
    assert len(list(take_rounds(Models(clock, 0.001, models=1), 1, BATCHES, seconds=2.0))) == 1


@pytest.mark.parametrize(("runs", "rounds", "counted"), [(45, 1, 45), (60, 4, 60), (4800, ROUNDS, 4800)])
def test_runs_are_shared_out(clock, runs, rounds, counted):
    found = list(take_rounds(Models(clock, 0.001), 2, BATCHES, runs=runs))
    assert len(found) == rounds
    assert sum(len(turn) for turns in found for turn in turns.seconds[0]) == counted


def test_progress_goes_on_from_round_to_round(clock):
    seen = []
    list(take_rounds(Models(clock, 0.001), 2, BATCHES, runs=240, progress=seen.append))
    done = [item.done for item in seen]
    assert done == sorted(done)
    assert (done[0], done[-1], seen[-1].total, done.count(0)) == (0, 960, 960, 1)


def test_lengths_that_make_no_sense_are_refused_before_anything_is_opened(clock):
    models = Models(clock, 0.001)
    with pytest.raises(RecipeValueError, match="seconds must be above 0, got nan"):
        list(take_rounds(models, 2, BATCHES, seconds=float("nan")))
    assert models.orders == []
