"""Distances, clipped shares and noise beside what the values themselves say; and what chance explains."""

import numpy as np
import pytest

from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import fake_quantize, parameters_from_range
from ptq_cli.core.formats import INT8, UINT8
from ptq_cli.monitoring.drift import (
    BLOCKS,
    CLIPPED,
    COUNT,
    ERROR,
    LEAST_DISTANCE,
    POWER,
    Blocks,
    Grid,
    Resampled,
    chance_of,
    clipped_share,
    distances,
    make_grid,
    noise,
    row_of,
)
from tests.day import fewer


def counted(values: np.ndarray) -> TensorStatistics:
    collector = HistogramCollector()
    assert collector.update(values.astype(np.float32))
    return collector.statistics()


def moved(one: np.ndarray, other: np.ndarray) -> float:
    """The Wasserstein distance of as many values, by its definition: sorted, pair by pair."""
    return float(np.abs(np.sort(one) - np.sort(other)).mean())


def held(values: np.ndarray, grid: Grid) -> np.ndarray:
    return np.clip(values, grid.low, grid.high)


CASES = {
    "shifted": lambda x: x + 0.2,
    "wider": lambda x: 1.5 * x,
    "a few far away": lambda x: np.where(np.arange(x.size) % 100 == 0, 40.0, x),
    "zeros instead": lambda x: np.where(np.arange(x.size) % 4 == 0, 0.0, x),
    "less than a step": lambda x: np.where(x > 0, x + 0.01, x),
}


@pytest.mark.parametrize("move", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("low", [-4.0, 0.0], ids=["signed", "behind a ReLU"])
def test_what_a_row_tells_is_what_the_values_tell(move, low):
    random = np.random.default_rng(0)
    old = np.maximum(random.standard_normal(40_000), low)
    new = np.maximum(move(old[random.permutation(old.size)]), low)
    parameters = parameters_from_range(low, 2.5, UINT8)
    grid = make_grid(parameters)
    calibrated, row = (row_of(grid, counted(values)) for values in (old, new))
    # Within the range a cell is two steps; what moves inside one is not seen.
    assert float(distances(grid, row, calibrated)) == pytest.approx(
        moved(held(old, grid), held(new, grid)) / grid.step, abs=0.1, rel=0.02
    )
    outside = ((new < grid.low) | (new > grid.high)).mean()
    assert float(clipped_share(row)) == pytest.approx(outside, abs=2e-4)
    error = ((fake_quantize(new.astype(np.float32), parameters) - new) ** 2).sum() / (new**2).sum()
    assert float(noise(row)) == pytest.approx(error, rel=0.03)


def test_rows_of_blocks_add_up_to_the_row_of_all():
    values = np.random.default_rng(1).standard_normal(30_000)
    grid = make_grid(parameters_from_range(-3.0, 3.0, INT8))
    parts = sum(row_of(grid, counted(part)) for part in np.split(values, 10))
    whole = row_of(grid, counted(values))
    assert parts[COUNT] == whole[COUNT]
    np.testing.assert_allclose(parts, whole, rtol=2e-3, atol=5.0)
    assert (parts[[CLIPPED, ERROR, POWER]] > 0).all()


def test_neighbors_share_a_block_when_there_are_too_many():
    blocks = Blocks()
    for index in range(5 * BLOCKS):
        blocks.add({"x": np.array([1.0, index])}, 2)
    assert blocks.samples == 10 * BLOCKS
    assert BLOCKS <= blocks.count < 2 * BLOCKS
    assert blocks.rows("x").sum(axis=0).tolist() == [5 * BLOCKS, sum(range(5 * BLOCKS))]
    assert np.diff(blocks.rows("x")[:, 1]).min() > 0


def sample_rows(random, count, shift=0.0):
    """Three tensors of samples whose values depend on each other: each sample has a brightness of its own."""
    own = random.standard_normal((count, 1)) + shift
    values = [0.3 * random.standard_normal((count, 50)) + own, np.maximum(own, 0) ** 2, own * np.ones((1, 9))]
    return {f"t{index}": item for index, item in enumerate(values)}


def alarm(seed: int, calibration: int, new: int, shift: float = 0.0) -> bool:
    random = np.random.default_rng(seed)
    old = {name: counted(values) for name, values in sample_rows(random, calibration).items()}
    grids = {name: make_grid(parameters_from_range(-4.0, 4.0, INT8)) for name in old}
    found, blocks = sample_rows(random, new, shift), Blocks()
    for index in range(new):
        blocks.add({name: row_of(grid, counted(found[name][index])) for name, grid in grids.items()}, 1)
    chance = chance_of(blocks, grids, calibration, draws=2000).distances
    sums = {name: blocks.rows(name).sum(axis=0) for name in grids}
    far = {name: float(distances(grid, sums[name], row_of(grid, old[name]))) for name, grid in grids.items()}
    return any(far[name] > max(chance[name], LEAST_DISTANCE) for name in grids)


def test_samples_that_vary_much_raise_no_alarm_and_a_shift_does():
    """The mean of 64 samples is off by an eighth of their spread: four steps here, and no drift."""
    assert [seed for seed in fewer(range(40), 5) if alarm(seed, calibration=64, new=100)] == []
    assert all(alarm(seed, calibration=64, new=100, shift=1.0) for seed in fewer(range(5), 3))


def test_chance_is_wider_where_less_was_seen():
    random = np.random.default_rng(5)
    grid = make_grid(parameters_from_range(-4.0, 4.0, INT8))
    blocks = Blocks()
    for values in sample_rows(random, 64)["t0"]:
        blocks.add({"x": row_of(grid, counted(values))}, 1)
    found = [chance_of(blocks, {"x": grid}, count).distances["x"] for count in (16, 64, 10**6)]
    assert found[0] > found[1] > found[2] > 0
    # Both sets of samples vary: with as many again, twice the variance.
    assert found[1] / found[2] == pytest.approx(2**0.5, rel=1e-3)


def test_the_interval_is_that_of_the_mean_of_samples():
    rows = np.column_stack([np.ones(60), np.random.default_rng(0).standard_normal(60)])
    resampled = Resampled(60)
    sums = resampled.sums(rows)
    interval = resampled.interval(sums[:, 1] / sums[:, 0])
    assert interval is not None and interval.method == "blocks"
    half = 1.96 * rows[:, 1].std() / 60**0.5
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)
    assert Resampled(1).interval(Resampled(1).sums(rows[:1])[:, 1]) is None
