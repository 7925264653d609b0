"""The search of many channels at once, with and without zero points."""

import numpy as np
import pytest

from ptq_cli.recover.block_search import ROWS_AT_ONCE, search_blocks
from ptq_cli.recover.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recover.least_squares import Quadratic, cholesky, quadratic_forms
from ptq_cli.recover.second_moments import Float64s

OUTPUTS, BLOCK, BLOCKS = ROWS_AT_ONCE + 8, 16, 5
INPUTS = BLOCK * BLOCKS


@pytest.fixture(scope="module")
def curvature() -> Float64s:
    """Return the moments of correlated inputs."""
    random = np.random.default_rng(0)
    mixed = np.eye(INPUTS) + 0.1 * random.normal(size=(INPUTS, INPUTS))
    read = random.normal(size=(400, INPUTS)) @ mixed
    return read.T @ read / 400


def nearest_of(weights: Float64s, *, zeros: bool) -> tuple[CodeGrid, Codes]:
    """Return the integers nearest to weights, and what others may be."""
    parts, block = weights.reshape(len(weights), BLOCKS, BLOCK), np.repeat(np.arange(BLOCKS), BLOCK)
    lowest, highest, points = -7, 7, np.zeros((len(weights), BLOCKS))
    if zeros:
        lowest, highest, low = 0, 15, np.minimum(parts.min(axis=2), 0.0)
        scales = np.float32((np.maximum(parts.max(axis=2), 0.0) - low) / 15).astype(np.float64)
        points = np.rint(-low / scales)
    else:
        scales = np.float32(np.abs(parts).max(axis=2) / 7).astype(np.float64)
    codes = np.rint(parts / scales[..., None]) + points[..., None]
    integers = (np.clip(codes, lowest, highest) - points[..., None]).reshape(weights.shape)
    grid = CodeGrid(lowest=lowest, highest=highest, block=block, least=np.zeros(len(weights)))
    return grid, Codes(integers=integers, scales=scales, zeros=points if zeros else None)


@pytest.mark.parametrize("zeros", [False, True])
def test_integers_fit_the_grid_and_no_channel_is_worse(curvature: Float64s, zeros: bool) -> None:
    weights = np.random.default_rng(1).normal(size=(OUTPUTS, INPUTS))
    grid, nearest = nearest_of(weights, zeros=zeros)
    parts = (curvature, cholesky(curvature).lower, weights, grid, nearest)
    found, before, after = search_blocks(*parts)
    integers, scales, points = found.arrays
    stored = integers + points[:, grid.block]
    assert (stored.min(), stored.max()) == (grid.lowest, grid.highest)
    assert np.array_equal(scales, np.float32(scales))
    assert np.array_equal(points, np.clip(np.rint(points), 0, 15))
    lost = weights - found.weights(grid.block)
    assert after == pytest.approx(((lost @ curvature) * lost).sum(axis=1), rel=1e-5)
    assert (after <= before).all()
    assert 10 * np.log10(before.sum() / after.sum()) > 3.0
    again = search_blocks(*parts, threads=2)[0]
    assert all(np.array_equal(*pair) for pair in zip(found.arrays, again.arrays, strict=True))


def test_it_is_nearly_as_good_as_the_search_of_one_channel_after_the_other(curvature: Float64s) -> None:
    weights = np.random.default_rng(1).normal(size=(16, INPUTS))
    grid, nearest = nearest_of(weights, zeros=False)
    lower = cholesky(curvature).lower
    quadratic = Quadratic(curvature=curvature, lower=lower, best=weights, pull=weights @ curvature)
    thorough = quadratic_forms(
        quadratic.curvature, quadratic.best - search_codes(quadratic, grid, nearest)[0].weights(grid.block)
    ).sum()
    found = search_blocks(curvature, lower, weights, grid, nearest)[2].sum()
    assert abs(10 * np.log10(thorough / found)) < 0.5


def test_a_channel_of_zeros_and_scales_that_are_too_small_are_left_alone(curvature: Float64s) -> None:
    weights = np.random.default_rng(2).normal(size=(2, INPUTS))
    weights[0] = 0.0
    grid, nearest = nearest_of(np.where(weights == 0.0, 1.0, weights), zeros=False)
    known = Codes(integers=nearest.integers * (weights != 0.0), scales=nearest.scales)
    found = search_blocks(curvature, cholesky(curvature).lower, weights, grid, known)[0]
    assert not found.integers[0].any()
    assert np.array_equal(found.scales[0], known.scales[0])
