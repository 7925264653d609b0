"""How a tuning ends: its ladder is written, and what was chosen is evaluated."""

from dataclasses import dataclass
from pathlib import Path

from ptq_cli.core.files import write_together
from ptq_cli.core.work.progress import ProgressCallback
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.calibration.calibration_checkpoint import discard_checkpoint
from ptq_cli.pipeline.calibration.source_size import opened_bytes
from ptq_cli.pipeline.evaluation.measuring.evaluation_checkpoint import discard_evaluation_checkpoint
from ptq_cli.pipeline.evaluation.measuring.evaluation_data import EvaluationSet
from ptq_cli.pipeline.evaluation.run_evaluate import make_evaluations
from ptq_cli.pipeline.evaluation.written.made_reports import EvaluationResult
from ptq_cli.pipeline.exporting.exported_file import Pair
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.tuning.candidate import Candidate
from ptq_cli.pipeline.tuning.candidate_models import CandidateModels
from ptq_cli.pipeline.tuning.climb import INTERRUPTED, Climb
from ptq_cli.pipeline.tuning.opened_tuning import OpenedTuning
from ptq_cli.pipeline.tuning.sixteen_bits import why_not_wide
from ptq_cli.pipeline.tuning.tune_checkpoint import discard_tuning
from ptq_cli.report.document.ladder import Ladder, LadderStep, ladder_to_json


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The result of ``tune``.

    Attributes:
        run: where the files are.
        output: the quantized model's file.
        ladder: what was tried, what was chosen, and whether it keeps the budget.
        bytes, float_bytes: sizes of the quantized and the float file, as those of ``ExportResult``.
        evaluation: on the evaluation data; None if it was not asked for.
    """

    run: RunDirectory
    output: Path
    ladder: Ladder
    bytes: int
    float_bytes: int
    evaluation: EvaluationResult | None = None

    @property
    def interrupted(self) -> bool:
        """Whether it was interrupted, so that the best so far was chosen."""
        return self.ladder.stopped == INTERRUPTED


def finish_tuning(
    opened: OpenedTuning, models: CandidateModels, climb: Climb, run: RunDirectory, progress: ProgressCallback
) -> TuneResult:
    """Write the ladder of a climb that is over, and evaluate what it chose, if that was asked for."""
    ladder = _ladder(opened, models, climb)
    if models.party.is_first:
        write_together({run.tuning: ladder_to_json(ladder).encode()})
        run.discard_other_models(models.output)
        if climb.stopped != INTERRUPTED:
            discard_tuning(run.tuning_checkpoint)
            discard_checkpoint(run.checkpoint)
    chosen, evaluation = _chosen(models, ladder.best), None
    if opened.evaluation is not None and climb.stopped != INTERRUPTED:
        evaluation = _evaluated(opened, opened.evaluation, models, chosen, ladder.best.rungs, run, progress)
    return TuneResult(
        run=run,
        output=models.output,
        ladder=ladder,
        bytes=chosen.size,
        float_bytes=opened_bytes(opened.subject.model.file) or models.float_model.size,
        evaluation=evaluation,
    )


def _ladder(opened: OpenedTuning, models: CandidateModels, climb: Climb) -> Ladder:
    def written() -> bytes:
        return read_model(models.output).sha256.encode()

    compared = models.compared_on.dataset.count
    return Ladder(
        model_sha256=models.party.told(written).decode(),
        samples=next(iter(models.checkpoint.compared.values())).samples if compared is None else compared,
        set_aside=models.set_aside,
        steps=tuple(climb.steps),
        chosen=climb.chosen,
        met=climb.met,
        stopped=climb.stopped,
        advice=climb.advice(),
        untried=_untried(opened.resolved, climb),
    )


def _chosen(models: CandidateModels, best: LadderStep) -> StoredModel:
    """Return the candidate that was written; the processes that do not write make it again."""
    if models.party.is_first:
        return read_model(models.output)
    return models.export(Candidate.of(best)).model


def _untried(resolved: Resolved, climb: Climb) -> str:
    """Return why layers went to float and no activation to 16 bits."""
    came_to_float = any(step.in_float for step in climb.steps)
    return why_not_wide(resolved.target, resolved.recipe.activations) if came_to_float else ""


def _evaluated(
    opened: OpenedTuning,
    fitted: EvaluationSet,
    models: CandidateModels,
    chosen: StoredModel,
    rungs: tuple[str, ...],
    run: RunDirectory,
    progress: ProgressCallback,
) -> EvaluationResult:
    base = models.calibrations.of(rungs)
    pair = Pair(base.float_model, chosen, models.output.name)
    (found,) = make_evaluations(
        opened.resolved,
        base.calibration,
        [pair],
        fitted,
        run,
        [run],
        progress,
        plan=base.subject.plan,
        group=models.party.group,
    )
    if models.party.is_first:
        write_together(found.files)
        discard_evaluation_checkpoint(run.evaluation_checkpoint)
    return found.result
