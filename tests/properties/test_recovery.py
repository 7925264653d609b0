"""What must hold of second moments and of searched codes, whatever the numbers are."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.recover.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recover.least_squares import Quadratic, centered, fit_least_squares, quadratic_forms
from ptq_cli.recover.second_moments import SecondMoments, second_moments
from tests.day import examples

SEEDS = st.integers(0, 2**32 - 1)


def rows_of(seed: int, rows: int, size: int, largest: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-largest, largest + 1, (rows, size)).astype(np.float64)


def values(moments: SecondMoments) -> tuple[int, bytes, bytes, bytes, bytes]:
    arrays = (moments.gram, moments.cross, moments.inputs, moments.targets)
    first, second, third, fourth = (array.tobytes() for array in arrays)
    return moments.rows, first, second, third, fourth


@given(
    seed=SEEDS,
    rows=st.integers(0, 200),
    size=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 200), max_size=4),
    largest=st.sampled_from([1, 255, 65535, 2**24]),
)
def test_moments_are_exact_and_the_same_for_any_split(
    seed: int, rows: int, size: int, cuts: list[int], largest: int
) -> None:
    x, y = rows_of(seed, rows, size, largest), rows_of(seed + 1, rows, 3, 32767)
    whole = second_moments(x, y)
    ends = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    parts = [second_moments(x[a:b], y[a:b]) for a, b in itertools.pairwise(ends)]
    merged = parts[-1]
    for part in parts[:-1]:
        merged = merged.merge(part)
    assert values(merged) == values(whole)
    exact = [
        [sum(int(a) * int(b) for a, b in zip(x[:, i], x[:, j], strict=True)) for j in range(size)]
        for i in range(size)
    ]
    assert whole.gram.tolist() == exact


def problem(seed: int, size: int, channels: int, bits: int, blocks: int) -> tuple[Quadratic, CodeGrid, Codes]:
    """Correlated inputs, as of neighboring pixels, behind an error of the layers before."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((size, size)) + 2.0
    x = np.clip(np.rint(random.standard_normal((400, size)) @ mixing * 10 + 100), 0, 255)
    weights = random.standard_normal((channels, size))
    y = np.rint((x + random.standard_normal(x.shape)) @ weights.T * 4)
    steps = np.full(channels, 0.005)
    means = centered(second_moments(x, y), input_step=0.02, target_step=steps, has_bias=True)
    quadratic = fit_least_squares(means, weights)
    block = np.arange(size) * blocks // size
    highest = (1 << (bits - 1)) - 1
    largest = np.abs(weights).reshape(channels, blocks, -1).max(axis=2)
    scales = (largest / highest).astype(np.float32).astype(np.float64)
    nearest = Codes(integers=np.clip(np.rint(weights / scales[:, block]), -highest, highest), scales=scales)
    grid = CodeGrid(lowest=-highest, highest=highest, block=block, least=np.zeros(channels), free=True)
    return quadratic, grid, nearest


@examples(40)
@given(
    seed=SEEDS,
    shape=st.sampled_from([(4, 1), (9, 1), (12, 1), (12, 3), (40, 1), (40, 5)]),
    channels=st.integers(1, 20),
    bits=st.sampled_from([2, 3, 4, 8]),
)
def test_searched_codes_are_no_worse_than_the_nearest_and_no_single_change_improves_them(
    seed: int, shape: tuple[int, int], channels: int, bits: int
) -> None:
    size, blocks = shape
    quadratic, grid, nearest = problem(seed, size, channels, bits, blocks)
    found, *_ = search_codes(quadratic, grid, nearest, threads=2)
    errors = quadratic_forms(quadratic.curvature, quadratic.best - found.weights(grid.block))
    tolerance = 1e-9 * np.abs(quadratic.pull * quadratic.best).sum(axis=1)
    assert (
        errors
        <= quadratic_forms(quadratic.curvature, quadratic.best - nearest.weights(grid.block)) + tolerance
    ).all()
    assert (np.abs(found.integers) <= grid.highest).all()
    assert (found.integers == np.rint(found.integers)).all()
    assert (found.scales == found.scales.astype(np.float32)).all()
    for index in range(size):
        for step in (-1, 1):
            other = found.integers.copy()
            other[:, index] = np.clip(other[:, index] + step, grid.lowest, grid.highest)
            changed = quadratic_forms(
                quadratic.curvature,
                quadratic.best - Codes(integers=other, scales=found.scales).weights(grid.block),
            )
            assert (changed >= errors - tolerance).all()
