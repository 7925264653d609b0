"""Sums that no order changes."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.evaluation.analysis.judge import ExactSum, decibels

NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20)


def total(numbers: list[float]) -> ExactSum:
    result = ExactSum()
    for number in numbers:
        result.add(number)
    return result


@given(NUMBERS)
def test_the_sum_is_the_nearest_float_of_the_real_one(numbers: list[float]) -> None:
    real = sum((Fraction(number) for number in numbers), Fraction())
    try:
        expected = float(real)
    except OverflowError:
        expected = math.inf if real > 0 else -math.inf
    assert total(numbers).value == expected


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="cannot be added exactly"):
        ExactSum().add(number)


def test_decibels_of_very_large_sums() -> None:
    assert decibels(1e300, 1e-300) == pytest.approx(6000)
