"""Wilson's interval: by its defining equation, and its coverage over every outcome."""

import math

import pytest

from ptq_cli.evaluation.interval import (
    NORMAL_QUANTILE,
    Interval,
    samples_for_width,
    samples_to_resolve_share,
    share_interval,
)
from tests.each_case import each_case


@each_case("hits, samples", [(0, 10), (10, 10), (81, 263), (15, 148), (1999, 2000)])
def test_its_ends_are_the_shares_that_the_score_test_just_holds(hits: int, samples: int) -> None:
    interval = share_interval(hits / samples, samples)
    for end in (interval.low, interval.high):
        if 1e-12 < end < 1 - 1e-12:
            standard_error = math.sqrt(end * (1 - end) / samples)
            assert abs(hits / samples - end) / standard_error == pytest.approx(NORMAL_QUANTILE, rel=1e-9)
    assert 0 <= interval.low < interval.high <= 1


def test_published_intervals() -> None:
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


def test_with_the_samples_that_it_names_the_interval_ends_at_the_limit() -> None:
    needed = samples_to_resolve_share(0.82, 0.8)
    assert needed is not None
    assert share_interval(0.82, needed).low == pytest.approx(0.8, abs=1e-4)
    assert samples_to_resolve_share(0.82, 0.82) is None
    assert samples_to_resolve_share(0.82, 1.0) == 1


@each_case("limit, samples", [(55.0, 400), (45.0, 100), (50.0, None), (50.0 + 1e-10, None)])
def test_the_side_that_faces_the_limit_decides(limit: float, samples: int | None) -> None:
    assert samples_for_width(100, 50.0, Interval(45.0, 60.0, "bootstrap"), limit) == samples


def test_an_endless_side_names_no_number() -> None:
    assert samples_for_width(100, 1.0, Interval(0.5, math.inf, "bootstrap"), 2.0) is None
