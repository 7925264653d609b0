"""The quantized models of an evaluation: what their files say of them, and the runtime that each is run with.

Weights in blocks are measured at two accuracy levels: the kernel's default rounds activations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import DeviceError
from ptq_cli.evaluation.document.measurement import AccuracyLevel
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
from ptq_cli.runtime.cuda import cuda_version, require_device
from ptq_cli.runtime.engine import Engine, OpenedModel
from ptq_cli.runtime.engine_registry import (
    AS_WRITTEN,
    EXACT_BLOCKS,
    ONNX_RUNTIME,
    ReopenedModel,
    measuring_engine,
)
from ptq_cli.runtime.session import EXACT, ON_HOST, ROUNDED, Session, SessionPlace, reads_blocks
from ptq_cli.setup.parts import Work
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import library_versions


@dataclass(frozen=True, kw_only=True)
class EvaluatedModels:
    """The models that an evaluation runs.

    Attributes:
        quantized: the quantized ones by the name of their file, serialized; behind them those with weights in
            blocks again, which are run without the rounding of activations.
        float_place: where ONNX Runtime runs the float one; integers are proven on the host alone.
        engines: the runtime of each; ONNX Runtime of those that are not named.
        exact: how those that are there again are called, by the name of their file.
    """

    float_model: StoredModel
    quantized: Mapping[str, StoredModel]
    float_place: SessionPlace = ON_HOST
    engines: Mapping[str, Engine] = field(default_factory=dict)
    exact: Mapping[str, str] = field(default_factory=dict)

    def opened_float(self, threads: int) -> OpenedModel:
        """The float model ready to run; a large one is in memory only while it runs, but on a GPU."""
        if self.float_model.is_apart and self.float_place.device.is_host:
            return ReopenedModel(self.float_model, threads=threads)
        return Session(self.float_model, threads=threads, place=self.float_place)

    def opened(self, name: str, threads: int) -> OpenedModel:
        """A quantized model ready to run; of large models one at a time is in memory."""
        model, engine = self.quantized[name], self.engines.get(name, ONNX_RUNTIME)
        if self.float_model.is_apart:
            return ReopenedModel(model, threads=threads, engine=engine)
        return engine.open(model, threads=threads)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of ptq and of the libraries that decide what comes out."""
        found = library_versions() | dict(engine.version().split() for engine in self.engines.values())
        if not self.float_place.device.is_host:
            found["cuda"] = f"{cuda_version()} (float model)"
        return found

    def accuracy_levels(self, evaluations: Sequence[Evaluation]) -> dict[str, tuple[AccuracyLevel, ...]]:
        """What each model that has several levels gives at each, by the name of its file."""
        values = {
            name: {item.name: item.quantized_value for item in evaluation.measurements}
            for name, evaluation in zip(self.quantized, evaluations, strict=True)
        }
        return {
            name: (AccuracyLevel(ROUNDED, True, values[name]), AccuracyLevel(EXACT, False, values[exact]))
            for name, exact in self.exact.items()
        }


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
    work: Work, calibration: Calibration, pairs: Sequence[Pair], summary: SetSummary, plan: Plan | None = None
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
    models = _evaluated_models(quantized, _float_place(work))
    return EvaluationSubject(
        calibration=calibration,
        summary=summary,
        quantized=quantized,
        models=models,
        watches=tuple(ChangeCollector() for _ in models.quantized),
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


def _float_place(work: Work) -> SessionPlace:
    """Where the float model runs: on the GPU that the recipe names, if this machine has it."""
    device = work.resolved.machine.device
    try:
        require_device(device)
    except DeviceError as error:
        work.tell(f"the float model runs on the CPU: {error.message}", "evaluate")
        return ON_HOST
    return SessionPlace(device)


def _evaluated_models(models: Sequence[QuantizedModel], place: SessionPlace) -> EvaluatedModels:
    """The models that are run, each with the runtime that it is measured with."""
    # Behind the quantized models come those with weights in blocks again, at accuracy level 0.
    quantized = {item.name: item.pair.quantized_model for item in models}
    engines = {
        item.name: measuring_engine(item.exported.target, item.exported.recipe.runtime.engine)
        for item in models
    }
    exact = {
        name: f"{name} at accuracy level {EXACT}"
        for name, model in quantized.items()
        if engines[name].name == ONNXRUNTIME and engines[name] is not AS_WRITTEN and reads_blocks(model)
    }
    return EvaluatedModels(
        float_model=models[0].pair.float_model,
        float_place=place,
        quantized={**quantized, **{again: quantized[name] for name, again in exact.items()}},
        engines={**engines, **dict.fromkeys(exact.values(), EXACT_BLOCKS)},
        exact=exact,
    )
