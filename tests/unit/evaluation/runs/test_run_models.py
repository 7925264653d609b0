"""One pass over the data, both models, every metric; and what is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.errors import EmptyDataError, LabelError, MetricError, UnknownNameError
from ptq_cli.core.progress import Progress
from ptq_cli.evaluation.document.measurement import hits_to_text
from ptq_cli.evaluation.interval import Flips, drop_interval, share_interval
from ptq_cli.evaluation.metrics.spec import metric_specs
from ptq_cli.evaluation.runs.evaluator import Evaluation, Evaluator
from ptq_cli.evaluation.runs.judged import judged_metrics
from ptq_cli.evaluation.runs.run_models import Runs, run_evaluator
from tests.each_case import each_case

SAMPLES, CLASSES = 30, 6
RNG = np.random.default_rng(7)
INPUTS = RNG.normal(size=(SAMPLES, 8)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, SAMPLES)
WEIGHT = RNG.normal(size=(8, CLASSES)).astype(np.float32)
QUANTIZED_WEIGHT = np.round(WEIGHT)

Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def model(weight: np.ndarray) -> Run:
    # einsum without BLAS: a row's result must not depend on how many rows there are.
    return lambda inputs: [np.einsum("nk,kc->nc", inputs["x"], weight, optimize=False)]


def batches(size: int, labels: np.ndarray | None = LABELS) -> Iterator[Batch]:
    for start in range(0, SAMPLES, size):
        part = slice(start, start + size)
        names = tuple(f"eval.npz[{index}]" for index in range(SAMPLES)[part])
        yield Batch({"x": INPUTS[part]}, None if labels is None else labels[part], names)


def evaluate(float_run, quantized_run, data, *metrics, **more):
    names = more.pop("output_names", ["scores"])
    evaluator = Evaluator(names, judged_metrics(metric_specs(metrics), names))
    run_evaluator(evaluator, Runs(float_run, (quantized_run,)), data, **more)
    return evaluator.evaluations()[0]


def values(evaluation: Evaluation) -> dict[str, float]:
    return {measurement.name: measurement.quantized_value for measurement in evaluation.measurements}


def constant(output: np.ndarray) -> Run:
    return lambda inputs: [output[: len(inputs["x"])]]


@each_case("size", [1, 4, 7, 29])
def test_the_batch_size_changes_no_bit(size: int) -> None:
    runs = model(WEIGHT), model(QUANTIZED_WEIGHT)
    assert evaluate(*runs, batches(size), "top1") == evaluate(*runs, batches(SAMPLES), "top1")


def test_further_outputs_are_named_in_brackets() -> None:
    def two(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [inputs["x"] @ WEIGHT, inputs["x"].reshape(-1, 2, 4)]

    result = evaluate(two, two, batches(8), output_names=["scores", "features"])
    assert list(values(result))[6:] == [
        "sqnr_db[features]",
        "worst_channel_sqnr_db[features]",
        "cosine[features]",
        "max_abs_error[features]",
    ]


def test_an_output_without_samples_on_axis_0_has_no_mean_over_samples() -> None:
    run = lambda inputs: [np.ones((2, 3, len(inputs["x"])))]  # noqa: E731
    assert list(values(evaluate(run, run, batches(8)))) == ["sqnr_db", "max_abs_error"]


def test_the_pass_is_one_and_streams() -> None:
    calls: list[str] = []

    def watched(name: str, run: Run) -> Run:
        return lambda inputs: (calls.append(name), run(inputs))[1]

    def data() -> Iterator[Batch]:
        for batch in batches(10):
            calls.append("batch")
            yield batch

    evaluate(watched("float", model(WEIGHT)), watched("int8", model(WEIGHT)), data(), "top1")
    assert calls == ["batch", "float", "int8"] * 3


@pytest.mark.parametrize("total", [None, SAMPLES], ids=["unknown", "known"])
def test_progress_counts_samples(total: int | None) -> None:
    seen: list[Progress] = []
    evaluate(model(WEIGHT), model(WEIGHT), batches(16), total=total, progress=seen.append)
    assert seen == [Progress("evaluate", 16, total), Progress("evaluate", 30, total)]


GOOD = model(WEIGHT)
REFUSED: list[tuple[Run, Run, Any, str, str]] = [
    (GOOD, GOOD, batches(8, None), "top1", "the evaluation data has none at samples 0 to 7"),
    (
        GOOD,
        GOOD,
        batches(8, LABELS[:, None]),
        "top1",
        r"have shape \[8, 1\] and dtype int64 at samples 0 to 7",
    ),
    (GOOD, GOOD, iter(()), "", "the evaluation data has no sample"),
    (
        GOOD,
        model(WEIGHT[:, :5]),
        batches(8),
        "",
        r"shape \[8, 6\] from the float model and \[8, 5\] from the",
    ),
    (GOOD, lambda _: [], batches(8), "", "the quantized model returned 0 outputs, expected 1: scores"),
    *(
        (run, run, batches(8), metric, says)
        for run, metric, says in (
            (lambda _: [np.ones((8, 3))], "", "has a different shape at samples 24 to 29 than in the"),
            (lambda _: [np.ones((4, CLASSES))], "top1", r"has shape \[4, 6\] for a batch of 8 samples"),
            (lambda _: [np.array(np.nan)], "", "holds NaN at samples 0 to 7"),
            (lambda _: [np.array(["cat"] * 8)], "", "output 'scores' has dtype <U3, expected numbers"),
        )
    ),
]


@each_case("float_run, quantized_run, data, metric, says", REFUSED, ids=[row[-1] for row in REFUSED])
def test_what_cannot_be_compared_is_refused(float_run, quantized_run, data, metric, says):
    with pytest.raises((LabelError, MetricError, EmptyDataError), match=says) as caught:
        evaluate(float_run, quantized_run, data, *metric.split())
    assert caught.value.hint


@each_case("label", [-1, CLASSES])
def test_a_label_outside_the_classes_names_the_sample(label: int) -> None:
    labels = LABELS.copy()
    labels[21] = label
    message = rf"the label {label} of sample 21 \(eval.npz\[21\]\) is outside the 6 classes 0 to 5"
    with pytest.raises(LabelError, match=message):
        evaluate(model(WEIGHT), model(WEIGHT), batches(8, labels), "top1")


def test_an_unknown_metric_is_refused_before_any_model_runs() -> None:
    def never(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        raise AssertionError

    with pytest.raises(UnknownNameError, match="there is no metric 'tpo1'"):
        evaluate(never, never, batches(8), "tpo1")


@each_case("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "minus-inf"])
@each_case("which", ["float", "quantized"])
def test_a_non_finite_output_names_model_output_and_sample(which: str, value: float) -> None:
    bad = INPUTS @ WEIGHT
    bad[5, 2] = value
    good = constant(INPUTS @ WEIGHT)
    runs = (constant(bad), good) if which == "float" else (good, constant(bad))
    kind = "NaN" if np.isnan(value) else "Inf"
    message = rf"the {which} model's output 'scores' holds {kind} at sample 5 \(eval.npz\[5\]\)"
    with pytest.raises(MetricError, match=message):
        evaluate(*runs, batches(SAMPLES))


def test_a_label_metric_has_its_flips_and_intervals() -> None:
    found = evaluate(model(WEIGHT), model(QUANTIZED_WEIGHT), batches(7), "top1").measurements[0]
    before = (INPUTS @ WEIGHT).argmax(1) == LABELS
    after = (INPUTS @ QUANTIZED_WEIGHT).argmax(1) == LABELS
    assert found.flips == Flips.counted(SAMPLES, int(sum(before & ~after)), int(sum(after & ~before)))
    assert found.drop_interval == drop_interval(found.flips)
    assert found.quantized_interval == share_interval(float(after.mean()), SAMPLES)
    assert found.quantized_hits == hits_to_text(after.tolist())
    assert (found.float_value, found.drop) == (before.mean(), before.mean() - after.mean())


def test_comparisons_have_intervals_but_for_the_largest_error() -> None:
    result = evaluate(model(WEIGHT), model(QUANTIZED_WEIGHT), batches(8))
    found = {m.name: m for m in result.measurements}
    methods = {m.name: m.quantized_interval and m.quantized_interval.method for m in result.measurements}
    assert methods == {
        "sqnr_db": "bootstrap",
        "worst_channel_sqnr_db": "bootstrap",
        "cosine": "bootstrap",
        "top1_agreement": "wilson",
        "kl_divergence": "bootstrap",
        "max_abs_error": None,
    }
    for name in ("sqnr_db", "worst_channel_sqnr_db", "cosine", "top1_agreement", "kl_divergence"):
        interval = found[name].quantized_interval
        assert interval is not None and interval.low < found[name].quantized_value < interval.high


def test_what_is_not_of_samples_has_no_interval() -> None:
    run = lambda inputs: [np.arange(6.0 * len(inputs["x"])).reshape(2, 3, -1)]  # noqa: E731
    other = lambda inputs: [run(inputs)[0] + 0.5]  # noqa: E731
    assert all(m.quantized_interval is None for m in evaluate(run, other, batches(8)).measurements)
