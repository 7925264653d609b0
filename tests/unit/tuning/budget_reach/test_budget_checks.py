"""Budgets: what is refused before any work, and how far bounds reach."""

import math
import re

import numpy as np
import pytest

from ptq_cli.core.errors import GateError, TuneError, UnknownNameError, UnreachableBudgetError
from ptq_cli.evaluation.interval import Flips, Interval, largest_drop
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import GateSettings, Limit, TuneSettings
from ptq_cli.tuning.budget_reach import budget_checks, budget_gate, needed, require_reachable
from tests.each_case import each_case
from tests.measured import measurement


def gate_of(**budget: Limit) -> GateSettings:
    return budget_gate(Recipe(tune=TuneSettings(budget=budget)))


@each_case(
    "budget, error, says",
    [
        ({}, TuneError, "no budget was given"),
        ({"tpo1": 0.1}, UnknownNameError, "there is no metric 'tpo1' (did you mean 'top1'?)"),
        ({"top1": math.nan}, GateError, "--budget top1=nan is not finite"),
        (
            {"top1": -0.1},
            GateError,
            "--budget top1=-0.1 is negative: only a model that got better would pass",
        ),
        (
            {"kl_divergence": 0.1},
            GateError,
            "--budget kl_divergence=0.1: kl_divergence compares the two models and has no drop",
        ),
        ({"sqnr_db": "5%"}, GateError, "--budget sqnr_db=5% is not a plain number"),
        (
            {"top1": 1.0},
            GateError,
            "--budget top1=1: a drop of 100 points can never fail, because top1 lies between 0 and 1",
        ),
        (
            {"top1_agreement": "0%"},
            GateError,
            "--budget top1_agreement=0% can never fail: top1_agreement lies between 0 and 1",
        ),
    ],
)
def test_a_budget_that_makes_no_sense(budget, error, says):
    with pytest.raises(error) as caught:
        gate_of(**budget)
    assert caught.value.message == says
    assert caught.value.hint


def test_too_few_samples():
    with pytest.raises(TuneError) as caught:
        require_reachable(gate_of(sqnr_db=30.0), 19)
    assert caught.value.message == "only 19 samples are held out, and at least 20 are needed"
    require_reachable(gate_of(sqnr_db=30.0), 20)
    require_reachable(gate_of(top1=0.001), None)


@pytest.mark.parametrize("budget", [{"top1": 0.005}, {"top5": "0.5%"}, {"top1_agreement": 0.995}])
def test_a_budget_that_so_few_samples_cannot_show(budget):
    with pytest.raises(UnreachableBudgetError) as caught:
        require_reachable(gate_of(**budget), 256)
    assert caught.value.message.startswith("256 held-out samples cannot prove a budget of ")
    assert f"hold out {needed(0.005):,} labeled samples" in str(caught.value.hint)
    require_reachable(gate_of(**budget), 540)


def test_a_budget_of_nothing_has_no_number_of_samples():
    with pytest.raises(UnreachableBudgetError) as caught:
        require_reachable(gate_of(top1=0.0), 10_000)
    assert caught.value.hint == "allow 0.027 % or more"


def test_bounds_of_rare_flips_hold():
    """The score bound is exceeded no more often than its level says, also where hardly any answer changes."""
    random = np.random.default_rng(0)
    for samples, drop in ((400, 0.01), (1000, 0.005), (3000, 0.02)):
        lost = random.binomial(samples, drop, 20_000)
        for level, quantile in ((0.025, 1.96), (0.0125, 2.2414)):
            values, counts = np.unique(lost, return_counts=True)
            below = [largest_drop(Flips.counted(samples, int(n), 0), quantile) < drop for n in values]
            assert counts[np.array(below)].sum() / 20_000 <= level * 1.05


def test_a_bootstrap_is_widened_for_a_smaller_level_and_narrowed_for_more_samples():
    item = measurement("sqnr_db", 30.0, quantized_interval=Interval(29.0, 31.0, "bootstrap"))
    gate = gate_of(sqnr_db=28.5)

    def bound(level: float, expected: int | None = None) -> float:
        return budget_checks(gate, [item], 100, level, expected=expected)[0].bound

    assert bound(0.025) == pytest.approx(29.0)
    assert bound(0.0125) == pytest.approx(30 - 2.2414 / 1.96, abs=1e-3)
    assert bound(0.025, 400) == pytest.approx(29.5)


def test_a_budget_on_what_was_not_measured_is_an_error():
    gate = GateSettings(min={"sqnr_db[scors]": 20.0})
    item = measurement("sqnr_db[scores]", 9.0)
    with pytest.raises(GateError, match=re.escape("--budget sqnr_db[scors]: it was not measured")) as caught:
        budget_checks(gate, [item], 20, 0.05)
    assert "sqnr_db[scores]" in caught.value.message


def test_what_has_no_interval_can_not_be_promised():
    item = measurement("mse", 1.0, 1.0, no_interval="there are too few samples")
    with pytest.raises(TuneError) as caught:
        budget_checks(gate_of(mse=0.1), [item], 30, 0.025)
    assert caught.value.message == "no budget on mse can be promised: there are too few samples"
