"""How far outputs are from those of another model."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import serialize
from ptq_cli.recover.output_noise import model_sqnr, noise_of, sqnr_of
from tests.unit.plan.graphs import build, sample


def sqnr(wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    return sqnr_of([noise_of(one, other) for one, other in zip(wanted, found, strict=True)])


def test_the_shares_of_outputs_are_averaged_whatever_their_size() -> None:
    wanted = [[np.array([1.0]), np.array([100.0])], [np.array([1.0]), np.array([100.0])]]
    found = [[np.array([1.0]), np.array([90.0])], [np.array([1.0]), np.array([90.0])]]
    assert sqnr(wanted, found) == pytest.approx(-10 * math.log10(0.01 / 2))


def test_edges() -> None:
    same = [[np.array([1.0, 0.0])]]
    assert sqnr(same, same) == math.inf
    assert sqnr(same, [[np.array([np.nan, 0.0])]]) == -math.inf
    assert sqnr(same, [[np.array([1.0])]]) == 0.0
    assert sqnr([[np.zeros(2)]], [[np.ones(2)]]) == 0.0
    assert sqnr([[[np.ones(2)]]], [[[np.zeros(2)]]]) == math.inf  # type: ignore[list-item]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_model_that_surely_has_less_than_is_asked_has_nothing(threads: int) -> None:
    text = "(float[n, 8] x) => (float[n, 4] y) <float[8, 4] w> { y = MatMul (x, w) }"
    one, other = (
        serialize(build(text, constants={"w": np.full((8, 4), value, np.float32)})) for value in (1.0, 1.1)
    )
    pieces = [sample(one.load(), seed=seed) for seed in range(12)]
    judge = model_sqnr(one, pieces, threads=threads)
    assert judge(other) == judge(other, at_least=19.9) == pytest.approx(20.0, abs=1e-3)
    assert judge(one, at_least=60.0) > 100.0
    assert judge(other, at_least=60.0) == -math.inf
    assert judge(other, at_least=20.1) == -math.inf, "the noise of all pieces is a little too much"
