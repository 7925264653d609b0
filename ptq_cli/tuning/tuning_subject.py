"""What a tuning begins with: the model, the budgets, and the samples that decide and that prove."""

from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.calibdata.dataset.dataset import DividedDataset
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.calibration.provenance import settings_of
from ptq_cli.calibration.subject import CalibrationSubject, open_subject
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet, fit_evaluation
from ptq_cli.placement.tensor_settings import tensor_recipe, tensor_settings
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recipe.sections import EvaluationSettings, GateSettings
from ptq_cli.runtime.cuda import require_device
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.parts import Part
from ptq_cli.setup.remembered_data import with_calibration_data
from ptq_cli.setup.resolve import Request, Resolved, open_data, resolve
from ptq_cli.setup.run_directory import RunDirectory, library_versions
from ptq_cli.setup.served_inputs import with_states
from ptq_cli.tuning.budget_reach import (
    budget_gate,
    decision_recipe,
    of_first_output,
    require_reachable,
)
from ptq_cli.tuning.candidate_models import first_samples

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
