"""``tune``: the cheapest model that provably keeps a budget."""

import os
import time
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path
from typing import Annotated, ClassVar

from ptq_cli.calibration.measure import CalibrationSubject
from ptq_cli.calibration.provenance import opened_bytes
from ptq_cli.core.documents import HIDDEN, to_json
from ptq_cli.core.errors import TimeBudgetError
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.words import parse_duration
from ptq_cli.evaluation.document.ladder import INTERRUPTED, Ladder, LadderStep
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.latency.latency_preference import profile_here
from ptq_cli.models.files.stored import read_model
from ptq_cli.pipeline.evaluation.made_reports import EvaluationResult
from ptq_cli.pipeline.exporting.exported_file import Pair
from ptq_cli.pipeline.run_calibrate import joined_ranks
from ptq_cli.pipeline.run_evaluate import make_evaluations
from ptq_cli.recipe.known_modes import AUTO, IN_FLOAT, RUNGS
from ptq_cli.recipe.recovery_rungs import REWRITING, needs_ranges, recovery_rungs
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import LATENCY
from ptq_cli.report.text.tables import budgeted, written
from ptq_cli.setup.ranks import find_ranks
from ptq_cli.setup.resolve import Request, Resolved
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.tuning.budget_reach import decision_recipe
from ptq_cli.tuning.candidate import SQNR, Candidate, Climb, TimeIsOverError
from ptq_cli.tuning.candidate_models import CandidateCalibrations, CandidateModels, Party
from ptq_cli.tuning.layer_ranking import TuneCheckpoint, continued_tuning
from ptq_cli.tuning.opened_tuning import OpenedTuning, open_tuning, tuning_identity
from ptq_cli.tuning.sixteen_bits import slow_rungs, why_not_wide

# How a tuning ends: its ladder is written, and what was chosen is evaluated.


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What ``ptq tune`` tried and chose."""

    DERIVED: ClassVar[tuple[str, ...]] = ("interrupted", "report")

    run: Annotated[RunDirectory, "Where the files are."]
    output: Annotated[Path, "The quantized model's file."]
    ladder: Annotated[Ladder, "What was tried, what was chosen, and whether it keeps the budget."]
    bytes: Annotated[int, "Size of the quantized file."]
    float_bytes: Annotated[int, "Size of the float file, as from ptq export."]
    evaluation: Annotated[EvaluationResult | None, HIDDEN] = None

    @property
    def report(self) -> Report | None:
        """The report on the evaluation data; null if it was not asked for."""
        return self.evaluation.report if self.evaluation is not None else None

    @property
    def interrupted(self) -> bool:
        """Whether it was interrupted, so that the best so far was chosen."""
        return self.ladder.stopped == INTERRUPTED


def finish_tuning(
    opened: OpenedTuning, models: CandidateModels, climb: Climb, run: RunDirectory, progress: ProgressCallback
) -> TuneResult:
    """Write the ladder of a climb that is over, and evaluate what it chose, if that was asked for."""
    ladder = _ladder(opened, models, climb)
    is_first, best = models.party.is_first, Candidate.of(ladder.best)
    if is_first:
        write_together({run.tuning: to_json(ladder).encode()})
        run.discard_other_models(models.output)
        if climb.stopped != INTERRUPTED:
            discard_checkpoint(run.tuning_checkpoint)
            discard_checkpoint(run.checkpoint)
    # The processes that do not write make what was chosen again.
    chosen = read_model(models.output) if is_first else models.export(best).model
    evaluation = None
    if opened.evaluation is not None and climb.stopped != INTERRUPTED:
        base = models.calibrations.of(best.rungs)
        pair, fitted = Pair(base.float_model, chosen, models.output.name), opened.evaluation
        plan, group = base.subject.plan, models.party.group
        (found,) = make_evaluations(
            opened.resolved, base.calibration, [pair], fitted, run, [run], progress, plan=plan, group=group
        )
        if is_first:
            write_together(found.files)
            discard_checkpoint(run.evaluation_checkpoint)
        evaluation = found.result
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

    compared, resolved = models.compared_on.dataset.count, opened.resolved
    in_float = any(step.in_float for step in climb.steps)
    return Ladder(
        model_sha256=models.party.told(written).decode(),
        samples=next(iter(models.checkpoint.compared.values())).samples if compared is None else compared,
        set_aside=models.set_aside,
        steps=tuple(climb.steps),
        chosen=climb.chosen,
        met=climb.met,
        stopped=climb.stopped,
        advice=climb.advice(),
        untried=why_not_wide(resolved.target, resolved.recipe.activations) if in_float else "",
    )


STAGE = "tune"


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

    The best candidate so far is always on disk, with its recipe. Evaluation data decide nothing. Under
    ``torchrun`` each process measures its share of the samples, and the first one writes. A Ctrl-C after the
    first candidate ends the climb: the best so far is the result. Several processes end without one, and
    continue nothing.
    """
    with joined_ranks(find_ranks(os.environ)) as group:
        party = Party(group)
        opened = open_tuning(request, run, output, progress, party, evaluate=evaluate)
        path = output or run.quantized_file(opened.resolved.recipe.weights)
        return _climbed(opened, run, path, progress, party, restart=restart)


