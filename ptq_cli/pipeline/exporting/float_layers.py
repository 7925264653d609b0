"""The rung ``float``: a few layers find ranges at each run, or stay in float, where theirs cost the most."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import InvalidOnnxError, StaleCalibrationError
from ptq_cli.core.progress import ProgressCallback, RunProgress
from ptq_cli.core.tensors import Array
from ptq_cli.latency.fastest_placement import Seam, circuit_of_profile, predicted, unit_sides
from ptq_cli.latency.machine_profile import MachineProfile
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.pipeline.exporting.range_candidates import grids_of
from ptq_cli.pipeline.exporting.recovery_data import (
    MOST_WORK,
    Build,
    Piece,
    RecoveryData,
    few,
    finite,
    recovery_samples,
    sample_work,
)
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.plan.worth import Sizes, integer_time, savings
from ptq_cli.qdq.read.constant_values import with_float_weights
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.recovery_rungs import ROW
from ptq_cli.recovery.range_effects import model_sqnr, row_noise, tensor_noise
from ptq_cli.recovery.recovery_samples import RecoverySamples, lowest_sqnr, samples_in
from ptq_cli.runtime.machine import Machine

STAGE = "float"
WANTED_DB = 22.0
"""SQNR of the worst output from which on no layer is left in float: 20 dB, and 2 for samples unlike these."""
JUDGED_ON, MODELS = 64, 8
"""Most samples that a choice is measured on, and about how many choices are: what learns nothing from the
samples may be judged by all of them, and few hide the sample that makes most of the noise."""
LOUD = 64
"""So many tensors at most are looked at, those that make the most noise."""
RANKED_ON = 4
"""Samples that the noise of a tensor is measured on."""
LEAST_SHARE = 1e-3
"""Of the time: what a layer costs that saves time in float, so that no noise is worth nothing."""
RANK_WORK = 6e11
"""Multiply-accumulates that ranking may take; of a larger model one sample ranks the tensors whose rows lose
most."""
LEAST_GAIN_DB = 0.5
"""For less no layer is left in float."""
BETWEEN = ("same", "clamp")
"""Kinds of operators that are in float where the operator before them is."""

REASON = "left in float: its integers cost the outputs more than they save time"

Names = tuple[str, ...]
Move = tuple[Names, Names]
"""Layers that are left in float, and layers that find the range of what they read at each run."""
Without = Callable[[Mapping[str, str], Collection[str]], Placement]
"""Places a model again with more layers in float, by name with the reason, and more that find ranges."""


@dataclass(frozen=True, kw_only=True)
class FloatLayers:
    """What the rung did."""

    layers: Annotated[Names, "Layers that it left in float, those that gain the most first."] = ()
    dynamic: Annotated[Names, "Layers for which it had ranges found at each run, likewise."] = ()
    before: Annotated[float, "SQNR of the worst output without what the weights lose, in dB."]
    after: Annotated[float, "SQNR of the worst output with these."]
    weights_lose: Annotated[float, "By how many dB the weights lower it before; 0 if it is enough."] = 0.0
    decided_by: Annotated[int, "How many samples that was measured on."]
    slower: Annotated[float, "Share of its time that the model takes longer for them, by an estimate."] = 0.0
    more: Annotated[Names, "Where that is not enough: layers that would have to be in float."] = ()
    more_dynamic: Annotated[Names, "And layers that would have to find ranges at each run."] = ()
    more_sqnr: Annotated[float, "SQNR of the worst output with those; NaN without."] = math.nan
    more_slower: Annotated[float, "Share of its time that the model would take longer for those."] = 0.0
    reached: Annotated[float, "SQNR of the file's worst output, where that is below 22 dB; or NaN."] = (
        math.nan
    )
    refused: Annotated[str, "Why no layer was looked at; empty otherwise."] = ""

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model."""
        sqnr = [finite(self.before), finite(self.after)]
        found: dict[str, object] = {"layers": self.layers, "dynamic": self.dynamic, "sqnr_db": sqnr}
        found |= {"slower": round(self.slower, 4)}
        found |= {"samples": self.decided_by, "reached_db": finite(self.reached)}
        more = {"layers": self.more, "dynamic": self.more_dynamic, "sqnr_db": finite(self.more_sqnr)}
        more |= {"slower": round(self.more_slower, 4)}
        return json.dumps(found | ({"more": more} if self.more or self.more_dynamic else {}))


