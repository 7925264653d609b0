"""The quantized models of an evaluation: what their files say of them, and the runtime that each is run with.

Weights in blocks are measured at two accuracy levels: the kernel's default rounds activations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ptq_cli.calibdata.image_decoding import thumbnail
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.evaluation.document.measurement import AccuracyLevel, Measurement
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.evaluation.report_changes import require_same_model
from ptq_cli.evaluation.runs.comparisons import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluation
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.evaluation.evaluation_set import SetSummary
from ptq_cli.pipeline.exported_file import (
    Pair,
    as_exported,
    evaluated_layers,
    model_summary,
    plan_of,
    quantized_metadata,
)
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME
from ptq_cli.runtime.engine import Engine, OpenedModel
from ptq_cli.runtime.engine_registry import (
    AS_WRITTEN,
    ONNX_RUNTIME,
    ReopenedModel,
    at_level,
    measuring_engine,
)
from ptq_cli.runtime.session import EXACT, ROUNDED, reads_blocks
from ptq_cli.setup.parts import Work
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import library_versions


@dataclass(frozen=True)
class OtherLevel:
    """A quantized model with weights in blocks, at another accuracy level than that of its report."""

    name: str
    level: int
    engine: Engine

    @property
    def key(self) -> str:
        """What an evaluation calls it."""
        return f"{self.name} at accuracy level {self.level}"


@dataclass(frozen=True, kw_only=True)
class EvaluatedModels:
    """The models that an evaluation runs.

    Attributes:
        quantized: the quantized ones by the name of their file, serialized; behind them those of ``others``.
        engines: the runtime of each; ONNX Runtime of those that are not named.
        level: the accuracy level of the reports.
    """

    float_model: StoredModel
    quantized: Mapping[str, StoredModel]
    engines: Mapping[str, Engine] = field(default_factory=dict)
    others: tuple[OtherLevel, ...] = ()
    level: int = ROUNDED

    def opened(self, name: str, threads: int) -> OpenedModel:
        """A quantized model ready to run; of large models one at a time is in memory."""
        model, engine = self.quantized[name], self.engines.get(name, ONNX_RUNTIME)
        if self.float_model.is_apart:
            return ReopenedModel(model, threads=threads, engine=engine)
        return engine.open(model, threads=threads)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of ptq and of the libraries that decide what comes out."""
        return library_versions() | dict(engine.version().split() for engine in self.engines.values())

    def accuracy_levels(self, evaluations: Sequence[Evaluation]) -> dict[str, tuple[AccuracyLevel, ...]]:
        """What each model that has several levels gives at each, by the name of its file."""
        by_name = dict(zip(self.quantized, evaluations, strict=True))
        found: dict[str, tuple[AccuracyLevel, ...]] = {}
        for item in self.others:
            own = AccuracyLevel(self.level, True, _values(by_name[item.name].measurements))
            other = AccuracyLevel(item.level, False, _values(by_name[item.key].measurements))
            found[item.name] = (*found.get(item.name, (own,)), other)
        return found


def _values(measurements: Sequence[Measurement]) -> dict[str, float]:
    return {item.name: item.quantized_value for item in measurements}


@dataclass(frozen=True, kw_only=True)
class QuantizedModel:
    """A quantized model, and what its file says of it.

    Attributes:
        exported: the recipe and the target that it was exported with.
    """

    pair: Pair
    origin: Mapping[str, str]
    exported: Resolved
    plan: Plan
    layers: tuple[LayerEntry, ...]

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.pair.quantized_name


@dataclass(frozen=True, kw_only=True)
class EvaluationSubject:
    """What is evaluated: the models, what notes their samples that change, and on which data.

    Attributes:
        quantized: the models that get a report.
        watches: for each model of ``models``, what notes the samples whose class changes.
    """

    calibration: Calibration
    summary: SetSummary
    quantized: tuple[QuantizedModel, ...]
    models: EvaluatedModels
    watches: tuple[ChangeCollector, ...]


def open_evaluation_subject(
    work: Work,
    calibration: Calibration,
    pairs: Sequence[Pair],
    summary: SetSummary,
    *,
    thumbnails: bool,
    plan: Plan | None = None,
) -> EvaluationSubject:
    """Open quantized models; a ``plan`` for the recipe's target that was made already is taken.

    A baseline of another model is refused as ``decide`` would, but before all the work.
    """
    recipe = work.resolved.recipe
    if summary.baseline is not None:
        for pair in pairs:
            found = model_summary(recipe.model.path, work.run, pair, calibration)
            require_same_model(found, summary.baseline.model)
    quantized = _quantized_models(work.resolved, pairs, plan)
    models = _evaluated_models(quantized)
    paint = partial(thumbnail, settings=recipe.image) if thumbnails else None
    return EvaluationSubject(
        calibration=calibration,
        summary=summary,
        quantized=quantized,
        models=models,
        watches=tuple(ChangeCollector(paint) for _ in models.quantized),
    )


def _quantized_models(
    resolved: Resolved, pairs: Sequence[Pair], plan: Plan | None
) -> tuple[QuantizedModel, ...]:
    def rules(item: Resolved) -> tuple[str, bool]:
        return item.recipe.quantization.target, item.target.runtime_operators

    plans = {} if plan is None else {rules(resolved): plan}
    found = []
    for pair in pairs:
        path = Path(pair.quantized_name)
        origin = quantized_metadata(pair.quantized_model, path)
        exported = as_exported(resolved, origin, path)
        key = rules(exported)
        if key not in plans:
            plans[key] = plan_of(pair.float_model, exported.target)
        layers = evaluated_layers(plans[key], origin, path.name)
        found.append(
            QuantizedModel(pair=pair, origin=origin, exported=exported, plan=plans[key], layers=layers)
        )
    return tuple(found)


def _evaluated_models(models: Sequence[QuantizedModel]) -> EvaluatedModels:
    """The models that are run, each with the runtime that it is measured with.

    Behind the quantized models come those with weights in blocks again, at their other accuracy level.
    """
    asked = models[0].exported.recipe.runtime.accuracy_level
    level = ROUNDED if asked is None else asked
    quantized = {item.name: item.pair.quantized_model for item in models}
    engines = {
        item.name: at_level(
            measuring_engine(item.exported.target, item.exported.recipe.runtime.engine), asked
        )
        for item in models
    }
    others = tuple(
        OtherLevel(name, other, at_level(ONNX_RUNTIME, other))
        for name, model in quantized.items()
        if engines[name].name == ONNXRUNTIME and engines[name] is not AS_WRITTEN and reads_blocks(model)
        for other in (ROUNDED, EXACT)
        if other != level
    )
    return EvaluatedModels(
        float_model=models[0].pair.float_model,
        quantized={**quantized, **{item.key: quantized[item.name] for item in others}},
        engines={**engines, **{item.key: item.engine for item in others}},
        others=others,
        level=level,
    )
