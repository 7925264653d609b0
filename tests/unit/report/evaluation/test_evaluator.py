"""Several models, several outputs, PyTorch, NaN, and going on from a checkpoint's state."""

from collections.abc import Callable

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.core.errors import LabelError, MetricError
from ptq_cli.report.evaluation.changed_classes import ChangeCollector
from ptq_cli.report.evaluation.evaluator import Evaluator, judged_metrics
from ptq_cli.report.evaluation.run_models import Runs, run_evaluator
from ptq_cli.report.metrics.metric_registry import LABEL_METRICS
from ptq_cli.report.metrics.spec import metric_specs

SAMPLES = 30
RANDOM = np.random.default_rng(9)
INPUTS = RANDOM.normal(size=(SAMPLES, 4)).astype(np.float32)
WEIGHT = RANDOM.normal(size=(4, 6)).astype(np.float32)
LABELS = RANDOM.integers(0, 6, SAMPLES)
NAMES = ("scores", "aux")

Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def model(noise: float) -> Run:
    """A model of two outputs: scores, and the first two columns of other ones."""
    weight = WEIGHT + np.float32(noise) * np.random.default_rng(1).normal(size=WEIGHT.shape).astype(
        np.float32
    )
    return lambda inputs: [
        (scores := np.einsum("nk,kc->nc", inputs["x"], weight, optimize=False)),
        scores[:, ::-1].copy(),
    ]


def batches(labels: np.ndarray = LABELS, size: int = 7, done: int = 0) -> list[Batch]:
    starts = range(done * size, SAMPLES, size)
    names = [f"eval.npz[{index}]" for index in range(SAMPLES)]
    return [
        Batch({"x": INPUTS[s : s + size]}, labels[s : s + size], tuple(names[s : s + size])) for s in starts
    ]


def evaluator(
    *metrics: str, quantized: tuple[str, ...] = ("quantized model",), pytorch: bool = False
) -> Evaluator:
    judged = judged_metrics(metric_specs(metrics), NAMES)
    watches = [ChangeCollector() for _ in quantized]
    return Evaluator(NAMES, judged, quantized, with_pytorch=pytorch, watches=watches)


def test_each_output_has_metrics_of_its_own() -> None:
    found = evaluator("top1", "top1[aux]", "f1[scores]")
    run_evaluator(found, Runs(model(0), (model(0.5),)), batches())
    (result,) = found.evaluations()
    labelled = [(m.name, m.output) for m in result.measurements if m.needs_labels]
    assert labelled == [("top1", "scores"), ("top1[aux]", "aux"), ("f1[scores]", "scores")]
    exact = np.einsum("nk,kc->nc", INPUTS, WEIGHT)
    assert result.measurements[1].float_value == np.mean(exact[:, ::-1].argmax(1) == LABELS)
    assert [m.output for m in result.measurements[3:]] == ["scores"] * 6 + ["aux"] * 6


def test_an_output_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        MetricError, match=r"top1\[score\]: the model has no output 'score' \(did you mean 'scores'"
    ):
        evaluator("top1[score]")


def test_several_models_are_as_each_alone_and_the_float_one_runs_once() -> None:
    calls = []

    def counted(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        calls.append(len(inputs["x"]))
        return model(0)(inputs)

    both = evaluator("top1", "f1", quantized=("model a", "model b"))
    run_evaluator(both, Runs(counted, (model(0.5), model(1.0))), batches())
    assert calls == [7, 7, 7, 7, 2]
    for noise, together in zip((0.5, 1.0), both.evaluations(), strict=True):
        alone = evaluator("top1", "f1")
        run_evaluator(alone, Runs(model(0), (model(noise),)), batches())
        assert alone.evaluations() == (together,)


def test_pytorch_stands_beside() -> None:
    found = evaluator("top1", pytorch=True)
    run_evaluator(found, Runs(model(0), (model(0.5),), model(2.0)), batches())
    expected = np.mean(model(2.0)({"x": INPUTS})[0].argmax(1) == LABELS)
    assert found.evaluations()[0].measurements[0].pytorch_value == expected


@pytest.mark.parametrize("done", [0, 1, 4])
def test_it_goes_on_from_its_state(done: int) -> None:
    metrics = ("top1", "f1", "class_accuracy", "auroc")
    runs = Runs(model(0), (model(0.5), model(1.5)))
    quantized = ("model a", "model b")
    whole, begun, continued = (evaluator(*metrics, quantized=quantized) for _ in range(3))
    run_evaluator(whole, runs, batches())
    run_evaluator(begun, runs, batches()[:done])
    state = dict(sorted(begun.state().items()))  # as a file gives it back
    continued.load_state(state, batches=begun.batches, samples=begun.samples)
    run_evaluator(continued, runs, batches(done=done))
    assert continued.evaluations() == whole.evaluations()
    changes = [[watch.changes(()) for watch in item._watches] for item in (continued, whole)]
    assert changes[0] == changes[1]


def test_samples_with_nan_are_counted_and_the_first_is_named() -> None:
    def bad(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = model(0.5)(inputs)
        outputs[1][:, 2][inputs["x"][:, 0] > 0.5] = np.nan
        outputs[0][:, 0][inputs["x"][:, 0] > 0.7] = np.inf  # of the same samples: they count once
        return outputs

    found = evaluator("top1")
    run_evaluator(found, Runs(model(0), (bad,)), batches())
    count, first = int((INPUTS[:, 0] > 0.5).sum()), int(np.argmax(INPUTS[:, 0] > 0.5))
    assert found.is_refused
    with pytest.raises(MetricError) as caught:
        found.evaluations()
    assert f"; {count} of 30 samples have NaN or Inf" in caught.value.message
    assert f"sample {first} (eval.npz[{first}])" in caught.value.message


TARGETS = {
    "mse": (
        LABELS,
        LabelError,
        r"mse needs labels of the output's shape \[7, 6\], but they have shape \[7\]",
    ),
    "mean_iou": (
        LABELS,
        MetricError,
        r"mean_iou needs an output of shape \[samples, classes, height, width\]",
    ),
    "pair_spearman": (
        LABELS[:, None],
        MetricError,
        r"pair_spearman needs embeddings \[samples, features\] and",
    ),
    "f1": (
        LABELS * 1.0,
        LabelError,
        r"f1 needs one class index per sample, but labels have shape \[7\] and dtype f",
    ),
    "auroc": (
        LABELS + 1,
        LabelError,
        r"the label 6 of sample \d+ \(eval.npz\[\d+\]\) is outside the 6 classes",
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_metric_that_does_not_fit_says_what_it_needs(name: str) -> None:
    labels, kind, says = TARGETS[name]
    with pytest.raises(kind, match=says):
        run_evaluator(evaluator(name), Runs(model(0), (model(1),)), batches(labels))
    assert name in LABEL_METRICS


def test_masks_must_have_the_outputs_size_and_its_classes() -> None:
    run = lambda inputs: [np.zeros((len(inputs["x"]), 3, 4, 4)), np.zeros((len(inputs["x"]), 2))]  # noqa: E731
    for labels, says in (
        (
            np.zeros((SAMPLES, 8, 8), int),
            r"a class index for each pixel, of shape \[7, 4, 4\], but labels have",
        ),
        (
            np.full((SAMPLES, 4, 4), 255),
            r"the label 255 of sample 0 \(eval.npz\[0\]\) is outside the 3 classes",
        ),
    ):
        with pytest.raises(LabelError, match=says) as caught:
            run_evaluator(evaluator("mean_iou"), Runs(run, (run,)), batches(labels))
    assert "arguments = { ignore_index = 255 }" in caught.value.hint
