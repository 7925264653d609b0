"""Weights in blocks are measured at two accuracy levels: the kernel's default rounds activations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptq_cli.models.files.stored import StoredModel
from ptq_cli.plan.target.rules import ONNXRUNTIME
from ptq_cli.report.document.accuracy_level import AccuracyLevel
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.evaluation.evaluator import Evaluation
from ptq_cli.runtime.engines.engine import Engine
from ptq_cli.runtime.engines.engine_registry import AS_WRITTEN, at_level
from ptq_cli.runtime.engines.onnxruntime_engine import ONNX_RUNTIME
from ptq_cli.runtime.sessions.block_levels import EXACT, ROUNDED, reads_blocks


@dataclass(frozen=True)
class OtherLevel:
    """A quantized model at another level than that of its report.

    Attributes:
        name: of the model's file.
        level: the other level.
        engine: runs it so.
    """

    name: str
    level: int
    engine: Engine

    @property
    def key(self) -> str:
        """What an evaluation calls it."""
        return f"{self.name} at accuracy level {self.level}"


def other_levels(
    models: Mapping[str, StoredModel], engines: Mapping[str, Engine], level: int | None
) -> tuple[OtherLevel, ...]:
    """Return which models are to be measured at which other levels: those with weights in blocks.

    Args:
        models: by the name of their file.
        engines: of each.
        level: that the reports are of; None for the default.
    """
    reported = ROUNDED if level is None else level
    return tuple(
        OtherLevel(name, other, at_level(ONNX_RUNTIME, other))
        for name, model in models.items()
        if engines[name].name == ONNXRUNTIME and engines[name] is not AS_WRITTEN and reads_blocks(model)
        for other in (ROUNDED, EXACT)
        if other != reported
    )


def accuracy_levels(
    models: Mapping[str, StoredModel],
    others: Sequence[OtherLevel],
    evaluations: Sequence[Evaluation],
    level: int | None,
) -> dict[str, tuple[AccuracyLevel, ...]]:
    """Return what each model gives at each level, by the name of its file.

    Args:
        models: as for ``other_levels``.
        others: what it returned.
        evaluations: of the models, and then of the others.
        level: that the reports are of; None for the default.
    """
    names = list(models)
    found: dict[str, tuple[AccuracyLevel, ...]] = {}
    for item, evaluation in zip(others, evaluations[len(names) :], strict=True):
        if item.name not in found:
            own = evaluations[names.index(item.name)]
            reported = ROUNDED if level is None else level
            found[item.name] = (AccuracyLevel(reported, True, _values(own.measurements)),)
        found[item.name] += (AccuracyLevel(item.level, False, _values(evaluation.measurements)),)
    return found


def _values(measurements: Sequence[Measurement]) -> dict[str, float]:
    return {item.name: item.quantized_value for item in measurements}
