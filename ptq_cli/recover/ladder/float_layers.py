"""The rung ``float``: layers in float, or with ranges found at each run, by what they gain for their time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError, StaleCalibrationError
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.read.constant_values import with_float_weights
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recover.float_moves import (
    LOUD,
    FloatStep,
    LayerMove,
    Noises,
    PlanCosts,
    PossibleMoves,
    Steps,
)
from ptq_cli.recover.ladder.weight_noise import Rounded, weight_noise
from ptq_cli.recover.output_noise import Noise, NoiseJudge, lowest_of, lowest_of_floats, model_sqnr
from ptq_cli.recover.quantized_layer import DecidedModel
from ptq_cli.recover.range_choice import grids_of
from ptq_cli.recover.range_effects import row_noise, tensor_noise
from ptq_cli.recover.recovery_context import MOST_WORK, RecoveryContext, few, sample_work, samples_in
from ptq_cli.recover.recovery_effects import FloatLayers, ReachedAccuracy

Attempt = TypeVar("Attempt")
_STAGE = "float"
# Most samples that a choice is measured on, and about how many choices are: what learns nothing from the
# samples may be judged by all of them, and few hide the sample that makes most of the noise.
JUDGED_ON, MODELS = 32, 8
FEW_JUDGED = 8  # samples that are judged whatever they cost
_RANKED_ON = 4  # samples that a tensor's noise is measured on, and the fewest others that may be enough
_FEWEST_RANKED_ON, QUICK_RANKING = 2, 2e11  # or less, if more take so many multiply-accumulates
RANK_WORK = 6e11  # multiply-accumulates of ranking; above, one sample ranks those whose rows lose most
# What weights have to cost the worst output for their rungs to be worth minutes, and for layers to be left
# to these, which choose no weights again behind ranges found at each run.
WEIGHTS_MATTER_DB = 1.0
_LEAST_GAIN_DB = 0.5  # for less no layer is left in float


class ModelMaker(Protocol):
    """Makes quantized models, and places them otherwise."""

    def build(self, placement: Placement, /) -> tuple[ir.Model, Plan]:
        """Return the quantized graph of a placement, and its plan."""

    def without(self, move: LayerMove, /) -> Placement:
        """Return a placement with what a move changes."""


@dataclass(frozen=True, kw_only=True)
class FloatLimits:
    """What the rung may do.

    Attributes:
        costs: what plans cost.
        weights: layers that share a weight which becomes float with them; a weight that stays an integer in
            the file loses the same there, and is left to other rungs.
    """

    costs: PlanCosts
    possible: PossibleMoves
    weights: Rounded = field(default_factory=dict)


def choose_float_layers(
    context: RecoveryContext,
    models: ModelMaker,
    placement: Placement,
    limits: FloatLimits,
    stop: Callable[[], bool],
) -> tuple[Placement, FloatLayers]:
    """Return the placement with as many layers in float, or with other ranges, as the goal takes.

    And what was done. The noise of each tensor alone tells with which to begin; whether a choice helps
    is measured, with float weights where those lose and stay: ``round`` makes up for that. Once ``stop`` says
    so, what was found until then is kept.
    """
    return _Search(context, models, placement, limits, stop).choose()


class _Search:
    """The search for the fewest layers in float that are enough."""

    def __init__(
        self,
        context: RecoveryContext,
        models: ModelMaker,
        placement: Placement,
        limits: FloatLimits,
        stop: Callable[[], bool],
    ) -> None:
        self._context, self._models, self._placement = context, models, placement
        self._limits, self._stop = limits, stop
        self.floats = context.float_model.load()

    def choose(self) -> tuple[Placement, FloatLayers]:
        """Return the best placement, and what was done."""
        outputs_sqnr, count = judge_of_worst(self._context, self.floats, JUDGED_ON)
        lose = bool(self._limits.weights)
        measured = _measure(self._models, self.floats, outputs_sqnr, self._context.wanted_db, lose=lose)
        before, lost = measured(self._placement, -math.inf)
        found = FloatLayers(
            before=before, after=before, with_weights=lose, weights_lose=lost, decided_by=count
        )
        if before >= self._context.wanted_db:
            return self._placement, found
        possible = self._limits.possible
        if lost >= WEIGHTS_MATTER_DB:
            possible = replace(possible, dynamic=frozenset())
        return self._chosen(self._steps(possible), found, measured)

    def _steps(self, possible: PossibleMoves) -> Steps:
        context, placement, floats = self._context, self._placement, self.floats
        context.progress(RunProgress(_STAGE, 0, None))
        samples, data = context.data.samples[0], context.data
        grids = grids_of(placement, context.calibration)
        work = sample_work(floats, few(samples.fit, data.inputs, 1)[0], data.inputs) / 2
        affordable = int(QUICK_RANKING / (len(grids) * work + 1))
        pieces = few(samples.fit, data.inputs, min(_RANKED_ON, max(_FEWEST_RANKED_ON, affordable)))
        if len(grids) * _RANKED_ON * work > RANK_WORK:
            pieces = few(samples.fit, data.inputs, 1)
            lost = row_noise(floats, placement.plan, grids, pieces[0])
            chosen = sorted(lost, key=lambda source: (-lost[source], source))[:LOUD]
            grids = {source: grids[source] for source in chosen}
        trials = context.trials(_STAGE, self._stop)
        # Goals of a tuning ask for the same grids.
        trials = replace(trials, known=data.known_costs, pieces=f"{_STAGE} {sum(map(samples_in, pieces))}")
        noises = Noises(
            tensors=tensor_noise(floats, placement.plan, grids, pieces, trials),
            weights=weight_noise(context, _STAGE, self._limits.weights, self._stop),
        )
        return Steps(floats, placement, context.target, noises, self._limits.costs, possible)

    def _chosen(
        self, steps: Steps, found: FloatLayers, measured: Callable[[Placement, float], tuple[float, float]]
    ) -> tuple[Placement, FloatLayers]:
        placement, wanted = self._placement, self._context.wanted_db
        limit = steps.spare

        def sqnr(step: FloatStep, at_least: float) -> float:
            try:
                return measured(self._placed(step.move)[0], at_least)[0]
            except (InvalidOnnxError, StaleCalibrationError):
                return -math.inf  # What is left would need ranges that were not measured.

        choices = list(steps.up_to(limit))
        index, after = fewest(choices, sqnr, wanted, self._stop)
        if after >= found.before + _LEAST_GAIN_DB:
            chosen = choices[index]
            placement, move = self._placed(chosen.move)
            # The recipe's own bits win.
            of_bytes = {site.node for site in placement.plan.weights if site.format.bits == BYTE}
            found = replace(
                found,
                layers=move.in_float,
                dynamic=move.dynamic,
                wide=tuple(name for name in move.wide if name in placement.plan.sources),
                more_bits=tuple(
                    name for name in move.more_bits if name in of_bytes and name not in move.in_float
                ),
                after=after,
                slower=chosen.more if self._limits.costs.is_time else None,
            )
        return placement, found

    def _placed(self, move: LayerMove) -> tuple[Placement, LayerMove]:
        """Return the placement of a move, and what it took."""
        found = self._models.without(move)
        if not self._limits.weights:
            return found, move
        # A layer that was not worth its pairs may be, now that its neighbors have none; its weight was not
        # among those that cost the outputs something.
        own = {site.node for site in self._placement.plan.weights}
        new = tuple(dict.fromkeys(site.node for site in found.plan.weights if site.node not in own))
        return self._placed(move | LayerMove(new)) if new else (found, move)


def _measure(
    models: ModelMaker, floats: ir.Model, outputs_sqnr: NoiseJudge, wanted: float, *, lose: bool
) -> Callable[[Placement, float], tuple[float, float]]:
    """Return a function of a placement: SQNR of its worst output, and what the weights lose of it.

    Unless weights may ``lose``, because they become float with their layers, it is that but for the loss of
    weights. The first model below what is wanted tells of all whether float weights are better than its own.
    One that surely has less than what it is asked about, ``at_least``, may have minus infinity.
    """
    better: list[bool] = []

    def measured(placed: Placement, at_least: float) -> tuple[float, float]:
        made = models.build(placed)[0]
        if lose and better:
            return outputs_sqnr(serialize(made), at_least=at_least), math.nan
        if any(better) and (in_floats := with_float_weights(TwinGraphs(floats, made))) is not None:
            sqnr = outputs_sqnr(serialize(in_floats), integer_kernels=False, at_least=at_least)
            return sqnr, math.nan
        found = outputs_sqnr(serialize(made))
        in_floats = with_float_weights(TwinGraphs(floats, made)) if found < wanted else None
        if in_floats is None:
            return found, 0.0
        # On flat images the weights' noise may take a constant to a nearer step. With its integer kernels
        # ONNX Runtime would quantize float weights, with one scale for all channels.
        without = max(found, outputs_sqnr(serialize(in_floats), integer_kernels=False))
        better.append(without > found)
        return (found if lose else without), without - found

    return measured


def reached_accuracy(context: RecoveryContext, made: DecidedModel, *, again: bool) -> ReachedAccuracy:
    """Return the SQNR of a model's worst output; ``again`` measures it where that was done before.

    Requires: the graph is the quantized one.
    """
    if made.forms is not None and made.forms.is_enough and not again:
        return ReachedAccuracy(sqnr_db=made.reached, goal_db=context.goal_db, samples=made.forms.samples)
    floats = context.float_model.load()
    judge, count = judge_of_worst(context, floats, JUDGED_ON, of=lowest_of_floats(floats))
    found = made.reached
    if again or math.isnan(found) or found == -math.inf:
        found = judge(serialize(made.model))
    return ReachedAccuracy(sqnr_db=found, goal_db=context.goal_db, samples=count)


def worst_output(context: RecoveryContext, model: ir.Model) -> float:
    """Return the SQNR of a quantized model's worst output on the samples that judge, in dB."""
    floats = context.float_model.load()
    judge, _ = judge_of_worst(context, floats, JUDGED_ON, of=lowest_of_floats(floats))
    return judge(serialize(model))


