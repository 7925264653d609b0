"""The Python API's verbs that look at what there is: a calibration, a tensor, a quantized model, reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.pipeline.calibration.view import CalibrationView, view_calibration
from ptq_cli.pipeline.drawing.explain import Explanation, explain_tensor
from ptq_cli.pipeline.evaluation.compare import run_compare
from ptq_cli.pipeline.evaluation.page import PageResult, run_page
from ptq_cli.pipeline.proof.analysis_subject import Question
from ptq_cli.pipeline.proof.analyze import AnalysisResult, run_analyze
from ptq_cli.pipeline.resolve import Request
from ptq_cli.pipeline.run_directory import DEFAULT_RUN, RunDirectory
from ptq_cli.recipe.flags import Settings
from ptq_cli.report.analysis.document import Order
from ptq_cli.report.compare import Comparison

PathLike = str | Path


def show_calibration(
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    **settings: Unpack[Settings],
) -> CalibrationView:
    """Return what was measured of every tensor, and what each amax method makes of it.

    Args:
        run: the run directory of the calibration.
        recipe: a recipe file.
        preset: the preset beneath it.
        settings: ``amax``, ``percentile`` and others of the methods.

    Raises:
        PtqError: nothing was calibrated, or the calibration does not fit.
    """
    return view_calibration(request_of(settings, None, recipe, preset), RunDirectory(Path(run)))


def explain(
    tensor: str,
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    **settings: Unpack[Settings],
) -> Explanation:
    """Return one tensor: its statistics, each method's range and expected error, its producer and readers.

    Args:
        tensor: its name, or that of the layer that computes it.
        run: the run directory of the calibration.
        recipe: a recipe file.
        preset: the preset beneath it.
        settings: as for ``show_calibration``.

    Raises:
        PtqError: no such tensor was measured, or as ``show_calibration`` does.
    """
    return explain_tensor(request_of(settings, None, recipe, preset), RunDirectory(Path(run)), tensor)


def analyze(
    quantized_model: PathLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    layers: Sequence[str] = (),
    sensitivity: bool = True,
    rank_by: Order = "sqnr",
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> AnalysisResult:
    """Measure what each quantized tensor and each layer costs, and write ``analysis.json``.

    Args:
        quantized_model: the model to look at; None for the one in the run directory.
        run: the run directory.
        recipe: a recipe file.
        preset: the preset beneath it.
        layers: patterns of the layers whose sensitivity is wanted; none for all.
        sensitivity: False for the tensors alone, which takes two forward passes.
        rank_by: ``"sqnr"`` of the output, or ``"metric"``.
        progress: is called after each piece of a batch.
        settings: ``eval_data``, ``eval_samples`` (256 without one), ``metric`` and others.

    Raises:
        PtqError: nothing was exported, data or metric do not fit, or a tensor holds NaN.
    """
    request = request_of(settings, None, recipe, preset)
    path = Path(quantized_model) if quantized_model is not None else None
    question = Question(layers, sensitivity, rank_by)
    return run_analyze(request, RunDirectory(Path(run)), path, question, progress)


def compare(before: PathLike, after: PathLike) -> Comparison:
    """Return what changed from one ``report.json`` to another: metrics, size, settings, layers.

    Args:
        before: the earlier report.
        after: the later one.

    Raises:
        PtqError: one of them cannot be read.
    """
    return run_compare(Path(before), Path(after))


def report_page(*, run: PathLike = DEFAULT_RUN) -> PageResult:
    """Write ``report.html`` again from what a run directory holds; no model is run.

    Args:
        run: the run directory of the evaluation.

    Raises:
        PtqError: nothing was evaluated there, or the report is damaged.
    """
    return run_page(RunDirectory(Path(run)))


def request_of(
    settings: Settings, model: PathLike | None, recipe: PathLike | None, preset: str | None
) -> Request:
    """Return a request with settings by the names of their flags."""
    return Request(
        dict(settings),
        Path(model) if model is not None else None,
        Path(recipe) if recipe is not None else None,
        preset,
    )
