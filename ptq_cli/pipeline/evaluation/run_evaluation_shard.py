"""``evaluate --shard``: one share of the evaluation set, in a file for ``merge``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.calibdata.dataset.selection import parse_shard
from ptq_cli.core.files import write_together
from ptq_cli.core.work.progress import ProgressCallback, silent
from ptq_cli.pipeline.calibration.torchrun.ranks import find_ranks, require_single
from ptq_cli.pipeline.evaluation.measuring.evaluation_checkpoint import discard_evaluation_checkpoint
from ptq_cli.pipeline.evaluation.measuring.evaluation_data import MeasuredSet
from ptq_cli.pipeline.evaluation.measuring.opened_models import open_evaluation_set, open_models
from ptq_cli.pipeline.evaluation.parts.evaluation_part import ShardOrigin, evaluate_part
from ptq_cli.pipeline.evaluation.parts.evaluation_shard import shard_bytes
from ptq_cli.pipeline.evaluation.written.made_reports import (
    change_collectors,
    evaluated_models,
    judged_models,
    require_fitting_baseline,
)
from ptq_cli.pipeline.run.output_checks import (
    input_files,
    require_free_outputs,
)
from ptq_cli.pipeline.run.resolve import Request
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.encode import recipe_to_toml
from ptq_cli.recipe.locations import relative_location


@dataclass(frozen=True, kw_only=True)
class EvaluationShardResult:
    """The result of ``evaluate --shard``.

    Attributes:
        run: where the file is.
        file: what was measured.
        samples: how many samples were seen.
        shard: which part of the data, such as ``shard 2 of 8``.
        unit: what is counted as one.
    """

    run: RunDirectory
    file: Path
    samples: int
    shard: str
    unit: str


def run_evaluation_shard(
    request: Request,
    run: RunDirectory,
    quantized_models: Sequence[Path],
    shard: str,
    progress: ProgressCallback = silent,
    *,
    restart: bool = False,
    thumbnails: bool = False,
) -> EvaluationShardResult:
    """Evaluate on one share of the batches, and write a file from which ``merge`` makes the reports.

    Args:
        request: evaluation data, metrics and limits; limits are judged by ``merge``.
        run: the run directory.
        quantized_models: as for ``run_evaluations``.
        shard: ``K/N``.
        progress: is called after each batch.
        restart: start from the beginning even if earlier work on the shard could be continued.
        thumbnails: as for ``run_evaluations``.

    Raises:
        UsageError: there is no such shard, or torchrun shares out the work already.
        MetricError: a metric cannot be measured in parts.
        PtqError: as ``run_evaluations`` does.
    """
    part = parse_shard(shard)
    require_single(find_ranks(os.environ), "one shard")
    opened = open_models(request, run, quantized_models)
    evaluation_set = open_evaluation_set(opened, progress)
    file = run.evaluation_shard(str(part))
    require_free_outputs([file], input_files(opened.loaded.resolved.recipe))
    resolved, measured = opened.resolved(run), MeasuredSet.of(evaluation_set)
    require_fitting_baseline(
        resolved.recipe.model.path, run, opened.pairs, measured, opened.loaded.calibration
    )
    models = evaluated_models(judged_models(resolved, opened.pairs))
    if restart:
        discard_evaluation_checkpoint(run.shard_checkpoint(file))
    # What the recipe holds before an export's settings are added: merge adds them again.
    origin = ShardOrigin(
        run.path,
        recipe_to_toml(opened.loaded.resolved.recipe, run.path),
        tuple(relative_location(str(path.absolute()), run.path) for path in opened.paths),
        thumbnails,
    )
    changed = change_collectors(resolved.recipe.image, len(models.quantized), thumbnails=thumbnails)
    found = evaluate_part(
        resolved,
        models,
        evaluation_set,
        part,
        progress,
        changed,
        origin=origin,
        checkpoint=run.shard_checkpoint(file),
    )
    write_together({file: shard_bytes(found)})
    discard_evaluation_checkpoint(run.shard_checkpoint(file))
    return EvaluationShardResult(
        run=run, file=file, samples=found.samples, shard=found.share.describe(), unit=found.facts.unit
    )
