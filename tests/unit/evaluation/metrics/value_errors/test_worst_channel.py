"""The worst channel against its formula on whole arrays, in any split, and with more samples than blocks."""

import math

import numpy as np
import pytest

from ptq_cli.evaluation.document.measurement import Channel, Measurement
from ptq_cli.evaluation.metrics import value_errors as worst_channel
from ptq_cli.evaluation.metrics.value_errors import WorstChannelSqnr
from ptq_cli.evaluation.uncertainty import with_interval
from tests.each_case import each_case
from tests.measured import measurement


def outputs(shape: tuple[int, ...], axis: int, worst: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise everywhere, and values that are small in one channel."""
    random = np.random.default_rng(len(shape))
    exact = random.standard_normal(shape).astype(np.float32)
    np.moveaxis(exact, axis, 0)[worst] /= 30
    return exact, exact + 0.01 * random.standard_normal(shape).astype(np.float32)


def expected_db(exact: np.ndarray, noisy: np.ndarray, axis: int) -> np.ndarray:
    x, y = (
        np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(float) for array in (exact, noisy)
    )
    return 10 * np.log10(np.sum(x**2, 1) / np.sum((x - y) ** 2, 1))


def measured(metric: WorstChannelSqnr) -> Measurement:
    return measurement("worst_channel_sqnr_db", metric.compute())


@each_case(
    "shape, axis",
    [
        ((40, 10), 1),
        ((40, 6, 70), 1),
        ((40, 70, 6), 2),
        ((40, 3, 5, 5), 1),
        ((40, 8, 8, 3), 3),
        ((40, 4, 4), 1),
    ],
    ids=str,
)
@each_case("cuts", [[], [1, 7, 30]], ids=["whole", "split"])
def test_it_is_the_smallest_ratio_of_a_channel(shape, axis, cuts):
    exact, noisy = outputs(shape, axis, worst=2)
    metric = WorstChannelSqnr()
    for a, b in zip(np.split(exact, cuts), np.split(noisy, cuts), strict=True):
        metric.update(a, b)
    found = expected_db(exact, noisy, axis)
    assert metric.compute() == pytest.approx(found.min(), rel=1e-12)
    assert metric.channel == Channel(axis, 2)
    assert found.min() < np.sort(found)[1] - 6


def test_a_score_near_zero_beside_many_others_is_not_the_worst():
    random = np.random.default_rng(0)
    exact = np.tile(random.standard_normal(1000), (64, 1))
    exact[:, 7] = 1e-4
    noise = 0.01 * random.standard_normal(exact.shape)
    noise[:, 3] *= 2
    whole, first, second = WorstChannelSqnr(), WorstChannelSqnr(), WorstChannelSqnr()
    whole.update(exact, exact + noise)
    assert expected_db(exact, exact + noise, 1)[7] < -30
    assert whole.channel == Channel(1, 3)
    expected = 10 * np.log10(np.sum(exact**2) / 1000 / np.sum(noise[:, 3] ** 2))
    assert whole.compute() == pytest.approx(expected, rel=1e-9)
    first.update(exact[:32], (exact + noise)[:32])
    second.join([first.state()])
    second.update(exact[32:], (exact + noise)[32:])
    assert second.compute() == whole.compute()
    interval = with_interval(measured(whole), whole.resampling(), 64).quantized_interval
    assert interval.low < whole.compute() < interval.high


def test_a_channel_that_is_always_zero_is_left_out():
    exact = np.float32([[0, 1, 10], [0, 1, 10]])
    noisy = np.float32([[0.5, 1.1, 10], [0.5, 1.1, 10]])
    metric = WorstChannelSqnr()
    metric.update(exact, noisy)
    assert (round(metric.compute(), 3), metric.channel) == (20.0, Channel(1, 1))


@pytest.mark.parametrize(("noise", "expected"), [(0.0, math.inf), (1.0, -math.inf)])
def test_without_a_channel_that_has_a_ratio_it_is_that_of_the_output(noise, expected):
    metric = WorstChannelSqnr()
    assert metric.compute() == math.inf
    metric.update(np.zeros((3, 4)), np.full((3, 4), noise))
    assert (metric.compute(), metric.channel) == (expected, None)


def test_an_axis_that_grows_is_summed_over_the_batches_that_have_it():
    metric = WorstChannelSqnr()
    metric.update(np.ones((2, 3, 40)), np.full((2, 3, 40), 1.01))
    metric.update(np.ones((2, 5, 40)), np.full((2, 5, 40), 1.1))
    assert (round(metric.compute(), 9), metric.channel) == (20.0, Channel(1, 3))


@pytest.mark.parametrize("samples", [100, 1000, 1025])
def test_its_interval_holds_it_for_few_samples_and_for_more_than_there_are_blocks(samples, monkeypatch):
    monkeypatch.setattr(worst_channel, "_MOST_BLOCKS", 64)
    exact, noisy = outputs((samples, 10), 1, worst=4)
    metric = WorstChannelSqnr()
    metric.update(exact, noisy)
    assert metric.compute() == pytest.approx(expected_db(exact, noisy, 1).min(), rel=1e-9)
    interval = with_interval(measured(metric), metric.resampling(), samples).quantized_interval
    assert interval.low < metric.compute() < interval.high
    assert interval.high - interval.low < 4.0
    assert interval.method == "blocks"


def test_with_too_many_channels_for_blocks_it_has_no_interval(monkeypatch):
    monkeypatch.setattr(worst_channel, "_BLOCK_MEMORY", 16 * 8 * 10)
    exact, noisy = outputs((100, 10), 1, worst=4)
    metric = WorstChannelSqnr()
    metric.update(exact, noisy)
    assert metric.resampling() == "it has too many channels to keep their sums for blocks of samples"
    assert metric.compute() == pytest.approx(expected_db(exact, noisy, 1).min(), rel=1e-9)


def test_it_goes_on_from_its_state():
    exact, noisy = outputs((600, 10), 1, worst=4)
    whole, first, second = WorstChannelSqnr(), WorstChannelSqnr(), WorstChannelSqnr()
    whole.update(exact, noisy)
    first.update(exact[:300], noisy[:300])
    second.join([first.state()])
    second.update(exact[300:], noisy[300:])
    assert second.compute() == whole.compute()
    assert (second.resampling().rows == whole.resampling().rows).all()