@dataclass(frozen=True)
class _Step:
    """Some more layers without integers in calibrated ranges.

    Attributes:
        move: which, and what becomes of them.
        left: the noise that is expected to be left, as a share.
        slower: share of the integer model's time that it costs.
        is_measured: whether the ranges of all its tensors were measured.
    """

    move: Move
    left: float
    slower: float
    is_measured: bool = True


def choose_float_layers(
    build: Build,
    without: Without,
    float_model: StoredModel,
    placement: Placement,
    calibration: Calibration,
    data: RecoveryData,
    target: Target,
    machine: Machine,
    progress: ProgressCallback,
    *,
    stop: Callable[[], bool] = lambda: False,
    limit: float,
    profile: MachineProfile | None = None,
    could_be_dynamic: frozenset[str] = frozenset(),
) -> tuple[Placement, FloatLayers]:
    """Return the placement with as many layers in float, or with ranges found at each run, as 22 dB take.

    And what was done. The noise of each tensor alone tells with which layers to begin; whether a choice helps
    is measured, with float weights where those lose: ``round`` makes up for that. ``limit`` is the share of
    the integer model's time that they may add, by ``profile`` or by an estimate. Once ``stop`` says so, what
    was found until then is kept. ``could_be_dynamic`` are the layers that may have ranges found at each run.
    """
    samples, floats = recovery_samples(data)[0], float_model.load()
    judged = _judged(samples, floats, data)
    outputs_sqnr = model_sqnr(float_model, judged, threads=machine.threads, of=lowest_sqnr)

    measured = _measure(build, floats, outputs_sqnr)
    before, lost = measured(placement)
    count = sum(map(samples_in, judged))
    found = FloatLayers(before=before, after=before, weights_lose=lost, decided_by=count)
    if before >= WANTED_DB:
        return placement, found
    if target.runtime != ONNXRUNTIME:
        why = f"what layers in float cost is not known of target {target.name}"
        return placement, replace(found, refused=why)
    progress(RunProgress(STAGE, 0, None))
    grids, pieces = _ranked(floats, placement, grids_of(placement, calibration), samples, data)
    noise = tensor_noise(
        floats,
        placement.plan,
        grids,
        pieces,
        threads=machine.threads,
        stop=stop,
        done=lambda done, total: progress(RunProgress(STAGE, done, total, number=done, runs=total)),
    )
    steps = _Steps(floats, placement, target, noise, profile, could_be_dynamic)
    return _chosen(steps, placement, found, limit, without, measured, stop)


def _ranked(
    model: ir.Model,
    placement: Placement,
    grids: Mapping[str, QuantParameters],
    samples: RecoverySamples,
    data: RecoveryData,
) -> tuple[Mapping[str, QuantParameters], list[dict[str, Array]]]:
    """Return the grids of the tensors whose noise is measured, and the samples that it is measured on."""
    pieces = few(samples.fit, data.inputs, RANKED_ON)
    work = sample_work(model, pieces[0], data.inputs) / 2
    if len(grids) * RANKED_ON * work <= RANK_WORK:
        return grids, pieces
    pieces = few(samples.fit, data.inputs, 1)
    lost = row_noise(model, placement.plan, grids, pieces[0])
    chosen = sorted(lost, key=lambda source: (-lost[source], source))[:LOUD]
    return {source: grids[source] for source in chosen}, pieces


def _measure(
    build: Build, floats: ir.Model, outputs_sqnr: Callable[..., float]
) -> Callable[[Placement], tuple[float, float]]:
    """Return what tells the SQNR of a placement's worst output, but for what the weights lose, and that."""

    def measured(placed: Placement) -> tuple[float, float]:
        made = build(placed)[0]
        found = outputs_sqnr(serialize(made))
        in_floats = with_float_weights(TwinGraphs(floats, made)) if found < WANTED_DB else None
        if in_floats is None:
            return found, 0.0
        # On flat images the weights' noise may take a constant to a nearer step. With its integer kernels
        # ONNX Runtime would quantize float weights, with one scale for all channels.
        without = max(found, outputs_sqnr(serialize(in_floats), integer_kernels=False))
        return without, without - found

    return measured


