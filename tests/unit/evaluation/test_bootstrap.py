"""The bootstrap: against all samples that can be drawn, its coverage, and what it leaves undecided."""

from itertools import product

import numpy as np
import pytest

from ptq_cli.evaluation.bootstrap import bootstrap_intervals, mean_interval, student_quantile
from ptq_cli.evaluation.metrics.base import SampleSums
from ptq_cli.evaluation.uncertainty import with_paired_intervals
from tests.each_case import each_case
from tests.measured import measurement


def bootstrap_interval(rows, of_sums, **options):  # type: ignore[no-untyped-def]
    return bootstrap_intervals(rows, lambda sums: (of_sums(sums),), **options)[0]


def mean(samples: int):  # type: ignore[no-untyped-def]
    return lambda sums: sums[..., 0] / samples


def test_the_ends_are_those_of_every_sample_that_can_be_drawn() -> None:
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])  # symmetric: neither biased nor accelerated
    means = np.sort([np.mean(drawn) for drawn in product(values, repeat=5)])
    interval = bootstrap_interval(values[:, None], mean(5), resamples=20_000)
    low, high = means[int(0.025 * len(means))], means[int(0.975 * len(means))]
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.11)


@pytest.mark.parametrize("skewed", [False, True], ids=["normal", "exponential"])
def test_it_holds_the_true_mean_as_often_as_it_says(skewed: bool) -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        rows = (generator.exponential(1.0, (60, 1)) if skewed else generator.normal(1.0, 1.0, (60, 1))) + 0.0
        interval = bootstrap_interval(rows, mean(60), resamples=500)
        held += interval.low <= 1.0 <= interval.high
    # The standard error of 600 trials is 0.009.
    assert 0.92 <= held / 600 <= 0.975


def test_a_paired_interval_is_narrower_than_the_scores_vary() -> None:
    generator = np.random.default_rng(5)
    before = generator.normal(0.0, 10.0, (400, 1))
    after = before - 0.5 + generator.normal(0.0, 0.1, (400, 1))
    rows = (SampleSums(before, mean(400)), SampleSums(after, mean(400)))
    drop, growth = (
        with_paired_intervals(measurement("mse", 0.0, 0.0, higher_is_better=better), *rows).drop_interval
        for better in (True, False)
    )
    assert 0.48 < drop.low < 0.5 < drop.high < 0.52
    assert (growth.low, growth.high) == pytest.approx((-drop.high, -drop.low), abs=2e-3)


def test_a_ratio_of_sums_is_drawn_as_a_ratio() -> None:
    generator = np.random.default_rng(7)
    rows = np.column_stack([generator.uniform(1, 2, 300), generator.uniform(0.001, 0.002, 300)])
    interval = bootstrap_interval(rows, lambda sums: 10 * np.log10(sums[..., 0] / sums[..., 1]))
    value = 10 * np.log10(rows[:, 0].sum() / rows[:, 1].sum())
    # By the delta method.
    relative = rows / rows.mean(axis=0)
    width = 1.96 * 10 / np.log(10) * np.std(relative[:, 0] - relative[:, 1]) / np.sqrt(300)
    assert (interval.low, interval.high) == pytest.approx((value - width, value + width), abs=0.15 * width)


def test_it_is_the_same_each_time() -> None:
    rows = np.random.default_rng(1).normal(size=(50, 1))
    first, again = (bootstrap_interval(rows, mean(50)) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("rows", [np.ones((1, 1)), np.ones((0, 1))], ids=["one", "none"])
def test_one_sample_has_no_interval(rows: np.ndarray) -> None:
    assert bootstrap_interval(rows, mean(1)) is None


def test_an_infinite_value_is_as_certain_as_its_resamples_and_warns_of_nothing() -> None:
    rows = np.column_stack([np.ones(30), np.zeros(30)])
    found = bootstrap_interval(rows, lambda sums: sums[..., 0] / sums[..., 1])
    assert found is not None and (found.low, found.high) == (np.inf, np.inf)


def test_noise_in_one_sample_only_may_be_missed_by_a_draw() -> None:
    rows = np.column_stack([np.ones(30), np.zeros(30)])
    rows[3, 1] = 0.1
    interval = bootstrap_interval(rows, lambda sums: sums[..., 0] / sums[..., 1])
    assert (interval.high, interval.low > 0) == (np.inf, True)


def test_equal_scores_have_an_interval_without_width() -> None:
    interval = bootstrap_interval(np.full((40, 1), 0.5), mean(40))
    assert (interval.low, interval.high) == (0.5, 0.5)


@each_case(
    "freedom, wanted",
    # Student's table, as in Abramowitz and Stegun 1964, table 26.10.
    [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980), (10**5, 1.960)],
)
def test_the_quantile_is_that_of_the_table(freedom, wanted):
    assert student_quantile(freedom) == pytest.approx(wanted, abs=5e-4)


def test_fewer_than_two_values_or_one_that_is_not_finite_have_no_interval():
    assert mean_interval(np.array([1.0])) is None
    assert mean_interval(np.array([1.0, np.inf])) is None


def test_values_that_are_the_same_have_an_interval_without_width():
    interval = mean_interval(np.full(3, 0.5))
    assert (interval.low, interval.high, interval.method) == (0.5, 0.5, "student")
