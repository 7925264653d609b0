"""The rung ``round`` on a quantized model that is not written yet, and what it did."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.models.files.stored import StoredModel, mapped_model
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.known_modes import ROUND
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recover.decided_model import DecidedModel, with_opset
from ptq_cli.recover.interrupted_recovery import (
    Interruptions,
    RecoveryCheckpoint,
    rung_identity,
)
from ptq_cli.recover.quantized_layer import quantized_layers
from ptq_cli.recover.recover_rounding import (
    RecoveredRounding,
    recover_rounding,
    round_work,
)
from ptq_cli.recover.recovery_data import RecoveryData
from ptq_cli.recover.recovery_effects import LayerRecovery, Recovery, RungEffect
from ptq_cli.recover.rung_work import in_minutes, seconds_of
from ptq_cli.recover.spill_store import IN_MEMORY
from ptq_cli.runtime.machine import Machine

STAGE = "recover"
A_MINUTE = 60.0
MEMORY_SHARE = 2
"""One part of so many of the memory that is allowed is for tensors that wait."""


@dataclass(kw_only=True)
class Recovering:
    """The weights of a model are chosen again, and kept if they make the output better.

    Attributes:
        made: the model as it is decided so far.
        folder: where tensors wait that do not fit into memory.
        but: weights that stay as they are.
        interruptions: whether Ctrl-C ends it with what was found until then.
        checkpoint: the file that an interrupted recovery continues from; None for none.
        every: seconds between two checkpoints.
    """

    made: DecidedModel
    float_model: StoredModel
    calibration: Calibration
    data: RecoveryData
    machine: Machine
    folder: Path
    progress: ProgressCallback
    but: Collection[WeightSite] = ()
    interruptions: Interruptions
    checkpoint: Path | None = None
    every: float = 0.0

    def round(self) -> Recovery:
        """Choose the weights again behind the quantized layers before, and return what that did."""
        samples, learned, judged = self.data.samples
        kept_sites = tuple(site for site in self.made.plan.weights if site not in self.but)
        plan, parameters = replace(self.made.plan, weights=kept_sites), self.made.parameters
        stored = mapped_model(self.float_model, self.folder)
        float_graph = stored.load()
        free = free_scales(self.made.placement)
        layers, _ = quantized_layers(float_graph, plan, parameters, free)
        self._tell_time(sum(round_work(float_graph, layers, parameters, samples).values()))
        model = with_opset(stored.load(), self.made.placement.opset, "the float model")
        places = self.made.write(model)
        checkpoint = None
        if self.checkpoint is not None:
            identity = rung_identity(ROUND, self.calibration, parameters)
            checkpoint = RecoveryCheckpoint(self.checkpoint, self.every, identity, self.progress)
        then = ", and the same command continues" if checkpoint is not None else ""
        with self.interruptions.rung(then) as stop:
            found = recover_rounding(
                # Stages of the model run as the whole does, so they are cut out of it as it is written.
                TwinGraphs(float_graph, model),
                places,
                plan,
                parameters,
                free,
                samples,
                folder=self.folder,
                memory=self.machine.memory // MEMORY_SHARE if self.machine.memory is not None else IN_MEMORY,
                threads=self.machine.threads,
                progress=self.progress,
                stop=stop,
                checkpoint=checkpoint,
            )
        if checkpoint is not None and self.interruptions.stopped:
            checkpoint.note(found.layers, now=True)
        kept = found.changed and found.after > found.before
        if kept:
            self.made = replace(self.made, parameters=parameters.changed(found.decided))
        return Recovery((_effect(found, kept, learned, judged),), interrupted=self.interruptions.stopped)

    def _tell_time(self, work: float) -> None:
        """Say how long it will take, if that is more than a minute."""
        seconds = seconds_of(work, self.machine.threads, A_MINUTE)
        if seconds:
            note = f"choosing the weights takes about {in_minutes(seconds)}; --recover none leaves it out"
            self.progress(Progress(STAGE, 0, None, note))


def _effect(found: RecoveredRounding, kept: bool, samples: int, decided_by: int) -> RungEffect:
    layers = found.layers.items()
    return RungEffect(
        rung=ROUND,
        changed=found.changed,
        kept=kept,
        before=found.before,
        after=found.after,
        samples=samples,
        decided_by=decided_by,
        layers={name: LayerRecovery(before=item.before, after=item.after) for name, item in layers},
        refused=found.refused,
        damped=tuple(name for name, item in layers if item.damped),
    )


def free_scales(placement: Placement) -> dict[WeightSite, bool]:
    """Return of each weight whose integers are evenly spread whether its scales may be any."""
    return {
        site: isinstance(family, ScaledWeights)
        for site, family in placement.families.items()
        if family.is_even
    }