def reached_sqnr(
    found: FloatLayers, float_model: StoredModel, made: ir.Model, data: RecoveryData, machine: Machine
) -> FloatLayers:
    """Return what was done with what the whole model ``made`` has reached, if that may not be enough."""
    if found.after >= WANTED_DB:
        return found
    judged = _judged(recovery_samples(data)[0], float_model.load(), data)
    outputs_sqnr = model_sqnr(float_model, judged, threads=machine.threads, of=lowest_sqnr)
    return replace(found, reached=outputs_sqnr(serialize(made)))


def _judged(samples: RecoverySamples, model: ir.Model, data: RecoveryData) -> list[Piece]:
    """Return the samples that choices are measured on, those held out first."""
    work = sample_work(model, samples.decide[0], data.inputs)
    most = max(sum(map(samples_in, samples.decide)), min(JUDGED_ON, int(MOST_WORK / (MODELS * work + 1))))
    return list(few([*samples.decide, *samples.fit], data.inputs, most))


def _chosen(
    steps: "_Steps",
    placement: Placement,
    found: FloatLayers,
    limit: float,
    without: Without,
    measured: Callable[[Placement], tuple[float, float]],
    stop: Callable[[], bool],
) -> tuple[Placement, FloatLayers]:
    """Return the placement with the fewest layers in float that are enough, and what was done."""

    def sqnr(step: _Step) -> float:
        try:
            return measured(_placed(without, step))[0]
        except (InvalidOnnxError, StaleCalibrationError):
            return -math.inf  # What is left would need ranges that were not measured.

    chosen, after = _fewest(list(steps.up_to(limit)), sqnr, stop)
    if chosen is not None and after >= found.before + LEAST_GAIN_DB:
        placement, (in_float, dynamic) = _placed(without, chosen), chosen.move
        found = replace(found, layers=in_float, dynamic=dynamic, after=after, slower=chosen.slower)
    if found.after < WANTED_DB and not stop():
        more, after = _fewest(list(steps.up_to(math.inf)), sqnr, stop)
        if more is not None and after > found.after:
            in_float, dynamic = more.move
            found = replace(found, more=in_float, more_dynamic=dynamic, more_sqnr=after)
            found = replace(found, more_slower=more.slower)
    return placement, found


def _placed(without: Without, step: _Step) -> Placement:
    in_float, dynamic = step.move
    return without(dict.fromkeys(in_float, REASON), dynamic)


def _fewest(
    steps: Sequence[_Step], measured: Callable[[_Step], float], stop: Callable[[], bool]
) -> tuple[_Step | None, float]:
    """Return the first step that has the SQNR wanted, and its SQNR; the last one where none has."""
    if not steps:
        return None, math.nan
    low, high = 0, len(steps) - 1
    found = measured(steps[high])
    # More layers in float hardly ever lose, so that halving finds the fewest in a few models.
    while found >= WANTED_DB and low < high and not stop():
        middle = (low + high) // 2
        value = measured(steps[middle])
        if value >= WANTED_DB:
            high, found = middle, value
        else:
            low = middle + 1
    return steps[high], found


