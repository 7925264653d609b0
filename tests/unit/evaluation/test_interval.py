"""Tango's and Wilson's intervals: by their defining equations, and their coverage over every outcome."""

import math
from itertools import product

import pytest

from ptq_cli.evaluation.interval import (
    NORMAL_QUANTILE,
    Flips,
    Interval,
    drop_interval,
    mcnemar_p_value,
    samples_for_width,
    samples_to_resolve,
    samples_to_resolve_share,
    score_statistic,
    share_interval,
)
from tests.each_case import each_case


def flips(samples: int, lost: int, gained: int) -> Flips:
    return Flips.counted(samples, lost, gained)


def searched_statistic(found: Flips, drop: float) -> float:
    """The statistic by its definition: the likeliest share of gained samples is searched, not solved for."""

    def log_likelihood(gained: float) -> float:
        counts = (found.lost, found.gained, found.samples - found.lost - found.gained)
        shares = (gained + drop, gained, 1 - 2 * gained - drop)
        return sum(n * math.log(max(p, 1e-300)) for n, p in zip(counts, shares, strict=True) if n)

    low, high = max(0.0, -drop), (1 - drop) / 2
    for _ in range(200):  # it has one maximum, so thirds close in on it
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if log_likelihood(left) < log_likelihood(right) else (low, right)
    variance = found.samples * (2 * low + drop - drop**2)
    return (found.lost - found.gained - found.samples * drop) / math.sqrt(variance)


@each_case("drop", [-0.4, -0.05, 0.0, 0.01, 0.2, 0.7])
@each_case("lost, gained", [(0, 3), (3, 0), (5, 2), (2, 9), (20, 20), (1, 39)])
def test_the_statistic_is_that_of_the_likeliest_population(lost: int, gained: int, drop: float) -> None:
    found = flips(40, lost, gained)
    assert score_statistic(found, drop) == pytest.approx(searched_statistic(found, drop), abs=1e-5)


def test_at_no_drop_it_is_mcnemars_statistic() -> None:
    assert score_statistic(flips(500, 17, 8), 0.0) == pytest.approx(9 / 5)


@each_case(
    "samples, lost, gained, low, high",
    [
        # Fagerland, Lydersen and Laake 2014, table of the airway hyper-responsiveness study.
        (21, 1, 7, -0.517, -0.026),
        # Without a flip the ends are z² / (n + z²).
        (1000, 0, 0, -0.003827, 0.003827),
    ],
)
def test_published_intervals(samples: int, lost: int, gained: int, low: float, high: float) -> None:
    found = drop_interval(flips(samples, lost, gained))
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-4)
    assert found.method == "score"


@each_case("lost, gained", [(0, 0), (30, 0), (0, 30), (15, 15), (3, 1)])
def test_swapping_the_models_mirrors_the_interval(lost: int, gained: int) -> None:
    one, other = drop_interval(flips(30, lost, gained)), drop_interval(flips(30, gained, lost))
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-15)
    assert -1 <= one.low <= flips(30, lost, gained).drop <= one.high <= 1


def coverage(samples: int, lost_share: float, gained_share: float) -> float:
    """The probability that the interval holds the true drop, over every outcome there is."""
    total = 0.0
    for lost in range(samples + 1):
        for gained in range(samples - lost + 1):
            interval = drop_interval(flips(samples, lost, gained))
            if interval.low <= lost_share - gained_share <= interval.high:
                rest = samples - lost - gained
                ways = math.comb(samples, lost) * math.comb(samples - lost, gained)
                alike = 1 - lost_share - gained_share
                total += ways * lost_share**lost * gained_share**gained * alike**rest
    return total


@each_case("lost_share, gained_share", [(0.05, 0.05), (0.1, 0.05), (0.2, 0.1), (0.3, 0.3), (0.15, 0.0)])
def test_the_interval_holds_the_true_drop_as_often_as_it_says(lost_share: float, gained_share: float) -> None:
    assert 0.935 <= coverage(32, lost_share, gained_share) <= 0.985


