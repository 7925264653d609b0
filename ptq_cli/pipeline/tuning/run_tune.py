"""``tune``: the cheapest model that provably keeps a budget."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.calibdata.dataset.set_aside import DividedDataset
from ptq_cli.core.durations import parse_duration
from ptq_cli.core.errors import TimeBudgetError
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.latency.machine_profile import profile_to_json
from ptq_cli.models.stored import StoredModel, read_model
from ptq_cli.pipeline.calibration.calibration_checkpoint import discard_checkpoint
from ptq_cli.pipeline.calibration.measure import CalibrationSubject, open_subject
from ptq_cli.pipeline.calibration.provenance import settings_of
from ptq_cli.pipeline.evaluation.evaluation_checkpoint import discard_evaluation_checkpoint
from ptq_cli.pipeline.evaluation.evaluation_data import EvaluationSet, fit_evaluation
from ptq_cli.pipeline.evaluation.made_reports import EvaluationResult
from ptq_cli.pipeline.evaluation.run_evaluate import make_evaluations
from ptq_cli.pipeline.exporting.exported_file import Pair
from ptq_cli.pipeline.exporting.latency_preference import profile_here
from ptq_cli.pipeline.exporting.tensor_settings import tensor_recipe, tensor_settings
from ptq_cli.pipeline.run.library_versions import library_versions
from ptq_cli.pipeline.run.output_checks import input_files, require_outputs
from ptq_cli.pipeline.run.reading import open_data
from ptq_cli.pipeline.run.resolve import Request, Resolved, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.tuning.budget_checks import (
    budget_gate,
    decision_recipe,
    of_first_output,
    require_reachable,
)
from ptq_cli.pipeline.tuning.candidate_calibrations import CandidateCalibrations
from ptq_cli.pipeline.tuning.candidate_models import CandidateModels, first_samples
from ptq_cli.pipeline.tuning.climb import INTERRUPTED, Candidate, Climb, TimeIsOverError
from ptq_cli.pipeline.tuning.sixteen_bits import why_not_wide
from ptq_cli.pipeline.tuning.tune_checkpoint import continued_tuning, discard_tuning
from ptq_cli.recipe.encode import recipe_to_toml
from ptq_cli.recipe.recovery_rungs import AUTO, RUNGS, recovery_rungs
from ptq_cli.recipe.schema import LATENCY, EvaluationSettings, GateSettings, Recipe
from ptq_cli.report.document.ladder import Ladder, LadderStep, ladder_to_json
from ptq_cli.runtime.cuda import require_device

STAGE = "tune"
DEFAULT_SET_ASIDE = 0.5
COMPARED_ON = 512
"""Samples that candidates are compared on, at most; more cost time, and prove nothing."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The result of ``tune``.

    Attributes:
        run: where the files are.
        output: the quantized model's file.
        ladder: what was tried, what was chosen, and whether it keeps the budget.
        bytes, float_bytes: sizes of the quantized and the float file.
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


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """What a tuning begins with, all found to fit.

    Attributes:
        request: with the share that is set aside.
        resolved: what it means.
        gate: the budgets.
        subject: the model and the samples to calibrate on.
        proven_on: the samples set aside, with the metrics.
        compared_on: samples that are calibrated on, with the metrics.
        evaluation: the evaluation set; None if no evaluation is asked for.
    """

    request: Request
    resolved: Resolved
    gate: GateSettings
    subject: CalibrationSubject
    proven_on: EvaluationSet
    compared_on: EvaluationSet
    evaluation: EvaluationSet | None


class _Clock:
    """Ends the climb when the time budget is over."""

    def __init__(self, seconds: float | None, progress: ProgressCallback) -> None:
        self._end = time.monotonic() + seconds if seconds is not None else None
        self._seconds, self._progress = seconds, progress
        self.begun = False

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._end is not None and time.monotonic() > self._end

    def progress(self, step: Progress) -> None:
        """Hand on progress, unless the time is over.

        Raises:
            TimeIsOverError: it is.
            TimeBudgetError: it is, and nothing has been measured.
        """
        self._progress(step)
        if not self.is_over:
            return
        if self.begun:
            raise TimeIsOverError
        raise TimeBudgetError(
            f"the time budget of {self._seconds:g} s was over before the first candidate was measured",
            hint="allow more with --time-budget, or pass fewer --samples",
        )

    def stop(self) -> None:
        """What follows may take its time."""
        self._end = None


