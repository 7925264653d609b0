"""The rung ``float``: layers in float, or with ranges found at each run, by what they gain for their time."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError, StaleCalibrationError
from ptq_cli.core.progress import RunProgress
from ptq_cli.models.files.stored import serialize
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.placement.kernel_costs import ExpectedTimes
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.cost_benefit import MICROSECONDS_OF_ONE, Sizes, conversions_at_each_run
from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.constant_values import with_float_weights
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.declaration import ROW
from ptq_cli.recover.output_noise import Noise, NoiseJudge, lowest_of, lowest_of_floats, model_sqnr
from ptq_cli.recover.quantized_layer import DecidedModel
from ptq_cli.recover.range_choice import grids_of
from ptq_cli.recover.range_effects import row_noise, tensor_noise
from ptq_cli.recover.recovery_context import MOST_WORK, RecoveryContext, few, sample_work, samples_in
from ptq_cli.recover.recovery_effects import FloatLayers, ReachedAccuracy

LOUD = 64  # tensors that are looked at, at most: those that make the most noise
# Share of the time: cost of a layer that saves time in float, so that no noise is worth nothing.
_LEAST_SHARE = 1e-3
_LEAST_SPARE = 0.1  # share of the time that may be added though float is no slower
BETWEEN = ("same", "clamp")  # kinds of operators that are in float where the operator before them is
FLOAT_REASON = "computes in float: its integers cost the outputs more than they save time"

Attempt = TypeVar("Attempt")
_Names = tuple[str, ...]
_Move = tuple[_Names, _Names]  # layers that are left in float, and layers that find ranges at each run


@dataclass(frozen=True)
class _Step:
    """Some more layers without integers in calibrated ranges.

    Attributes:
        move: which, and what becomes of them.
        left: the noise that is expected to be left, as a share.
        slower: share of the integer model's time that it costs.
        is_measured: whether the ranges of all its tensors were measured.
    """

    move: _Move
    left: float
    slower: float
    is_measured: bool = True


NO_STEP = _Step(((), ()), 1.0, 0.0)


class Steps:
    """More and more layers in float or with ranges found at each run, by what they gain for their time.

    ``spare`` is the share of its time that the model may take longer: as much as float, or a tenth.

    They are planned by the target alone, which is twenty times as fast as with the recipe's settings and the
    ranges; what is chosen is placed with both.
    """

    def __init__(
        self,
        model: ir.Model,
        placement: Placement,
        target: Target,
        noise: Mapping[str, float],
        profile: MachineProfile,
        could_be_dynamic: frozenset[str],
    ) -> None:
        self._model, self._target, self._noise = model, target, noise
        self._could_be_dynamic, self._dynamic = could_be_dynamic, placement.settings.dynamic
        self._target_plan = placement.target_plan
        could = {layer.name for layer in placement.target_plan.layers if layer.quantized}
        self._excluded = {
            layer.name: layer.reason
            for layer in placement.plan.layers
            if not layer.quantized and layer.name in could
        }
        self._plans: dict[_Move, Plan] = {}
        self._base, self._measured = self._plan(((), ())), set(placement.target_plan.measured)
        self._sizes, expected = Sizes.of(model), ExpectedTimes(model, self._target_plan, profile)
        self._time = expected.time(self._base)
        self._expected = expected
        self.spare = max(_LEAST_SPARE, profile.floating / self._time - 1.0)
        self._total = sum(noise.values()) or 1.0
        loud = sorted(noise, key=lambda source: (-noise[source], source))[:LOUD]
        moves = {move: source for source in reversed(loud) if any(move := self._move(source))}
        alone = {move: self._with(NO_STEP, move, source) for move, source in moves.items()}
        worth = {move: (1.0 - step.left) / max(step.slower, _LEAST_SHARE) for move, step in alone.items()}
        self._order = {move: moves[move] for move in sorted(worth, key=lambda move: (-worth[move], move))}

    def up_to(self, limit: float) -> Iterator[_Step]:
        """Yield choices that cost at most this share of the time, each with more layers."""
        last = NO_STEP
        for move, source in self._order.items():
            step = self._with(last, move, source)
            # A float layer between integer ones may need ranges that were not measured.
            if not step.is_measured:
                continue
            # Layers that earlier ones have taken with them take no more noise away.
            if step.slower <= limit and step.left < last.left:
                # A limit of this cost lets the steps before pass, too.
                last = replace(step, slower=max(step.slower, last.slower))
                yield last

    def _with(self, last: _Step, move: _Move, source: str) -> _Step:
        """Return a step with one more move, which a tensor asked for."""
        both = _both(last.move, move)
        if move[0] or both == last.move:
            return self._planned(both)
        # Not planned, which on a large graph takes longer than to measure the tensor's noise.
        added = (
            MICROSECONDS_OF_ONE * sum(conversions_at_each_run(self._model, move[1], self._sizes)) / self._time
        )
        return _Step(both, last.left - self._noise[source] / self._total, last.slower + added)

    def _move(self, source: str) -> _Move:
        """Move of the layers around a tensor after which it is on no calibrated grid."""
        makers, readers = _around(self._model, self._base, self._target, source)
        if readers and self._could_be_dynamic.issuperset(readers):  # It takes less time than float.
            return (), readers
        # What a float layer makes of integers is not quantized for the next one, of floats it is.
        if makers and source not in self._plan((makers, ())).activations:
            return makers, ()
        return tuple(dict.fromkeys((*makers, *readers))), ()

    def _plan(self, move: _Move) -> Plan:
        if move not in self._plans:  # What a tensor asks for is the first step, and each limit begins alike.
            in_float, dynamic = move
            choices = LayerChoices(
                excluded={**self._excluded, **dict.fromkeys(in_float, FLOAT_REASON)},
                dynamic={**self._dynamic, **dict.fromkeys(dynamic, ROW)},
            )
            self._plans[move] = make_plan(
                self._model, self._target, choices, may_be_empty=True, alone=self._target_plan
            )
        return self._plans[move]

    def _planned(self, move: _Move) -> _Step:
        plan = self._plan(move)
        before, after = self._base.activations, plan.activations
        quantized = {before[name].source for name in after if name in before}
        left = sum(noise for source, noise in self._noise.items() if source in quantized)
        is_measured = self._measured.issuperset(plan.measured)
        slower = self._expected.time(plan) / self._time - 1.0
        return _Step(move, left / self._total, slower, is_measured)


def _both(one: _Move, other: _Move) -> _Move:
    """Return both moves as one; a layer of both is left in float."""
    in_float = tuple(dict.fromkeys((*one[0], *other[0])))
    dynamic = dict.fromkeys((*one[1], *other[1]))
    return in_float, tuple(name for name in dynamic if name not in in_float)


def _around(model: ir.Model, plan: Plan, target: Target, source: str) -> tuple[_Names, _Names]:
    """Return the integer layers that make and that read the tensors of a source."""
    integer = {layer.name for layer in plan.layers if layer.quantized}
    members = {name for name, site in plan.activations.items() if site.source == source}
    members.update(plan.members(source))
    between = {name for name, rule in target.op.items() if rule.kind in BETWEEN}
    makers: dict[str, None] = {}
    readers: dict[str, None] = {}
    for node in model.graph:
        if any(value.name in members for value in node.outputs):
            maker: ir.Node | None = node
            while maker is not None and maker.op_type in between:
                first = maker.inputs[0] if maker.inputs else None
                maker = first.producer() if first is not None else None
            if maker is not None and maker.name in integer:
                makers[maker.name] = None
        reads = any(value is not None and value.name in members for value in node.inputs)
        if reads and node.op_type not in between and node.name in integer:
            readers[node.name] = None
    return tuple(makers), tuple(readers)


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

    def without(self, in_float: Mapping[str, str], dynamic: Collection[str], /) -> Placement:
        """Return a placement with more layers in float, by name with the reason, and more with own ranges."""


@dataclass(frozen=True, kw_only=True)
class FloatLimits:
    """What the rung may do.

    Attributes:
        profile: what each layer takes; None where that is not known. All time that integers save may be used.
        could_be_dynamic: the layers that may have ranges found at each run.
    """

    profile: MachineProfile | None
    could_be_dynamic: frozenset[str] = frozenset()


def choose_float_layers(
    context: RecoveryContext,
    models: ModelMaker,
    placement: Placement,
    limits: FloatLimits,
    stop: Callable[[], bool],
) -> tuple[Placement, FloatLayers]:
    """Return the placement with as many layers in float, or with ranges found at each run, as the goal takes.

    And what was done. The noise of each tensor alone tells with which layers to begin; whether a choice helps
    is measured, with float weights where those lose: ``round`` makes up for that. Once ``stop`` says so, what
    was found until then is kept.
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
        measured = _measure(self._models, self.floats, outputs_sqnr, self._context.wanted_db)
        before, lost = measured(self._placement, -math.inf)
        found = FloatLayers(before=before, after=before, weights_lose=lost, decided_by=count)
        if before >= self._context.wanted_db:
            return self._placement, found
        target = self._context.target
        profile = self._limits.profile
        if profile is None:
            why = f"what layers in float cost is not known of target {target.name}"
            return self._placement, replace(found, refused=why)
        dynamic = self._limits.could_be_dynamic if lost < WEIGHTS_MATTER_DB else frozenset()
        return self._chosen(self._steps(profile, dynamic), found, measured)

    def _steps(self, profile: MachineProfile, could_be_dynamic: frozenset[str]) -> Steps:
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
        noise = tensor_noise(floats, placement.plan, grids, pieces, context.trials(_STAGE, self._stop))
        return Steps(floats, placement, context.target, noise, profile, could_be_dynamic)

    def _chosen(
        self, steps: Steps, found: FloatLayers, measured: Callable[[Placement, float], tuple[float, float]]
    ) -> tuple[Placement, FloatLayers]:
        placement, wanted = self._placement, self._context.wanted_db
        limit = steps.spare

        def sqnr(step: _Step, at_least: float) -> float:
            try:
                return measured(self._placed(step), at_least)[0]
            except (InvalidOnnxError, StaleCalibrationError):
                return -math.inf  # What is left would need ranges that were not measured.

        choices = list(steps.up_to(limit))
        index, after = fewest(choices, sqnr, wanted, self._stop)
        if after >= found.before + _LEAST_GAIN_DB:
            chosen = choices[index]
            placement, (in_float, dynamic) = self._placed(chosen), chosen.move
            found = replace(found, layers=in_float, dynamic=dynamic, after=after, slower=chosen.slower)
        return placement, found

    def _placed(self, step: _Step) -> Placement:
        in_float, dynamic = step.move
        return self._models.without(dict.fromkeys(in_float, FLOAT_REASON), dynamic)


def _measure(
    models: ModelMaker, floats: ir.Model, outputs_sqnr: NoiseJudge, wanted: float
) -> Callable[[Placement, float], tuple[float, float]]:
    """Return a function of a placement: SQNR of its worst output but for the loss of weights, and that loss.

    The first model below what is wanted tells of all whether float weights are better than its own. One that
    surely has less than what it is asked about, ``at_least``, may have minus infinity.
    """
    lose: list[bool] = []

    def measured(placed: Placement, at_least: float) -> tuple[float, float]:
        made = models.build(placed)[0]
        if any(lose) and (in_floats := with_float_weights(TwinGraphs(floats, made))) is not None:
            sqnr = outputs_sqnr(serialize(in_floats), integer_kernels=False, at_least=at_least)
            return sqnr, math.nan
        found = outputs_sqnr(serialize(made))
        in_floats = with_float_weights(TwinGraphs(floats, made)) if found < wanted else None
        if in_floats is None:
            return found, 0.0
        # On flat images the weights' noise may take a constant to a nearer step. With its integer kernels
        # ONNX Runtime would quantize float weights, with one scale for all channels.
        without = max(found, outputs_sqnr(serialize(in_floats), integer_kernels=False))
        lose.append(without > found)
        return without, without - found

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
