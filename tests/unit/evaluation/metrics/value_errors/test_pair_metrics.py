"""The label-free metrics against their formulas on whole arrays, and in any split."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.core.errors import MetricError
from ptq_cli.evaluation.metrics.base import PairMetric
from ptq_cli.evaluation.metrics.class_accuracy import Top1Agreement
from ptq_cli.evaluation.metrics.metric_registry import PAIR_METRICS
from ptq_cli.evaluation.metrics.similarities import Cosine
from ptq_cli.evaluation.metrics.value_errors import MaxAbsError, Sqnr
from tests.each_case import each_case

SHAPES = [(40, 10), (40, 3, 5, 5)]


def pair(seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    exact = rng.normal(scale=3.0, size=shape).astype(np.float32)
    return exact, exact + rng.normal(scale=0.5, size=shape).astype(np.float32)


def measure(metric: PairMetric, exact: np.ndarray, noisy: np.ndarray, cuts: list[int] | None = None) -> float:
    for a, b in zip(np.split(exact, cuts or []), np.split(noisy, cuts or []), strict=True):
        metric.update(a, b)
    return metric.compute()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sqnr_is_the_ratio_of_energies(shape: tuple[int, ...]) -> None:
    exact, noisy = pair(1, shape)
    x, y = exact.astype(np.float64), noisy.astype(np.float64)
    expected = 10 * np.log10(np.sum(x**2) / np.sum((x - y) ** 2))
    assert measure(Sqnr(), exact, noisy) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cosine_is_the_mean_over_samples(shape: tuple[int, ...]) -> None:
    exact, noisy = pair(2, shape)
    x, y = (array.astype(np.float64).reshape(len(array), -1) for array in (exact, noisy))
    expected = np.mean(np.sum(x * y, 1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)))
    assert measure(Cosine(), exact, noisy) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_max_abs_error_is_the_largest_difference(shape: tuple[int, ...]) -> None:
    exact, noisy = pair(3, shape)
    expected = np.max(np.abs(exact.astype(np.float64) - noisy.astype(np.float64)))
    assert measure(MaxAbsError(), exact, noisy) == expected


def test_agreement_is_the_share_of_equal_argmax() -> None:
    exact, noisy = pair(4, (200, 10))
    expected = np.mean(np.argmax(exact, 1) == np.argmax(noisy, 1))
    assert 0.3 < expected < 1
    assert measure(Top1Agreement(), exact, noisy) == expected


@given(
    cuts=st.lists(st.integers(0, 40), max_size=8).map(sorted),
    seed=st.integers(0, 20),
    width=st.sampled_from([2, 10, 129, 1000]),
)
@pytest.mark.parametrize("name", PAIR_METRICS)
def test_any_split_gives_the_same_bits(name: str, cuts: list[int], seed: int, width: int) -> None:
    exact, noisy = pair(seed, (40, width))
    whole = measure(PAIR_METRICS[name](), exact, noisy)
    assert measure(PAIR_METRICS[name](), exact, noisy, cuts) == whole


@pytest.mark.parametrize("value", [0.0, 1.5], ids=["all-zero", "equal"])
def test_identical_outputs(value: float) -> None:
    same = np.full((3, 4), value, np.float32)
    values = {name: measure(metric(), same, same.copy()) for name, metric in PAIR_METRICS.items()}
    assert values == {
        "sqnr_db": math.inf,
        "worst_channel_sqnr_db": math.inf,
        "cosine": 1.0,
        "top1_agreement": 1.0,
        "kl_divergence": 0.0,
        "max_abs_error": 0.0,
    }


@each_case(
    "array, accepted",
    [
        (np.zeros((4, 2), np.float16), True),
        (np.zeros((4, 2), np.int64), False),
        (np.zeros((4, 1), np.float32), False),
        (np.zeros((4, 2, 2), np.float32), False),
        (np.zeros((2, 4), np.float32), False),
    ],
    ids=["scores", "integers", "one-class", "feature-map", "samples-not-first"],
)
def test_agreement_accepts_only_class_scores(array: np.ndarray, accepted: bool) -> None:
    assert Top1Agreement.accepts(array, 4) is accepted


@pytest.mark.parametrize(
    ("array", "accepted"),
    [(np.zeros((4, 2, 2)), True), (np.zeros((2, 4)), False), (np.zeros(()), False)],
    ids=["samples-first", "samples-not-first", "scalar"],
)
def test_cosine_accepts_only_samples_on_axis_0(array: np.ndarray, accepted: bool) -> None:
    assert Cosine.accepts(array, 4) is accepted


def test_extremes() -> None:
    exact, _ = pair(5, (500, 33))
    assert measure(Cosine(), exact, exact) == 1.0
    assert measure(Cosine(), np.zeros((1, 2)), np.ones((1, 2))) == 0.0
    assert measure(Sqnr(), np.zeros((1, 2)), np.ones((1, 2))) == -math.inf
    half = np.full((2, 1000), 6e4, np.float16)
    assert measure(Sqnr(), half, half / 2) == pytest.approx(10 * math.log10(4)), "no sum overflows"
    assert measure(MaxAbsError(), np.array([[0]], np.uint8), np.array([[255]], np.uint8)) == 255.0
    for metric, expected in ((Sqnr(), 20.0), (MaxAbsError(), 1.0)):
        metric.update(np.float32(10).reshape(()), np.float32(9).reshape(()))
        assert metric.compute() == expected, "a scalar is one sample"


@pytest.mark.parametrize("name", ["cosine", "top1_agreement", "kl_divergence"])
def test_a_mean_refuses_to_compute_from_nothing(name: str) -> None:
    with pytest.raises(MetricError, match=f"{name} has seen no sample"):
        PAIR_METRICS[name]().compute()
