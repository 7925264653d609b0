"""``evaluate``: the float and the quantized models over the evaluation set, the reports, and the verdicts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.documents import parse_document, to_json
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet, SetSummary
from ptq_cli.pipeline.evaluation.measure_models import ShardOrigin, evaluate_pass, evaluate_shard
from ptq_cli.pipeline.evaluation.opened_pass import open_evaluation_set, open_models, report_runs
from ptq_cli.pipeline.evaluation.quantized_models import open_evaluation_subject
from ptq_cli.pipeline.evaluation.reports import Evaluated, EvaluationResult, make_reports
from ptq_cli.pipeline.evaluation.shards import shard_bytes
from ptq_cli.pipeline.exported_file import Pair
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.assignments import Once
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.setup.output_checks import input_files, require_free_outputs
from ptq_cli.setup.parts import Work, opened_part
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class EvaluationShardResult:
    """What ``ptq evaluate --shard`` measured."""

    run: Annotated[RunDirectory, "Where the file is."]
    file: Annotated[Path, "What was measured."]
    samples: Annotated[int, "How many samples were seen."]
    shard: Annotated[str, "Which part of the data, such as shard 2 of 8."]
    unit: Annotated[str, "What is counted as one."]


def run_evaluate(
    request: Request,
    run: RunDirectory,
    quantized_model: Path | None = None,
    once: Once = Once(),
    progress: ProgressCallback = silent,
) -> EvaluationResult:
    """Evaluate the float and the quantized model in one pass, and write the report."""
    models = [quantized_model] if quantized_model is not None else []
    return run_evaluations(request, run, models, once, progress)[0]


def run_evaluations(
    request: Request,
    run: RunDirectory,
    quantized_models: Sequence[Path] = (),
    once: Once = Once(),
    progress: ProgressCallback = silent,
) -> tuple[EvaluationResult, ...]:
    """Evaluate the float model and quantized ones in one pass, and write a report of each.

    Under ``torchrun`` each process runs its share of the batches, and the first one writes.

    Without ``quantized_models``, the run's own is judged. The reports of several are in a folder each, named
    as the model's file.
    """
    with opened_part() as part:
        opened = open_models(request, run, quantized_models)
        evaluation_set = open_evaluation_set(opened, progress)
        if once.restart and part.is_first:
            discard_checkpoint(run.evaluation_checkpoint)
        evaluated = make_evaluations(
            Work(resolved=opened.resolved(run), run=run, part=part, progress=progress),
            opened.loaded.calibration,
            opened.pairs,
            evaluation_set,
        )
        if part.is_first:
            write_together({path: content for item in evaluated for path, content in item.files.items()})
            discard_checkpoint(run.evaluation_checkpoint)
    return tuple(item.result for item in evaluated)


def make_evaluations(
    work: Work,
    calibration: Calibration,
    pairs: Sequence[Pair],
    evaluation_set: EvaluationSet,
    plan: Plan | None = None,
) -> tuple[Evaluated, ...]:
    """Evaluate the float model with each quantized one; nothing but checkpoints is written.

    Of several ranks only the first has the files.
    """
    summary = SetSummary.of(evaluation_set)
    subject = open_evaluation_subject(work, calibration, pairs, summary, plan)
    own = replace(work, resolved=work.part.on_own_machine(work.resolved))
    evaluations = evaluate_pass(own, subject.models, evaluation_set, subject.watches)
    # The limits are judged by the latency of the first rank, which has the whole machine meanwhile.
    made = make_reports(work, subject, evaluations) if work.part.is_first else ()
    if work.part.group is None:
        return made
    contents = [to_json(item.result.report) for item in made]
    told = json.loads(work.part.from_first(lambda: json.dumps(contents).encode()))
    return made or tuple(
        Evaluated(EvaluationResult(parse_document(Report, content.encode()), folder), {})
        for content, folder in zip(told, report_runs(work.run, pairs), strict=True)
    )


def run_evaluation_shard(
    request: Request,
    run: RunDirectory,
    quantized_models: Sequence[Path],
    shard: str,
    once: Once = Once(),
    progress: ProgressCallback = silent,
) -> EvaluationShardResult:
    """Evaluate on one share of the batches, and write a file from which ``merge`` makes the reports.

    ``merge`` judges the limits.
    """
    with opened_part(shard) as part:
        opened = open_models(request, run, quantized_models)
        evaluation_set = open_evaluation_set(opened, progress)
        file = run.evaluation_shard(str(part.shard))
        recipe, checkpoint = opened.loaded.resolved.recipe, run.shard_checkpoint(file)
        require_free_outputs([file], input_files(recipe))
        work = Work(resolved=opened.resolved(run), run=run, part=part, progress=progress)
        summary = SetSummary.of(evaluation_set)
        subject = open_evaluation_subject(work, opened.loaded.calibration, opened.pairs, summary)
        if once.restart:
            discard_checkpoint(checkpoint)
        origin = ShardOrigin(
            # What the recipe holds before an export's settings are added: merge adds them again.
            recipe=recipe_to_toml(recipe, run.path),
            models=tuple(relative_location(str(path.absolute()), run.path) for path in opened.paths),
        )
        found = evaluate_shard(work, subject.models, evaluation_set, subject.watches, origin, checkpoint)
        write_together({file: shard_bytes(found)})
        discard_checkpoint(checkpoint)
    return EvaluationShardResult(
        run=run, file=file, samples=found.samples, shard=found.share.describe(), unit=found.facts.unit
    )
