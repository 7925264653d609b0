"""What a tuning begins with: the model, the budgets, and the samples that decide and that prove."""

from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.calibdata.dataset.set_aside import DividedDataset
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.calibration.measure import CalibrationSubject, open_subject
from ptq_cli.calibration.provenance import settings_of
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.pipeline.evaluation.evaluation_data import EvaluationSet, fit_evaluation
from ptq_cli.placement.tensor_settings import tensor_recipe, tensor_settings
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recipe.sections import EvaluationSettings, GateSettings
from ptq_cli.runtime.cuda import require_device
from ptq_cli.setup.carried import with_states
from ptq_cli.setup.output_checks import input_files, library_versions, require_outputs
from ptq_cli.setup.resolve import Request, Resolved, open_data, resolve, with_calibration_data
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.tuning.budget_reach import (
    budget_gate,
    decision_recipe,
    of_first_output,
    require_reachable,
)
from ptq_cli.tuning.candidate_models import Party, first_samples

DEFAULT_SET_ASIDE = 0.5
COMPARED_ON = 512
"""Samples that candidates are compared on, at most; more cost time, and prove nothing."""


@dataclass(frozen=True, kw_only=True)
class OpenedTuning:
    """What a tuning begins with, all found to fit.

    Attributes:
        request: with the share that is set aside.
        proven_on: the held-out samples, with the metrics.
        compared_on: samples that are calibrated on, with the metrics.
    """

    request: Request
    resolved: Resolved
    gate: GateSettings
    subject: CalibrationSubject
    proven_on: EvaluationSet
    compared_on: EvaluationSet
    evaluation: EvaluationSet | None


def open_tuning(
    request: Request,
    run: RunDirectory,
    output: Path | None,
    progress: ProgressCallback,
    party: Party,
    *,
    evaluate: bool,
) -> OpenedTuning:
    """Return what a tuning begins with."""
    if not resolve(request).recipe.calibration.set_aside:
        request = replace(request, settings={**request.settings, "set_aside": DEFAULT_SET_ASIDE})
    request, note = with_calibration_data(request, resolve(request).recipe, run)
    if note:
        progress(Progress("tune", 0, None, note))
    resolved = resolve(request)
    recipe = resolved.recipe
    gate = budget_gate(recipe)
    require_outputs(run, input_files(recipe), output or run.quantized_file(recipe.weights))
    require_device(resolved.machine.device)
    dataset = (
        open_data(recipe.evaluation, resolved.reading, "evaluation", "--eval-data") if evaluate else None
    )
    subject = open_subject(party.of_rank(resolved), progress, run.float_model, dataset)
    request, resolved = subject.as_given(request, resolved)
    model, part = subject.model.model, subject.dataset
    gate = of_first_output(gate, model.graph.outputs[0].name or "")
    if dataset is not None:
        dataset = with_states(dataset, resolved.recipe.data, model, subject.model.stored)
    if not isinstance(part, DividedDataset | Recordings):
        raise TypeError("a share is set aside")
    tensor_settings(model, subject.plan, resolved.target, tensor_recipe(recipe))
    deciding = decision_recipe(recipe, gate)
    proven_on = fit_evaluation(part.other, deciding, model)
    require_reachable(gate, proven_on.dataset.count)
    return OpenedTuning(
        request=request,
        resolved=resolved,
        gate=gate,
        subject=subject,
        proven_on=proven_on,
        compared_on=first_samples(fit_evaluation(part, deciding, model), COMPARED_ON),
        evaluation=fit_evaluation(dataset, recipe, model) if dataset is not None else None,
    )


def tuning_identity(opened: OpenedTuning, run: RunDirectory) -> dict[str, str]:
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