def run_tune(
    request: Request,
    run: RunDirectory,
    output: Path | None = None,
    *,
    evaluate: bool = False,
    restart: bool = False,
    progress: ProgressCallback = silent,
) -> TuneResult:
    """Calibrate, and try better and better candidates until one provably keeps the budget.

    The best candidate so far is always on disk, with its recipe. Evaluation data decide nothing.

    Args:
        request: all settings; the budget among them.
        run: the run directory.
        output: where the quantized model goes, or None for the run directory.
        evaluate: whether to evaluate what was chosen on the evaluation data at the end.
        restart: start from the beginning even if an earlier tuning could be continued.
        progress: is called as the work proceeds, and with a note on each candidate.

    Edge case:
        A Ctrl-C after the first candidate ends the climb: the best so far is the result.

    Raises:
        TuneError: there is no budget, or too few samples are set aside.
        UnreachableBudgetError: they could not prove the budget of any model.
        TimeBudgetError: the time budget was over before the first candidate was measured.
        LabelError: a budget is on a metric that needs labels, and the calibration data have none.
        PtqError: as ``quantize`` does.
    """
    opened = _open(request, run, output, progress, evaluate=evaluate)
    recipe = opened.resolved.recipe
    if restart:
        discard_checkpoint(run.checkpoint)
        discard_tuning(run.tuning_checkpoint)
    clock = _Clock(parse_duration(recipe.tune.time_budget) if recipe.tune.time_budget else None, progress)
    models = _candidate_models(opened, run, output or run.quantized_model, clock.progress)

    def tell(step: LadderStep) -> None:
        clock.begun = True
        progress(Progress(STAGE, 0, None, _line(step)))

    climb = Climb(subject=models, gate=opened.gate, is_over=lambda: clock.is_over, tell=tell, stop=clock.stop)
    climb.up(*rungs_to_climb(recipe))
    clock.stop()
    return _finished(opened, models, climb, run, progress)


def rungs_to_climb(recipe: Recipe) -> tuple[tuple[str, ...], Candidate]:
    """Return the rungs to try, and what to begin with.

    Rungs that the recipe names are tried one by one; with those of the default, all are.

    Example:
        >>> from ptq_cli.recipe.schema import Recipe, RecoverySettings
        >>> rungs_to_climb(Recipe(recovery=RecoverySettings(["round"])))
        (('round',), Candidate(rungs=(), in_float=(), in_16_bits=()))
        >>> rungs_to_climb(Recipe())[1].rungs
        ('auto',)
    """
    named = recipe.recovery.rungs
    if AUTO in named:
        return tuple(RUNGS), Candidate((AUTO,))
    return recovery_rungs(recipe.recovery), Candidate()


def _line(step: LadderStep) -> str:
    checks = step.proof or step.checks
    how = "" if step.kept else ", no better"
    budgets = ", ".join(f"{check.metric} {check.value:.4g}" for check in checks)
    return f"{step.name}: {step.sqnr_db:.1f} dB, {budgets}{how}"


def _open(
    request: Request, run: RunDirectory, output: Path | None, progress: ProgressCallback, *, evaluate: bool
) -> _Opened:
    if not resolve(request).recipe.calibration.set_aside:
        request = replace(request, settings={**request.settings, "set_aside": DEFAULT_SET_ASIDE})
    resolved = resolve(request)
    recipe = resolved.recipe
    gate = budget_gate(recipe)
    require_outputs(run, input_files(recipe), output)
    require_device(resolved.machine.device)
    dataset = (
        open_data(recipe.evaluation, resolved.reading, "evaluation", "--eval-data") if evaluate else None
    )
    subject = open_subject(resolved, progress, run.float_model, dataset)
    model, part = subject.model.model, subject.dataset
    gate = of_first_output(gate, model.graph.outputs[0].name or "")
    if not isinstance(part, DividedDataset):
        raise TypeError("a share is set aside")
    tensor_settings(model, subject.plan, resolved.target, tensor_recipe(recipe))
    deciding = decision_recipe(recipe, gate)
    proven_on = fit_evaluation(part.other, deciding, model)
    require_reachable(gate, proven_on.dataset.count)
    return _Opened(
        request=request,
        resolved=resolved,
        gate=gate,
        subject=subject,
        proven_on=proven_on,
        compared_on=first_samples(fit_evaluation(part, deciding, model), COMPARED_ON),
        evaluation=fit_evaluation(dataset, recipe, model) if dataset is not None else None,
    )


