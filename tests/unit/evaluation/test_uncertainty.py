"""Intervals of what is no sum: their coverage in a simulation, and what they cost."""

import numpy as np
import pytest

from ptq_cli.evaluation.bootstrap import resamples_within, reweighed_intervals
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.metrics.base import Reweighed, SampleSums
from ptq_cli.evaluation.metrics.metric_registry import make_label_metric
from ptq_cli.evaluation.uncertainty import with_paired_intervals
from tests.measured import measurement

CLASSES = 4
TRIALS = 200


def draw(random: np.random.Generator, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, and the scores of a model and of one whose scores have some more noise."""
    labels = random.integers(0, CLASSES, samples)
    exact = 1.2 * np.eye(CLASSES)[labels] + random.normal(size=(samples, CLASSES))
    return labels, exact, exact + random.normal(scale=0.6, size=exact.shape)


def drop_of(name: str, labels: np.ndarray, exact: np.ndarray, noisy: np.ndarray) -> Measurement:
    pair = [make_label_metric(name, {}) for _ in range(2)]
    for metric, output in zip(pair, (exact, noisy), strict=True):
        metric.update(output, labels)
    plain = measurement(
        name, pair[1].compute(), pair[0].compute(), unit="number", needs_labels=True, higher_is_better=True
    )
    return with_paired_intervals(plain, *(metric.resampling() for metric in pair))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["f1", "auroc"])
def test_the_drop_is_held_as_often_as_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptq_cli.evaluation.uncertainty.resamples_within", lambda _cost: 200)
    random = np.random.default_rng(11)
    truth = drop_value(name, random)
    held = 0
    for _ in range(TRIALS):
        interval = drop_of(name, *draw(random, 120)).drop_interval
        held += interval.low <= truth <= interval.high
    # The standard error of 200 trials is 0.015.
    assert 0.905 <= held / TRIALS <= 0.985


def drop_value(name: str, random: np.random.Generator) -> float:
    """The drop in a population: of so many samples that chance is a thousandth."""
    labels, exact, noisy = draw(random, 200_000)
    values = []
    for output in (exact, noisy):
        metric = make_label_metric(name, {})
        metric.update(output, labels)
        values.append(metric.compute())
    return values[0] - values[1]


def test_the_drop_of_a_paired_metric_is_narrower_than_its_value_varies() -> None:
    found = drop_of("f1", *draw(np.random.default_rng(3), 300))
    assert found.drop_interval is not None and found.quantized_interval is not None
    widths = [item.high - item.low for item in (found.drop_interval, found.quantized_interval)]
    assert widths[0] < widths[1]
    assert found.no_interval == ""


def test_it_is_the_same_each_time_and_one_unit_has_none() -> None:
    values = np.arange(30.0)
    first, again = (reweighed_intervals(30, lambda weights: np.array([weights @ values])) for _ in range(2))
    assert first == again
    assert reweighed_intervals(1, lambda weights: weights) == (None,)


def test_what_would_take_too_long_is_left_out_and_said() -> None:
    assert resamples_within(10**8) == 0
    dear = Reweighed(10, lambda weights: float(weights.sum()), cost=10**8)
    found = with_paired_intervals(measurement("auroc", 0.9, 0.9), dear, dear)
    assert (found.drop_interval, found.no_interval[:22]) == (None, "resampling so many sco")


@pytest.mark.parametrize("blocks", [19, 20])
def test_few_blocks_say_nothing(blocks: int) -> None:
    rows = np.random.default_rng(0).normal(size=(blocks, 1))
    sums = SampleSums(rows, lambda found: found[..., 0], blocks=True)
    found = with_paired_intervals(measurement("r2", 0.9, 0.9), sums, sums)
    if blocks < 20:
        assert (found.drop_interval, found.no_interval) == (None, "20 or more blocks of samples are needed")
    else:
        assert found.drop_interval is not None and found.drop_interval.method == "blocks"
