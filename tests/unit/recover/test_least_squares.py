"""The continuous optimum, and how far it is followed."""

import numpy as np
import pytest

from ptq_cli.recover.least_squares import (
    ELIMINATED_COLUMNS,
    CenteredMoments,
    centered,
    cholesky,
    fit_least_squares,
    near_solution,
    share_that_holds,
)
from ptq_cli.recover.second_moments import second_moments
from tests.each_case import each_case


def moments(x: np.ndarray, y: np.ndarray, *, step: float = 1.0) -> CenteredMoments:
    return centered(second_moments(x, y), input_step=step, target_step=np.ones(y.shape[1]), has_bias=True)


def test_fewer_rows_than_inputs_are_damped_towards_the_weights() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (10, 40)).astype(np.float64)
    weights = random.standard_normal((2, 40))
    y = np.rint(x @ random.standard_normal((40, 2)))
    found = fit_least_squares(moments(x, y), weights)
    assert np.linalg.eigvalsh(found.curvature).min() > 0.0
    # What no row says anything about stays as it is.
    unseen = np.linalg.svd(x - x.mean(axis=0))[2][10:]
    np.testing.assert_allclose(found.best @ unseen.T, weights @ unseen.T, atol=1e-6)


def test_inputs_that_never_vary_leave_the_weights_as_they_are() -> None:
    x, weights = np.full((50, 3), 7.0), np.array([[1.0, -2.0, 3.0]])
    found = fit_least_squares(moments(x, np.ones((50, 1)), step=0.1), weights)
    np.testing.assert_allclose(found.best, weights)


def test_an_optimum_of_noise_is_not_followed_and_one_that_holds_is() -> None:
    random = np.random.default_rng(0)
    x = random.integers(-100, 101, (400, 30)).astype(np.float64)
    weights, other = random.standard_normal((2, 4, 30))
    noise = 1000 * random.standard_normal((400, 4))
    learned, checked = slice(0, 300), slice(300, 400)

    def share(y: np.ndarray) -> float:
        y = np.rint(y)
        parts = ([moments(x[rows], y[rows])] for rows in (learned, checked))
        return share_that_holds(*parts, [weights], [cholesky(moments(x, y).curvature())])

    assert share(x @ weights.T + noise) < 0.3
    assert share(x @ (weights + other).T) > 0.95
    # Where half of what was learned was noise, somewhat more than half the way is right.
    assert 0.2 < share(x @ (weights + 0.25 * other).T + 0.2 * noise) < 0.9


@each_case("size", [1, 33, ELIMINATED_COLUMNS, ELIMINATED_COLUMNS + 1, 2 * ELIMINATED_COLUMNS + 9])
def test_the_factor_and_the_solution_are_those_of_numpy(size: int) -> None:
    random = np.random.default_rng(size)
    rows = random.standard_normal((2 * size, size))
    matrix = rows.T @ rows + np.eye(size)
    right = random.standard_normal((3, size))
    kept = right.copy()
    factor = cholesky(matrix)
    np.testing.assert_allclose(factor.lower, np.linalg.cholesky(matrix), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(factor.solve(right), np.linalg.solve(matrix, right.T).T, rtol=1e-7, atol=1e-9)
    assert right.tobytes() == kept.tobytes()


def test_a_single_row_is_solved_in_a_copy() -> None:
    right = np.array([[2.0, 2.0]])
    assert cholesky(np.diag([1.0, 4.0])).solve(right).tolist() == [[2.0, 0.5]]
    assert right.tolist() == [[2.0, 2.0]]


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(ValueError, match="not positive definite"):
        cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]))


def test_a_solution_is_found_by_the_factor_of_a_matrix_that_is_much_alike() -> None:
    random, size = np.random.default_rng(0), ELIMINATED_COLUMNS + 8
    rows, right = random.standard_normal((4 * size, size)), random.standard_normal((3, size))
    some, all_of = (part.T @ part + np.eye(size) for part in (rows[: 3 * size], rows))
    found = near_solution(some, cholesky(all_of), right)
    assert np.linalg.norm(found @ some - right) < 0.1 * np.linalg.norm(right)
    assert not near_solution(some, cholesky(all_of), np.zeros((3, size))).any()
