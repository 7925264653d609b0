"""Intervals where few or no predictions flip: they are as wide as the flips that may have been missed.

The bootstrap: against all samples that can be drawn, its coverage, and what it leaves undecided.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from ptq_cli.evaluation.bootstrap import bootstrap_intervals, mean_interval, student_quantile, unseen_share
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.metrics.base import LabelMetric, SampleSums
from ptq_cli.evaluation.metrics.metric_registry import make_label_metric
from ptq_cli.evaluation.metrics.spec import PlainFunction
from ptq_cli.evaluation.uncertainty import with_interval, with_paired_intervals
from tests.each_case import each_case
from tests.measured import measurement

# Outputs of the float and of the quantized model, and labels.
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]

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


def bootstrap_interval(rows, of_sums, **options):  # type: ignore[no-untyped-def]
    return bootstrap_intervals(rows, lambda sums: (of_sums(sums),), **options)[0]


def mean(samples: int):  # type: ignore[no-untyped-def]
    return lambda sums: sums[..., 0] / samples


def test_the_ends_are_those_of_every_sample_that_can_be_drawn() -> None:
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])  # symmetric: neither biased nor accelerated
    means = np.sort([np.mean(drawn) for drawn in product(values, repeat=5)])
    interval = bootstrap_interval(values[:, None], mean(5), resamples=20_000)
    low, high = means[int(0.025 * len(means))], means[int(0.975 * len(means))]
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.11)


@pytest.mark.parametrize("skewed", [False, True], ids=["normal", "exponential"])
def test_it_holds_the_true_mean_as_often_as_it_says(skewed: bool) -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        rows = (generator.exponential(1.0, (60, 1)) if skewed else generator.normal(1.0, 1.0, (60, 1))) + 0.0
        interval = bootstrap_interval(rows, mean(60), resamples=500)
        held += interval.low <= 1.0 <= interval.high
    # The standard error of 600 trials is 0.009.
    assert 0.92 <= held / 600 <= 0.975


def test_a_paired_interval_is_narrower_than_the_scores_vary() -> None:
    generator = np.random.default_rng(5)
    before = generator.normal(0.0, 10.0, (400, 1))
    after = before - 0.5 + generator.normal(0.0, 0.1, (400, 1))
    rows = (SampleSums(before, mean(400)), SampleSums(after, mean(400)))
    drop, growth = (
        with_paired_intervals(measurement("mse", 0.0, 0.0, higher_is_better=better), *rows).drop_interval
        for better in (True, False)
    )
    assert 0.48 < drop.low < 0.5 < drop.high < 0.52
    assert (growth.low, growth.high) == pytest.approx((-drop.high, -drop.low), abs=2e-3)


def test_a_ratio_of_sums_is_drawn_as_a_ratio() -> None:
    generator = np.random.default_rng(7)
    rows = np.column_stack([generator.uniform(1, 2, 300), generator.uniform(0.001, 0.002, 300)])
    interval = bootstrap_interval(rows, lambda sums: 10 * np.log10(sums[..., 0] / sums[..., 1]))
    value = 10 * np.log10(rows[:, 0].sum() / rows[:, 1].sum())
    # By the delta method.
    relative = rows / rows.mean(axis=0)
    width = 1.96 * 10 / np.log(10) * np.std(relative[:, 0] - relative[:, 1]) / np.sqrt(300)
    assert (interval.low, interval.high) == pytest.approx((value - width, value + width), abs=0.15 * width)


def test_it_is_the_same_each_time() -> None:
    rows = np.random.default_rng(1).normal(size=(50, 1))
    first, again = (bootstrap_interval(rows, mean(50)) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("rows", [np.ones((1, 1)), np.ones((0, 1))], ids=["one", "none"])
def test_one_sample_has_no_interval(rows: np.ndarray) -> None:
    assert bootstrap_interval(rows, mean(1)) is None


def test_an_infinite_value_is_as_certain_as_its_resamples_and_warns_of_nothing() -> None:
    rows = np.column_stack([np.ones(30), np.zeros(30)])
    found = bootstrap_interval(rows, lambda sums: sums[..., 0] / sums[..., 1])
    assert found is not None and (found.low, found.high) == (np.inf, np.inf)


def test_noise_in_one_sample_only_may_be_missed_by_a_draw() -> None:
    rows = np.column_stack([np.ones(30), np.zeros(30)])
    rows[3, 1] = 0.1
    interval = bootstrap_interval(rows, lambda sums: sums[..., 0] / sums[..., 1])
    assert (interval.high, interval.low > 0) == (np.inf, True)


def test_equal_scores_have_an_interval_without_width() -> None:
    interval = bootstrap_interval(np.full((40, 1), 0.5), mean(40))
    assert (interval.low, interval.high) == (0.5, 0.5)


@each_case(
    "freedom, wanted",
    # Student's table, as in Abramowitz and Stegun 1964, table 26.10.
    [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980), (10**5, 1.960)],
)
def test_the_quantile_is_that_of_the_table(freedom, wanted):
    assert student_quantile(freedom) == pytest.approx(wanted, abs=5e-4)


def test_fewer_than_two_values_or_one_that_is_not_finite_have_no_interval():
    assert mean_interval(np.array([1.0])) is None
    assert mean_interval(np.array([1.0, np.inf])) is None


def test_values_that_are_the_same_have_an_interval_without_width():
    interval = mean_interval(np.full(3, 0.5))
    assert (interval.low, interval.high, interval.method) == (0.5, 0.5, "student")
