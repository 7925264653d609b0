"""What a run directory remembers for commands that are given no data, or not the flags of its export."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import EvaluationSettings
from ptq_cli.setup.resolve import Request, Resolved
from ptq_cli.setup.run_directory import RunDirectory

READ_BY = ("data", "image", "text")  # sections that say how data are read


def _with_data_of(resolved: Resolved, remembered: Recipe, evaluation: EvaluationSettings) -> Resolved:
    """The recipe with the data of ``evaluation``, read as they were, unless flags say how."""
    flags: Mapping[str, Any] = resolved.request.flags().table
    recipe = resolved.recipe
    if not any(section in flags for section in READ_BY):
        data = replace(remembered.data, batch_axis=recipe.data.batch_axis)
        recipe = replace(recipe, data=data, image=remembered.image, text=remembered.text)
    return resolved.with_recipe(replace(recipe, evaluation=evaluation))


def with_run_data(resolved: Resolved, file: Path | None) -> Resolved:
    """The recipe with the data of a run's own recipe, if it names none itself.

    A ``ptq.toml`` takes the place of the run's recipe; one without data says nothing about them.
    """
    recipe = resolved.recipe
    if file is None or recipe.calibration.data is not None or recipe.evaluation.data is not None:
        return resolved
    own = merge_layers([file_layer(file)])
    calibration = replace(recipe.calibration, data=own.calibration.data)
    evaluation = replace(recipe.evaluation, data=own.evaluation.data)
    changed = resolved.with_recipe(replace(recipe, calibration=calibration))
    return _with_data_of(changed, own, evaluation)


def with_calibration_data(resolved: Resolved, run: RunDirectory) -> tuple[Request, str]:
    """The request with the data that a run was calibrated on, and a note on them, if there are none yet.

    The data of another model, or data that were read in another way than the recipe says, are not meant.
    """
    recipe, request = resolved.recipe, resolved.request
    if recipe.calibration.data is not None or recipe.model.path is None or not run.recipe.is_file():
        return request, ""
    own = merge_layers([file_layer(run.recipe)])
    is_same = own.model.path is not None and os.path.realpath(own.model.path) == os.path.realpath(
        recipe.model.path
    )
    read_alike = (own.data, own.image, own.text) == (recipe.data, recipe.image, recipe.text)
    if own.calibration.data is None or not is_same or not read_alike:
        return request, ""
    data, samples = own.calibration.data, own.calibration.samples
    settings = {"data": data, **({} if samples is None else {"samples": samples}), **request.settings}
    note = f"calibration data: {relative_location(data, Path.cwd())}, as in the last calibration"
    return replace(request, settings=settings), note


def last_evaluation(request: Request, run: RunDirectory, model: Path | None) -> EvaluationSettings | None:
    """The settings of a run's last evaluation; None if its data are not the ones that are meant.

    A flag of ``ptq evaluate`` holds for that command alone, but what is asked next about the same models is
    most likely about the same samples. ``report.toml`` has them. None without an evaluation, or if it had no
    data, as an edited file may not.
    """
    recipe = request.recipe_file
    names_data = recipe is not None and "data" in file_layer(recipe).table.get("evaluation", {})
    if "eval_data" in request.settings or names_data:
        return None
    found = _report_recipe(run, model)
    return found.evaluation if found is not None else None


def with_remembered_evaluation(
    resolved: Resolved, run: RunDirectory, model: Path | None, *, or_calibration: bool = False
) -> tuple[Resolved, str]:
    """The recipe with the evaluation data that a run remembers, and a note on them, if it names none.

    Those are the data of the last evaluation, or else those that the model was quantized with, with
    ``or_calibration`` also those it was calibrated on. Without any, what was given, and an empty note.
    """
    settings = resolved.recipe.evaluation
    if settings.data is not None:
        return resolved, ""
    found, when = _report_recipe(run, model), "as in the last ptq evaluate"
    if found is None and run.recipe.is_file():
        found, when = merge_layers([file_layer(run.recipe)]), "as ptq quantize was given them"
    if found is None:
        return resolved, ""
    data, samples = found.evaluation.data, found.evaluation.samples
    if data is None and or_calibration:
        data, when = found.calibration.data, "those of the calibration: no others are known"
    if data is None:
        return resolved, ""
    samples = settings.samples if "eval_samples" in resolved.request.settings else samples
    settings = replace(settings, data=data, samples=samples)
    named = relative_location(data, Path.cwd())
    return _with_data_of(resolved, found, settings), f"evaluation data: {named}, {when}"


def _report_recipe(run: RunDirectory, model: Path | None) -> Recipe | None:
    """The recipe of the report of a model, or of the run; None without a report that had data."""
    folders = (run.of_model(model), run) if model is not None else (run,)
    file = next((own.report_recipe for own in folders if own.report_recipe.is_file()), None)
    found = merge_layers([file_layer(file)]) if file is not None else None
    return found if found is not None and found.evaluation.data is not None else None


def with_exported(recipe: Recipe, run: RunDirectory) -> Recipe:
    """The recipe that the run's model was exported with, and of the evaluation what it decides itself.

    ``ptq export`` may have been given flags that the evaluation was not; its recipe holds them.
    """
    if not run.recipe.is_file():
        return recipe
    exported = merge_layers([file_layer(run.recipe)])
    return replace(
        exported,
        export=replace(exported.export, serve_batch=recipe.export.serve_batch),
        model=recipe.model,
        evaluation=recipe.evaluation,
        metric=recipe.metric,
        gate=recipe.gate,
        runtime=recipe.runtime,
    )
