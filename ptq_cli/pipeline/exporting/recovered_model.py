"""The rungs of recovery on a quantized model that is not written yet, and what they did."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ptq_cli.calibdata.dataset.selection import WHOLE
from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.files import PartialFolder
from ptq_cli.core.work.progress import LayerProgress, ProgressCallback
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.pipeline.exporting.placing.placement import Placement
from ptq_cli.pipeline.exporting.quantized_graph import QuantizedGraph
from ptq_cli.pipeline.exporting.ranges.moved_statistics import with_moved_statistics
from ptq_cli.pipeline.exporting.recovering.recovery_data import RecoveryData, recovery_samples
from ptq_cli.pipeline.exporting.recovering.recovery_effects import LayerRecovery, Recovery, RungEffect
from ptq_cli.pipeline.moments.collect_moments import MomentSubject
from ptq_cli.pipeline.moments.moment_blocks import divided, measure_blocks, moments_provenance, require_fit
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.quantizer_settings import FixedPointWeights, ScaledWeights, StepWeights
from ptq_cli.recipe.recovery_rungs import ROUND, WEIGHED
from ptq_cli.recovery.layers.quantized_layer import constant_array, quantized_layers, replace_constants
from ptq_cli.recovery.layers.solved_layer import SolvedLayer
from ptq_cli.recovery.moments.moment_sites import moment_sites
from ptq_cli.recovery.moments.moments_file import Moments
from ptq_cli.recovery.moments.tensor_moments import TensorMoments
from ptq_cli.recovery.recover_rounding import recover_rounding
from ptq_cli.recovery.samples.output_error import output_sqnr
from ptq_cli.recovery.samples.recovery_samples import RecoverySamples
from ptq_cli.recovery.samples.shelf import IN_MEMORY
from ptq_cli.recovery.weigh_rounding import weigh_rounding
from ptq_cli.runtime.machine import Machine
from ptq_cli.runtime.sessions.session import Session

STAGE = "recover"
MOMENTS = "moments.safetensors"
MEMORY_SHARE = 2
"""One part of so many of the memory that is allowed is for tensors that wait."""


@dataclass(frozen=True, kw_only=True)
class RecoveryMaterial:
    """What a model is recovered from.

    Attributes:
        calibration: the statistics.
        data: the calibration data; None where moments are all there is.
        moments: of what the layers read, if they were collected before.
    """

    calibration: Calibration
    data: RecoveryData | None
    moments: Moments | None


def recover_model(
    made: QuantizedGraph,
    float_model: StoredModel,
    rungs: Sequence[str],
    material: RecoveryMaterial,
    machine: Machine,
    folder: Path,
    progress: ProgressCallback,
) -> Recovery:
    """Choose the weights of a quantized model again, rung by rung, and keep what makes the output better.

    Args:
        made: the quantized model, whose constants are changed.
        float_model: that it was made from.
        rungs: in the order in which they run.
        material: what they learn from.
        machine: what of it may be used.
        folder: where tensors wait that do not fit into memory.
        progress: is called as the work proceeds.

    Raises:
        RecoveryError: there are too few samples.
        StaleMomentsError: the moments are of another calibration, or of other ranges.
        RuntimeFailedError: ONNX Runtime failed.
        PtqError: the data cannot be read.
    """
    samples = recovery_samples(material.data) if material.data is not None else None
    work = _Work(made, float_model, material, samples, machine, folder, progress)
    effects = {WEIGHED: work.weigh, ROUND: work.round}
    return Recovery(tuple(effects[rung]() for rung in rungs))


class _Work:
    """One model, on its way from rung to rung."""

    def __init__(
        self,
        made: QuantizedGraph,
        float_model: StoredModel,
        material: RecoveryMaterial,
        samples: tuple[RecoverySamples, int, int] | None,
        machine: Machine,
        folder: Path,
        progress: ProgressCallback,
    ) -> None:
        self._made, self._float_model, self._material = made, float_model, material
        self._samples, self._machine, self._folder = samples, machine, folder
        self._progress = progress
        self._waiting: PartialFolder | None = None
        self._twins = TwinGraphs(float_model.load(), made.model)
        self._free = free_scales(made.placement)

    def weigh(self) -> RungEffect:
        """Choose the weights again by what each layer reads."""
        count = self._material.calibration.provenance.samples
        moments = self._moments()
        self._progress(LayerProgress(STAGE, 0, None))
        found = weigh_rounding(
            self._twins,
            self._made.plan,
            self._free,
            moments,
            largest=self._largest(),
            samples=count,
            threads=self._machine.threads,
            done=self._done,
        )
        before = after = math.nan
        kept = found.changed
        if self._samples is None:
            replace_constants(self._made.model, found.constants)
        elif kept:
            held = {name: constant_array(self._made.model, name) for name in found.constants}
            before = self._sqnr()
            replace_constants(self._made.model, found.constants)
            after = self._sqnr()
            kept = after > before
            if not kept:
                replace_constants(self._made.model, held)
        return RungEffect(
            rung=WEIGHED,
            changed=found.changed,
            kept=kept,
            before=before,
            after=after,
            samples=count,
            decided_by=self._samples[2] if self._samples is not None else 0,
            layers=_layers(found.layers),
            refused=found.refused,
            damped=_damped(found.layers),
        )

    def round(self) -> RungEffect:
        """Choose the weights again behind the quantized layers before."""
        assert self._samples is not None  # noqa: S101 - the data were opened for this rung
        samples, learned, decided = self._samples
        self._progress(LayerProgress(STAGE, 0, None))
        found = recover_rounding(
            self._twins,
            self._made.plan,
            self._free,
            samples,
            folder=self._folder,
            memory=self._machine.memory // MEMORY_SHARE if self._machine.memory is not None else IN_MEMORY,
            threads=self._machine.threads,
            done=self._done,
        )
        kept = found.changed and found.after > found.before
        if kept:
            replace_constants(self._made.model, found.constants)
        return RungEffect(
            rung=ROUND,
            changed=found.changed,
            kept=kept,
            before=found.before,
            after=found.after,
            samples=learned,
            decided_by=decided,
            layers=_layers(found.layers),
            refused=found.refused,
            damped=_damped(found.layers),
        )

    def _largest(self) -> dict[str, float]:
        return largest_values(self._material.calibration, self._twins.float_model)

    def _done(self, done: int, total: int) -> None:
        self._progress(LayerProgress(STAGE, done, total))

    def _moments(self) -> Mapping[str, TensorMoments]:
        """Return the moments of the run, if they fit; otherwise collect them."""
        calibration, data = self._material.calibration, self._material.data
        layers, _ = quantized_layers(self._twins, self._made.plan, self._free)
        sites = moment_sites(layers.values(), self._largest(), calibration.provenance.samples)
        size = data.batch_size if data is not None else 0
        begun = moments_provenance(calibration, sites, WHOLE, size)
        if self._material.moments is not None:
            require_fit(self._material.moments, begun, MOMENTS)
            return self._material.moments.statistics
        assert data is not None  # noqa: S101 - there is one of both
        waiting = (
            PartialFolder(self._folder, MOMENTS) if len(divided(sites, self._machine.memory)) > 1 else None
        )
        subject = MomentSubject(
            model=self._float_model.load(),
            stored=self._float_model,
            inputs=data.inputs,
            dataset=data.dataset,
            batch_size=size,
            allow_nonfinite=data.allow_nonfinite,
        )
        moments = measure_blocks(
            subject,
            sites,
            self._machine,
            begun,
            self._progress,
            folder=waiting.path if waiting is not None else None,
        )
        self._waiting = waiting  # Arrays are mapped from its files.
        return moments.statistics

    def _sqnr(self) -> float:
        """Return the SQNR of the quantized model's outputs on the samples to decide by."""
        assert self._samples is not None  # noqa: S101 - the caller has asked
        pieces = self._samples[0].decide
        # One thread, so that the decision does not depend on how many there are.
        wanted, found = (
            Session(model, threads=1) for model in (self._float_model, serialize(self._made.model))
        )
        return output_sqnr([wanted.run(piece) for piece in pieces], [found.run(piece) for piece in pieces])


def _layers(solved: Mapping[str, SolvedLayer]) -> dict[str, LayerRecovery]:
    return {name: LayerRecovery(before=item.before, after=item.after) for name, item in solved.items()}


def _damped(solved: Mapping[str, SolvedLayer]) -> tuple[str, ...]:
    return tuple(name for name, item in solved.items() if item.damped)


def largest_values(calibration: Calibration, float_model: ir.Model) -> dict[str, float]:
    """Return the largest magnitude of each tensor that was measured, and of those with the same values."""
    calibration = with_moved_statistics(calibration, float_model.graph)
    return {name: float(max(-item.low, item.high)) for name, item in calibration.statistics.items()}


def free_scales(placement: Placement) -> dict[WeightSite, bool]:
    """Return of each weight whose integers are evenly spread whether its scales may be any."""
    found = {}
    for site, family in placement.families.items():
        if isinstance(family, ScaledWeights) and family.dtype is None:
            found[site] = True
        elif isinstance(family, FixedPointWeights | StepWeights):
            found[site] = False
    return found