@each_case("lost, gained", [(0, 0), (12, 5), (3, 9)])
@each_case("limit", [0.0, 0.01, 0.05])
def test_with_the_samples_that_it_names_the_interval_ends_at_the_limit(lost, gained, limit):
    if (lost, gained, limit) == (0, 0, 0.0):
        assert samples_to_resolve(flips(1000, lost, gained), limit) is None
        return
    needed = samples_to_resolve(flips(1000, lost, gained), limit)
    assert needed is not None
    # As many times the samples, as many times the flips: the statistic is then exactly the quantile's.
    grown = score_statistic(flips(1000, lost, gained), limit) * math.sqrt(needed / 1000)
    assert abs(grown) == pytest.approx(NORMAL_QUANTILE, rel=0.01)


def test_no_number_of_samples_tells_a_drop_from_itself() -> None:
    assert samples_to_resolve(flips(100, 3, 2), limit=0.03 - 0.02) is None


def enumerated(lost: int, gained: int) -> float:
    """The share of all tosses of ``lost + gained`` coins that are at least as one-sided."""
    flips = lost + gained
    extreme = sum(
        abs(2 * sum(coins) - flips) >= abs(lost - gained) for coins in product((0, 1), repeat=flips)
    )
    return extreme / 2**flips


@each_case("flips", range(11))
def test_it_is_the_share_of_outcomes_at_least_as_one_sided(flips: int) -> None:
    for lost in range(flips + 1):
        assert mcnemar_p_value(lost, flips - lost) == enumerated(lost, flips - lost)


def test_thousands_of_flips_neither_overflow_nor_vanish() -> None:
    # The normal approximation with continuity correction: z = 3.
    assert mcnemar_p_value(5150, 4849) == pytest.approx(0.0027, abs=1e-4)
    assert mcnemar_p_value(10_000, 0) == 0.0
    assert mcnemar_p_value(5000, 5000) == 1.0


def test_the_drop_is_the_difference_of_the_shares() -> None:
    assert Flips.counted(200, lost=3, gained=7).drop == -0.02


@each_case("hits, samples", [(0, 10), (10, 10), (81, 263), (15, 148), (1999, 2000)])
def test_its_ends_are_the_shares_that_the_score_test_just_holds(hits: int, samples: int) -> None:
    interval = share_interval(hits / samples, samples)
    for end in (interval.low, interval.high):
        if 1e-12 < end < 1 - 1e-12:
            standard_error = math.sqrt(end * (1 - end) / samples)
            assert abs(hits / samples - end) / standard_error == pytest.approx(NORMAL_QUANTILE, rel=1e-9)
    assert 0 <= interval.low < interval.high <= 1


def test_published_intervals_of_shares() -> None:
    # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3.
    for hits, samples, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
    ):
        found = share_interval(hits / samples, samples)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@each_case("share", [0.1, 0.3, 0.5, 0.8, 0.95])
def test_it_holds_the_true_share_as_often_as_it_says(share: float) -> None:
    held = 0.0
    for hits in range(101):
        interval = share_interval(hits / 100, 100)
        if interval.low <= share <= interval.high:
            held += math.comb(100, hits) * share**hits * (1 - share) ** (100 - hits)
    assert 0.93 <= held <= 0.98


def test_with_the_samples_that_it_names_the_interval_of_a_share_ends_at_the_limit() -> None:
    needed = samples_to_resolve_share(0.82, 0.8)
    assert needed is not None
    assert share_interval(0.82, needed).low == pytest.approx(0.8, abs=1e-4)
    assert samples_to_resolve_share(0.82, 0.82) is None
    assert samples_to_resolve_share(0.82, 1.0) == 1


@each_case("limit, samples", [(55.0, 400), (45.0, 100), (50.0, None), (50.0 + 1e-10, None)])
def test_the_side_that_faces_the_limit_decides(limit: float, samples: int | None) -> None:
    assert samples_for_width(100, 50.0, Interval(45.0, 60.0, "bootstrap"), limit) == samples
    assert samples_for_width(100, 1.0, Interval(0.5, math.inf, "bootstrap"), 2.0) is None
