"""The rung ``float``: a few layers stay in float, whose integers cost the outputs most for what they save."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import InvalidOnnxError, NothingToQuantizeError, StaleCalibrationError
from ptq_cli.core.progress import ProgressCallback, RunProgress
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.pipeline.exporting.range_candidates import grids_of
from ptq_cli.pipeline.exporting.recovery_data import Build, RecoveryData, few, finite, recovery_samples
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.plan.worth import Sizes, integer_time, savings
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

Without = Callable[[Mapping[str, str]], Placement]
"""Places a model again with more layers in float, by name with the reason."""


@dataclass(frozen=True, kw_only=True)
class FloatLayers:
    """What the rung did."""

    layers: Annotated[tuple[str, ...], "Layers that it left in float, those that gain the most first."] = ()
    before: Annotated[float, "SQNR of the outputs on the held-out samples, in dB."]
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
    """A placement with some more layers in float.

    Attributes:
        left: the noise that is expected to be left, as a share.
        slower: share of the integer model's time that it costs.
    """

    placement: Placement
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
    """Return the placement with as many layers in float as 20 dB take, and what was done.

    The noise of each tensor alone tells which layers to leave in float first; whether a choice helps is
    measured on the held-out samples.
    """
    samples, _, decided_by = recovery_samples(data)
    sqnr = model_sqnr(float_model, samples.decide, threads=machine.threads)
    before = sqnr(serialize(build(placement)[0]))
    nothing = FloatLayers(before=before, after=before, decided_by=decided_by)
    if before >= WANTED_DB:
        return placement, nothing
    if target.runtime != ONNXRUNTIME:
        why = f"what layers in float cost is not known of target {target.name}"
        return placement, FloatLayers(before=before, after=before, decided_by=decided_by, refused=why)
    progress(RunProgress(STAGE, 0, None))
    floats = float_model.load()
    noise = tensor_noise(
        floats,
        placement.plan,
        grids_of(placement, calibration),
        few(samples.fit, RANKED_ON),
        threads=machine.threads,
        done=lambda done, total: progress(RunProgress(STAGE, done, total)),
    )
    steps = _Steps(floats, placement, without, target, noise)

    def measured(step: _Step) -> float:
        return sqnr(serialize(build(step.placement)[0]))

    chosen, after = _fewest(list(steps.up_to(MOST_TIME)), measured)
    if chosen is None or not after >= before + LEAST_GAIN_DB:
        chosen, after = _Step(placement, (), 1.0, 0.0), before
    more, more_sqnr = None, math.nan
    if after < WANTED_DB:
        more, more_sqnr = _fewest(list(steps.up_to(math.inf)), measured)
    return chosen.placement, FloatLayers(
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
    """Placements with more and more layers in float, in the order of what they gain for their time."""

    def __init__(
        self,
        model: ir.Model,
        placement: Placement,
        without: Without,
        target: Target,
        noise: Mapping[str, float],
    ) -> None:
        self._model, self._base, self._without, self._noise = model, placement, without, noise
        self._sizes = Sizes.of(model)
        self._time = integer_time(model, placement.plan, self._sizes)
        self._saved = savings(model, placement.plan, self._sizes).work
        self._total = sum(noise.values()) or 1.0
        loud = sorted(noise, key=lambda source: (-noise[source], source))[:LOUD]
        plan = placement.plan
        makers = dict.fromkeys(maker for source in loud for maker in _makers(model, plan, target, source))
        alone = {name: step for name in makers if (step := self._step((name,))) is not None}
        worth = {name: (1.0 - step.left) / max(step.slower, LEAST_SHARE) for name, step in alone.items()}
        self._order = sorted(worth, key=lambda name: (-worth[name], name))

    def up_to(self, limit: float) -> Iterator[_Step]:
        """Yield placements that cost at most this share of the time, each with a layer more in float."""
        layers: tuple[str, ...] = ()
        left = 1.0
        for name in self._order:
            step = self._step((*layers, name))
            # A layer that an earlier one has taken with it takes no more noise away.
            if step is not None and step.slower <= limit and step.left < left:
                layers, left = step.layers, step.left
                yield step

    def _step(self, layers: tuple[str, ...]) -> _Step | None:
        reason = "left in float: its integers cost the outputs more than they save time"
        try:
            placed = self._without(dict.fromkeys(layers, reason))
        except (InvalidOnnxError, NothingToQuantizeError, StaleCalibrationError):
            return None  # What is left would need ranges that were not measured, or nothing is left.
        before, after = self._base.plan.activations, placed.plan.activations
        quantized = {before[name].source for name in after if name in before}
        left = sum(noise for source, noise in self._noise.items() if source in quantized)
        lost = self._saved - savings(self._model, placed.plan, self._sizes).work
        return _Step(placed, layers, left / self._total, lost / self._time)


def _makers(model: ir.Model, plan: Plan, target: Target, source: str) -> Iterator[str]:
    """Yield the integer layers that would have to be in float so that a tensor is: those that make it."""
    integer = {layer.name for layer in plan.layers if layer.quantized}
    members = {name for name, site in plan.activations.items() if site.source == source}
    members.update(plan.members(source))
    between = {name for name, rule in target.op.items() if rule.kind in BETWEEN}
    for node in model.graph:
        if not any(value.name in members for value in node.outputs):
            continue
        maker: ir.Node | None = node
        while maker is not None and maker.op_type in between:
            first = maker.inputs[0] if maker.inputs else None
            maker = first.producer() if first is not None else None
        if maker is not None and (maker.name or "") in integer:
            yield maker.name or ""
