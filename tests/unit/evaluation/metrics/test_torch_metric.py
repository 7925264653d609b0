"""torchmetrics' classes: against scikit-learn, in blocks, continued, and what they refuse."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, r2_score, roc_auc_score

from ptq_cli.core.errors import EntryPointError, MetricError
from ptq_cli.evaluation.metrics.base import LabelMetric, SampleSums
from ptq_cli.evaluation.metrics.spec import MetricSpec, metric_maker
from ptq_cli.evaluation.uncertainty import with_paired_intervals
from tests.each_case import each_case
from tests.measured import measurement

pytest.importorskip("torchmetrics")

SAMPLES, CLASSES = 400, 5
RANDOM = np.random.default_rng(2)
LABELS = RANDOM.integers(0, CLASSES, SAMPLES)
SCORES = (RANDOM.normal(size=(SAMPLES, CLASSES)) + np.eye(CLASSES)[LABELS]).astype(np.float32)
F1 = "torchmetrics.classification:MulticlassF1Score"
AUROC = "torchmetrics.classification:MulticlassAUROC"


def spec(metric: str, **arguments: Any) -> MetricSpec:
    return MetricSpec(name=metric.rpartition(":")[2], metric=metric, output=None, arguments=arguments)


def fed(metric: LabelMetric, output: np.ndarray, labels: np.ndarray, size: int = 32) -> LabelMetric:
    for start in range(0, len(labels), size):
        metric.update(output[start : start + size], labels[start : start + size])
    return metric


@each_case("size", [1, 7, 32, SAMPLES])
def test_its_value_is_that_of_the_whole_set_whatever_the_batches(size: int) -> None:
    metric = fed(metric_maker(spec(F1), CLASSES)(), SCORES, LABELS, size)
    expected = f1_score(LABELS, SCORES.argmax(1), average="macro")
    assert metric.compute() == pytest.approx(expected, rel=1e-6)
    assert metric.higher_is_better


def test_arguments_are_its_constructors() -> None:
    metric = fed(metric_maker(spec(F1, num_classes=CLASSES, average="micro"))(), SCORES, LABELS)
    assert metric.compute() == pytest.approx(np.mean(SCORES.argmax(1) == LABELS), rel=1e-6)


def test_a_state_of_lists_is_kept_whole_and_says_why_it_has_no_interval() -> None:
    metric = fed(metric_maker(spec(AUROC), CLASSES)(), SCORES, LABELS)
    exponents = np.exp(SCORES.astype(np.float64))
    expected = roc_auc_score(LABELS, exponents / exponents.sum(1, keepdims=True), multi_class="ovr")
    assert metric.compute() == pytest.approx(expected, rel=1e-5)
    assert metric.resampling() == "its state in torchmetrics does not consist of sums over samples"


def test_blocks_tell_the_interval_that_samples_tell() -> None:
    random = np.random.default_rng(4)
    targets = random.normal(size=4000)
    outputs = [targets + random.normal(scale=noise, size=4000) for noise in (0.1, 0.2)]
    metrics = [
        fed(metric_maker(spec("torchmetrics.regression:MeanSquaredError"))(), output, targets)
        for output in outputs
    ]
    found = metrics[1].resampling()
    assert isinstance(found, SampleSums) and found.blocks and len(found.rows) == 256
    plain = measurement(
        "mse", metrics[1].compute(), metrics[0].compute(), higher_is_better=metrics[0].higher_is_better
    )
    measured = with_paired_intervals(plain, metrics[0].resampling(), found)
    errors = (outputs[1] - targets) ** 2 - (outputs[0] - targets) ** 2
    half = 1.96 * errors.std() / np.sqrt(4000)
    interval = measured.drop_interval
    assert interval is not None and interval.method == "blocks"
    assert (interval.low, interval.high) == pytest.approx(
        (errors.mean() - half, errors.mean() + half), abs=0.35 * half
    )


@pytest.mark.parametrize("metric", [F1, AUROC])
def test_it_goes_on_from_its_state(metric: str) -> None:
    make = metric_maker(spec(metric), CLASSES)
    continued = make()
    continued.join([fed(make(), SCORES[:90], LABELS[:90]).state()])
    fed(continued, SCORES[90:], LABELS[90:], 45)
    whole = fed(make(), SCORES, LABELS)
    assert continued.compute() == whole.compute()
    one, other = continued.resampling(), whole.resampling()
    if isinstance(one, SampleSums) and isinstance(other, SampleSums):
        np.testing.assert_array_equal(one.rows, other.rows)


def test_an_axis_of_one_is_left_out() -> None:
    random = np.random.default_rng(5)
    labels = random.normal(size=50).astype(np.float32)
    output = labels[:, None] + random.normal(scale=0.1, size=(50, 1)).astype(np.float32)
    metric = fed(metric_maker(spec("torchmetrics.regression:R2Score"))(), output, labels)
    assert metric.compute() == pytest.approx(r2_score(labels, output[:, 0]), rel=1e-4)


def refusal(metric: str, **arguments: Any) -> Exception:
    with pytest.raises((MetricError, EntryPointError)) as caught:
        fed(metric_maker(spec(metric, **arguments), CLASSES)(), SCORES, LABELS).compute()
    return caught.value


@each_case(
    "metric, arguments, says",
    [
        ("torchmetrics.classification:MulticlassF1Scor", {}, "(did you mean 'MulticlassF1Score'?)"),
        ("torchmetrics.classificatio:MulticlassF1Score", {}, "importing 'torchmetrics.classificatio' failed"),
        (F1, {"num_classes": "five"}, "cannot be made with num_classes = 'five': "),
        (F1, {"avrage": "macro"}, "Unexpected keyword arguments: `avrage`"),
        (F1, {"average": "none"}, "MulticlassF1Score returned numbers of shape [5], expected one number"),
        (F1, {"num_classes": 3}, "MulticlassF1Score raised "),
        ("torchmetrics.text:BLEUScore", {}, "BLEUScore raised "),
        ("torchmetrics:MeanMetric", {}, "torchmetrics does not say whether higher is better"),
    ],
    ids=["class", "module", "constructor", "argument", "vector", "shape", "texts", "direction"],
)
def test_what_does_not_fit_is_refused(metric: str, arguments: dict[str, Any], says: str) -> None:
    error = refusal(metric, **arguments)
    assert says in str(error)
    assert "hint: " in str(error)


def test_it_refuses_to_compute_from_nothing() -> None:
    with pytest.raises(MetricError, match="MulticlassF1Score has seen no sample"):
        metric_maker(spec(F1), CLASSES)().compute()


def test_a_class_count_that_nobody_knows_is_asked_for() -> None:
    with pytest.raises(MetricError, match="cannot be made without arguments: TypeError: ") as caught:
        metric_maker(spec(F1))
    assert "num_classes" in caught.value.message
    assert "[[metric]] metric = 'torchmetrics.classification:MulticlassF1Score'" in caught.value.hint
