"""Intervals where few or no predictions flip: they are as wide as the flips that may have been missed."""

from collections.abc import Callable

import numpy as np
import pytest

from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.metrics.base import LabelMetric
from ptq_cli.evaluation.metrics.metric_registry import make_label_metric
from ptq_cli.evaluation.metrics.named_code import PlainFunction
from ptq_cli.evaluation.uncertainty import with_interval, with_paired_intervals
from ptq_cli.evaluation.unseen_flips import unseen_share
from tests.measured import measurement

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Outputs of the float and of the quantized model, and labels."""

CLASSES = 4


def classified(random: np.random.Generator, samples: int, rate: float) -> Drawn:
    """Scores of classes, right in 90 % of samples; a flip is to any other class."""
    labels = random.integers(0, CLASSES, samples)
    before = np.where(random.random(samples) < 0.9, labels, other_class(random, labels))
    after = np.where(random.random(samples) < rate, other_class(random, before), before)
    return np.eye(CLASSES)[before], np.eye(CLASSES)[after], labels


def other_class(random: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return (labels + random.integers(1, CLASSES, labels.shape)) % CLASSES


def scored(random: np.random.Generator, samples: int, rate: float) -> Drawn:
    """One score each; that of a flipped sample is like those of the other class."""
    labels = random.integers(0, 2, samples)
    before = 2.5 * labels + random.normal(size=samples)
    after = 2.5 * (1 - labels) + random.normal(size=samples)
    return before, np.where(random.random(samples) < rate, after, before), labels


def masked(random: np.random.Generator, samples: int, rate: float) -> Drawn:
    """Pixels, right in 80 to 100 %; in a flipped image all have another class."""
    labels = random.integers(0, CLASSES, (samples, 16))
    right = random.random((samples, 16)) < random.uniform(0.8, 1, (samples, 1))
    before = np.where(right, labels, other_class(random, labels))
    flipped = (random.random(samples) < rate)[:, None]
    after = np.where(flipped, other_class(random, before), before)
    return *(np.moveaxis(np.eye(CLASSES)[item], 2, 1) for item in (before, after)), labels


def tokens(random: np.random.Generator, samples: int, rate: float) -> Drawn:
    """Scores of tokens; a flipped sequence has those of the tokens before."""
    labels = random.integers(0, CLASSES, (samples, 6))
    before = 3 * np.eye(CLASSES)[labels] + random.normal(size=(samples, 6, CLASSES))
    flipped = (random.random(samples) < rate)[:, None, None]
    return before, np.where(flipped, np.roll(before, 1, axis=2), before), labels


def sequences(random: np.random.Generator, samples: int, rate: float) -> Drawn:
    """Scores of tokens, some harder to guess than others; a flipped sequence is among the hardest tenth."""
    labels = random.integers(0, CLASSES, (samples, 6))
    noise = random.normal(size=(samples, 6, CLASSES))
    flipped, easy = random.random(samples) < rate, random.uniform(0, 6, samples)
    eases = easy, np.where(flipped, random.uniform(0, 0.6, samples), easy)
    return *(ease[:, None, None] * np.eye(CLASSES)[labels] + noise for ease in eases), labels


def numbers(random: np.random.Generator, samples: int, rate: float) -> Drawn:
    """Numbers with an error; a flipped sample has that of the worst tenth."""
    labels = random.normal(size=samples)
    error = 0.3 * random.normal(size=samples)
    worst = 0.3 * random.uniform(1.65, 2.5, samples) * random.choice([-1, 1], samples)
    after = np.where(random.random(samples) < rate, worst, error)
    return (labels + error)[:, None], (labels + after)[:, None], labels[:, None]


def is_right(output: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return output.argmax(axis=1) == labels


METRICS: dict[str, Callable[[np.random.Generator, int, float], Drawn]] = {
    "top1": classified,
    "class_accuracy": classified,
    "f1": classified,
    "is_right": classified,
    "auroc": scored,
    "mean_iou": masked,
    "masked_top1": tokens,
    "perplexity": sequences,
    "mse": numbers,
    "mae": numbers,
    "r2": numbers,
    "spearman": numbers,
}


def made(name: str) -> LabelMetric:
    if name == "is_right":
        return PlainFunction(name, is_right, {}, higher_is_better=True)
    return make_label_metric(name, {})


def metrics_of(name: str, drawn: Drawn) -> tuple[LabelMetric, LabelMetric]:
    before, after, labels = drawn
    pair = made(name), made(name)
    for metric, output in zip(pair, (before, after), strict=True):
        metric.update(output, labels[:, 0] if name == "spearman" else labels)
    return pair


def drop_of(name: str, drawn: Drawn) -> Measurement:
    pair = metrics_of(name, drawn)
    plain = measurement(
        name,
        pair[1].compute(),
        pair[0].compute(),
        unit=pair[0].unit,
        higher_is_better=pair[0].higher_is_better,
    )
    return with_paired_intervals(plain, *(metric.resampling() for metric in pair))


@pytest.mark.parametrize("name", METRICS)
def test_without_a_flip_the_drop_may_be_that_of_the_flips_that_were_missed(name: str) -> None:
    random = np.random.default_rng(7)
    found = drop_of(name, METRICS[name](random, 200, 0.0))
    interval = found.drop_interval
    assert interval is not None and interval.low < 0 < interval.high
    if METRICS[name] in (classified, scored, masked):
        # At most what one class alone, with twice its share of a flip, may have lost.
        assert unseen_share(200) * 0.7 <= interval.high <= 2.1 * unseen_share(200)
    assert found.quantized_interval.low < found.quantized_value


@pytest.mark.parametrize("name", ["class_accuracy", "f1", "mean_iou", "auroc"])
def test_with_many_flips_it_is_the_bootstrap_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = METRICS[name](np.random.default_rng(3), 2000, 0.1)
    wide = drop_of(name, drawn).drop_interval
    monkeypatch.setattr("ptq_cli.evaluation.bootstrap.with_unseen", lambda *_: (np.inf, -np.inf))
    narrow = drop_of(name, drawn).drop_interval
    assert narrow.high - narrow.low <= wide.high - wide.low <= 1.04 * (narrow.high - narrow.low)


def test_what_no_sample_tells_has_no_interval() -> None:
    labels = np.arange(60) % CLASSES
    scores = np.eye(CLASSES)[labels]
    found = drop_of("is_right", (scores, scores, labels))
    assert (found.drop_interval, found.quantized_interval) == (None, None)
    assert found.no_interval.startswith("no sample tells")


def test_a_share_of_tokens_that_are_all_right_may_be_less() -> None:
    labels = np.arange(60).reshape(20, 3) % CLASSES
    agreement = make_label_metric("next_token_agreement", {})
    agreement.update(np.eye(CLASSES)[labels], labels)
    found = with_interval(measurement("next_token_agreement", 1.0), agreement.resampling(), 20)
    assert (found.quantized_interval.low, found.quantized_interval.high) == pytest.approx(
        (0.861, 1), abs=0.01
    )


TRIALS = 200
RESAMPLES_OF_A_TRIAL = 200


@pytest.mark.nightly
@pytest.mark.parametrize("samples", [50, 200])
@pytest.mark.parametrize("rate", [0.005, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("name", METRICS)
def test_the_drop_is_held_in_a_simulation(
    name: str, rate: float, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptq_cli.evaluation.uncertainty.resamples_within", lambda _cost: RESAMPLES_OF_A_TRIAL)
    monkeypatch.setattr("ptq_cli.evaluation.uncertainty.RESAMPLES", RESAMPLES_OF_A_TRIAL)
    random = np.random.default_rng(11)
    # In a population of so many samples that chance is a thousandth.
    before, after = (metric.compute() for metric in metrics_of(name, METRICS[name](random, 200_000, rate)))
    truth = before - after if made(name).higher_is_better else after - before
    intervals = [drop_of(name, METRICS[name](random, samples, rate)).drop_interval for _ in range(TRIALS)]
    held = np.mean([item is not None and item.low <= truth <= item.high for item in intervals])
    widths = [item.high - item.low for item in intervals if item is not None]
    print(f"{name} {rate} {samples}: held {held:.3f}, mean width {np.mean(widths):.4f}, drop {truth:.4f}")
    assert held >= 0.93
