"""The exact McNemar test against every outcome of the coins, counted."""

from itertools import product

import pytest

from ptq_cli.evaluation.interval import Flips, mcnemar_p_value
from tests.each_case import each_case


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