class _Steps:
    """More and more layers in float or with ranges found at each run, by what they gain for their time.

    They are planned by the target alone, which is twenty times as fast as with the recipe's settings and the
    ranges; what is chosen is placed with both.
    """

    def __init__(
        self,
        model: ir.Model,
        placement: Placement,
        target: Target,
        noise: Mapping[str, float],
        profile: MachineProfile | None,
        could_be_dynamic: frozenset[str],
    ) -> None:
        self._model, self._target, self._noise = model, target, noise
        self._could_be_dynamic, self._dynamic = could_be_dynamic, placement.settings.dynamic
        self._alone = placement.target_plan
        could = {layer.name for layer in placement.target_plan.layers if layer.quantized}
        self._excluded = {
            layer.name: layer.reason
            for layer in placement.plan.layers
            if not layer.quantized and layer.name in could
        }
        self._steps: dict[Move, _Step] = {}
        self._base, self._measured = self._plan(((), ())), set(placement.target_plan.measured)
        self._slower = _slower_than(model, placement.target_plan, self._base, profile)
        self._total = sum(noise.values()) or 1.0
        loud = sorted(noise, key=lambda source: (-noise[source], source))[:LOUD]
        alone = {move: self._step(move) for source in loud if (move := self._move(source)) != ((), ())}
        worth = {move: (1.0 - step.left) / max(step.slower, LEAST_SHARE) for move, step in alone.items()}
        self._order = sorted(worth, key=lambda move: (-worth[move], move))

    def up_to(self, limit: float) -> Iterator[_Step]:
        """Yield choices that cost at most this share of the time, each with more layers."""
        last = _Step(((), ()), 1.0, -math.inf)
        for move in self._order:
            step = self._step(_both(last.move, move))
            # A float layer between integer ones may need ranges that were not measured.
            if not step.is_measured:
                continue
            # Layers that earlier ones have taken with them take no more noise away.
            if step.slower <= limit and step.left < last.left:
                # A limit of this cost lets the steps before pass, too.
                last = replace(step, slower=max(step.slower, last.slower))
                yield last

    def _move(self, source: str) -> Move:
        """Return what may become of the layers around a tensor so that it is on no calibrated grid."""
        makers, readers = _around(self._model, self._base, self._target, source)
        if readers and self._could_be_dynamic.issuperset(readers):  # It takes less time than float.
            return (), readers
        # What a float layer makes of integers is not quantized for the next one, of floats it is.
        if makers and source not in self._plan((makers, ())).activations:
            return makers, ()
        return tuple(dict.fromkeys((*makers, *readers))), ()

    def _plan(self, move: Move) -> Plan:
        in_float, dynamic = move
        excluded = {**self._excluded, **dict.fromkeys(in_float, REASON)}
        modes = {**self._dynamic, **dict.fromkeys(dynamic, ROW)}
        return make_plan(
            self._model,
            self._target,
            excluded=excluded,
            dynamic=modes,
            may_be_empty=True,
            alone=self._alone,
        )

    def _step(self, move: Move) -> _Step:
        if move not in self._steps:  # Each limit begins with the same ones.
            self._steps[move] = self._planned(move)
        return self._steps[move]

    def _planned(self, move: Move) -> _Step:
        plan = self._plan(move)
        before, after = self._base.activations, plan.activations
        quantized = {before[name].source for name in after if name in before}
        left = sum(noise for source, noise in self._noise.items() if source in quantized)
        is_measured = self._measured.issuperset(plan.measured)
        return _Step(move, left / self._total, self._slower(plan), is_measured)


def _both(one: Move, other: Move) -> Move:
    """Return both moves as one; a layer of both is left in float."""
    in_float = tuple(dict.fromkeys((*one[0], *other[0])))
    dynamic = dict.fromkeys((*one[1], *other[1]))
    return in_float, tuple(name for name in dynamic if name not in in_float)


def _slower_than(
    model: ir.Model, whole: Plan, base: Plan, profile: MachineProfile | None
) -> Callable[[Plan], float]:
    """Return what tells by which share of its time a model is slower with another plan than with ``base``.

    In ``whole`` everything is in integers that can be. An estimate does not depend on the machine.
    """
    if profile is not None:
        circuit, seam = (
            circuit_of_profile(model, whole, profile),
            Seam(profile.seam_fixed, profile.seam_element),
        )
        least = predicted(circuit, seam, unit_sides(circuit, base))
        return lambda plan: predicted(circuit, seam, unit_sides(circuit, plan)) / least - 1.0
    sizes = Sizes.of(model)
    time, saved = integer_time(model, base, sizes), savings(model, base, sizes).work
    return lambda plan: (saved - savings(model, plan, sizes).work) / time


def _around(
    model: ir.Model, plan: Plan, target: Target, source: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
