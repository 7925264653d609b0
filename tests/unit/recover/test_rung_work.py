"""The work of a rung, in products of the search."""

import pytest

from ptq_cli.core.progress import Progress, RungProgress, silent
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.recover import rung_work
from ptq_cli.recover.rung_work import COST, RungWork, passing_work, seconds_of, takes_long
from tests.unit.plan.graphs import build


def test_work_is_told_by_layer_with_the_median_gain() -> None:
    told: list[Progress] = []
    work = RungWork("round", {"a": 10.0, "b": 30.0}, told.append)
    solved = [type("Solved", (), {"before": before, "after": 1.0}) for before in (10.0, 1000.0, 0.0)]
    work.layer_done("a", solved)
    _, found = told
    assert isinstance(found, RungProgress)
    assert (found.stage, found.done, found.total) == ("recover (round)", 10, 40)
    assert (found.number, found.layers, found.gain_db) == (1, 2, 20.0)


def test_short_work_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rung_work, "search_codes", lambda *_: 1 / 0)
    assert seconds_of(1e9, 1, 60.0) == 0.0
    with pytest.raises(ZeroDivisionError):
        seconds_of(1e15, 1, 60.0)


def test_a_layer_of_which_nothing_is_chosen_takes_its_runs_alone() -> None:
    assert passing_work() == COST.layer
    assert passing_work(120.0) == COST.layer + 10.0


def test_a_search_is_long_by_outputs_times_the_square_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("(float[n, 32] x) => (float[n, 8] y) <float[32, 8] w> { y = MatMul (x, w) }")
    plan = make_plan(model, load_target("ort-cpu"))
    monkeypatch.setattr(rung_work, "LONG_SEARCH", 8 * 32.0**2)
    assert takes_long(model, plan)
    monkeypatch.setattr(rung_work, "LONG_SEARCH", 8 * 32.0**2 + 1)
    assert not takes_long(model, plan)
    silent(Progress("x", 0, None))
