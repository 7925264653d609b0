"""Candidates as models: each is exported as ``ptq quantize`` would with its recipe, and measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ptq_cli.calibdata.dataset.dataset import DividedDataset, Division
from ptq_cli.calibration.measure import provenance_of
from ptq_cli.calibration.subject import CalibrationSubject
from ptq_cli.collectors.calibration_file import (
    Calibration,
    Provenance,
    calibration_bytes,
    load_calibration,
    parse_calibration,
)
from ptq_cli.core.errors import NothingToQuantizeError, PtqError
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.read_files import sha256_file
from ptq_cli.evaluation.document.ladder import MovedLayers
from ptq_cli.evaluation.runs.evaluator import Evaluation
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet
from ptq_cli.pipeline.evaluation.measure_models import evaluate_pass
from ptq_cli.pipeline.evaluation.quantized_models import EvaluatedModels
from ptq_cli.pipeline.run_calibrate import make_calibration
from ptq_cli.pipeline.run_export import Exported, make_export
from ptq_cli.pipeline.trial_models import CalibratedModel
from ptq_cli.recipe.declaration import AUTO, IN_FLOAT, NONE
from ptq_cli.recipe.recovery_rungs import REWRITING, exporting_rungs
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import RecoverySettings
from ptq_cli.recover.range_effects import KnownCosts
from ptq_cli.recover.recovery_context import escalates, recovery_data
from ptq_cli.recover.recovery_effects import Rescaling
from ptq_cli.recover.rescaling import rescaled
from ptq_cli.setup.parts import Part, Work
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.tuning.candidate import Candidate, CandidateMeasurement, TuneCheckpoint


@dataclass(frozen=True, kw_only=True)
class CandidateCalibration:
    """What candidates with the same rewrites are exported from.

    Attributes:
        files: what has to be written with a candidate; nothing if the run directory has it.
    """

    subject: CalibrationSubject
    calibration: Calibration
    float_model: StoredModel
    files: Mapping[Path, Content]
    known_costs: KnownCosts = field(default_factory=dict)


class CandidateCalibrations:
    """Calibrates when a candidate needs it, and remembers."""

    def __init__(self, subject: CalibrationSubject, work: Work) -> None:
        self._subject, self._work = subject, work
        self._rescaled: dict[tuple[str, ...], tuple[CalibrationSubject, tuple[Rescaling, ...]]] = {}
        self._made: dict[tuple[str, ...], CandidateCalibration] = {}

    def float_model_of(self, rungs: tuple[str, ...]) -> StoredModel:
        """The float model that candidates with these rungs are made from; it is not calibrated yet."""
        return self._rescaled_subject(rungs)[0].model.stored

    def of(self, rungs: tuple[str, ...]) -> CandidateCalibration:
        """The calibration of candidates with these rungs."""
        key = rewriting(rungs)
        if key not in self._made:
            self._made[key] = self._calibrated(key)
        return self._made[key]

    def _asked(self, key: tuple[str, ...]) -> Resolved:
        rungs, resolved = list(key) or [NONE], self._work.resolved
        recipe = replace(resolved.recipe, recovery=RecoverySettings(rungs))
        return resolved.with_recipe(recipe).with_settings(recover=rungs)

    def _rescaled_subject(self, rungs: tuple[str, ...]) -> tuple[CalibrationSubject, tuple[Rescaling, ...]]:
        key = rewriting(rungs)
        if key not in self._rescaled:
            self._rescaled[key] = rescaled(self._subject, self._asked(key), self._work.progress)
        return self._rescaled[key]

    def _calibrated(self, key: tuple[str, ...]) -> CandidateCalibration:
        work = replace(self._work, resolved=self._asked(key))
        subject, changed = self._rescaled_subject(key)
        begun = provenance_of(subject, replace(work, part=Part()))
        stored = work.part.from_first(lambda: self._earlier(begun))
        if stored:
            earlier = parse_calibration(stored, str(work.run.calibration))
            return CandidateCalibration(
                subject=subject, calibration=earlier, float_model=subject.model.stored, files={}
            )
        found = make_calibration(subject, work, changed)
        return CandidateCalibration(
            subject=subject, calibration=found.calibration, float_model=found.model, files=found.files
        )

    def _earlier(self, begun: Provenance) -> bytes:
        """The calibration of the run directory, if it is the very one that would be made."""
        run = self._work.run
        if not (run.calibration.is_file() and run.float_model.is_file()):
            return b""
        try:
            found = load_calibration(run.calibration)
        except PtqError:  # It is made again.
            return b""
        same = replace(begun, samples=found.provenance.samples, share=None)
        return calibration_bytes(found) if found.provenance == same else b""


def rewriting(rungs: tuple[str, ...]) -> tuple[str, ...]:
    """The rungs that may change the float model."""
    return tuple(rung for rung in rungs if rung in (*REWRITING, AUTO))


@dataclass(kw_only=True)
class CandidateModels:
    """Makes and measures candidates, and remembers both.

    Attributes:
        work: with the recipe that candidates are made by.
        deciding: the recipe of the evaluations that decide.
        float_model: without rewrites, that all candidates are compared with.
    """

    work: Work
    deciding: Resolved
    calibrations: CandidateCalibrations
    float_model: StoredModel
    compared_on: EvaluationSet
    proven_on: EvaluationSet
    output: Path
    checkpoint: TuneCheckpoint

    def __post_init__(self) -> None:
        self._made: dict[str, Exported] = {}
        self._alike: dict[tuple[str, str], str] = {}
        self._written: CandidateCalibration | None = None

    @property
    def set_aside(self) -> int:
        """How many samples the budget is proven on."""
        proven = next(iter(self.checkpoint.proven.values()), None)
        return proven.samples if proven is not None else self.proven_on.dataset.count or 1

    def compare(self, candidate: Candidate) -> CandidateMeasurement:
        """Measure a candidate on the samples to choose by."""
        return self._measured(candidate, self.compared_on, self.checkpoint.compared)

    def prove(self, candidate: Candidate) -> CandidateMeasurement:
        """Measure a candidate on the held-out samples."""
        return self._measured(candidate, self.proven_on, self.checkpoint.proven)

    def keep(self, candidate: Candidate) -> None:
        """Write a candidate: it is the best so far."""
        written = self.checkpoint.written.get(candidate.key)
        if written is not None and self.output.is_file() and sha256_file(self.output) == written:
            return
        exported, base = self.export(candidate), self.calibrations.of(candidate.rungs)
        digest = exported.model.sha256
        files = base.files if base is not self._written else {}
        if self.work.part.is_first:
            write_together({**files, **exported.files})
        self._written = base
        if exported.model.data and self.work.part.is_first:  # They have moved to their place.
            self._made[candidate.key] = replace(exported, model=read_model(self.output))
        self.checkpoint.written[candidate.key] = digest
        self.checkpoint.save()

    def _measured(
        self, candidate: Candidate, chosen: EvaluationSet, known: dict[str, CandidateMeasurement]
    ) -> CandidateMeasurement:
        if candidate.key not in known:
            first = self._alike.setdefault(self._what_it_is(candidate), candidate.key)
            if first in known:  # A rung that changed nothing is not measured again.
                known[candidate.key] = known[first]
                return known[first]
            model = self.export(candidate).model
            models = EvaluatedModels(float_model=self.float_model, quantized={self.output.name: model})
            (found,) = self._evaluated(models, chosen)
            known[candidate.key] = CandidateMeasurement(
                found.samples, found.measurements, *self._moved(candidate)
            )
            self.checkpoint.save()
        return known[candidate.key]

    def _moved(self, candidate: Candidate) -> tuple[MovedLayers, bool]:
        """What the goal of a candidate has moved, and whether a higher one would move nothing more."""
        made = self.export(candidate).result
        layers, reached = made.float_layers, made.accuracy
        is_last = candidate.goal_db is not None and (
            reached is None or not reached.sqnr_db >= candidate.goal_db
        )
        if layers is None:
            return MovedLayers(), is_last
        moved = MovedLayers(
            in_float=layers.layers,
            in_16_bits=layers.wide,
            dynamic=layers.dynamic,
            in_8_bits=layers.more_bits,
        )
        return moved, is_last

    def _what_it_is(self, candidate: Candidate) -> tuple[str, str]:
        """Key that is the same for candidates whose further rungs left the float model as it was."""
        others = tuple(rung for rung in candidate.rungs if rung not in REWRITING)
        float_model = self.calibrations.float_model_of(candidate.rungs)
        return float_model.sha256, replace(candidate, rungs=others).key

    def _evaluated(self, models: EvaluatedModels, chosen: EvaluationSet) -> tuple[Evaluation, ...]:
        work = replace(self.work, resolved=self.deciding)
        if work.part.group is not None:
            return evaluate_pass(work, models, chosen)
        discard_checkpoint(work.run.evaluation_checkpoint)
        found = evaluate_pass(work, models, chosen)
        discard_checkpoint(work.run.evaluation_checkpoint)
        return found

    def export(self, candidate: Candidate) -> Exported:
        """A candidate as a file; the last one is remembered."""
        if candidate.key not in self._made:
            for made in self._made.values():  # Only the last is needed again.
                made.model.discard()
            self._made.clear()
            asked = self.work.resolved
            resolved = asked.with_recipe(recipe_of(asked.recipe, candidate, is_improved=escalates(asked)))
            base = self.calibrations.of(candidate.rungs)
            data = recovery_data(resolved, base.subject.dataset, base.subject.model.inputs)
            data = replace(data, known_costs=base.known_costs) if data is not None else None
            source = CalibratedModel(
                resolved=resolved,
                calibration=base.calibration,
                float_model=base.float_model,
                graph=base.float_model.load(),
                run=self.work.run,
                output=self.output,
                plan=base.subject.plan,
                progress=self.work.progress,
            )
            made = make_export(source, data)
            plan = made.result.plan
            if candidate.goal_db is not None and not (plan.weights or plan.activations):
                made.model.discard()
                raise NothingToQuantizeError("nothing is in integers", hint="allow a larger loss")
            self._made[candidate.key] = made
        return self._made[candidate.key]


def recipe_of(recipe: Recipe, candidate: Candidate, *, is_improved: bool) -> Recipe:
    """The recipe of a candidate, with which ``ptq quantize`` makes the same file.

    ``is_improved`` says that the default leaves layers in float by itself, which further rungs do not change.

    Example:
        >>> found = recipe_of(Recipe(), Candidate(rungs=("round",), goal_db=32.0), is_improved=True)
        >>> found.recovery.rungs, found.accuracy.goal_db
        (['round', 'float'], 32.0)
    """
    rungs, accuracy = list(candidate.rungs), recipe.accuracy
    has_more = AUTO in rungs and bool(exporting_rungs(RecoverySettings(rungs)))
    if candidate.goal_db is not None:
        accuracy = replace(accuracy, goal_db=candidate.goal_db)
    if candidate.goal_db is not None or (is_improved and has_more):
        rungs += [IN_FLOAT] if IN_FLOAT not in rungs else []
    return replace(recipe, recovery=RecoverySettings(rungs or [NONE]), accuracy=accuracy)


def first_samples(chosen: EvaluationSet, most: int) -> EvaluationSet:
    """Return at most about so many of a set's samples, spread evenly over it."""
    count = chosen.dataset.count
    if count is None or count <= most:
        return chosen
    division = Division(most / count, chosen.fixed_batch or 1)
    return replace(chosen, dataset=DividedDataset(chosen.dataset, division, aside=True))