def judge_of_worst(
    context: RecoveryContext,
    floats: ir.Model,
    most: int,
    of: Callable[[Sequence[Noise]], float] = lowest_of,
) -> tuple[NoiseJudge, int]:
    """Return the judge of the worst output, and its number of samples: those held out come first."""
    data, samples = context.data, context.data.samples[0]
    if most > FEW_JUDGED:
        affordable = int(MOST_WORK / (MODELS * sample_work(floats, samples.decide[0], data.inputs) + 1))
        most = max(sum(map(samples_in, samples.decide)), min(most, affordable))
    pieces = few([*samples.decide, *samples.fit], data.inputs, most)
    count = sum(map(samples_in, pieces))
    sqnr = model_sqnr(
        context.float_model,
        pieces,
        threads=context.machine.threads,
        of=of,
        known=data.known_outputs,
        name=f"{_STAGE} {count}",
    )
    return sqnr, count


def fewest(
    steps: Sequence[Attempt],
    measured: Callable[[Attempt, float], float],
    wanted: float,
    stop: Callable[[], bool],
) -> tuple[int, float]:
    """Return the index of the first step that has the SQNR wanted, and its SQNR; the last where none has.

    Args:
        steps: each with more layers in float than the one before.
        measured: SQNR of a step, in dB; of one that surely has less than its second argument, any less.
        wanted: in dB.
        stop: once it says so, the best step until then is the result.

    Example:
        >>> fewest([10.0, 20.0, 30.0, 40.0], lambda step, _: step, 25.0, lambda: False)
        (2, 30.0)

    Edge case:
        Without steps the index is -1, and the SQNR NaN.
    """
    if not steps:
        return -1, math.nan
    low, high = 0, len(steps) - 1
    found = measured(steps[high], -math.inf)
    # More layers in float hardly ever lose, so that halving finds the fewest in a few models.
    while found >= wanted and low < high and not stop():
        middle = (low + high) // 2
        value = measured(steps[middle], wanted)
        if value >= wanted:
            high, found = middle, value
        else:
            low = middle + 1
    return high, found
