"""The rung ``float``: a few layers find ranges at each run, or stay in float, where theirs cost the most."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.documents import rounded
from ptq_cli.core.errors import InvalidOnnxError, StaleCalibrationError
from ptq_cli.core.progress import ProgressCallback, RunProgress
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.placement.machine_profile import MachineProfile
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.qdq.read.constant_values import with_float_weights
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recover.float_steps import LOUD, REASON, Names, Step, Steps
from ptq_cli.recover.output_noise import lowest_of
from ptq_cli.recover.range_candidates import grids_of
from ptq_cli.recover.range_effects import Judge, model_sqnr, row_noise, tensor_noise
from ptq_cli.recover.recovery_data import (
    MOST_WORK,
    Build,
    RecoveryData,
    few,
    sample_work,
)
from ptq_cli.recover.recovery_samples import RecoverySamples, samples_in
from ptq_cli.runtime.machine import Machine

STAGE = "float"
WANTED_DB = 22.0
"""SQNR of the worst output from which on no layer is left in float: 20 dB, and 2 for samples unlike these."""
JUDGED_ON, MODELS = 32, 8
"""Most samples that a choice is measured on, and about how many choices are: what learns nothing from the
samples may be judged by all of them, and few hide the sample that makes most of the noise."""
FAR_DB, JUDGED_FAR_ON = 10.0, 8
"""SQNR below which so few samples show that no choice is enough; if one is, all of them judge again."""
ENOUGH_DB = 30.0
"""SQNR of the worst output on the samples that judge ``ranges`` from which on no others are looked at."""
RANKED_ON = 4
"""Samples that the noise of a tensor is measured on, and the fewest others that may be enough."""
RANK_WORK = 6e11
"""Multiply-accumulates that ranking may take; of a larger model one sample ranks the tensors whose rows lose
most."""
WEIGHTS_MATTER_DB = 1.0
"""What weights have to cost the worst output for their rungs to be worth minutes, and for layers to be left
to these, which choose no weights again behind ranges found at each run."""
LEAST_GAIN_DB = 0.5
"""For less no layer is left in float."""

Without = Callable[[Mapping[str, str], Collection[str]], Placement]
"""Places a model again with more layers in float, by name with the reason, and more that find ranges."""


@dataclass(frozen=True, kw_only=True)
class FloatLayers:
    """What the rung did."""

    layers: Annotated[Names, "Layers that it left in float, those that gain the most first."] = ()
    dynamic: Annotated[Names, "Layers for which it had ranges found at each run, likewise."] = ()
    before: Annotated[
        float, "SQNR of the worst output without what the weights lose, or 30 dB or more that it surely has."
    ]
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
        sqnr = [rounded(self.before), rounded(self.after)]
        found: dict[str, object] = {"layers": self.layers, "dynamic": self.dynamic, "sqnr_db": sqnr}
        found |= {"slower": round(self.slower, 4)}
        found |= {"samples": self.decided_by, "reached_db": rounded(self.reached)}
        more = {"layers": self.more, "dynamic": self.more_dynamic, "sqnr_db": rounded(self.more_sqnr)}
        more |= {"slower": round(self.more_slower, 4)}
        return json.dumps(found | ({"more": more} if self.more or self.more_dynamic else {}))


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
    known: float = math.nan,
) -> tuple[Placement, FloatLayers]:
    """Return the placement with as many layers in float, or with ranges found at each run, as 22 dB take.

    And what was done. The noise of each tensor alone tells with which layers to begin; whether a choice helps
    is measured, with float weights where those lose: ``round`` makes up for that. ``limit`` is the share of
    the integer model's time that they may add, by ``profile`` or by an estimate. Once ``stop`` says so, what
    was found until then is kept. ``could_be_dynamic`` are the layers that may have ranges found at each run.
    ``known`` is the SQNR of all outputs together on the samples that judge, in dB, or NaN.
    """
    floats = float_model.load()
    judged = data.samples[2]
    # The noise of all outputs is the mean of theirs.
    worst = known - 10.0 * math.log10(len(floats.graph.outputs))
    if worst >= ENOUGH_DB and judged >= RANKED_ON:
        return placement, FloatLayers(before=worst, after=worst, decided_by=judged)

    @cache
    def steps(could_be_dynamic: frozenset[str]) -> Steps:
        progress(RunProgress(STAGE, 0, None))
        noise = _noise(floats, placement, calibration, data, machine, progress, stop)
        return Steps(floats, placement, target, noise, profile, could_be_dynamic)

    def choose(most: int) -> tuple[Placement, FloatLayers]:
        outputs_sqnr, count = _judge(float_model, floats, data, machine, most)
        measured = _measure(build, floats, outputs_sqnr)
        before, lost = measured(placement, -math.inf)
        found = FloatLayers(before=before, after=before, weights_lose=lost, decided_by=count)
        if before >= WANTED_DB:
            return placement, found
        if target.runtime != ONNXRUNTIME:
            why = f"what layers in float cost is not known of target {target.name}"
            return placement, replace(found, refused=why)
        dynamic = could_be_dynamic if lost < WEIGHTS_MATTER_DB else frozenset()
        return _chosen(steps(dynamic), placement, found, limit, without, measured, stop)

    if known < FAR_DB:
        chosen, found = choose(JUDGED_FAR_ON)
        if stop() or not max(found.after, found.more_sqnr) >= WANTED_DB:
            return chosen, found
    return choose(JUDGED_ON)


def _noise(
    model: ir.Model,
    placement: Placement,
    calibration: Calibration,
    data: RecoveryData,
    machine: Machine,
    progress: ProgressCallback,
    stop: Callable[[], bool],
) -> dict[str, float]:
    grids, pieces = _ranked(model, placement, grids_of(placement, calibration), data.samples[0], data)
    return tensor_noise(
        model,
        placement.plan,
        grids,
        pieces,
        threads=machine.threads,
        stop=stop,
        done=lambda done, total: progress(RunProgress(STAGE, done, total, number=done, runs=total)),
    )


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
    build: Build, floats: ir.Model, outputs_sqnr: Judge
) -> Callable[[Placement, float], tuple[float, float]]:
    """Return what tells the SQNR of a placement's worst output, but for what the weights lose, and that.

    The first model below what is wanted tells of all whether float weights are better than its own. One that
    surely has less than what it is asked about, ``at_least``, may have minus infinity.
    """
    lose: list[bool] = []

    def measured(placed: Placement, at_least: float) -> tuple[float, float]:
        made = build(placed)[0]
        if any(lose) and (in_floats := with_float_weights(TwinGraphs(floats, made))) is not None:
            sqnr = outputs_sqnr(serialize(in_floats), integer_kernels=False, at_least=at_least)
            return sqnr, math.nan
        found = outputs_sqnr(serialize(made))
        in_floats = with_float_weights(TwinGraphs(floats, made)) if found < WANTED_DB else None
        if in_floats is None:
            return found, 0.0
        # On flat images the weights' noise may take a constant to a nearer step. With its integer kernels
        # ONNX Runtime would quantize float weights, with one scale for all channels.
        without = max(found, outputs_sqnr(serialize(in_floats), integer_kernels=False))
        lose.append(without > found)
        return without, without - found

    return measured


def reached_sqnr(
    found: FloatLayers, float_model: StoredModel, made: ir.Model | None, data: RecoveryData, machine: Machine
) -> FloatLayers:
    """Return what was done with what the whole model ``made`` has reached, if that may not be enough.

    Without one, it is the model that was measured, with its own weights.
    """
    if found.after >= WANTED_DB:
        return found
    if made is None:
        return replace(found, reached=found.after)
    outputs_sqnr, _ = _judge(float_model, float_model.load(), data, machine, found.decided_by)
    return replace(found, reached=outputs_sqnr(serialize(made)))


def _judge(
    float_model: StoredModel, floats: ir.Model, data: RecoveryData, machine: Machine, most: int
) -> tuple[Judge, int]:
    """Return what tells the SQNR of the worst output, and on how many samples: those held out come first."""
    samples = data.samples[0]
    if most > JUDGED_FAR_ON:
        affordable = int(MOST_WORK / (MODELS * sample_work(floats, samples.decide[0], data.inputs) + 1))
        most = max(sum(map(samples_in, samples.decide)), min(most, affordable))
    pieces = few([*samples.decide, *samples.fit], data.inputs, most)
    count = sum(map(samples_in, pieces))
    name = f"{STAGE} {count}"
    sqnr = model_sqnr(
        float_model, pieces, threads=machine.threads, of=lowest_of, known=data.known_outputs, name=name
    )
    return sqnr, count


def _chosen(
    steps: Steps,
    placement: Placement,
    found: FloatLayers,
    limit: float,
    without: Without,
    measured: Callable[[Placement, float], tuple[float, float]],
    stop: Callable[[], bool],
) -> tuple[Placement, FloatLayers]:
    """Return the placement with the fewest layers in float that are enough, and what was done."""

    def sqnr(step: Step, at_least: float) -> float:
        try:
            return measured(_placed(without, step), at_least)[0]
        except (InvalidOnnxError, StaleCalibrationError):
            return -math.inf  # What is left would need ranges that were not measured.

    chosen, after = _fewest(list(steps.up_to(limit)), sqnr, stop)
    if chosen is not None and after >= found.before + LEAST_GAIN_DB:
        placement, (in_float, dynamic) = _placed(without, chosen), chosen.move
        found = replace(found, layers=in_float, dynamic=dynamic, after=after, slower=chosen.slower)
    if found.after < WANTED_DB and not stop():
        # Within the limit even the last step is not enough.
        further = [step for step in steps.up_to(math.inf) if step.slower > limit]
        more, after = _fewest(further, sqnr, stop)
        if more is not None and after > found.after:
            in_float, dynamic = more.move
            found = replace(found, more=in_float, more_dynamic=dynamic, more_sqnr=after)
            found = replace(found, more_slower=more.slower)
    return placement, found


def _placed(without: Without, step: Step) -> Placement:
    in_float, dynamic = step.move
    return without(dict.fromkeys(in_float, REASON), dynamic)


def _fewest(
    steps: Sequence[Step], measured: Callable[[Step, float], float], stop: Callable[[], bool]
) -> tuple[Step | None, float]:
    """Return the first step that has the SQNR wanted, and its SQNR; the last one where none has."""
    if not steps:
        return None, math.nan
    low, high = 0, len(steps) - 1
    found = measured(steps[high], -math.inf)
    # More layers in float hardly ever lose, so that halving finds the fewest in a few models.
    while found >= WANTED_DB and low < high and not stop():
        middle = (low + high) // 2
        value = measured(steps[middle], WANTED_DB)
        if value >= WANTED_DB:
            high, found = middle, value
        else:
            low = middle + 1
    return steps[high], found
