"""How far outputs are from those of another model."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import serialize
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import EvaluationSettings, GateSettings
from ptq_cli.recover.output_noise import limited_metric, model_sqnr, noise_of, sqnr_of
from tests.each_case import each_case
from tests.unit.plan.graphs import build, sample


def sqnr(wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    return sqnr_of([noise_of(one, other) for one, other in zip(wanted, found, strict=True)])


def test_the_shares_of_outputs_are_averaged_whatever_their_size() -> None:
    wanted = [[np.array([1.0]), np.array([100.0])], [np.array([1.0]), np.array([100.0])]]
    found = [[np.array([1.0]), np.array([90.0])], [np.array([1.0]), np.array([90.0])]]
    assert sqnr(wanted, found) == pytest.approx(-10 * math.log10(0.01 / 2))


def test_edges() -> None:
    same = [[np.array([1.0, 0.0])]]
    assert sqnr(same, same) == math.inf
    assert sqnr(same, [[np.array([np.nan, 0.0])]]) == -math.inf
    assert sqnr(same, [[np.array([1.0])]]) == 0.0
    assert sqnr([[np.zeros(2)]], [[np.ones(2)]]) == 0.0
    assert sqnr([[[np.ones(2)]]], [[[np.zeros(2)]]]) == math.inf  # type: ignore[list-item]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_model_that_surely_has_less_than_is_asked_has_nothing(threads: int) -> None:
    text = "(float[n, 8] x) => (float[n, 4] y) <float[8, 4] w> { y = MatMul (x, w) }"
    one, other = (
        serialize(build(text, constants={"w": np.full((8, 4), value, np.float32)})) for value in (1.0, 1.1)
    )
    pieces = [sample(one.load(), seed=seed) for seed in range(12)]
    judge = model_sqnr(one, pieces, threads=threads)
    assert judge(other) == judge(other, at_least=19.9) == pytest.approx(20.0, abs=1e-3)
    assert judge(one, at_least=60.0) > 100.0
    assert judge(other, at_least=60.0) == -math.inf
    assert judge(other, at_least=20.1) == -math.inf, "the noise of all pieces is a little too much"


MODEL = build("(float[n, 3] x) => (float[n, 3] y, float[n, 3] z) { y = Relu (x) z = Neg (x) }")
TOKENS = build("(int64[n, 4] ids) => (float[n, 4, 5] y) <float[5, 5] table> { y = Gather (table, ids) }")
SCORES = np.eye(3, dtype=np.float32)[np.arange(16) % 3]


def pieces(count=16, labels=True):
    names = tuple(str(number) for number in range(count))
    whole = np.arange(count) % 3 if labels else None
    cuts = [slice(start, start + 4) for start in range(0, count, 4)]
    return [Batch({"x": SCORES[cut]}, None if whole is None else whole[cut], names[cut]) for cut in cuts]


def watch(given=None, model=MODEL, **limits):
    return limited_metric(Recipe(gate=GateSettings(**limits)), model, pieces() if given is None else given)


def fed(begin, outputs):
    found = begin()
    for start in range(0, len(outputs), 4):
        found.add([outputs[start : start + 4]] * 2)
    return found


def test_the_gain_is_of_paired_samples_and_has_its_sign():
    begin, wrong = watch(max_drop={"top1": 0.01}), SCORES.copy()
    wrong[:8] = SCORES[1:9]
    better = fed(begin, SCORES).gain_over(fed(begin, wrong))
    assert (better.before, better.after, better.is_sure) == (0.5, 1.0, True)
    assert 0.2 < better.gain[0] < 0.5 < better.gain[1] < 0.8
    worse = fed(begin, wrong).gain_over(fed(begin, SCORES))
    assert worse.gain == pytest.approx((-better.gain[1], -better.gain[0])) and worse.is_sure
    one = SCORES.copy()
    one[0] = SCORES[1]
    assert not fed(begin, one).gain_over(fed(begin, SCORES)).is_sure


def test_a_smaller_perplexity_is_a_gain_and_needs_no_labels():
    ids = np.random.default_rng(0).integers(0, 5, (16, 4))
    given = [Batch({"ids": ids[at : at + 4]}, None, ("",) * 4) for at in range(0, 16, 4)]
    begin = watch(given, TOKENS, max_ratio={"perplexity": 1.02})
    sharpness = np.linspace(5, 6, 16, dtype=np.float32).reshape(16, 1, 1)
    sure = sharpness * np.eye(5, dtype=np.float32)[np.roll(ids, -1, axis=1)]
    found = fed(begin, sure).gain_over(fed(begin, np.zeros_like(sure)))
    assert found.before == pytest.approx(5.0) and found.after < 1.1 and found.gain[0] > 3.8


@each_case(
    "limits, given",
    [
        ({}, pieces()),
        ({"min": {"sqnr_db": 25.0}}, pieces()),
        ({"min": {"cosine_of_embeddings": 0.9}}, pieces()),
        ({"max_drop": {"top1": 0.01}}, pieces(labels=False)),
        ({"max_drop": {"top1": 0.01}}, pieces(4)),
        ({"max_drop": {"top1[w]": 0.01}}, pieces()),
        ({"max_size": "1MB"}, pieces()),
    ],
)
def test_what_these_samples_cannot_tell_of_one_model_is_not_followed(limits, given):
    assert watch(given, **limits) is None


def test_the_first_limited_metric_that_can_be_told_is_followed():
    found = watch(pieces(labels=False), max_drop={"top1": 0.01}, max_ratio={"perplexity": 1.02})
    assert fed(found, SCORES).gain_over(fed(found, SCORES)) is None, "the outputs are no scores of tokens"
    recipe = Recipe(
        gate=GateSettings(max_drop={"top1[z]": 0.01}), evaluation=EvaluationSettings(metrics=["mse"])
    )
    begin = limited_metric(recipe, MODEL, pieces())
    assert fed(begin, SCORES).gain_over(fed(begin, SCORES)).name == "top1[z]"
