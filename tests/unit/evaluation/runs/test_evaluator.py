"""Several models, several outputs, PyTorch, NaN, and going on from a checkpoint's state."""

from collections.abc import Callable

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.errors import LabelError, MetricError
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS
from ptq_cli.evaluation.metrics.spec import metric_specs
from ptq_cli.evaluation.runs.comparisons import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluator
from ptq_cli.evaluation.runs.judged import judged_metrics
from ptq_cli.evaluation.runs.run_models import Runs, run_evaluator
from ptq_cli.recipe.sections import MetricSettings
from tests.day import fewer
from tests.each_case import each_case

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


def evaluator(*metrics, quantized=("quantized model",)):
    judged = judged_metrics(metric_specs(metrics), NAMES)
    watches = [ChangeCollector() for _ in quantized]
    return Evaluator(NAMES, judged, quantized, watches=watches)


def test_each_output_has_metrics_of_its_own() -> None:
    found = evaluator("top1", "top1[aux]", "f1[scores]")
    run_evaluator(found, Runs(model(0), (model(0.5),)), batches())
    (result,) = found.evaluations()
    labeled = [(m.name, m.output) for m in result.measurements if m.needs_labels]
    assert labeled == [("top1", "scores"), ("top1[aux]", "aux"), ("f1[scores]", "scores")]
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


@pytest.mark.parametrize("done", fewer([1, 0, 4], 3))
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
    "spearman": (LABELS[:, None], MetricError, r"spearman needs embeddings \[samples, features\] and"),
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


@each_case("name", TARGETS)
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


TOKENS = RANDOM.integers(0, 6, (SAMPLES, 5))
MASK = (np.arange(5) < RANDOM.integers(2, 6, SAMPLES)[:, None]).astype(np.int64)
TABLE = RANDOM.normal(size=(6, 6)).astype(np.float32)


def language_model(noise: float) -> Run:
    """Scores of the next token from the token alone, and those of one position as an embedding."""
    table = TABLE + np.float32(noise) * np.random.default_rng(3).normal(size=TABLE.shape).astype(np.float32)
    return lambda inputs: [table[inputs["input_ids"]], table[inputs["input_ids"]][:, 0].copy()]


def token_batches(labels, *, mask, ids="input_ids", size=7):
    arrays = {ids: TOKENS} | ({"attention_mask": MASK} if mask else {})
    return [
        Batch(
            {name: array[s : s + size] for name, array in arrays.items()},
            None if labels is None else labels[s : s + size],
            tuple(f"text[{index}]" for index in range(s, min(s + size, SAMPLES))),
        )
        for s in range(0, SAMPLES, size)
    ]


def evaluated(*metrics: str, labels: np.ndarray | None = None, mask: bool = True) -> dict[str, Measurement]:
    found = evaluator(*metrics)
    run_evaluator(found, Runs(language_model(0), (language_model(0.4),)), token_batches(labels, mask=mask))
    return {item.name: item for item in found.evaluations()[0].measurements}


def by_hand(noise: float, wanted: np.ndarray) -> float:
    scores = language_model(noise)({"input_ids": TOKENS})[0].astype(np.float64)
    likely = np.log(np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True))
    chosen = np.take_along_axis(likely, np.maximum(wanted, 0)[:, :, None], axis=2)[:, :, 0]
    return float(np.exp(-chosen[wanted != -100].mean()))


def next_of(mask: np.ndarray) -> np.ndarray:
    wanted = np.full(TOKENS.shape, -100)
    wanted[:, :-1] = np.where(mask[:, 1:] == 1, TOKENS[:, 1:], -100)
    return wanted


@pytest.mark.parametrize("mask", [True, False], ids=["mask", "no-mask"])
def test_perplexity_is_of_the_next_input_token_where_the_mask_is_one(mask: bool) -> None:
    found = evaluated("perplexity", mask=mask)["perplexity"]
    wanted = next_of(MASK if mask else np.ones_like(MASK))
    assert found.float_value == pytest.approx(by_hand(0, wanted))
    assert found.quantized_value == pytest.approx(by_hand(0.4, wanted))
    assert found.ratio == pytest.approx(by_hand(0.4, wanted) / by_hand(0, wanted))
    assert (
        found.ratio_interval is not None
        and found.ratio_interval.low < found.ratio < found.ratio_interval.high
    )
    assert not found.needs_labels
    given = evaluated("perplexity", labels=wanted, mask=False)["perplexity"]
    assert given.float_value == found.float_value


