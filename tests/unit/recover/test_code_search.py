"""The search for integers and scales: what a large layer gets beside what a small one gets."""

import numpy as np
import pytest

from ptq_cli.recover import code_search
from ptq_cli.recover.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recover.least_squares import Quadratic, cholesky, quadratic_forms

OUTPUTS, INPUTS, BLOCK = 24, 38, 19


@pytest.fixture
def layer() -> tuple[Quadratic, CodeGrid, Codes]:
    """Return a layer with correlated inputs, in blocks, rounded to nearest at 4 bits."""
    random = np.random.default_rng(0)
    read = random.normal(size=(500, INPUTS)) @ (np.eye(INPUTS) + 0.3 * random.normal(size=(INPUTS, INPUTS)))
    curvature, weights = read.T @ read / 500, random.normal(size=(OUTPUTS, INPUTS))
    quadratic = Quadratic(
        curvature=curvature, lower=cholesky(curvature).lower, best=weights, pull=weights @ curvature
    )
    block = np.repeat(np.arange(INPUTS // BLOCK), BLOCK).astype(np.int64)
    scales = np.abs(weights.reshape(OUTPUTS, -1, BLOCK)).max(axis=2) / 7
    grid = CodeGrid(lowest=-7, highest=7, block=block, least=np.zeros(OUTPUTS))
    return quadratic, grid, Codes(integers=np.rint(weights / scales[:, block]), scales=scales)


def test_a_large_layer_is_searched_in_fewer_steps_and_hardly_worse(layer, monkeypatch):
    quadratic, grid, nearest = layer
    wanted, *_ = search_codes(quadratic, grid, nearest)
    monkeypatch.setattr(code_search, "MUCH", 0.0)
    found, *_ = search_codes(quadratic, grid, nearest)
    before, thorough, fast = (
        quadratic_forms(quadratic.curvature, quadratic.best - codes.weights(grid.block))
        for codes in (nearest, wanted, found)
    )
    assert (fast <= before).all()
    assert not np.array_equal(found.scales, wanted.scales)
    gains = [10 * np.log10(before.sum() / errors.sum()) for errors in (thorough, fast)]
    assert gains[1] > 0.9 * gains[0] > 2.0
