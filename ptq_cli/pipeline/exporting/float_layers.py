"""The rung ``float``: a few layers stay in float, whose integers cost the outputs most for what they save."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import InvalidOnnxError, StaleCalibrationError
from ptq_cli.core.progress import ProgressCallback, RunProgress
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
    one_sample,
    sample_work,
)
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.planner import make_plan, plan_unasked
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.plan.worth import Sizes, integer_time, savings
from ptq_cli.qdq.read.constant_values import with_float_weights
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recovery.range_effects import model_sqnr, tensor_noise
from ptq_cli.recovery.recovery_samples import RecoverySamples, lowest_sqnr, samples_in
from ptq_cli.runtime.machine import Machine

STAGE = "float"
WANTED_DB = 22.0
"""SQNR of the worst output from which on no layer is left in float: 20 dB, and 2 for samples unlike these."""
JUDGED_ON, MODELS = 32, 8
"""Most samples that a choice is measured on, and about how many choices are: what learns nothing from the
samples may be judged by all of them, and few hide the sample that makes most of the noise."""
LOUD, QUIET = 64, 0.25
"""So many tensors at most are looked at, those that make the most noise, and none of those that together make
less than this share of what may be left."""
RANKED_ON = 4
"""Samples that the noise of a loud tensor is measured on, two of a model that runs them one by one."""
LEAST_SHARE = 1e-3
"""Of the time: what a layer costs that saves time in float, so that no noise is worth nothing."""
LEAST_GAIN_DB = 0.5
"""For less no layer is left in float."""
BETWEEN = ("same", "clamp")
"""Kinds of operators that are in float where the operator before them is."""

REASON = "left in float: its integers cost the outputs more than they save time"

Without = Callable[[Mapping[str, str]], Placement]
"""Places a model again with more layers in float, by name with the reason."""


@dataclass(frozen=True, kw_only=True)
class FloatLayers:
    """What the rung did."""

    layers: Annotated[tuple[str, ...], "Layers that it left in float, those that gain the most first."] = ()
    before: Annotated[float, "SQNR of the worst output without what the weights lose, in dB."]
    after: Annotated[float, "SQNR of the worst output with these in float."]
    decided_by: Annotated[int, "How many samples that was measured on."]
    slower: Annotated[float, "Share of its time that the model takes longer for them, by an estimate."] = 0.0
    more: Annotated[tuple[str, ...], "Where that is not enough: layers that would have to be in float."] = ()
    more_sqnr: Annotated[float, "SQNR of the worst output with those in float; NaN without."] = math.nan
    more_slower: Annotated[float, "Share of its time that the model would take longer for those."] = 0.0
    reached: Annotated[float, "SQNR of the file's worst output, where that is below 22 dB; or NaN."] = (
        math.nan
    )
    refused: Annotated[str, "Why no layer was looked at; empty otherwise."] = ""

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model."""
        sqnr = [finite(self.before), finite(self.after)]
        found = {"layers": self.layers, "sqnr_db": sqnr, "slower": round(self.slower, 4)}
        found |= {"samples": self.decided_by, "reached_db": finite(self.reached)}
        more = {"layers": self.more, "sqnr_db": finite(self.more_sqnr), "slower": round(self.more_slower, 4)}
        return json.dumps(found | ({"more": more} if self.more else {}))


@dataclass(frozen=True)
class _Step:
    """Some more layers in float.

    Attributes:
        left: the noise that is expected to be left, as a share.
        slower: share of the integer model's time that it costs.
        is_measured: whether the ranges of all its tensors were measured.
    """

    layers: tuple[str, ...]
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
    cuts: Collection[str],
    target: Target,
    machine: Machine,
    progress: ProgressCallback,
    *,
    stop: Callable[[], bool] = lambda: False,
    limit: float,
    profile: MachineProfile | None = None,
) -> tuple[Placement, FloatLayers]:
    """Return the placement with as many layers in float as 22 dB take, and what was done.

    The noise of each tensor alone tells which layers to leave in float first; whether a choice helps is
    measured, with float weights where those lose: ``round`` makes up for that. ``limit`` is the share of the
    integer model's time that they may add, by ``profile`` or by an estimate. Once ``stop`` says so, what was
    found until then is kept.
    """
    samples, floats = data.samples[0], float_model.load()
    judged = _judged(samples, floats, data)
    outputs_sqnr = model_sqnr(float_model, judged, threads=machine.threads, of=lowest_sqnr)
    data.judges[STAGE] = outputs_sqnr

    measured = _measure(build, floats, outputs_sqnr)
    before = measured(placement)
    found = FloatLayers(before=before, after=before, decided_by=sum(map(samples_in, judged)))
    if before >= WANTED_DB:
        return placement, found
    if target.runtime != ONNXRUNTIME:
        why = f"what layers in float cost is not known of target {target.name}"
        return placement, replace(found, refused=why)
    progress(RunProgress(STAGE, 0, None))
    pieces = few(samples.fit, data.inputs, RANKED_ON)
    noise = tensor_noise(
        floats,
        placement.plan,
        grids_of(placement, calibration),
        [*one_sample(pieces[0], data.inputs), *pieces][:2],
        most=LOUD,
        quiet=QUIET * 10.0 ** ((before - WANTED_DB) / 10.0),
        cuts=cuts,
        known=data.known_costs,
        threads=machine.threads,
        stop=stop,
        done=lambda done, total: progress(RunProgress(STAGE, done, total, number=done, runs=total)),
    )
    return _chosen(
        _Steps(floats, placement, target, noise, profile), placement, found, limit, without, measured, stop
    )


