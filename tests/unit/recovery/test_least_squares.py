"""The continuous optimum, and the factor that both searches share."""

import numpy as np
import pytest

from ptq_cli.recovery.least_squares import cholesky, fit_least_squares, solve
from ptq_cli.recovery.second_moments import second_moments


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
def test_the_factor_and_the_solution_are_those_of_numpy(size: int) -> None:
    random = np.random.default_rng(size)
    rows = random.standard_normal((2 * size, size))
    matrix = rows.T @ rows + np.eye(size)
    right = random.standard_normal((3, size))
    kept = right.copy()
    lower = cholesky(matrix)
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(solve(lower, right), np.linalg.solve(matrix, right.T).T, rtol=1e-7, atol=1e-9)
    assert right.tobytes() == kept.tobytes()


def test_a_single_row_is_solved_in_a_copy() -> None:
    right = np.array([[2.0, 2.0]])
    assert solve(np.array([[1.0, 0.0], [0.0, 2.0]]), right).tolist() == [[2.0, 0.5]]
    assert right.tolist() == [[2.0, 2.0]]


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(ValueError, match="not positive definite"):
        cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]))


def test_fewer_rows_than_inputs_are_damped_towards_the_weights() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (10, 40)).astype(np.float64)
    weights = random.standard_normal((2, 40))
    y = np.rint(x @ random.standard_normal((40, 2)))
    found = fit_least_squares(
        second_moments(x, y), weights, input_step=1.0, target_step=np.ones(2), has_bias=True
    )
    assert found.damped
    assert np.linalg.eigvalsh(found.curvature).min() > 0.0
    # What no row says anything about stays as it is.
    unseen = np.linalg.svd(x - x.mean(axis=0))[2][10:]
    np.testing.assert_allclose(found.best @ unseen.T, weights @ unseen.T, atol=1e-6)


def test_inputs_that_never_vary_leave_the_weights_as_they_are() -> None:
    x, weights = np.full((50, 3), 7.0), np.array([[1.0, -2.0, 3.0]])
    found = fit_least_squares(
        second_moments(x, np.ones((50, 1))), weights, input_step=0.1, target_step=np.ones(1), has_bias=True
    )
    np.testing.assert_allclose(found.best, weights)
