"""The calibration that a candidate rests on: rungs that rewrite the float model need one of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ptq_cli.calibdata.dataset.selection import WHOLE
from ptq_cli.collectors.artifact.calibration_file import (
    Calibration,
    Provenance,
    calibration_bytes,
    load_calibration,
    parse_calibration,
)
from ptq_cli.core.errors import PtqError
from ptq_cli.core.files import Content
from ptq_cli.core.work.progress import ProgressCallback
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.calibration.measure import CalibrationSubject
from ptq_cli.pipeline.calibration.measured_part import provenance_of
from ptq_cli.pipeline.calibration.rescaled_subject import rescaled
from ptq_cli.pipeline.calibration.rescaling import Rescaling
from ptq_cli.pipeline.calibration.run_calibrate import calibrate_together, make_calibration
from ptq_cli.pipeline.run.resolve import Request, Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.tuning.climbing_party import Party
from ptq_cli.recipe.recovery_rungs import AUTO, NONE, REWRITING
from ptq_cli.recipe.sections.quantization_sections import RecoverySettings
from ptq_cli.recovery.range_effects import KnownCosts


@dataclass(frozen=True, kw_only=True)
class CandidateCalibration:
    """What candidates with the same rewrites are exported from.

    Attributes:
        subject: the float model with its rewrites, the samples and the plan.
        calibration: the statistics.
        float_model: serialized.
        files: what has to be written with a candidate; nothing if the run directory has it.
        known_costs: of ranges, which candidates share.
    """

    subject: CalibrationSubject
    calibration: Calibration
    float_model: StoredModel
    files: Mapping[Path, Content]
    known_costs: KnownCosts = field(default_factory=dict)


class CandidateCalibrations:
    """Calibrates when a candidate needs it, and remembers."""

    def __init__(
        self,
        request: Request,
        resolved: Resolved,
        subject: CalibrationSubject,
        run: RunDirectory,
        progress: ProgressCallback,
        party: Party,
    ) -> None:
        """Begin with nothing.

        Args:
            request: of the tuning.
            resolved: what it means.
            subject: the float model without rewrites, the samples and the plan.
            run: whose calibration is taken where it fits.
            progress: is told about each calibration.
            party: the processes that calibrate together.
        """
        self._request, self._resolved, self._subject = request, resolved, subject
        self._run, self._progress, self._party = run, progress, party
        self._rescaled: dict[tuple[str, ...], tuple[CalibrationSubject, tuple[Rescaling, ...]]] = {}
        self._made: dict[tuple[str, ...], CandidateCalibration] = {}

    def float_model_of(self, rungs: tuple[str, ...]) -> StoredModel:
        """Return the float model that candidates with these rungs are made from; it is not calibrated yet.

        Raises:
            PtqError: as ``calibrate`` does.
        """
        return self._rescaled_subject(rungs)[0].model.stored

    def of(self, rungs: tuple[str, ...]) -> CandidateCalibration:
        """Return the calibration of candidates with these rungs.

        Raises:
            PtqError: as ``calibrate`` does.
        """
        key = rewriting(rungs)
        if key not in self._made:
            self._made[key] = self._calibrated(key)
        return self._made[key]

    def _asked(self, key: tuple[str, ...]) -> tuple[Request, Resolved]:
        settings = {**self._request.settings, "recover": list(key) or [NONE]}
        recipe = replace(self._resolved.recipe, recovery=RecoverySettings(list(key) or [NONE]))
        return replace(self._request, settings=settings), self._resolved.with_recipe(recipe)

    def _rescaled_subject(self, rungs: tuple[str, ...]) -> tuple[CalibrationSubject, tuple[Rescaling, ...]]:
        key = rewriting(rungs)
        if key not in self._rescaled:
            self._rescaled[key] = rescaled(self._subject, self._asked(key)[1], self._progress)
        return self._rescaled[key]

    def _calibrated(self, key: tuple[str, ...]) -> CandidateCalibration:
        request, resolved = self._asked(key)
        subject, changed = self._rescaled_subject(key)
        begun = provenance_of(subject, request, resolved, self._run, WHOLE)
        stored = self._party.told(lambda: self._earlier(begun))
        earlier = parse_calibration(stored, str(self._run.calibration)) if stored else None
        if earlier is not None:
            return CandidateCalibration(
                subject=subject, calibration=earlier, float_model=subject.model.stored, files={}
            )
        if self._party.group is not None:
            found = calibrate_together(
                subject, request, resolved, self._run, self._progress, self._party.group, changed
            )
        else:
            found = make_calibration(subject, request, resolved, self._run, self._progress, changed=changed)
        return CandidateCalibration(
            subject=subject, calibration=found.calibration, float_model=found.model, files=found.files
        )

    def _earlier(self, begun: Provenance) -> bytes:
        """Return the calibration of the run directory, if it is the very one that would be made."""
        if not (self._run.calibration.is_file() and self._run.float_model.is_file()):
            return b""
        try:
            found = load_calibration(self._run.calibration)
        except PtqError:  # It is made again.
            return b""
        same = replace(begun, samples=found.provenance.samples, share=None)
        return calibration_bytes(found) if found.provenance == same else b""


def rewriting(rungs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the rungs that may change the float model.

    Example:
        >>> rewriting(("auto", "smooth", "round"))
        ('auto', 'smooth')
    """
    return tuple(rung for rung in rungs if rung in (*REWRITING, AUTO))