def _measure(
    build: Build, floats: ir.Model, outputs_sqnr: Callable[..., float]
) -> Callable[[Placement], float]:
    """Return what tells the SQNR of a placement's worst output, but for what the weights lose.

    Of models below what is wanted the first one tells whether its own weights or float ones are better.
    """
    own_are_worse: list[bool] = []

    def measured(placed: Placement) -> float:
        made = build(placed)[0]
        in_floats = None
        if any(own_are_worse) and (in_floats := with_float_weights(TwinGraphs(floats, made))) is not None:
            return outputs_sqnr(serialize(in_floats), integer_kernels=False)
        found = outputs_sqnr(serialize(made))
        in_floats = with_float_weights(TwinGraphs(floats, made)) if found < WANTED_DB else None
        if in_floats is None:
            return found
        # On flat images the weights' noise may take a constant to a nearer step. With its integer kernels
        # ONNX Runtime would quantize float weights, with one scale for all channels.
        own_are_worse.append(
            (with_floats := outputs_sqnr(serialize(in_floats), integer_kernels=False)) > found
        )
        return max(found, with_floats)

    return measured


def reached_sqnr(found: FloatLayers, made: ir.Model, data: RecoveryData) -> FloatLayers:
    """Return what was done with what the whole model ``made`` has reached, if that may not be enough."""
    return found if found.after >= WANTED_DB else replace(found, reached=data.judges[STAGE](serialize(made)))


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
    measured: Callable[[Placement], float],
    stop: Callable[[], bool],
) -> tuple[Placement, FloatLayers]:
    """Return the placement with the fewest layers in float that are enough, and what was done."""

    def sqnr(step: _Step) -> float:
        try:
            return measured(without(dict.fromkeys(step.layers, REASON)))
        except (InvalidOnnxError, StaleCalibrationError):
            return -math.inf  # What is left would need ranges that were not measured.

    chosen, after = _fewest(list(steps.up_to(limit)), sqnr, stop)
    if chosen is not None and after >= found.before + LEAST_GAIN_DB:
        placement = without(dict.fromkeys(chosen.layers, REASON))
        found = replace(found, layers=chosen.layers, after=after, slower=chosen.slower)
    if found.after < WANTED_DB and not stop():
        more, after = _fewest(list(steps.up_to(math.inf)), sqnr, stop)
        if more is not None and after > found.after:
            found = replace(found, more=more.layers, more_sqnr=after, more_slower=more.slower)
    return placement, found


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
    """More and more layers in float, in the order of what they gain for their time.

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
    ) -> None:
        self._model, self._target, self._noise = model, target, noise
        could = {layer.name for layer in placement.target_plan.layers if layer.quantized}
        self._excluded = {
            layer.name: layer.reason
            for layer in placement.plan.layers
            if not layer.quantized and layer.name in could
        }
        self._steps: dict[tuple[str, ...], _Step] = {}
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._unasked = plan_unasked(model, target)
        self._base, self._measured = self._plan(()), set(placement.target_plan.measured)
        self._slower = _slower_than(model, placement.target_plan, self._base, profile)
        self._total = sum(noise.values()) or 1.0
        loud = sorted(noise, key=lambda source: (-noise[source], source))
        alone = {move: self._step(move) for source in loud if (move := self._move(source))}
        worth = {move: (1.0 - step.left) / max(step.slower, LEAST_SHARE) for move, step in alone.items()}
        self._order = sorted(worth, key=lambda move: (-worth[move], move))

    def up_to(self, limit: float) -> Iterator[_Step]:
        """Yield choices that cost at most this share of the time, each with more layers in float."""
        last = _Step((), 1.0, -math.inf)
        for move in self._order:
            layers = tuple(dict.fromkeys((*last.layers, *move)))
            step = self._step(layers)
            # A float layer between integer ones may need ranges that were not measured.
            if not step.is_measured:
                continue
            # Layers that earlier ones have taken with them take no more noise away.
            if step.slower <= limit and step.left < last.left:
                # A limit of this cost lets the steps before pass, too.
                last = replace(step, slower=max(step.slower, last.slower))
                yield last

    def _move(self, source: str) -> tuple[str, ...]:
        """Return the layers to leave in float so that a tensor is: its makers, or these and its readers."""
        makers, readers = _around(self._model, self._base, self._target, source)
        # What a float layer makes of integers is not quantized for the next one, of floats it is.
        if makers and source not in self._plan(makers).activations:
            return makers
        return tuple(dict.fromkeys((*makers, *readers)))

    def _plan(self, layers: tuple[str, ...]) -> Plan:
        if layers not in self._plans:  # What a move leaves in float is planned to find it, and to weigh it.
            excluded = {**self._excluded, **dict.fromkeys(layers, REASON)}
            self._plans[layers] = make_plan(
                self._model, self._target, excluded=excluded, may_be_empty=True, unasked=self._unasked
            )
        return self._plans[layers]

    def _step(self, layers: tuple[str, ...]) -> _Step:
        if layers not in self._steps:  # Each limit begins with the same ones.
            self._steps[layers] = self._planned(layers)
        return self._steps[layers]

    def _planned(self, layers: tuple[str, ...]) -> _Step:
        plan = self._plan(layers)
        before, after = self._base.activations, plan.activations
        quantized = {before[name].source for name in after if name in before}
        left = sum(noise for source, noise in self._noise.items() if source in quantized)
        is_measured = self._measured.issuperset(plan.measured)
        return _Step(layers, left / self._total, self._slower(plan), is_measured)


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
