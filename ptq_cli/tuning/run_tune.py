"""``tune``: what it begins with, and the search for the cheapest model that provably keeps a budget."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isclose
from pathlib import Path
from typing import Annotated, ClassVar

import onnx_ir as ir

from ptq_cli.calibdata.dataset.dataset import DividedDataset
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.calibration.provenance import opened_bytes, settings_of
from ptq_cli.calibration.subject import CalibrationSubject, open_subject
from ptq_cli.core.documents import HIDDEN, to_json
from ptq_cli.core.errors import TimeBudgetError
from ptq_cli.core.files import write_together
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.words import parse_duration
from ptq_cli.evaluation.document.ladder import LADDER_INTERRUPTED, Ladder, LadderStep
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.metrics.metric_registry import SQNR
from ptq_cli.latency.measure_profile import profile_here
from ptq_cli.models.files.stored import read_model
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet, fit_evaluation
from ptq_cli.pipeline.evaluation.reports import EvaluationResult
from ptq_cli.pipeline.exported_file import Pair
from ptq_cli.pipeline.run_evaluate import make_evaluations
from ptq_cli.pipeline.run_quantize import asks_for_evaluation
from ptq_cli.pipeline.statement import statement_beside
from ptq_cli.placement.tensor_settings import tensor_recipe, tensor_settings
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.wide_format import why_not_wide
from ptq_cli.recipe.assignments import Once
from ptq_cli.recipe.check import weight_family
from ptq_cli.recipe.declaration import AUTO, BITS, IN_FLOAT, ROUND, RUNGS
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recipe.recovery_rungs import REWRITING, needs_ranges, recovery_rungs
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ACCURACY, LATENCY, EvaluationSettings, GateSettings, WeightSettings
from ptq_cli.recover.rung_work import takes_long
from ptq_cli.report.text.summary import budgeted, written
from ptq_cli.runtime.cuda import require_device
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.parts import Part, Work, opened_part
from ptq_cli.setup.remembered_data import with_calibration_data
from ptq_cli.setup.resolve import Request, Resolved, open_data, resolve
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory, library_versions
from ptq_cli.setup.served_inputs import with_states
from ptq_cli.tuning.budget_reach import budget_gate, decision_recipe, of_first_output, require_reachable
from ptq_cli.tuning.candidate import (
    Candidate,
    TimeIsOverError,
    TuneCheckpoint,
    TuningSearch,
    continued_tuning,
)
from ptq_cli.tuning.candidate_models import CandidateCalibrations, CandidateModels, first_samples

_STAGE = "tune"
DEFAULT_SET_ASIDE = 0.5
COMPARED_ON = 512  # samples that candidates are compared on, at most: more cost time, and prove nothing


@dataclass(frozen=True, kw_only=True)
class TuningSubject:
    """What a tuning begins with, all found to fit.

    Attributes:
        resolved: with the share that is set aside.
        proven_on: the held-out samples, with the metrics.
        compared_on: samples that are calibrated on, with the metrics.
    """

    resolved: Resolved
    gate: GateSettings
    calibrated: CalibrationSubject
    proven_on: EvaluationSet
    compared_on: EvaluationSet
    evaluation: EvaluationSet | None


def open_tuning(
    request: Request,
    run: RunDirectory,
    output: Path | None,
    part: Part,
    progress: ProgressCallback,
    *,
    evaluate: bool,
) -> TuningSubject:
    """Open the model and the data of a tuning."""
    if not resolve(request).recipe.calibration.set_aside:
        request = replace(request, settings={**request.settings, "set_aside": DEFAULT_SET_ASIDE})
    request, note = with_calibration_data(resolve(request), run)
    if note:
        progress(Progress("tune", 0, None, note))
    resolved = resolve(request)
    recipe = resolved.recipe
    gate = budget_gate(recipe)
    require_outputs(run, input_files(recipe), output or run.quantized_file(recipe))
    require_device(resolved.machine.device)
    dataset = (
        open_data(recipe.evaluation, resolved.reading, "evaluation", "--eval-data") if evaluate else None
    )
    subject = open_subject(part.on_own_machine(resolved), progress, run.float_model, dataset)
    resolved = subject.as_given(resolved)
    model, own = subject.model.model, subject.dataset
    gate = of_first_output(gate, model.graph.outputs[0].name or "")
    if dataset is not None:
        dataset = with_states(dataset, resolved.recipe.data, model, subject.model.stored)
    if not isinstance(own, DividedDataset | Recordings):
        raise TypeError("a share is set aside")
    tensor_settings(model, subject.plan, resolved.target, tensor_recipe(recipe))
    deciding = decision_recipe(recipe, gate)
    proven_on = fit_evaluation(own.other, deciding, model)
    require_reachable(gate, proven_on.dataset.count)
    return TuningSubject(
        resolved=resolved,
        gate=gate,
        calibrated=subject,
        proven_on=proven_on,
        compared_on=first_samples(fit_evaluation(own, deciding, model), COMPARED_ON),
        evaluation=fit_evaluation(dataset, recipe, model) if dataset is not None else None,
    )


def tuning_identity(subject: TuningSubject, run: RunDirectory) -> dict[str, str]:
    """Identity of a tuning, by which its checkpoints are known; the time budget may change."""
    recipe = subject.resolved.recipe
    runtime, tune = replace(recipe.runtime, threads=0), replace(recipe.tune, time_budget="")
    plain = replace(recipe, runtime=runtime, tune=tune, evaluation=EvaluationSettings())
    return {
        "the float model": subject.calibrated.model.stored.sha256,
        "the calibration data": subject.calibrated.dataset.digest(),
        "a setting of the calibration": repr(sorted(settings_of(recipe, run).items())),
        "the recipe": recipe_to_toml(plain, run.path),
        "the version of a library": repr(sorted(library_versions().items())),
    }


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
        return self.ladder.stopped == LADDER_INTERRUPTED


def run_tune(
    request: Request,
    run: RunDirectory,
    output: Path | None = None,
    once: Once = Once(),
    progress: ProgressCallback = silent,
) -> TuneResult:
    """Calibrate, and try better and better candidates until one provably keeps the budget.

    The best candidate so far is always on disk, with its recipe. Evaluation data decide nothing. Under
    ``torchrun`` each process measures its share of the samples, and the first one writes. A Ctrl-C after the
    first candidate ends the search: the best so far is the result. Several processes end without one, and
    continue nothing.
    """
    evaluate = asks_for_evaluation(request.settings) if once.evaluate is None else once.evaluate
    with opened_part() as part:
        subject = open_tuning(request, run, output, part, progress, evaluate=evaluate)
        recipe = subject.resolved.recipe
        if recipe.export.prefer == AUTO:  # The budget says what a file has to be.
            recipe = replace(recipe, export=replace(recipe.export, prefer=ACCURACY))
            subject = replace(subject, resolved=subject.resolved.with_recipe(recipe))
        path = output or run.quantized_file(subject.resolved.recipe)
        work = Work(resolved=subject.resolved, run=run, part=part, progress=progress)
        return _searched(subject, work, path, restart=once.restart)


def _searched(subject: TuningSubject, work: Work, output: Path, *, restart: bool) -> TuneResult:
    recipe, run, part = work.resolved.recipe, work.run, work.part
    if restart and part.is_first:
        discard_checkpoint(run.checkpoint)
        discard_checkpoint(run.tuning_checkpoint)
    seconds = parse_duration(recipe.tune.time_budget) if recipe.tune.time_budget else None
    clock = BudgetClock(seconds, work.progress, part)
    models = _candidate_models(subject, replace(work, progress=clock.progress), output)

    def tell(step: LadderStep) -> None:
        clock.begun = True
        work.tell(step_line(step), _STAGE)

    search = TuningSearch(
        candidates=models,
        gate=subject.gate,
        is_over=clock.is_over,
        tell=tell,
        allow=clock.allow,
        stop=clock.stop,
        alone=part.group is None,
    )
    rungs, start = rungs_to_try(recipe)
    calibrated = subject.calibrated
    search.run(rungs, start, slow_rungs(rungs, calibrated.model.model, calibrated.plan, recipe.weights))
    clock.stop()
    return _finished(subject, models, search, work)


def _finished(
    subject: TuningSubject, models: CandidateModels, search: TuningSearch, work: Work
) -> TuneResult:
    """Write the ladder of a search that is over, and evaluate what it chose, if that was asked for."""
    ladder, run, is_first = _ladder(subject, models, search), work.run, work.part.is_first
    best = Candidate.of(ladder.best)
    if is_first:
        write_together({run.tuning: to_json(ladder).encode()})
        run.discard_other_models(models.output)
        if search.stopped != LADDER_INTERRUPTED:
            discard_checkpoint(run.tuning_checkpoint)
            discard_checkpoint(run.checkpoint)
    # The processes that do not write make what was chosen again.
    chosen = read_model(models.output) if is_first else models.export(best).model
    evaluation = None
    if subject.evaluation is not None and search.stopped != LADDER_INTERRUPTED:
        base = models.calibrations.of(best.rungs)
        statement = statement_beside(models.output, chosen) if is_first else None
        pair = Pair(base.float_model, chosen, models.output.name, statement)
        (found,) = make_evaluations(
            work, base.calibration, [pair], subject.evaluation, plan=base.subject.plan
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
        float_bytes=opened_bytes(subject.calibrated.model.file) or models.float_model.size,
        evaluation=evaluation,
    )


def _ladder(subject: TuningSubject, models: CandidateModels, search: TuningSearch) -> Ladder:
    def written() -> bytes:
        return read_model(models.output).sha256.encode()

    compared, resolved = models.compared_on.dataset.count, subject.resolved
    in_float = any(step.in_float for step in search.steps)
    return Ladder(
        model_sha256=models.work.part.from_first(written).decode(),
        samples=next(iter(models.checkpoint.compared.values())).samples if compared is None else compared,
        set_aside=models.set_aside,
        steps=tuple(search.steps),
        chosen=search.chosen,
        met=search.met,
        stopped=search.stopped,
        advice=search.advice(),
        untried=why_not_wide(resolved.target, resolved.recipe.activations) if in_float else "",
    )


class BudgetClock:
    """Ends the search when the time budget is over: several processes between candidates, one anywhere."""

    def __init__(self, seconds: float | None, progress: ProgressCallback, part: Part) -> None:
        self._part = part
        self._begin = time.monotonic()
        self._seconds, self._progress = seconds, progress
        self.begun = False
        self.allow(1.0)

    def allow(self, share: float) -> None:
        """Let the search go on until so much of the time has passed, counted from the beginning."""
        self._end = self._begin + share * self._seconds if self._seconds is not None else None

    def is_over(self) -> bool:
        """Whether no time is left, by the clock of the first process."""
        return self._part.agreed(self._has_passed)

    def _has_passed(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def progress(self, step: Progress) -> None:
        """Hand on progress, unless the time is over.

        Raises:
            TimeIsOverError: it is.
            TimeBudgetError: it is, and nothing has been measured.
        """
        self._progress(step)
        self._part.go_on()
        if self._part.group is not None or not self._has_passed():
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


def rungs_to_try(recipe: Recipe) -> tuple[tuple[str, ...], Candidate]:
    """The rungs to try, and what to begin with.

    Rungs that the recipe names are tried one by one; with those of the default, all are.

    Example:
        >>> from ptq_cli.recipe.sections import RecoverySettings
        >>> rungs, begun = rungs_to_try(Recipe(recovery=RecoverySettings(["round"])))
        >>> rungs, begun.rungs, rungs_to_try(Recipe())[1].rungs
        (('round',), (), ('auto',))
    """
    if AUTO in recipe.recovery.rungs:
        # It chooses layers in float itself, by the budget. Where none is calibrated, no range can be chosen.
        able = RUNGS if needs_ranges(recipe) else REWRITING
        return tuple(rung for rung in able if rung not in (IN_FLOAT, BITS)), Candidate(rungs=(AUTO,))
    return recovery_rungs(recipe.recovery), Candidate()


def slow_rungs(rungs: Sequence[str], model: ir.Model, plan: Plan, weights: WeightSettings) -> tuple[str, ...]:
    """Those of some rungs that are tried late.

    With fewer than 8 bits the weights lose most of what is lost: their rungs come first whatever they take.
    """
    family = weight_family(weights)
    if not isinstance(family, ScaledWeights) or family.bits < BYTE or not takes_long(model, plan):
        return ()
    return tuple(rung for rung in rungs if rung == ROUND)


def step_line(step: LadderStep) -> str:
    """Measurements of a candidate as a line, as the table of the ladder writes them."""
    checks = step.proof or step.checks
    how = "" if step.kept else ", no better"
    budgets = ", ".join(f"{budgeted(check)} {written(check, check.value)}" for check in checks)
    is_said = any(item.metric == SQNR and isclose(item.value, step.sqnr_db, abs_tol=0.005) for item in checks)
    sqnr = "" if is_said else f"SQNR of the outputs {step.sqnr_db:.2f} dB, "
    return f"{step.name}: {sqnr}{budgets}{how}"


def _candidate_models(subject: TuningSubject, work: Work, output: Path) -> CandidateModels:
    run, part = work.run, work.part
    if part.group is None:
        tell = partial(work.tell, stage=_STAGE)
        checkpoint = continued_tuning(run.tuning_checkpoint, tuning_identity(subject, run), tell)
    else:
        checkpoint = TuneCheckpoint(path=run.tuning_checkpoint, identity={}, stored=False)
    resolved = _profiled_once(subject.calibrated, work, again=bool(checkpoint.written))
    deciding = decision_recipe(resolved.recipe, subject.gate)
    own = part.on_own_machine(subject.resolved)
    if resolved.recipe.export.profile is None:  # A profile holds for the threads that it was measured with.
        resolved = part.on_own_machine(resolved)
    return CandidateModels(
        work=replace(work, resolved=resolved),
        deciding=own.with_recipe(deciding),
        calibrations=CandidateCalibrations(subject.calibrated, replace(work, resolved=own)),
        float_model=subject.calibrated.model.stored,
        compared_on=subject.compared_on,
        proven_on=subject.proven_on,
        output=output,
        checkpoint=checkpoint,
    )


def _profiled_once(subject: CalibrationSubject, work: Work, *, again: bool) -> Resolved:
    """The recipe with a profile of this machine, if layers are placed by latency."""
    resolved, part, profile = work.resolved, work.part, work.run.profile
    recipe = resolved.recipe
    if recipe.export.prefer != LATENCY or recipe.export.profile is not None:
        return resolved
    if part.is_first and not (again and profile.is_file()):
        found = profile_here(subject.model.model, subject.plan, resolved, work.progress)
        write_together({profile: to_json(found).encode()})
    if part.group is not None:
        part.group.wait_for_all("profiled")
    export = replace(recipe.export, profile=str(profile.absolute()))
    return resolved.with_recipe(replace(recipe, export=export))
