"""Which interval names the number of samples."""

import pytest

from ptq_cli.evaluation.interval import Flips, Interval
from ptq_cli.evaluation.limits import samples_for_drop, samples_for_minimum
from tests.measured import measurement

TOP1 = measurement("top1", 0.826, 0.83, flips=Flips.counted(1000, lost=12, gained=8))
LOSS = measurement("loss", 1.2, 1.0, higher_is_better=False, drop_interval=Interval(0.1, 0.3, "bootstrap"))
SQNR = measurement("sqnr_db", 30.0, quantized_interval=Interval(28.0, 31.0, "bootstrap"))
LARGEST = measurement("max_abs_error", 0.1)


def test_a_drop_of_hits_counts_flips() -> None:
    # 0.6 points from the limit with a standard error of 0.45 points, at the limit: (1.96 · 0.46 / 0.6)².
    assert samples_for_drop(TOP1, 0.01, samples=1000) == pytest.approx(2250, rel=0.1)


def test_a_drop_of_an_error_is_its_growth() -> None:
    assert LOSS.drop == pytest.approx(0.2)
    assert samples_for_drop(LOSS, 0.4, samples=100) == 25
    assert samples_for_drop(LOSS, 0.15, samples=100) == pytest.approx(400, abs=1)


def test_a_minimum_takes_the_lower_side() -> None:
    assert samples_for_minimum(SQNR, 29.0, samples=100) == 400


def test_what_has_no_interval_names_no_number() -> None:
    assert samples_for_drop(SQNR, 1.0, samples=10) is None
    assert samples_for_minimum(LARGEST, 1.0, samples=10) is None
