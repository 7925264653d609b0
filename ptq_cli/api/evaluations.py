"""Evaluations from Python: of a whole set, or of shares of it that are joined."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from ptq_cli.api.own_words import in_own_words
from ptq_cli.api.requests import ModelLike, PathLike, as_model_path, as_path, evaluation_request, request_of
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.pipeline.evaluation.reports import EvaluationResult
from ptq_cli.pipeline.run_evaluate import EvaluationShardResult, run_evaluate, run_evaluation_shard
from ptq_cli.pipeline.run_merge import run_merge_evaluation
from ptq_cli.recipe.assignments import Once
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory
from ptq_cli.tuning.run_tune import TuneResult, run_tune


@in_own_words
def evaluate(
    quantized_model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    restart: bool = False,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> EvaluationResult:
    """Compare the float and the quantized model on the evaluation set, and write the report.

    A failed gate raises nothing: see ``result.report.verdict``.

    Args:
        quantized_model: the model to evaluate; None for the one in the run directory.
        run: the run directory.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        restart: start from the beginning even if an earlier evaluation could be continued.
        progress: is called after each batch.
        settings: ``eval_data`` (or ``data``), ``eval_samples`` (or ``samples``), ``metric``, ``max_drop``,
            ``min`` and others.

    Raises:
        PtqError: nothing was exported, or data or metrics do not fit.
    """
    request = evaluation_request(settings, recipe, preset)
    path = as_model_path(quantized_model)
    once = Once(restart=restart)
    return run_evaluate(request, RunDirectory(Path(run)), path, once, progress)


@in_own_words
def evaluate_shard(
    shard: str,
    quantized_model: ModelLike | None = None,
    *,
    run: PathLike = DEFAULT_RUN,
    recipe: PathLike | None = None,
    preset: str | None = None,
    restart: bool = False,
    progress: ProgressCallback = silent,
    **settings: Unpack[Settings],
) -> EvaluationShardResult:
    """Compare the models on one share of the evaluation set; ``merge_evaluation`` makes the report.

    Args:
        shard: ``2/8`` is the second of eight.
        quantized_model: as for ``evaluate``.
        run: the run directory, where the file of the shard goes.
        recipe: a recipe file.
        preset: a preset, which the recipe file overrides.
        restart: start from the beginning even if earlier work on the shard could be continued.
        progress: is called after each batch.
        settings: as for ``evaluate``; they must be the same for all shards.

    Raises:
        PtqError: as ``evaluate`` does, or a metric cannot be measured in parts.
    """
    request = evaluation_request(settings, recipe, preset)
    path = as_model_path(quantized_model)
    models = [path] if path is not None else []
    once = Once(restart=restart)
    return run_evaluation_shard(request, RunDirectory(Path(run)), models, shard, once, progress)


@in_own_words
def merge_evaluation(
    shards: Sequence[PathLike], run: PathLike = DEFAULT_RUN, progress: ProgressCallback = silent
) -> tuple[EvaluationResult, ...]:
    """Join the shards of an evaluation, and write the report that ``evaluate`` would have written.

    Args:
        shards: run directories that hold files of ``evaluate_shard``, or the files, in any order.
        run: the run directory with the models, where the report goes.
        progress: is told about the latency.

    Raises:
        PtqError: the shards are not of one evaluation, overlap, or one is missing.
    """
    return run_merge_evaluation([Path(path) for path in shards], RunDirectory(Path(run)), progress)


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
    once = Once(restart=restart, evaluate=evaluate)
    return run_tune(request, RunDirectory(Path(run)), as_path(output), once, progress)
