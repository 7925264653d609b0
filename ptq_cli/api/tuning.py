"""Tuning from Python."""

from pathlib import Path
from typing import Unpack

from ptq_cli.api.own_words import in_own_words
from ptq_cli.api.request import ModelLike, PathLike, as_path, request_of
from ptq_cli.core.work.progress import ProgressCallback, silent
from ptq_cli.pipeline.run.run_directory import DEFAULT_RUN, RunDirectory
from ptq_cli.pipeline.run_quantize import asks_for_evaluation
from ptq_cli.pipeline.tuning.finished_tuning import TuneResult
from ptq_cli.pipeline.tuning.run_tune import run_tune
from ptq_cli.recipe.flags import Settings


@in_own_words
def tune(
    model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    output: PathLike | None = None,
    evaluate: bool | None = None,
    restart: bool = False,
    recipe: PathLike | None = None,
    preset: str | None = None,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> TuneResult:
    """Quantize a model so that it provably keeps a budget, at the least cost.

    A budget that is not kept raises nothing: see ``result.ladder.met``; the best candidate is written all
    the same.

    Args:
        model: as for ``calibrate``.
        run: the run directory.
        output: file of the quantized model; None for the run directory.
        evaluate: whether to evaluate the result; None evaluates if ``eval_data``, ``metric`` or another
            setting of the evaluation is given.
        restart: start from the beginning even if an earlier tuning could be continued.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        progress: is called as the work proceeds.
        settings: any setting of the recipe, by the name of its flag; ``budget`` and ``time_budget`` among
            them.

    Raises:
        PtqError: the model, the data or the budget cannot be used.

    Example:
        >>> result = tune("model.pt", budget={"top1": "1%"})  # doctest: +SKIP
        >>> result.ladder.met, result.ladder.best.name  # doctest: +SKIP
        (True, 'round')
    """
    request = request_of(settings, model, recipe, preset)
    return run_tune(
        request,
        RunDirectory(Path(run)),
        as_path(output),
        evaluate=asks_for_evaluation(request.settings) if evaluate is None else evaluate,
        restart=restart,
        progress=progress,
    )
