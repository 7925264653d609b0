"""``evaluate``: the float and the quantized models over the evaluation set, the reports, and the verdicts."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ptq_cli.calibdata.dataset.selection import parse_shard
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.documents import parse_document, to_json
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.pipeline.evaluation.evaluation_data import EvaluationSet, MeasuredSet
from ptq_cli.pipeline.evaluation.evaluation_shard import shard_bytes
from ptq_cli.pipeline.evaluation.joined_shards import ShardOrigin, evaluate_part, evaluate_together
from ptq_cli.pipeline.evaluation.made_reports import (
    Evaluated,
    EvaluationResult,
    make_reports,
    open_judged,
)
from ptq_cli.pipeline.evaluation.one_pass import evaluate_pass, open_evaluation_set, open_models
from ptq_cli.pipeline.exporting.exported_file import Pair
from ptq_cli.pipeline.run_calibrate import joined_ranks, machine_of_rank
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.setup.output_checks import input_files, require_free_outputs
from ptq_cli.setup.ranks import find_ranks, require_single
from ptq_cli.setup.resolve import Request, Resolved
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory

if TYPE_CHECKING:
    from ptq_cli.setup.distributed import Group


def run_evaluate(
    request: Request,
    run: RunDirectory,
    quantized_model: Path | None = None,
    progress: ProgressCallback = silent,
    *,
    restart: bool = False,
    thumbnails: bool = False,
) -> EvaluationResult:
    """Evaluate the float and the quantized model in one pass, and write the report."""
    models = [quantized_model] if quantized_model is not None else []
    return run_evaluations(request, run, models, progress, restart=restart, thumbnails=thumbnails)[0]


def run_evaluations(
    request: Request,
    run: RunDirectory,
    quantized_models: Sequence[Path],
    progress: ProgressCallback = silent,
    *,
    restart: bool = False,
    thumbnails: bool = False,
) -> tuple[EvaluationResult, ...]:
    """Evaluate the float model and quantized ones in one pass, and write a report of each.

    Under ``torchrun`` each process runs its share of the batches, and the first one writes.

    Without ``quantized_models``, the run's own is judged. The reports of several are in a folder each, named
    as the model's file.
    """
    ranks = find_ranks(os.environ)
    with joined_ranks(ranks) as group:
        opened = open_models(request, run, quantized_models)
        evaluation_set = open_evaluation_set(opened, progress)
        is_first = ranks is None or ranks.is_first
        if restart and is_first:
            discard_checkpoint(run.evaluation_checkpoint)
        evaluated = make_evaluations(
            opened.resolved(run),
            opened.loaded.calibration,
            opened.pairs,
            evaluation_set,
            run,
            opened.runs,
            progress,
            thumbnails=thumbnails,
            group=group,
        )
        if is_first:
            write_together({path: content for item in evaluated for path, content in item.files.items()})
            discard_checkpoint(run.evaluation_checkpoint)
    return tuple(item.result for item in evaluated)


def make_evaluations(
    resolved: Resolved,
    calibration: Calibration,
    pairs: Sequence[Pair],
    evaluation_set: EvaluationSet,
    run: RunDirectory,
    runs: Sequence[RunDirectory],
    progress: ProgressCallback,
    *,
    thumbnails: bool = False,
    plan: Plan | None = None,
    group: "Group | None" = None,
) -> tuple[Evaluated, ...]:
    """Evaluate the float model with each quantized one; nothing but checkpoints is written.

    Of the processes of a ``group`` only the first has the files.
    """
    measured = MeasuredSet.of(evaluation_set)
    judged, models, changed = open_judged(
        resolved, calibration, run, pairs, measured, thumbnails=thumbnails, plan=plan
    )

    def reports() -> tuple[Evaluated, ...]:
        return make_reports(
            resolved, calibration, judged, measured, evaluations, changed, run, runs, progress
        )

    if group is None:
        evaluations = evaluate_pass(resolved, models, evaluation_set, run, progress, changed)
        return reports()
    mine = replace(resolved, machine=machine_of_rank(resolved.machine, group.ranks))
    evaluations = evaluate_together(mine, models, evaluation_set, progress, group, changed)
    made = reports() if group.ranks.is_first else ()
    contents = [to_json(item.result.report) for item in made]
    told = json.loads(group.announce(json.dumps(contents).encode(), "reports"))
    return made or tuple(
        Evaluated(EvaluationResult(parse_document(Report, content.encode()), own), {})
        for content, own in zip(told, runs, strict=True)
    )


# ``evaluate --shard``: one share of the evaluation set, in a file for ``merge``.


@dataclass(frozen=True, kw_only=True)
class EvaluationShardResult:
    """What ``ptq evaluate --shard`` measured."""

    run: Annotated[RunDirectory, "Where the file is."]
    file: Annotated[Path, "What was measured."]
    samples: Annotated[int, "How many samples were seen."]
    shard: Annotated[str, "Which part of the data, such as shard 2 of 8."]
    unit: Annotated[str, "What is counted as one."]


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

    ``merge`` judges the limits.
    """
    part = parse_shard(shard)
    require_single(find_ranks(os.environ), "one shard")
    opened = open_models(request, run, quantized_models)
    evaluation_set = open_evaluation_set(opened, progress)
    file = run.evaluation_shard(str(part))
    require_free_outputs([file], input_files(opened.loaded.resolved.recipe))
    resolved, measured = opened.resolved(run), MeasuredSet.of(evaluation_set)
    _, models, changed = open_judged(
        resolved, opened.loaded.calibration, run, opened.pairs, measured, thumbnails=thumbnails
    )
    if restart:
        discard_checkpoint(run.shard_checkpoint(file))
    # What the recipe holds before an export's settings are added: merge adds them again.
    origin = ShardOrigin(
        run.path,
        recipe_to_toml(opened.loaded.resolved.recipe, run.path),
        tuple(relative_location(str(path.absolute()), run.path) for path in opened.paths),
        thumbnails,
    )
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
    discard_checkpoint(run.shard_checkpoint(file))
    return EvaluationShardResult(
        run=run, file=file, samples=found.samples, shard=found.share.describe(), unit=found.facts.unit
    )
