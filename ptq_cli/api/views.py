"""Views from Python: of a model, a calibration, a tensor, a quantized model, reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from ptq_cli.analysis.analysis_subject import Question
from ptq_cli.analysis.run_analyze import AnalysisResult, run_analyze
from ptq_cli.api.own_words import in_own_words
from ptq_cli.api.requests import (
    ModelLike,
    PathLike,
    as_model_path,
    as_path,
    evaluation_request,
    pass_data,
    request_of,
)
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.evaluation.document.analysis_document import RankedBy
from ptq_cli.evaluation.report_changes import ReportChanges
from ptq_cli.folders.model_card import CardResult, run_card
from ptq_cli.monitoring.compared_drift import Limits
from ptq_cli.monitoring.run_drift import DriftOptions, DriftResult, run_drift
from ptq_cli.pipeline.calibration_view import CalibrationView, Explanation, explain_tensor, view_calibration
from ptq_cli.pipeline.evaluation.report_page import PageResult, run_page
from ptq_cli.pipeline.run_compare import ComparisonResult, run_compare, run_compare_models
from ptq_cli.pipeline.run_inspect import Inspection, run_inspect
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory


@in_own_words
def show_calibration(
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    **settings: Unpack[Settings],
) -> CalibrationView:
    """The statistics of every tensor, and the range that each amax method chooses from them.

    Args:
        run: the run directory of the calibration.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        settings: ``amax``, ``percentile`` and others of the methods.

    Raises:
        PtqError: nothing was calibrated, or the calibration does not fit.
    """
    return view_calibration(request_of(settings, None, recipe, preset), RunDirectory(Path(run)))


@in_own_words
def explain(
    tensor: str,
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    **settings: Unpack[Settings],
) -> Explanation:
    """One tensor: its statistics, each method's range and expected error, its producer and readers.

    Args:
        tensor: its name, or that of the layer that computes it.
        run: the run directory of the calibration.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        settings: as for ``show_calibration``.

    Raises:
        PtqError: no such tensor was measured, or as ``show_calibration`` does.
    """
    return explain_tensor(request_of(settings, None, recipe, preset), RunDirectory(Path(run)), tensor)


@in_own_words
def analyze(
    quantized_model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    layers: Sequence[str] = (),
    sensitivity: bool = True,
    skip_layers: Sequence[str] = (),
    rank_by: RankedBy = "sqnr",
    model_explorer: PathLike | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> AnalysisResult:
    """Measure what each quantized tensor and each layer costs, and write ``analysis.json``.

    Args:
        quantized_model: the model to analyze; None for the one in the run directory.
        run: the run directory.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        layers: patterns of the layers whose sensitivity to measure; none for all.
        sensitivity: False for the tensors only, which takes two forward passes.
        skip_layers: patterns of the layers whose sensitivity not to measure.
        rank_by: ``"sqnr"`` of the output, or ``"metric"``.
        model_explorer: a file for Model Explorer's overlay of the SQNR; those of kernels, bits and times are
            written beside it.
        progress: is called after each piece of a batch.
        settings: ``eval_data`` (or ``data``; without it, the data of the run's last evaluation),
            ``eval_samples`` (or ``samples``; 256 without one), ``metric`` and others.

    Raises:
        PtqError: nothing was exported, data or metric do not fit, or the float model's output holds NaN.
    """
    request = evaluation_request(settings, recipe, preset)
    path = as_model_path(quantized_model)
    question = Question(layers, sensitivity, rank_by, skip_layers)
    overlay = as_path(model_explorer)
    return run_analyze(request, RunDirectory(Path(run)), path, question, progress, overlay=overlay)


@in_own_words
def drift(
    data: Any,
    /,
    *,
    run: PathLike = DEFAULT_RUN,
    inputs_only: bool = False,
    max_clipped: float | None = None,
    min_expected_sqnr: float | None = None,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> DriftResult:
    """Compare new data with those of a calibration, and write ``drift.json`` and ``drift.html``.

    Data that have moved, or exceed a limit, raise nothing: see ``result.drift.verdict``.

    Args:
        data: a path, or arrays and other objects as ``calibrate`` takes them.
        run: the run directory of the calibration.
        inputs_only: look at the model's inputs only, and run no model.
        max_clipped: the largest share of a tensor's values that may be clipped, 0 to 1.
        min_expected_sqnr: the least SQNR in dB that rounding and clipping may lead to expect.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called after each batch.
        settings: ``samples``, ``rename``, ``threads`` and others.

    Raises:
        PtqError: nothing was calibrated, the calibration does not fit, or the data do not.

    Example:
        >>> drift("today.npz", max_clipped=0.001).drift.verdict  # doctest: +SKIP
        'pass'
    """
    limits = Limits(max_clipped=max_clipped, min_expected_sqnr=min_expected_sqnr)
    options = DriftOptions(samples=settings.pop("samples", None), inputs_only=inputs_only, limits=limits)
    request = request_of(settings, None, recipe, preset)
    return run_drift(request, RunDirectory(Path(run)), pass_data(data), options, progress)


@in_own_words
def compare(before: PathLike, after: PathLike) -> ReportChanges:
    """The differences between two ``report.json``: metrics, size, settings, layers.

    Args:
        before: the earlier report.
        after: the later one.

    Raises:
        PtqError: one of them cannot be read.
    """
    return run_compare(Path(before), Path(after))


@in_own_words
def compare_models(
    reports: Sequence[PathLike], *, metric: str | None = None, page: PathLike | None = None
) -> ComparisonResult:
    """Several quantized models side by side: accuracy, size and speed, and which no other one beats.

    Args:
        reports: a ``report.json`` for each model, or the run directories that hold them; at least two.
        metric: by which models are judged; None for the first that all reports have, with labels if possible.
        page: where to write a page; None for nowhere.

    Raises:
        PtqError: a report cannot be read, or the metric is not in all of them.
    """
    return run_compare_models([Path(report) for report in reports], metric, as_path(page))


@in_own_words
def report_page(*, run: PathLike = DEFAULT_RUN) -> PageResult:
    """Write ``report.html`` again from a run directory; no model is run.

    Args:
        run: the run directory of the evaluation.

    Raises:
        PtqError: nothing was evaluated there, or the report is damaged.
    """
    return run_page(RunDirectory(Path(run)))


@in_own_words
def model_card(
    *, run: PathLike = DEFAULT_RUN, output: PathLike | None = None, base_model: str | None = None
) -> CardResult:
    """Write a model card for the hub, of a run's quantized model or of the folder that it quantized.

    Args:
        run: the run directory.
        output: the card's file; None for ``README.md`` beside the quantized model.
        base_model: the float model's name on the hub; None leaves it out.

    Raises:
        PtqError: nothing was exported, or there is a file already that is no card of ptq.
    """
    return run_card(RunDirectory(Path(run)), Path(output) if output is not None else None, base_model)


@in_own_words
def inspect(
    model: ModelLike | None = None,
    *,
    recipe: PathLike | None = None,
    preset: str | None = None,
    **settings: Unpack[Settings],
) -> Inspection:
    """The model's layers: which would be quantized, which would not, and why.

    Args:
        model: as for ``calibrate``.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        settings: ``arch``, ``data`` or ``input_shape``, ``target`` and others.

    Raises:
        PtqError: the model cannot be opened, exported or planned.
    """
    return run_inspect(request_of(settings, model, recipe, preset))
