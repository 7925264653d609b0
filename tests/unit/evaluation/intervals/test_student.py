import numpy as np
import pytest

from ptq_cli.evaluation.bootstrap import mean_interval, student_quantile
from tests.each_case import each_case


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
