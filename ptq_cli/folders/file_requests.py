"""The request for each file of a folder: the settings of all, with data and a place of its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.amax.overrides import means
from ptq_cli.calibdata.text.text_rows import TEXT_SUFFIXES
from ptq_cli.core.errors import PtqError
from ptq_cli.folders.data_of_files import data_by_file, no_data_for
from ptq_cli.folders.model_folder import ModelFolder
from ptq_cli.recipe.known_modes import AUTO, NONE
from ptq_cli.recipe.recovery_rungs import needs_ranges
from ptq_cli.recipe.sections import OverrideSettings
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class FileRequest:
    """What is asked of one file."""

    file: Path
    resolved: Resolved
    run: RunDirectory
    output: Path
    has_evaluation: bool


def file_requests(
    folder: ModelFolder, resolved: Resolved, run: RunDirectory, output: Path, suffix: str
) -> list[FileRequest]:
    """The request for each file of a folder.

    Text is read with the folder's tokenizer if no other one is named.
    """
    recipe = resolved.recipe
    calibration = data_by_file(recipe.calibration.data, folder.files)
    evaluation = data_by_file(recipe.evaluation.data, folder.files)
    found = []
    for file in folder.files:
        if calibration[file] is None and needs_ranges(recipe):
            raise no_data_for(recipe.calibration.data, file)
        own = {"data": calibration[file], "eval_data": evaluation[file]}
        asked = own_request(resolved, own, folder.tokenizer, folder.path / file)
        found.append(
            FileRequest(
                file=file,
                resolved=_for_file(resolve(asked), folder, file, own),
                run=RunDirectory(run.path / file.with_suffix("")),
                output=output / file.with_name(f"{file.stem}_{suffix}{file.suffix}"),
                has_evaluation=evaluation[file] is not None,
            )
        )
    return found


def own_request(
    resolved: Resolved, own: Mapping[str, str | None], tokenizer: Path | None, model: Path | None = None
) -> Request:
    """The request for one file: with data of its own, and the folder's tokenizer for text."""
    request = resolved.request
    settings = {name: value for name, value in request.settings.items() if name not in own}
    settings |= {name: value for name, value in own.items() if value is not None}
    has_text = any(source is not None and source.lower().endswith(TEXT_SUFFIXES) for source in own.values())
    if resolved.recipe.text.tokenizer is None and tokenizer is not None and has_text:
        settings["tokenizer"] = str(tokenizer)
    return replace(request, model=model or request.model, settings=settings)


def _for_file(resolved: Resolved, folder: ModelFolder, file: Path, own: Mapping[str, str | None]) -> Resolved:
    """The recipe of one file, without the settings for other files.

    These are data that only others have, and overrides that mean layers of others. Factors for channels that
    nobody asked for by name are left out: they would give each model other weights, and none to share.
    """
    recipe = resolved.recipe
    rungs = [name for name in recipe.recovery.rungs if len(folder.files) == 1 or name != AUTO]
    override = [item for item in recipe.override if not _is_of_others(item, folder, file)]
    if own["data"] is None and recipe.calibration.data is not None:
        rungs = rungs if "recover" in resolved.request.settings else []
        recipe = replace(recipe, calibration=replace(recipe.calibration, data=None))
    if own["eval_data"] is None and recipe.evaluation.data is not None:
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, data=None))
    recovery = replace(recipe.recovery, rungs=rungs or [NONE])
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
