"""The rungs of recovery on a quantized model that is not written yet, and what they did."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ptq_cli.core.progress import LayerProgress, ProgressCallback
from ptq_cli.models.stored import StoredModel
from ptq_cli.pipeline.exporting.placement import Placement
from ptq_cli.pipeline.exporting.recovery_data import RecoveryData, recovery_samples
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.quantizer_settings import FixedPointWeights, ScaledWeights, StepWeights
from ptq_cli.recipe.recovery_rungs import ROUND
from ptq_cli.recovery.quantized_layer import replace_constants
from ptq_cli.recovery.recover_rounding import RecoveredRounding, recover_rounding
from ptq_cli.recovery.shelf import IN_MEMORY
from ptq_cli.runtime.machine import Machine

STAGE = "recover"
MEMORY_SHARE = 2
"""One part of so many of the memory that is allowed is for tensors that wait."""


@dataclass(frozen=True, kw_only=True)
class LayerRecovery:
    """What a rung changed at a layer.

    Attributes:
        before, after: noise of its output, as a share of what the output varies by, on the samples that
            were learned from.
    """

    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What recovery did to a model.

    Attributes:
        rungs: that ran.
        changed: whether it found any other integer, scale or bias than there were.
        kept: whether the output was better for it on the samples set aside; otherwise nothing was changed.
        before, after: SQNR of the output on these, in dB.
        samples, decided_by: how many samples were learned from, and set aside.
        layers: what changed, by the layer's name.
        refused: why the others stayed as they were.
        damped: layers with fewer rows of data than inputs, which stay closer to the float model's weights.
    """

    rungs: tuple[str, ...]
    changed: bool
    kept: bool
    before: float
    after: float
    samples: int
    decided_by: int
    layers: Mapping[str, LayerRecovery]
    refused: Mapping[str, str]
    damped: tuple[str, ...]

    def metadata(self) -> str:
        """Return it as JSON, for the metadata of the model.

        Edge case:
            JSON has no infinity: an SQNR without noise, or of NaN, is null.
        """
        return json.dumps(
            {
                "rungs": list(self.rungs),
                "kept": self.kept,
                "sqnr_db": [_finite(self.before), _finite(self.after)],
                "samples": self.samples,
                "decided_by": self.decided_by,
                "layers": {name: [item.before, item.after] for name, item in self.layers.items()},
                "refused": dict(self.refused),
                "damped": list(self.damped),
            }
        )


def recover_model(
    model: ir.Model,
    float_model: StoredModel,
    plan: Plan,
    placement: Placement,
    data: RecoveryData,
    machine: Machine,
    folder: Path,
    progress: ProgressCallback,
) -> Recovery:
    """Choose the weights of a quantized model again, and keep them if the output is better for it.

    Args:
        model: the quantized model, whose constants are changed.
        float_model: that it was made from.
        plan: of the quantized one.
        placement: knows the quantizers of its weights.
        data: the calibration data.
        machine: what of it may be used.
        folder: where tensors wait that do not fit into memory.
        progress: is called after each layer.

    Raises:
        RecoveryError: there are too few samples.
        RuntimeFailedError: ONNX Runtime failed.
        PtqError: the data cannot be read.
    """
    progress(LayerProgress(STAGE, 0, None))
    samples, learned, decided = recovery_samples(data)
    found = recover_rounding(
        TwinGraphs(float_model.load(), model),
        plan,
        free_scales(placement),
        samples,
        folder=folder,
        memory=machine.memory // MEMORY_SHARE if machine.memory is not None else IN_MEMORY,
        threads=machine.threads,
        done=lambda done, total: progress(LayerProgress(STAGE, done, total)),
    )
    kept = found.changed and found.after > found.before
    if kept:
        replace_constants(model, found.constants)
    return _summary(found, kept=kept, samples=learned, decided_by=decided)


def free_scales(placement: Placement) -> dict[WeightSite, bool]:
    """Return of each weight whose integers are evenly spread whether its scales may be any."""
    found = {}
    for site, family in placement.families.items():
        if isinstance(family, ScaledWeights):
            found[site] = True
        elif isinstance(family, FixedPointWeights | StepWeights):
            found[site] = False
    return found


def _summary(found: RecoveredRounding, *, kept: bool, samples: int, decided_by: int) -> Recovery:
    return Recovery(
        rungs=(ROUND,),
        changed=found.changed,
        kept=kept,
        before=found.before,
        after=found.after,
        samples=samples,
        decided_by=decided_by,
        layers={
            name: LayerRecovery(before=item.before, after=item.after) for name, item in found.layers.items()
        },
        refused=found.refused,
        damped=tuple(name for name, item in found.layers.items() if item.damped),
    )


def _finite(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