def _climbed(
    opened: OpenedTuning,
    run: RunDirectory,
    output: Path,
    progress: ProgressCallback,
    party: Party,
    *,
    restart: bool,
) -> TuneResult:
    recipe = opened.resolved.recipe
    if restart and party.is_first:
        discard_checkpoint(run.checkpoint)
        discard_checkpoint(run.tuning_checkpoint)
    seconds = parse_duration(recipe.tune.time_budget) if recipe.tune.time_budget else None
    clock = BudgetClock(seconds, progress, party)
    models = _candidate_models(opened, run, output, clock.progress, party)

    def tell(step: LadderStep) -> None:
        clock.begun = True
        progress(Progress(STAGE, 0, None, step_line(step)))

    climb = Climb(
        subject=models,
        gate=opened.gate,
        is_over=clock.is_over,
        tell=tell,
        allow=clock.allow,
        stop=clock.stop,
        alone=party.group is None,
    )
    rungs, base = rungs_to_climb(recipe)
    subject = opened.subject
    climb.up(rungs, base, slow_rungs(rungs, subject.model.model, subject.plan, recipe.weights))
    clock.stop()
    return finish_tuning(opened, models, climb, run, progress)


class BudgetClock:
    """Ends the climb when the time budget is over: several processes between candidates, one anywhere."""

    def __init__(self, seconds: float | None, progress: ProgressCallback, party: Party) -> None:
        self._party = party
        self._begin = time.monotonic()
        self._seconds, self._progress = seconds, progress
        self.begun = False
        self.allow(1.0)

    def allow(self, share: float) -> None:
        """Let the climb go on until so much of the time has passed, counted from the beginning."""
        self._end = self._begin + share * self._seconds if self._seconds is not None else None

    def is_over(self) -> bool:
        """Return whether no time is left, by the clock of the first process."""
        return self._party.agreed(self._has_passed)

    def _has_passed(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def progress(self, step: Progress) -> None:
        """Hand on progress, unless the time is over.

        Raises:
            TimeIsOverError: it is.
            TimeBudgetError: it is, and nothing has been measured.
        """
        self._progress(step)
        self._party.go_on()
        if self._party.group is not None or not self._has_passed():
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


def rungs_to_climb(recipe: Recipe) -> tuple[tuple[str, ...], Candidate]:
    """Return the rungs to try, and what to begin with.

    Rungs that the recipe names are tried one by one; with those of the default, all are.

    Example:
        >>> from ptq_cli.recipe.sections import RecoverySettings
        >>> rungs, begun = rungs_to_climb(Recipe(recovery=RecoverySettings(["round"])))
        >>> rungs, begun.rungs, rungs_to_climb(Recipe())[1].rungs
        (('round',), (), ('auto',))
    """
    if AUTO in recipe.recovery.rungs:
        # It chooses layers in float itself, by the budget. Where none is calibrated, no range can be chosen.
        able = RUNGS if needs_ranges(recipe) else REWRITING
        return tuple(rung for rung in able if rung != IN_FLOAT), Candidate(rungs=(AUTO,))
    return recovery_rungs(recipe.recovery), Candidate()


def step_line(step: LadderStep) -> str:
    """Return what was measured of a candidate, as the table of the ladder writes it."""
    checks = step.proof or step.checks
    how = "" if step.kept else ", no better"
    budgets = ", ".join(f"{budgeted(check)} {written(check, check.value)}" for check in checks)
    is_said = any(item.metric == SQNR and isclose(item.value, step.sqnr_db, abs_tol=0.005) for item in checks)
    sqnr = "" if is_said else f"SQNR of the outputs {step.sqnr_db:.2f} dB, "
    return f"{step.name}: {sqnr}{budgets}{how}"


def _candidate_models(
    opened: OpenedTuning, run: RunDirectory, output: Path, progress: ProgressCallback, party: Party
) -> CandidateModels:
    resolved, subject = opened.resolved, opened.subject

    def tell(note: str) -> None:
        progress(Progress(STAGE, 0, None, note))

    if party.group is None:
        checkpoint = continued_tuning(run.tuning_checkpoint, tuning_identity(opened, run), tell)
    else:
        checkpoint = TuneCheckpoint(path=run.tuning_checkpoint, identity={}, stored=False)
    resolved = _measured_once(resolved, subject, run, progress, party, again=bool(checkpoint.written))
    if resolved.recipe.export.profile is None:  # A profile holds for the threads that it was measured with.
        resolved = party.of_rank(resolved)
    return CandidateModels(
        resolved=resolved,
        deciding=party.of_rank(opened.resolved).with_recipe(decision_recipe(resolved.recipe, opened.gate)),
        calibrations=CandidateCalibrations(
            opened.request, party.of_rank(opened.resolved), subject, run, progress, party
        ),
        float_model=subject.model.stored,
        compared_on=opened.compared_on,
        proven_on=opened.proven_on,
        run=run,
        output=output,
        checkpoint=checkpoint,
        progress=progress,
        party=party,
    )


def _measured_once(
    resolved: Resolved,
    subject: CalibrationSubject,
    run: RunDirectory,
    progress: ProgressCallback,
    party: Party,
    *,
    again: bool,
) -> Resolved:
    recipe = resolved.recipe
    if recipe.export.prefer != LATENCY or recipe.export.profile is not None:
        return resolved
    if party.is_first and not (again and run.profile.is_file()):
        profile = profile_here(subject.model.model, subject.plan, resolved, progress)
        write_together({run.profile: to_json(profile).encode()})
    if party.group is not None:
        party.group.wait_for_all("profiled")
    found = replace(recipe.export, profile=str(run.profile.absolute()))
    return resolved.with_recipe(replace(recipe, export=found))
