"""The rungs of recovery on a quantized model that is not written yet, and what they did."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.calibdata.dataset.selection import WHOLE
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.files import PartialFolder
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.files.storing import mapped_model
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.placement.ranges import (
    with_moved_statistics,
)
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.write.constant_pairs import NamesBySite, replace_constants, replaced_arrays
from ptq_cli.qdq.write.site_parameters import DecidedConstants
from ptq_cli.recipe.known_modes import ROUND, WEIGHED
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recover.collect_moments import (
    MomentSubject,
    divided,
    measure_blocks,
    moments_provenance,
    require_fit,
)
from ptq_cli.recover.decided_model import DecidedModel, with_opset
from ptq_cli.recover.interrupted_recovery import (
    Interruptions,
    RecoveryCheckpoint,
    rung_identity,
)
from ptq_cli.recover.moments_file import Moments
from ptq_cli.recover.quantized_layer import quantized_layers
from ptq_cli.recover.recover_rounding import (
    RecoveredRounding,
    recover_rounding,
    round_work,
    weigh_rounding,
)
from ptq_cli.recover.recovery_data import RecoveryData
from ptq_cli.recover.recovery_effects import LayerRecovery, Recovery, RungEffect
from ptq_cli.recover.rung_work import in_minutes, search_work, seconds_of
from ptq_cli.recover.spill_store import IN_MEMORY
from ptq_cli.recover.tensor_moments import TensorMoments, moment_sites
from ptq_cli.runtime.machine import Machine

STAGE = "recover"
A_MINUTE = 60.0
ENOUGH = 1.0
"""Decibels that ``round`` has to gain for ``weighed`` to add nothing, as on five networks."""
MOMENTS = "moments.safetensors"
MEMORY_SHARE = 2
"""One part of so many of the memory that is allowed is for tensors that wait."""


@dataclass(kw_only=True)
class Recovering:
    """The weights of a model are chosen again, rung by rung, and kept if they make the output better.

    Attributes:
        made: the model as it is decided so far.
        data, moments: at least one of both is there.
        folder: where tensors wait that do not fit into memory.
        but: weights that stay as they are.
        interruptions: a rung that Ctrl-C ended is the last.
        checkpoint: the file that an interrupted rung continues from, by its name; None for none.
        every: seconds between two checkpoints.
    """

    made: DecidedModel
    float_model: StoredModel
    calibration: Calibration
    data: RecoveryData | None
    moments: Moments | None
    machine: Machine
    folder: Path
    progress: ProgressCallback
    but: Collection[WeightSite] = ()
    interruptions: Interruptions
    checkpoint: Callable[[str], Path] | None = None
    every: float = 0.0

    def __post_init__(self) -> None:
        self._samples = self.data.samples if self.data is not None else None
        kept = tuple(site for site in self.made.plan.weights if site not in self.but)
        self._plan = replace(self.made.plan, weights=kept)
        self.float_model = mapped_model(self.float_model, self.folder)
        self._float_graph = self.float_model.load()
        self._free = free_scales(self.made.placement)
        self._largest = largest_values(self.calibration, self._float_graph)
        self._waiting: PartialFolder | None = None

    def climb(self, rungs: Sequence[str]) -> Recovery:
        """Run the rungs, and return what each did.

        Beside ``round``, which does the same and more, ``weighed`` is the last, or left out.
        """
        self._tell_time(rungs)
        effects: list[RungEffect] = []
        for rung in sorted(rungs, key=(ROUND, WEIGHED).index):
            if self.interruptions.stopped:
                break
            gained = effects[0].after - effects[0].before if effects and effects[0].kept else 0.0
            if gained >= ENOUGH:
                note = f"{rung} is left out: {effects[0].rung} gained {gained:.1f} dB"
                self.progress(Progress(STAGE, 0, None, note))
                break
            effects.append(self.weigh() if rung == WEIGHED else self.round())
        return Recovery(tuple(effects), interrupted=self.interruptions.stopped)

    def weigh(self) -> RungEffect:
        """Choose the weights again by what each layer reads."""
        count = self.calibration.provenance.samples
        moments, checkpoint = self._moments(), self._checkpoint_of(WEIGHED)
        with self._rung() as stop:
            found = weigh_rounding(
                self._float_graph,
                self._plan,
                self.made.parameters,
                self._free,
                moments,
                largest=self._largest,
                samples=count,
                threads=self.machine.threads,
                progress=self.progress,
                stop=stop,
                checkpoint=checkpoint,
            )
        self._note(checkpoint, found)
        before = after = math.nan
        kept = found.changed
        if self.data is not None and kept:
            sqnr = self.data.judge(self.float_model, self.machine.threads)
            model, places = self._written()
            before = sqnr(serialize(model))
            replace_constants(model, replaced_arrays(found.decided, places))
            after = sqnr(serialize(model))
            kept = after > before
        if kept:
            self._keep(found.decided)
        judged = self._samples[2] if self._samples is not None else 0
        return _effect(WEIGHED, found, kept, (before, after), count, judged)

    def round(self) -> RungEffect:
        """Choose the weights again behind the quantized layers before."""
        assert self._samples is not None  # noqa: S101 - the data were opened for this rung
        samples, learned, judged = self._samples
        model, places = self._written()
        checkpoint = self._checkpoint_of(ROUND)
        with self._rung() as stop:
            found = recover_rounding(
                # Stages of the model run as the whole does, so they are cut out of it as it is written.
                TwinGraphs(self._float_graph, model),
                places,
                self._plan,
                self.made.parameters,
                self._free,
                samples,
                folder=self.folder,
                memory=self.machine.memory // MEMORY_SHARE if self.machine.memory is not None else IN_MEMORY,
                threads=self.machine.threads,
                progress=self.progress,
                stop=stop,
                checkpoint=checkpoint,
            )
        self._note(checkpoint, found)
        kept = found.changed and found.after > found.before
        if kept:
            self._keep(found.decided)
        return _effect(ROUND, found, kept, (found.before, found.after), learned, judged)

    def _written(self) -> tuple[ir.Model, NamesBySite]:
        """Return the model as it would be written now, and where it holds what was decided."""
        model = with_opset(self.float_model.load(), self.made.placement.opset, "the float model")
        return model, self.made.write(model)

    def _keep(self, found: DecidedConstants) -> None:
        self.made = replace(self.made, parameters=self.made.parameters.changed(found))

    def _checkpoint_of(self, rung: str) -> RecoveryCheckpoint | None:
        if self.checkpoint is None:
            return None
        identity = rung_identity(rung, self.calibration, self.made.parameters)
        return RecoveryCheckpoint(self.checkpoint(rung), self.every, identity, self.progress)

    def _rung(self) -> AbstractContextManager[Callable[[], bool]]:
        return self.interruptions.rung(
            ", and the same command continues" if self.checkpoint is not None else ""
        )

    def _note(self, checkpoint: RecoveryCheckpoint | None, found: RecoveredRounding) -> None:
        if checkpoint is not None and self.interruptions.stopped:
            checkpoint.note(found.layers, now=True)

    def _tell_time(self, rungs: Sequence[str]) -> None:
        """Say how long the rungs will take, if that is more than a minute."""
        layers, _ = quantized_layers(self._float_graph, self._plan, self.made.parameters, self._free)
        # Where ``round`` is asked for, ``weighed`` runs only if that gained little.
        if ROUND in rungs and self._samples is not None:
            work = round_work(self._float_graph, layers, self.made.parameters, self._samples[0])
        else:
            work = {name: search_work(item, self.made.parameters) for name, item in layers.items()}
        seconds = seconds_of(sum(work.values()), self.machine.threads, A_MINUTE)
        if seconds:
            note = f"choosing the weights takes about {in_minutes(seconds)}; --recover none leaves it out"
            self.progress(Progress(STAGE, 0, None, note))

    def _moments(self) -> Mapping[str, TensorMoments]:
        """Return the moments of the run, if they fit; otherwise collect them."""
        calibration, data = self.calibration, self.data
        layers, _ = quantized_layers(self._float_graph, self._plan, self.made.parameters, self._free)
        sites = moment_sites(layers.values(), self._largest, calibration.provenance.samples)
        size = data.batch_size if data is not None else 0
        begun = moments_provenance(calibration, sites, WHOLE, size)
        if self.moments is not None:
            require_fit(self.moments, begun, MOMENTS)
            return self.moments.statistics
        assert data is not None  # noqa: S101 - there is one of both
        waiting = (
            PartialFolder(self.folder, MOMENTS) if len(divided(sites, self.machine.memory)) > 1 else None
        )
        subject = MomentSubject(
            model=self.float_model.load(),
            stored=self.float_model,
            inputs=data.inputs,
            dataset=data.dataset,
            batch_size=size,
            allow_nonfinite=data.allow_nonfinite,
        )
        moments = measure_blocks(
            subject,
            sites,
            self.machine,
            begun,
            self.progress,
            folder=waiting.path if waiting is not None else None,
        )
        self._waiting = waiting  # Arrays are mapped from its files.
        return moments.statistics


def _effect(
    rung: str,
    found: RecoveredRounding,
    kept: bool,
    sqnr: tuple[float, float],
    samples: int,
    decided_by: int,
) -> RungEffect:
    """Return what a rung did; ``sqnr`` is that of the output before and after."""
    layers = found.layers.items()
    return RungEffect(
        rung=rung,
        changed=found.changed,
        kept=kept,
        before=sqnr[0],
        after=sqnr[1],
        samples=samples,
        decided_by=decided_by,
        layers={name: LayerRecovery(before=item.before, after=item.after) for name, item in layers},
        refused=found.refused,
        damped=tuple(name for name, item in layers if item.damped),
    )


def largest_values(calibration: Calibration, float_model: ir.Model) -> dict[str, float]:
    """Return the largest magnitude of each tensor that was measured, and of those with the same values."""
    calibration = with_moved_statistics(calibration, float_model.graph)
    return {name: float(max(-item.low, item.high)) for name, item in calibration.statistics.items()}


def free_scales(placement: Placement) -> dict[WeightSite, bool]:
    """Return of each weight whose integers are evenly spread whether its scales may be any."""
    return {
        site: isinstance(family, ScaledWeights)
        for site, family in placement.families.items()
        if family.is_even
    }
