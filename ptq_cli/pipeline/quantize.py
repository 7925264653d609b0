"""``quantize``: calibrate, export and, where a limit is set, evaluate; all in one."""

from dataclasses import dataclass
from pathlib import Path

from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.pipeline.calibrate import CalibrationResult, open_data, run_calibrate
from ptq_cli.pipeline.evaluate import EvaluationResult, run_evaluate
from ptq_cli.pipeline.export import ExportResult, run_export
from ptq_cli.pipeline.resolve import Request, resolve
from ptq_cli.pipeline.run_directory import RunDirectory


@dataclass(frozen=True)
class QuantizationResult:
    """What ``quantize`` did; ``evaluation`` is None where none was asked for."""

    calibration: CalibrationResult
    export: ExportResult
    evaluation: EvaluationResult | None


def run_quantize(
    request: Request,
    run: RunDirectory,
    output: Path | None = None,
    *,
    evaluate: bool | None = None,
    progress: ProgressCallback = silent,
) -> QuantizationResult:
    """Calibrate, export, and evaluate.

    Args:
        request: all settings.
        run: the run directory.
        output: where the quantized model goes, or None for the run directory.
        evaluate: whether to evaluate; None evaluates if the recipe sets a limit.
        progress: is told after each batch.

    Raises:
        PtqError: as the three stages do.
    """
    recipe = resolve(request)
    if evaluate is None:
        evaluate = bool(recipe.gate.max_drop or recipe.gate.min)
    if evaluate:
        # Better to learn now than after the calibration that the evaluation set is not there.
        open_data(recipe.evaluation, recipe.image, "evaluation", "--eval-data")
    calibration = run_calibrate(request, run, progress)
    export = run_export(request, run, output)
    evaluation = run_evaluate(request, run, export.output, progress) if evaluate else None
    return QuantizationResult(calibration, export, evaluation)
