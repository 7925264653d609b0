"""``quantize``: calibrate, export and, where that is asked for, evaluate; all in one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ptq_cli.calibration.subject import open_subject
from ptq_cli.core.documents import HIDDEN
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.latency.served_latency import QuantizedFile, require_served_batch, served_latency
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.evaluation.compared_kernels import require_right_kernels
from ptq_cli.pipeline.evaluation.evaluation_set import fit_evaluation
from ptq_cli.pipeline.evaluation.reports import EvaluationResult
from ptq_cli.pipeline.exported_file import Pair, report_layers
from ptq_cli.pipeline.given_weights import DecidedWeights
from ptq_cli.pipeline.run_calibrate import CalibrationResult, make_calibration
from ptq_cli.pipeline.run_evaluate import make_evaluations
from ptq_cli.pipeline.run_export import ExportResult, discard_recovery, make_export
from ptq_cli.pipeline.trial_models import CalibratedModel
from ptq_cli.placement.tensor_settings import tensor_recipe, tensor_settings
from ptq_cli.recipe.assignments import Once
from ptq_cli.recipe.sections import GateSettings
from ptq_cli.recover.recovery_context import recovery_data
from ptq_cli.recover.rescaling import rescaled
from ptq_cli.runtime.cuda import require_device
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.parts import Work
from ptq_cli.setup.resolve import Request, open_data, resolve
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory, statement_path
from ptq_cli.setup.served_inputs import with_states


@dataclass(frozen=True, kw_only=True)
class QuantizationResult:
    """What ``ptq quantize`` did."""

    DERIVED: ClassVar[tuple[str, ...]] = ("report",)

    calibration: Annotated[CalibrationResult, "What was calibrated."]
    export: Annotated[ExportResult, "What was written."]
    evaluation: Annotated[EvaluationResult | None, HIDDEN]
    times: Annotated[Times, "How fast the quantized model is; those of the evaluation, if there is one."]
    has_evaluation_data: Annotated[bool, "Whether the recipe names data to evaluate it on."] = False

    @property
    def report(self) -> Report | None:
        """The report of its evaluation; null if it was not evaluated."""
        return self.evaluation.report if self.evaluation is not None else None


@dataclass(frozen=True)
class MadeQuantization:
    """A quantization that is not written yet."""

    result: QuantizationResult
    float_model: StoredModel
    model: StoredModel
    files: Mapping[Path, Content]


def asks_for_evaluation(settings: Mapping[str, Any]) -> bool:
    """Tell whether a setting that was given has a use only in an evaluation."""
    return any(settings.get(name) for name in ("eval_data", "eval_samples", "metric"))


def is_evaluated(gate: GateSettings, settings: Mapping[str, Any], once: Once) -> bool:
    """Tell whether a quantization ends with an evaluation: as it is asked, or if a setting needs one.

    Example:
        >>> gate, once = GateSettings(), Once()
        >>> is_evaluated(gate, {}, once), is_evaluated(gate, {"eval_data": "eval.npz"}, once)
        (False, True)
    """
    if once.evaluate is not None:
        return once.evaluate
    return gate.has_limits or asks_for_evaluation(settings)


def run_quantize(
    request: Request,
    run: RunDirectory,
    output: Path | None = None,
    once: Once = Once(),
    progress: ProgressCallback = silent,
) -> QuantizationResult:
    """Calibrate, export, and evaluate; every file but a checkpoint is written at the end, or none.

    If ``once.evaluate`` is None, a limit in the recipe or the request (``asks_for_evaluation``) decides;
    evaluation data in a recipe file alone do not.
    """
    made = make_quantization(Work(resolved=resolve(request), run=run, progress=progress), output, once)
    # All of a run or nothing: a report beside the model of another export would be a lie. Checkpoints go
    # last, because until the files are there they are the only copy of the work.
    write_together(made.files)
    run.discard_other_models(made.result.export.output)
    discard_checkpoints(run)
    discard_recovery(run, made.result.export)
    return made.result


def discard_checkpoints(run: RunDirectory) -> None:
    """Remove what a run that is finished could have continued from."""
    discard_checkpoint(run.checkpoint)
    discard_checkpoint(run.evaluation_checkpoint)


def make_quantization(
    work: Work, output: Path | None, once: Once, decided: DecidedWeights | None = None
) -> MadeQuantization:
    """Calibrate, export, and evaluate; only checkpoints are written."""
    run, progress, resolved = work.run, work.progress, work.resolved
    recipe, settings = resolved.recipe, resolved.request.settings
    require_outputs(run, input_files(recipe), output or run.quantized_file(recipe))
    require_device(resolved.machine.device)
    # Better to learn now than after the calibration that the evaluation set is not there or does not fit.
    dataset = (
        open_data(recipe.evaluation, resolved.reading, "evaluation", "--eval-data")
        if is_evaluated(recipe.gate, settings, once)
        else None
    )
    if once.restart:
        discard_checkpoints(run)
        discard_recovery(run)
    opened = open_subject(resolved, progress, run.float_model, dataset)
    resolved = opened.as_given(resolved)
    work = replace(work, resolved=resolved)
    # Likewise that an override matches nothing, or that the target cannot do what is asked.
    tensor_settings(opened.model.model, opened.plan, resolved.target, tensor_recipe(recipe))
    subject, changed = rescaled(opened, resolved, progress)
    model, plan = subject.model.model, subject.plan
    if dataset is not None:
        dataset = with_states(dataset, resolved.recipe.data, model, subject.model.stored)
    fitted = fit_evaluation(dataset, recipe, model) if dataset is not None else None
    require_served_batch(resolved, model)
    data = recovery_data(resolved, subject.data, subject.model.inputs)
    calibrated = make_calibration(subject, work, changed)
    stored = calibrated.model
    source = CalibratedModel(
        resolved=resolved,
        calibration=calibrated.calibration,
        float_model=stored,
        graph=stored.load(),
        run=run,
        output=output or run.quantized_file(recipe),
        plan=plan,
        progress=progress,
    )
    # Of a folder, Ctrl-C is meant for all files.
    exported = make_export(source, data, decided=decided, keeps_on_interrupt=decided is None)
    if not exported.result.uncounted:
        require_right_kernels(exported.model, exported.result.plan, resolved, subject.data, progress)
    files = {**calibrated.files, **exported.files}
    evaluation = None
    if fitted is not None:
        statement = (statement_path(exported.result.output), exported.statement)
        pair = Pair(stored, exported.model, exported.result.output.name, statement)
        (evaluated,) = make_evaluations(work, calibrated.calibration, [pair], fitted, plan)
        evaluation = evaluated.result
        files |= evaluated.files
        times = evaluation.report.times
    else:
        quantized = QuantizedFile(exported.model, resolved.target, report_layers(exported.result.plan))
        (times,) = served_latency(resolved, stored, [quantized], run, progress)
    result = QuantizationResult(
        calibration=calibrated.result,
        export=exported.result,
        evaluation=evaluation,
        times=times,
        has_evaluation_data=recipe.evaluation.data is not None,
    )
    return MadeQuantization(result, stored, exported.model, files | run.note_of(exported.result.output))
