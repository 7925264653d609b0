"""Metrics with labels against scikit-learn and SciPy on the same predictions, in any split, and continued."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine as cosine_distance
from scipy.stats import spearmanr
from sklearn.metrics import (
    f1_score,
    jaccard_score,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    recall_score,
    roc_auc_score,
    top_k_accuracy_score,
)

from ptq_cli.core.errors import LabelError, MetricError
from ptq_cli.evaluation.metrics.base import LabelMetric, Reweighed, SampleSums
from ptq_cli.evaluation.metrics.class_accuracy import ClassAccuracy
from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS, REQUESTED_COMPARISONS, make_label_metric
from tests.each_case import each_case

SAMPLES, CLASSES = 60, 7
SEEDS = range(4)

Arrays = tuple[np.ndarray, np.ndarray]


def scores(seed: int, classes: int = CLASSES) -> Arrays:
    """Class scores with ties, and labels of which one class has none."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes - 1, SAMPLES) if classes > 2 else random.integers(0, 2, SAMPLES)
    output = np.round(random.normal(size=(SAMPLES, classes)) + np.eye(classes)[labels], 1)
    return output.astype(np.float32), labels


def numbers(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    labels = random.normal(1e3, 1.0, (SAMPLES, 3))
    return (labels + random.normal(scale=0.5, size=labels.shape)).astype(np.float64), labels


def masks(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES - 1, (SAMPLES, 4, 5))
    output = random.normal(size=(SAMPLES, CLASSES, 4, 5)) + np.moveaxis(np.eye(CLASSES)[labels], -1, 1)
    return output.astype(np.float32), labels


def pairs(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return random.normal(size=(SAMPLES, 4)), np.repeat(np.round(random.uniform(0, 5, SAMPLES // 2)), 2)


def tokens(seed: int) -> Arrays:
    """Scores of tokens, and the wanted tokens: -100 at the end, and in one sequence everywhere."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, (SAMPLES, 6))
    output = random.normal(size=(SAMPLES, 6, CLASSES)) + 2 * np.eye(CLASSES)[labels]
    labels[np.arange(6) >= random.integers(1, 7, SAMPLES)[:, None]] = -100
    labels[3] = -100
    return output.astype(np.float32), labels


def sequences(seed: int) -> Arrays:
    """As ``tokens``, where about half of the sequences are right."""
    output, labels = tokens(seed)
    output[:40] += 9 * np.eye(CLASSES, dtype=np.float32)[np.maximum(labels[:40], 0)]
    return output, labels


def embeddings(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    labels = random.normal(size=(SAMPLES, 5))
    return labels + random.normal(scale=0.3, size=labels.shape), labels


def perplexity(output: np.ndarray, labels: np.ndarray) -> float:
    """As PyTorch has it."""
    scores, wanted = (
        torch.from_numpy(output).double().reshape(-1, CLASSES),
        torch.from_numpy(labels).reshape(-1),
    )
    return float(torch.nn.functional.cross_entropy(scores, wanted, ignore_index=-100).exp())


def softmax(output: np.ndarray) -> np.ndarray:
    exponents = np.exp(output.astype(np.float64))
    return exponents / exponents.sum(axis=1, keepdims=True)


def macro_auroc(output: np.ndarray, labels: np.ndarray) -> float:
    """Of the classes that have samples, each against the rest: scikit-learn refuses one that has none."""
    probability = softmax(output)
    areas = [roc_auc_score(labels == one, probability[:, one]) for one in np.unique(labels)]
    return float(np.mean(areas))


def spearman(output: np.ndarray, labels: np.ndarray) -> float:
    one, other = output[::2], output[1::2]
    cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    return float(spearmanr(cosine, labels[::2]).statistic)


@dataclass(frozen=True)
class Case:
    make: Callable[[int], Arrays]
    reference: Callable[[np.ndarray, np.ndarray], float]


CASES = {
    "top1": Case(scores, lambda o, t: float(np.mean(o.argmax(1) == t))),
    "top3": Case(
        lambda seed: (np.random.default_rng(seed).normal(size=(SAMPLES, CLASSES)), scores(seed)[1]),
        lambda o, t: float(top_k_accuracy_score(t, o, k=3, labels=range(CLASSES))),
    ),
    "class_accuracy": Case(
        scores,
        lambda o, t: float(
            recall_score(t, o.argmax(1), average="macro", labels=np.unique(t), zero_division=0)
        ),
    ),
    "f1": Case(scores, lambda o, t: float(f1_score(t, o.argmax(1), average="macro"))),
    "auroc": Case(scores, macro_auroc),
    "mse": Case(numbers, lambda o, t: float(mean_squared_error(t, o))),
    "mae": Case(numbers, lambda o, t: float(mean_absolute_error(t, o))),
    "r2": Case(numbers, lambda o, t: float(r2_score(t, o))),
    "mean_iou": Case(
        masks, lambda o, t: float(jaccard_score(t.ravel(), o.argmax(1).ravel(), average="macro"))
    ),
    "perplexity": Case(tokens, perplexity),
    "masked_top1": Case(tokens, lambda o, t: float((o.argmax(2) == t)[t != -100].mean())),
    "next_token_agreement": Case(tokens, lambda o, t: float((o.argmax(2) == t)[t != -100].mean())),
    "exact_match": Case(
        sequences,
        lambda o, t: float(
            np.mean([(r[s != -100].argmax(1) == s[s != -100]).all() for r, s in zip(o, t, strict=True)])
        ),
    ),
    "cosine_of_embeddings": Case(
        embeddings,
        lambda o, t: float(np.mean([1 - cosine_distance(a, b) for a, b in zip(o, t, strict=True)])),
    ),
    "spearman": Case(pairs, spearman),
}


def measured(name: str, output: np.ndarray, labels: np.ndarray, cuts: list[int] | None = None) -> LabelMetric:
    metric = make_label_metric(name, {})
    for one, other in zip(np.split(output, cuts or []), np.split(labels, cuts or []), strict=True):
        metric.update(one, other)
    return metric


def test_every_metric_has_a_reference() -> None:
    assert {*LABEL_METRICS, *REQUESTED_COMPARISONS} - {"top5"} <= set(CASES)


@each_case("seed", SEEDS)
@each_case("name", CASES)
def test_it_is_the_references_value(name: str, seed: int) -> None:
    arrays = CASES[name].make(seed)
    assert measured(name, *arrays).compute() == pytest.approx(CASES[name].reference(*arrays), rel=1e-9)


@each_case("cuts", [[1], [7, 8, 31], list(range(1, SAMPLES))], ids=["one", "odd", "each"])
@each_case("name", CASES)
def test_any_split_gives_the_same_bits(name: str, cuts: list[int]) -> None:
    arrays = CASES[name].make(5)
    assert measured(name, *arrays, cuts).compute() == measured(name, *arrays).compute()


@each_case("name", CASES)
def test_it_goes_on_from_its_state(name: str) -> None:
    output, labels = CASES[name].make(6)
    begun, continued = measured(name, output[:23], labels[:23]), make_label_metric(name, {})
    continued.join([begun.state()])
    continued.update(output[23:], labels[23:])
    assert continued.compute() == measured(name, output, labels).compute()


@each_case("name", CASES)
def test_samples_that_count_twice_are_as_samples_that_are_there_twice(name: str) -> None:
    output, labels = CASES[name].make(7)
    size = 2 if name == "spearman" else 1
    units = np.random.default_rng(1).integers(0, SAMPLES // size, SAMPLES // size)
    rows = np.concatenate([np.arange(size) + unit * size for unit in units])
    drawn = measured(name, output[rows], labels[rows]).compute()
    found: Any = measured(name, output, labels).resampling()
    if isinstance(found, SampleSums):
        value = float(found.of_sums(found.rows[units].sum(axis=0)))
    else:
        assert isinstance(found, Reweighed) and found.units == len(units)
        value = found.of_weights(np.bincount(units, minlength=found.units).astype(np.float64))
    # R² takes the mean of the targets from all samples, so that the same digits are lost elsewhere.
    assert value == pytest.approx(drawn, rel=1e-7)


def test_class_accuracy_is_the_balanced_one_and_says_each_class() -> None:
    output, labels = scores(3)
    worse = output.copy()
    worse[labels == 2] = 0.0
    one, other = measured("class_accuracy", output, labels), measured("class_accuracy", worse, labels)
    assert one.compute() == pytest.approx(
        np.mean([np.mean(output.argmax(1)[labels == c] == c) for c in np.unique(labels)])
    )
    assert isinstance(one, ClassAccuracy) and isinstance(other, ClassAccuracy)
    found = one.by_class(other, ["a", "b", "c"])
    assert [(item.label, item.name) for item in found][:4] == [(0, "a"), (1, "b"), (2, "c"), (3, "")]
    recalls = recall_score(labels, output.argmax(1), average=None, labels=np.unique(labels), zero_division=0)
    assert [item.float_value for item in found] == pytest.approx(recalls)
    assert (found[2].quantized_value, found[2].flips.gained, found[0].drop) == (0.0, 0, 0.0)


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_auroc_of_two_classes(columns: int) -> None:
    _, labels = scores(4, classes=2)
    output = np.random.default_rng(4).normal(size=(SAMPLES, 2))  # a softmax makes and breaks ties by rounding
    score = (output[:, 1] - output[:, 0]).astype(np.float32)
    shown = {0: score, 1: score[:, None], 2: output}[columns]
    expected = roc_auc_score(labels, score)
    assert measured("auroc", shown, labels).compute() == pytest.approx(expected, abs=1e-12)


def test_auroc_of_probabilities_takes_them_as_they_are() -> None:
    output, labels = scores(5)
    assert measured("auroc", softmax(output), labels).compute() == pytest.approx(macro_auroc(output, labels))


def test_ignored_pixels_do_not_count() -> None:
    output, labels = masks(1)
    labels[:, 0] = 255
    metric = make_label_metric("mean_iou", {"ignore_index": 255})
    metric.update(output, labels)
    kept = labels != 255
    expected = jaccard_score(labels[kept], output.argmax(1)[kept], average="macro")
    assert metric.compute() == pytest.approx(expected)


def test_r2_of_a_constant_target() -> None:
    labels = np.full(4, 3.0)
    assert measured("r2", labels, labels).compute() == r2_score(labels, labels) == 1.0
    assert measured("r2", labels + 1, labels).compute() == r2_score(labels, labels + 1) == 0.0


def test_scores_of_pairs_are_compared_with_their_labels() -> None:
    random = np.random.default_rng(8)
    labels = np.round(random.uniform(0, 5, SAMPLES))
    output = (labels + random.normal(size=SAMPLES))[:, None]
    found = measured("spearman", output, labels).compute()
    assert found == pytest.approx(spearmanr(output[:, 0], labels).statistic, abs=1e-12)


ONES, ZEROS = np.ones, np.zeros


@each_case(
    "name, output, labels, says",
    [
        ("auroc", np.array([0.1, 0.2]), np.array([1, 1]), "auroc needs samples of two classes"),
        (
            "r2",
            ZEROS((2, 300)),
            ZEROS((2, 300)),
            "r2 supports up to 256 numbers per sample, but the output has 300",
        ),
        ("r2", ZEROS(1), ZEROS(1), "r2 needs two samples or more, got 1"),
        (
            "spearman",
            ONES((4, 2)),
            np.array([3.0, 3.0, 1.0, 4.0]),
            "samples 2 and 3 are a pair, but have the labels",
        ),
        ("spearman", ONES((3, 2)), ONES(3), "spearman needs pairs, but there are 3 samples"),
        (
            "spearman",
            ONES((4, 2)),
            ONES(4),
            "has no value for 2 pairs: all similarities or all labels are equal",
        ),
        ("f1", ZEROS(3), ZEROS(3, int), r"f1 needs an output of shape \[samples, classes\], got \[3\]"),
        ("class_accuracy", ZEROS(3), ZEROS(3, int), "class_accuracy needs an output of shape"),
        *(
            (
                name,
                ZEROS((2, 7)),
                ZEROS((2, 7), int),
                r"of shape \[samples, positions, tokens\], got \[2, 7\]",
            )
            for name in ("perplexity", "masked_top1", "exact_match")
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(name, output, labels, says):
    with pytest.raises((MetricError, LabelError), match=says):
        measured(name, output, labels).compute()


def test_perplexity_needs_a_position_that_counts() -> None:
    with pytest.raises(MetricError, match="no position to count in 2 samples"):
        measured("perplexity", np.zeros((2, 1, 7), np.float32), np.full((2, 1), -100)).compute()
    huge = np.zeros((1, 2, 7), np.float32)
    huge[:, :, 0] = 1e9
    assert measured("perplexity", huge, np.ones((1, 2), np.int64)).compute() == np.inf
