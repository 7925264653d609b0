"""The compiled loops, on numbers that can be checked by hand."""

import itertools

import numpy as np

from ptq_cli.recover.code_loops import CodeCandidates, Tried, all_fit, beside, choose_panel, try_all
from tests.each_case import each_case

NONE = np.empty((2, 0), np.int64)
PAIR = np.array([[1], [0]])


@each_case("code, partner, found", [(9.0, 5.0, 7.0), (9.0, -5.0, 9.0), (-9.0, -5.0, -7.0), (9.0, 0.0, 9.0)])
def test_a_pair_of_one_sign_adds_up_to_at_most_12(code: float, partner: float, found: float) -> None:
    assert beside(code, partner, 12.0) == found


def test_pairs_of_one_sign_alone_are_limited() -> None:
    assert not all_fit(np.array([7.0, 6.0]), PAIR, 12.0)
    assert all_fit(np.array([7.0, -6.0]), PAIR, 12.0) and all_fit(np.array([7.0, 6.0]), NONE, 12.0)


def test_the_nearest_plane_makes_up_for_what_the_last_input_lost() -> None:
    """With equal inputs one integer takes what the other has lost: 0.4 + 0.4 is nearer to 1 than to 0."""
    lower = np.linalg.cholesky(np.array([[1.01, 1.0], [1.0, 1.01]])).astype(np.float32)
    wanted = np.full((2, 1), 0.4, np.float32)
    ones = np.ones((1, 1), np.float32)
    limits = (np.full(1, -7, np.float32), np.full(1, 7, np.float32))
    tried = CodeCandidates(np.zeros(2, np.int64), NONE, ones, ones, *limits, np.float32(np.inf))
    found = Tried(*np.empty((2, 2, 1), np.float32), np.zeros(1, np.float32))
    choose_panel(lower, 0, wanted, np.zeros((2, 1), np.float32), tried, found)
    assert found.codes[:, 0].tolist() == [1.0, 0.0]
    left = wanted[:, 0] - found.codes[:, 0]
    np.testing.assert_allclose(found.errors[0], np.square(left @ lower).sum(), rtol=1e-5)


@each_case("pairs", [NONE, PAIR])
def test_of_few_inputs_the_best_choice_is_found(pairs: np.ndarray) -> None:
    random = np.random.default_rng(0)
    curvature, best = np.array([[2.0, 0.9], [0.9, 1.0]]), random.uniform(3, 7, (5, 2))
    codes, limits = np.zeros((5, 1, 2)), np.array([-7.0, 7.0, 11.0])
    try_all(curvature, best, np.ones((5, 1, 1)), limits, pairs, codes)
    for wanted, found in zip(best, codes[:, 0], strict=True):
        near = itertools.product(*((np.floor(x), np.floor(x) + 1.0) for x in wanted))
        allowed = [np.array(pair) for pair in near if not pairs.size or sum(pair) <= 11.0]
        errors = [(wanted - pair) @ curvature @ (wanted - pair) for pair in allowed]
        expected = allowed[int(np.argmin(errors))] if allowed else np.zeros(2)
        assert found.tolist() == expected.tolist()
