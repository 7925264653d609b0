"""What is asked of each file of a folder: the settings of all, with data and a place of its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptq_cli.amax.overrides import means
from ptq_cli.calibdata.text.text_rows import TEXT_SUFFIXES
from ptq_cli.core.errors import PtqError
from ptq_cli.pipeline.folders.data_of_files import data_by_file, no_data_for
from ptq_cli.pipeline.folders.model_folder import ModelFolder
from ptq_cli.pipeline.run.resolve import Request, Resolved, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.activation_modes import needs_ranges
from ptq_cli.recipe.recovery_rungs import AUTO, NONE
from ptq_cli.recipe.sections.quantization_sections import OverrideSettings, RecoverySettings


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
        settings = own_settings(request, resolved, own, folder.tokenizer)
        asked = replace(request, model=folder.path / file, settings=settings)
        found.append(
            FileRequest(
                file=file,
                request=asked,
                resolved=_for_file(resolve(asked), folder, file, own, settings),
                run=RunDirectory(run.path / file.with_suffix("")),
                output=output / file.with_name(f"{file.stem}_{suffix}{file.suffix}"),
                has_evaluation=evaluation[file] is not None,
            )
        )
    return found


def own_settings(
    request: Request, resolved: Resolved, own: Mapping[str, str | None], tokenizer: Path | None
) -> dict[str, Any]:
    """Return the settings of a request with data of one file, and with the folder's tokenizer for text.

    Args:
        request: what is asked of the folder.
        resolved: what that means.
        own: the file's data by the names of their settings; None if it has none.
        tokenizer: the folder's, if it has one.
    """
    settings = {name: value for name, value in request.settings.items() if name not in own}
    settings |= {name: value for name, value in own.items() if value is not None}
    if resolved.recipe.text.tokenizer is None and tokenizer is not None and _has_text(own):
        settings["tokenizer"] = str(tokenizer)
    return settings


def _has_text(data: Mapping[str, str | None]) -> bool:
    return any(source is not None and source.lower().endswith(TEXT_SUFFIXES) for source in data.values())


def _for_file(
    resolved: Resolved,
    folder: ModelFolder,
    file: Path,
    own: Mapping[str, str | None],
    settings: Mapping[str, Any],
) -> Resolved:
    """Return what is asked of a file, without what a recipe says for other files.

    These are data that only others have, and overrides that mean layers of others. Factors for channels that
    nobody asked for by name are left out: they would give each model other weights, and none to share.
    """
    recipe = resolved.recipe
    rungs = [name for name in recipe.recovery.rungs if len(folder.files) == 1 or name != AUTO]
    override = [item for item in recipe.override if not _is_of_others(item, folder, file)]
    if own["data"] is None and recipe.calibration.data is not None:
        rungs = rungs if "recover" in settings else []
        recipe = replace(recipe, calibration=replace(recipe.calibration, data=None))
    if own["eval_data"] is None and recipe.evaluation.data is not None:
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, data=None))
    recovery = RecoverySettings(rungs or [NONE])
    return resolved.with_recipe(replace(recipe, recovery=recovery, override=override))


def _is_of_others(item: OverrideSettings, folder: ModelFolder, file: Path) -> bool:
    """Tell whether an override means layers of other files, and none of this one."""
    having = [name for name, layers in folder.layers.items() if any(means(item, layer) for layer in layers)]
    return bool(having) and file not in having


@contextmanager
def named_errors(file: Path) -> Iterator[None]:
    """Put the name of a file in front of the messages of errors that do not have it."""
    try:
        yield
    except PtqError as error:
        if file.name in error.message:
            raise
        raise type(error)(f"{file.as_posix()}: {error.message}", hint=error.hint) from error
