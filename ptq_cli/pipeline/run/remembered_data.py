"""The data that a run directory remembers, for commands that are given none."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptq_cli.pipeline.run.resolve import Request, Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.evaluation_sections import EvaluationSettings

READ_BY = ("data", "image", "text")
"""Sections of a recipe that say how data are read: remembered data are read as they were."""


def with_data_of(
    resolved: Resolved, request: Request, remembered: Recipe, evaluation: EvaluationSettings
) -> Resolved:
    """Return the recipe with data that are remembered, read as they were, unless flags say how.

    Args:
        resolved: the recipe and what it names.
        request: its flags hold.
        remembered: a recipe that a run directory has kept.
        evaluation: the settings that name the data, as they will be.
    """
    flags: Mapping[str, Any] = request.flags().table
    recipe = resolved.recipe
    if not any(section in flags for section in READ_BY):
        data = replace(recipe.data, rename=remembered.data.rename)
        recipe = replace(recipe, data=data, image=remembered.image, text=remembered.text)
    return resolved.with_recipe(replace(recipe, evaluation=evaluation))


def with_run_data(resolved: Resolved, request: Request, file: Path | None) -> Resolved:
    """Return the recipe with the data of a run's own recipe, if it names none itself.

    A ``ptq.toml`` takes the place of the run's recipe; one without data says nothing about them.

    Args:
        resolved: the recipe and what it names.
        request: its flags hold.
        file: the run's recipe; None if there is none.

    Raises:
        PtqError: the file cannot be read.
    """
    recipe = resolved.recipe
    if file is None or recipe.calibration.data is not None or recipe.evaluation.data is not None:
        return resolved
    own = merge_layers([file_layer(file)])
    calibration = replace(recipe.calibration, data=own.calibration.data)
    evaluation = replace(recipe.evaluation, data=own.evaluation.data)
    changed = resolved.with_recipe(replace(recipe, calibration=calibration))
    return with_data_of(changed, request, own, evaluation)


def with_calibration_data(request: Request, recipe: Recipe, run: RunDirectory) -> tuple[Request, str]:
    """Return a request with the data that a run was calibrated on, and a note on them, if there are none yet.

    Args:
        request: for a model that is quantized again.
        recipe: what it means.
        run: the run directory.

    Edge case:
        The data of another model, or data that were read in another way than the recipe says, are not meant.

    Raises:
        PtqError: the run's recipe cannot be read.
    """
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
