"""What is asked of each file of a folder: the settings of all, with data and a place of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptq_cli.calibdata.text.text_rows import TEXT_SUFFIXES
from ptq_cli.pipeline.folders.data_of_files import data_by_file, no_data_for
from ptq_cli.pipeline.folders.model_folder import ModelFolder
from ptq_cli.pipeline.run.resolve import Request, Resolved, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.activation_modes import needs_ranges
from ptq_cli.recipe.recovery_rungs import NONE
from ptq_cli.recipe.schema import RecoverySettings


@dataclass(frozen=True, kw_only=True)
class FileRequest:
    """What is asked of one file.

    Attributes:
        file: its path in the folder.
        request, resolved: its settings, and what they mean.
        run: its run directory.
        output: where its quantized model goes.
        has_evaluation: whether there are evaluation data for it.
    """

    file: Path
    request: Request
    resolved: Resolved
    run: RunDirectory
    output: Path
    has_evaluation: bool


def file_requests(
    folder: ModelFolder, request: Request, resolved: Resolved, run: RunDirectory, output: Path, suffix: str
) -> list[FileRequest]:
    """Return what is asked of each file of a folder.

    Text is read with the folder's tokenizer if no other one is named.

    Args:
        folder: the model.
        request: what is asked of the folder.
        resolved: what that means.
        run: the run directory, in which each file has one of its own.
        output: the folder of the quantized models.
        suffix: of their names.

    Raises:
        EmptyDataError: a file needs calibration data and has none.
        DataFormatError: two data files have one model's name.
    """
    recipe = resolved.recipe
    calibration = data_by_file(recipe.calibration.data, folder.files)
    evaluation = data_by_file(recipe.evaluation.data, folder.files)
    found = []
    for file in folder.files:
        if calibration[file] is None and needs_ranges(recipe):
            raise no_data_for(recipe.calibration.data, file)
        own = {"data": calibration[file], "eval_data": evaluation[file]}
        settings = {name: value for name, value in request.settings.items() if name not in own}
        settings |= {name: value for name, value in own.items() if value is not None}
        if recipe.text.tokenizer is None and folder.tokenizer is not None and _has_text(own):
            settings["tokenizer"] = str(folder.tokenizer)
        asked = replace(request, model=folder.path / file, settings=settings)
        found.append(
            FileRequest(
                file=file,
                request=asked,
                resolved=_without_data(resolve(asked), own, settings),
                run=RunDirectory(run.path / file.with_suffix("")),
                output=output / file.with_name(f"{file.stem}_{suffix}{file.suffix}"),
                has_evaluation=evaluation[file] is not None,
            )
        )
    return found


def _has_text(data: Mapping[str, str | None]) -> bool:
    return any(source is not None and source.lower().endswith(TEXT_SUFFIXES) for source in data.values())


def _without_data(resolved: Resolved, own: Mapping[str, str | None], settings: Mapping[str, Any]) -> Resolved:
    """Return what is asked of a file without data that a recipe names for the others."""
    recipe = resolved.recipe
    if own["data"] is None and recipe.calibration.data is not None:
        recovery = recipe.recovery if "recover" in settings else RecoverySettings([NONE])
        recipe = replace(recipe, calibration=replace(recipe.calibration, data=None), recovery=recovery)
    if own["eval_data"] is None and recipe.evaluation.data is not None:
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, data=None))
    return resolved if recipe is resolved.recipe else resolved.with_recipe(recipe)
