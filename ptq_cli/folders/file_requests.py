"""The request for each file of a folder: settings, data of its own, and the suffix of its name."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.amax.overrides import means
from ptq_cli.calibdata.text.text_rows import TEXT_SUFFIXES
from ptq_cli.core.errors import DataFormatError, EmptyDataError, PtqError
from ptq_cli.core.read_files import is_folder
from ptq_cli.folders.model_folder import ModelFolder
from ptq_cli.recipe.declaration import AUTO, NONE
from ptq_cli.recipe.model_names import model_name
from ptq_cli.recipe.recovery_rungs import needs_ranges
from ptq_cli.recipe.sections import OverrideSettings
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.run_directory import RunDirectory


def data_by_file(source: str | None, files: Collection[Path]) -> dict[Path, str | None]:
    """The data of each file.

    A folder that holds ``decoder_model.npz``, or another file or folder of a model's name, has data for each
    file by its name; all other data are for all files.
    """
    if source is None or not is_folder(Path(source)):
        return dict.fromkeys(files, source)
    own = {file: _own(Path(source), file) for file in files}
    return own if any(own.values()) else dict.fromkeys(files, source)


def _own(folder: Path, file: Path) -> str | None:
    places = dict.fromkeys((folder / file.parent, folder))
    for parent in filter(is_folder, places):
        found = sorted(item for item in parent.iterdir() if _is_called(item, file.stem))
        if len(found) > 1:
            names = " and ".join(f"'{item.name}'" for item in found)
            raise DataFormatError(
                f"'{os.fspath(parent)}' holds {names}, which are both named for '{file.name}'",
                hint="leave one of them, or put all data of a model into a folder of its name",
            )
        if found:
            return os.fspath(found[0])
    return None


def _is_called(item: Path, name: str) -> bool:
    if item.is_dir():
        return item.name == name
    return item.stem == name or item.name == f"{name}.tar.gz"


def no_data_for(source: str | None, file: Path) -> EmptyDataError:
    """The error to raise for a file whose activations need ranges, and that has no data.

    Example:
        >>> no_data_for("calib", Path("encoder.onnx")).message
        "no calibration data was given for 'encoder.onnx': 'calib' has no file or folder of its name"
    """
    missing = f": '{source}' has no file or folder of its name" if source is not None else ""
    folder = source if source is not None else "calib"
    name = f"{Path(folder, file.stem).as_posix()}.npz"
    return EmptyDataError(
        f"no calibration data was given for '{file.as_posix()}'{missing}",
        hint=f"save it as '{name}' and pass --data {folder}, or choose a form that needs no data: "
        "--preset dynamic_int8 or w4_block32",
    )


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
        asked = own_request(resolved, own, folder.tokenizer, folder.source(file))
        found.append(
            FileRequest(
                file=file,
                resolved=_for_file(resolve(asked), folder, file, own),
                run=RunDirectory(run.path / file.with_suffix("")),
                output=output / file.with_name(model_name(suffix, file.stem)),
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
