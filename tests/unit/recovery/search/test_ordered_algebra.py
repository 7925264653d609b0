"""Factors, solutions and products are those of numpy."""

import numpy as np
import pytest

from ptq_cli.recovery.second_moments import cholesky, products, solve
from tests.each_case import each_case


@each_case("size", [1, 31, 32, 33, 100])
def test_the_factor_and_the_solution_are_those_of_numpy(size: int) -> None:
    random = np.random.default_rng(size)
    rows = random.standard_normal((2 * size, size))
    matrix = rows.T @ rows + np.eye(size)
    right = random.standard_normal((3, size))
    kept = right.copy()
    lower = cholesky(matrix)
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(solve(lower, right), np.linalg.solve(matrix, right.T).T, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(products(matrix, right), right @ matrix, rtol=1e-9, atol=1e-9)
    assert right.tobytes() == kept.tobytes()


def test_a_single_row_is_solved_in_a_copy() -> None:
    right = np.array([[2.0, 2.0]])
    assert solve(np.array([[1.0, 0.0], [0.0, 2.0]]), right).tolist() == [[2.0, 0.5]]
    assert right.tolist() == [[2.0, 2.0]]


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(ValueError, match="not positive definite"):
        cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]))
