"""The rung ``float``: a few layers stay in float, whose integers cost the outputs most for what they save."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import InvalidOnnxError, StaleCalibrationError
from ptq_cli.core.progress import ProgressCallback, RunProgress
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.pipeline.exporting.range_candidates import grids_of
from ptq_cli.pipeline.exporting.recovery_data import Build, RecoveryData, few, finite, recovery_samples
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.plan.worth import Sizes, integer_time, savings
from ptq_cli.qdq.read.constant_values import with_float_weights
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recovery.range_effects import model_sqnr, tensor_noise
from ptq_cli.runtime.machine import Machine

STAGE = "float"
WANTED_DB = 22.0
"""SQNR of the outputs from which on no layer is left in float: 20 dB, and 2 as few samples decide."""
MOST_TIME = 0.1
"""Share of the integer model's time that layers in float may add, by the estimate of ``integer_time``."""
LOUD = 64
"""So many tensors at most are looked at, those that make the most noise."""
RANKED_ON = 4
"""Samples that the noise of a tensor is measured on."""
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
    before: Annotated[float, "SQNR of the outputs on the held-out samples with float weights, in dB."]
    after: Annotated[float, "SQNR of the outputs with these in float."]
    decided_by: Annotated[int, "How many samples were held out."]
    slower: Annotated[float, "Share of its time that the model takes longer for them, by an estimate."] = 0.0
    more: Annotated[tuple[str, ...], "Where that is not enough: layers that would have to be in float."] = ()
    more_sqnr: Annotated[float, "SQNR of the outputs with those in float; NaN without."] = math.nan
    more_slower: Annotated[float, "Share of its time that the model would take longer for those."] = 0.0
    refused: Annotated[str, "Why no layer was looked at; empty otherwise."] = ""

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model."""
        sqnr = [finite(self.before), finite(self.after)]
        found = {"layers": self.layers, "sqnr_db": sqnr, "slower": round(self.slower, 4)}
        more = {"layers": self.more, "sqnr_db": finite(self.more_sqnr), "slower": round(self.more_slower, 4)}
        return json.dumps(found | ({"more": more} if self.more else {}))


@dataclass(frozen=True)
class _Step:
    """Some more layers in float.

    Attributes:
        left: the noise that is expected to be left, as a share.
        slower: share of the integer model's time that it costs.
    """

    layers: tuple[str, ...]
    left: float
    slower: float


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
) -> tuple[Placement, FloatLayers]:
    """Return the placement with as many layers in float as 22 dB take, and what was done.

    The noise of each tensor alone tells which layers to leave in float first; whether a choice helps is
    measured on the held-out samples, with float weights: ``round`` makes up for what weights lose.
    """
    samples, _, decided_by = recovery_samples(data)
    outputs_sqnr = model_sqnr(float_model, samples.decide, threads=machine.threads)
    floats = float_model.load()

    def sqnr(placed: Placement) -> float:
        made = build(placed)[0]
        return outputs_sqnr(serialize(with_float_weights(TwinGraphs(floats, made)) or made))

    before = sqnr(placement)
    nothing = FloatLayers(before=before, after=before, decided_by=decided_by)
    if before >= WANTED_DB:
        return placement, nothing
    if target.runtime != ONNXRUNTIME:
        why = f"what layers in float cost is not known of target {target.name}"
        return placement, FloatLayers(before=before, after=before, decided_by=decided_by, refused=why)
    progress(RunProgress(STAGE, 0, None))
    noise = tensor_noise(
        floats,
        placement.plan,
        grids_of(placement, calibration),
        few(samples.fit, data.inputs, RANKED_ON),
        threads=machine.threads,
        done=lambda done, total: progress(RunProgress(STAGE, done, total, number=done, runs=total)),
    )
    steps = _Steps(floats, placement, target, noise)

    def placed(step: _Step) -> Placement:
        return without(dict.fromkeys(step.layers, REASON)) if step.layers else placement

    def measured(step: _Step) -> float:
        try:
            return sqnr(placed(step))
        except (InvalidOnnxError, StaleCalibrationError):
            return -math.inf  # What is left would need ranges that were not measured.

    chosen, after = _fewest(list(steps.up_to(MOST_TIME)), measured)
    if chosen is None or not after >= before + LEAST_GAIN_DB:
        chosen, after = _Step((), 1.0, 0.0), before
    more, more_sqnr = None, math.nan
    if after < WANTED_DB:
        more, more_sqnr = _fewest(list(steps.up_to(math.inf)), measured)
    return placed(chosen), FloatLayers(
        layers=chosen.layers,
        before=before,
        after=after,
        decided_by=decided_by,
        slower=chosen.slower,
        more=more.layers if more is not None and more_sqnr > after else (),
        more_sqnr=more_sqnr,
        more_slower=more.slower if more is not None else 0.0,
    )


def _fewest(steps: Sequence[_Step], measured: Callable[[_Step], float]) -> tuple[_Step | None, float]:
    """Return the first step that has the SQNR wanted, and its SQNR; the last one where none has."""
    if not steps:
        return None, math.nan
    low, high = 0, len(steps) - 1
    found = measured(steps[high])
    # More layers in float hardly ever lose, so that halving finds the fewest in a few models.
    while found >= WANTED_DB and low < high:
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
        self, model: ir.Model, placement: Placement, target: Target, noise: Mapping[str, float]
    ) -> None:
        self._model, self._target, self._noise = model, target, noise
        could = {layer.name for layer in placement.target_plan.layers if layer.quantized}
        self._excluded = {
            layer.name: layer.reason
            for layer in placement.plan.layers
            if not layer.quantized and layer.name in could
        }
        self._sizes, self._base = Sizes.of(model), self._plan(())
        self._time = integer_time(model, self._base, self._sizes)
        self._saved = savings(model, self._base, self._sizes).work
        self._total = sum(noise.values()) or 1.0
        loud = sorted(noise, key=lambda source: (-noise[source], source))[:LOUD]
        alone = {move: self._step(move) for source in loud if (move := self._move(source))}
        worth = {move: (1.0 - step.left) / max(step.slower, LEAST_SHARE) for move, step in alone.items()}
        self._order = sorted(worth, key=lambda move: (-worth[move], move))

    def up_to(self, limit: float) -> Iterator[_Step]:
        """Yield choices that cost at most this share of the time, each with more layers in float."""
        layers: tuple[str, ...] = ()
        left = 1.0
        for move in self._order:
            step = self._step(tuple(dict.fromkeys((*layers, *move))))
            # Layers that earlier ones have taken with them take no more noise away.
            if step.slower <= limit and step.left < left:
                layers, left = step.layers, step.left
                yield step

    def _move(self, source: str) -> tuple[str, ...]:
        """Return the layers to leave in float so that a tensor is: its makers, or these and its readers."""
        makers, readers = _around(self._model, self._base, self._target, source)
        # What a float layer makes of integers is not quantized for the next one, of floats it is.
        if makers and source not in self._plan(makers).activations:
            return makers
        return tuple(dict.fromkeys((*makers, *readers)))

    def _plan(self, layers: Sequence[str]) -> Plan:
        excluded = {**self._excluded, **dict.fromkeys(layers, REASON)}
        return make_plan(self._model, self._target, excluded=excluded, may_be_empty=True)

    def _step(self, layers: tuple[str, ...]) -> _Step:
        plan = self._plan(layers)
        before, after = self._base.activations, plan.activations
        quantized = {before[name].source for name in after if name in before}
        left = sum(noise for source, noise in self._noise.items() if source in quantized)
        lost = self._saved - savings(self._model, plan, self._sizes).work
        return _Step(layers, left / self._total, lost / self._time)


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
