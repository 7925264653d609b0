"""One number for how far two models are apart."""

import math

import numpy as np
import pytest

from ptq_cli.recovery.recovery_samples import output_sqnr


def test_the_shares_of_outputs_are_averaged_whatever_their_size() -> None:
    wanted = [[np.array([1.0]), np.array([100.0])], [np.array([1.0]), np.array([100.0])]]
    found = [[np.array([1.0]), np.array([90.0])], [np.array([1.0]), np.array([90.0])]]
    assert output_sqnr(wanted, found) == pytest.approx(-10 * math.log10(0.01 / 2))


def test_edges() -> None:
    same = [[np.array([1.0, 0.0])]]
    assert output_sqnr(same, same) == math.inf
    assert output_sqnr(same, [[np.array([np.nan, 0.0])]]) == -math.inf
    assert output_sqnr(same, [[np.array([1.0])]]) == 0.0
    assert output_sqnr([[np.zeros(2)]], [[np.ones(2)]]) == 0.0
    assert output_sqnr([[[np.ones(2)]]], [[[np.zeros(2)]]]) == math.inf  # type: ignore[list-item]
