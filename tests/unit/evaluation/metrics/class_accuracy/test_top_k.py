"""Top-k against numpy's argmax and a stable sort."""

import numpy as np
import pytest

from ptq_cli.core.errors import MetricError
from ptq_cli.evaluation.metrics.class_accuracy import TopK
from tests.each_case import each_case


def top_k(k: int, output: np.ndarray, labels: np.ndarray) -> float:
    metric = TopK(k)
    metric.update(output, labels)
    return metric.compute()


def scores(seed: int, samples: int, classes: int, *, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    output = rng.normal(size=(samples, classes)).astype(np.float32)
    return (np.round(output) if ties else output), rng.integers(0, classes, samples)


@each_case("ties", [False, True], ids=["distinct", "many-ties"])
@each_case("seed", range(3))
def test_top1_is_argmax_accuracy(seed: int, ties: bool) -> None:
    output, labels = scores(seed, 200, 7, ties=ties)
    assert top_k(1, output, labels) == np.mean(np.argmax(output, axis=1) == labels)


@each_case("ties", [False, True], ids=["distinct", "many-ties"])
@each_case("seed", range(3))
def test_top5_is_membership_in_a_stable_sort(seed: int, ties: bool) -> None:
    output, labels = scores(seed, 200, 11, ties=ties)
    best = np.argsort(-output, axis=1, kind="stable")[:, :5]
    assert top_k(5, output, labels) == np.mean(np.any(best == labels[:, None], axis=1))


@pytest.mark.parametrize(("label", "share"), [(0, 1.0), (1, 0.0)], ids=["lower-index", "higher-index"])
def test_of_equal_values_the_lower_index_wins(label: int, share: float) -> None:
    assert top_k(1, np.array([[0.5, 0.5]]), np.array([label])) == share


def test_top5_refuses_four_classes() -> None:
    with pytest.raises(MetricError, match="top5 needs an output with 5 classes or more, got 4"):
        top_k(5, np.zeros((1, 4)), np.array([0]))


def test_top1_refuses_a_single_class() -> None:
    with pytest.raises(MetricError, match="top1 needs an output with 2 classes or more, got 1"):
        top_k(1, np.zeros((3, 1)), np.array([0, 0, 0]))


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4)], ids=["rank-1", "rank-3"])
def test_refuses_another_rank(shape: tuple[int, ...]) -> None:
    with pytest.raises(MetricError, match=r"top1 needs an output of shape \[samples, classes\], got \[2"):
        top_k(1, np.zeros(shape), np.array([0, 0]))