def test_the_comparisons_of_tokens_take_the_float_models_choice_as_labels() -> None:
    found = evaluated("next_token_agreement", "exact_match", "cosine_of_embeddings")
    exact, noisy = (language_model(noise)({"input_ids": TOKENS})[0] for noise in (0, 0.4))
    same = (exact.argmax(2) == noisy.argmax(2)) | (MASK == 0)
    agreement, match, cosine = list(found.values())[:3]
    assert agreement.quantized_value == pytest.approx(same[MASK == 1].mean())
    assert match.quantized_value == same.all(axis=1).mean()
    pooled = [(array * MASK[:, :, None]).sum(1) / MASK.sum(1)[:, None] for array in (exact, noisy)]
    dots = (pooled[0] * pooled[1]).sum(1) / np.prod(
        [np.linalg.norm(array, axis=1) for array in pooled], axis=0
    )
    assert cosine.quantized_value == pytest.approx(dots.mean())
    assert [(item.float_value, item.drop) for item in (agreement, match, cosine)] == [(None, None)] * 3
    assert all(item.quantized_interval is not None for item in (agreement, match, cosine))


def test_masked_tokens_are_labels_of_the_data_and_an_exact_match_may_be_against_them() -> None:
    labels = np.where(RANDOM.random(TOKENS.shape) < 0.3, TOKENS, -100)
    exact = language_model(0)({"input_ids": TOKENS})[0].argmax(2)
    found = evaluated("masked_top1", labels=labels)["masked_top1"]
    assert found.float_value == pytest.approx((exact == labels)[labels != -100].mean())
    named = [MetricSettings(metric="exact_match", arguments={"against": "labels"})]
    judged = judged_metrics(metric_specs([], named), NAMES)
    whole = Evaluator(NAMES, judged)
    run_evaluator(whole, Runs(language_model(0), (language_model(0.4),)), token_batches(labels, mask=True))
    match = whole.evaluations()[0].measurements[0]
    assert match.float_value == ((exact == labels) | (labels == -100)).all(axis=1).mean()
    assert match.flips is not None


def test_comparisons_go_on_from_their_state() -> None:
    metrics = ("perplexity", "next_token_agreement", "cosine_of_embeddings")
    runs = Runs(language_model(0), (language_model(0.4),))
    whole, begun, continued = (evaluator(*metrics) for _ in range(3))
    parts = token_batches(None, mask=True)
    run_evaluator(whole, runs, parts)
    run_evaluator(begun, runs, parts[:2])
    continued.load_state(begun.state(), batches=begun.batches, samples=begun.samples)
    run_evaluator(continued, runs, parts[2:])
    assert continued.evaluations() == whole.evaluations()


@each_case(
    "metric, labels, ids, says",
    [
        ("perplexity", None, "positions", "perplexity needs the tokens that the model reads"),
        (
            "perplexity",
            TOKENS + 1,
            "input_ids",
            r"the token 6 at position \d of sample \d+ .* outside the 6 tokens",
        ),
        ("masked_top1", None, "input_ids", "masked_top1 needs a label per position, of shape"),
        (
            "perplexity[aux]",
            None,
            "input_ids",
            "needs an output of shape .samples, positions, tokens., got .7, 6.",
        ),
    ],
)
def test_tokens_that_do_not_fit(metric: str, labels: np.ndarray | None, ids: str, says: str) -> None:
    models = Runs(*(lambda inputs: language_model(0)({"input_ids": inputs[ids]}) for _ in range(1)), ())
    with pytest.raises((LabelError, MetricError), match=says) as caught:
        run_evaluator(evaluator(metric, quantized=()), models, token_batches(labels, mask=False, ids=ids))
    assert caught.value.hint