def _candidate_models(
    opened: _Opened, run: RunDirectory, output: Path, progress: ProgressCallback
) -> CandidateModels:
    resolved, subject = opened.resolved, opened.subject

    def tell(note: str) -> None:
        progress(Progress(STAGE, 0, None, note))

    checkpoint = continued_tuning(run.tuning_checkpoint, _identity(opened, run), tell)
    resolved = _measured_once(resolved, subject, run, progress, again=bool(checkpoint.written))
    return CandidateModels(
        resolved=resolved,
        deciding=resolved.with_recipe(decision_recipe(resolved.recipe, opened.gate)),
        calibrations=CandidateCalibrations(opened.request, resolved, subject, run, progress),
        float_model=subject.model.stored,
        compared_on=opened.compared_on,
        proven_on=opened.proven_on,
        run=run,
        output=output,
        checkpoint=checkpoint,
        progress=progress,
    )


def _measured_once(
    resolved: Resolved,
    subject: CalibrationSubject,
    run: RunDirectory,
    progress: ProgressCallback,
    *,
    again: bool,
) -> Resolved:
    """Return the recipe with one profile for all candidates, where layers are placed by their latency.

    Args:
        resolved: the recipe.
        subject: the model.
        run: where the profile is written.
        progress: is told about the measurement.
        again: the tuning is continued, so that the profile may be there.
    """
    recipe = resolved.recipe
    if recipe.export.prefer != LATENCY or recipe.export.profile is not None:
        return resolved
    if not (again and run.profile.is_file()):
        profile = profile_here(subject.model.model, subject.plan, resolved, progress)
        write_together({run.profile: profile_to_json(profile)})
    found = replace(recipe.export, profile=str(run.profile.absolute()))
    return resolved.with_recipe(replace(recipe, export=found))


def _identity(opened: _Opened, run: RunDirectory) -> dict[str, str]:
    """Return what a checkpoint must be of; the time budget may change."""
    recipe = opened.resolved.recipe
    runtime, tune = replace(recipe.runtime, threads=0), replace(recipe.tune, time_budget="")
    plain = replace(recipe, runtime=runtime, tune=tune, evaluation=EvaluationSettings())
    return {
        "the float model": opened.subject.model.stored.sha256,
        "the calibration data": opened.subject.dataset.digest(),
        "a setting of the calibration": repr(sorted(settings_of(recipe, run).items())),
        "the recipe": recipe_to_toml(plain, run.path),
        "the version of a library": repr(sorted(library_versions().items())),
    }


def _finished(
    opened: _Opened, models: CandidateModels, climb: Climb, run: RunDirectory, progress: ProgressCallback
) -> TuneResult:
    compared, best = models.compared_on.dataset.count, models.output
    chosen, evaluation = read_model(best), None
    ladder = Ladder(
        model_sha256=chosen.sha256,
        samples=next(iter(models.checkpoint.compared.values())).samples if compared is None else compared,
        set_aside=models.set_aside,
        steps=tuple(climb.steps),
        chosen=climb.chosen,
        met=climb.met,
        stopped=climb.stopped,
        advice=climb.advice(),
        untried=_untried(opened.resolved, climb),
    )
    files: dict[Path, Content] = {run.tuning: ladder_to_json(ladder).encode()}
    write_together(files)
    if climb.stopped != INTERRUPTED:
        discard_tuning(run.tuning_checkpoint)
        discard_checkpoint(run.checkpoint)
    if opened.evaluation is not None and climb.stopped != INTERRUPTED:
        evaluation = _evaluated(opened, opened.evaluation, models, chosen, ladder.best.rungs, run, progress)
    return TuneResult(
        run=run,
        output=best,
        ladder=ladder,
        bytes=chosen.size,
        float_bytes=models.float_model.size,
        evaluation=evaluation,
    )


def _untried(resolved: Resolved, climb: Climb) -> str:
    """Return why layers went to float and no activation to 16 bits."""
    came_to_float = any(step.in_float for step in climb.steps)
    return why_not_wide(resolved.target, resolved.recipe.activations) if came_to_float else ""


def _evaluated(
    opened: _Opened,
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
        opened.resolved, base.calibration, [pair], fitted, run, [run], progress, plan=base.subject.plan
    )
    write_together(found.files)
    discard_evaluation_checkpoint(run.evaluation_checkpoint)
    return found.result
