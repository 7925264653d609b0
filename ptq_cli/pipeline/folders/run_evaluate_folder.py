"""``evaluate`` for a folder that was quantized: each file is compared with its float model."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ptq_cli.core.errors import MissingStageError, ModelFolderError, UsageError
from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.pipeline.evaluation.run_evaluate import run_evaluate
from ptq_cli.pipeline.evaluation.written.made_reports import EvaluationResult
from ptq_cli.pipeline.folders.data_of_files import data_by_file
from ptq_cli.pipeline.folders.folder_requests import named_errors, own_settings
from ptq_cli.pipeline.folders.folder_result import FORMAT_VERSION, SUMMARY
from ptq_cli.pipeline.folders.model_folder import TOKENIZER
from ptq_cli.pipeline.run.reading import no_data
from ptq_cli.pipeline.run.resolve import Request, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory

EVALUATION = "eval_data"


def run_evaluate_folder(
    request: Request,
    run: RunDirectory,
    folder: Path,
    progress: ProgressCallback = silent,
    *,
    restart: bool = False,
    thumbnails: bool = False,
) -> dict[Path, EvaluationResult]:
    """Evaluate the quantized models of a folder, and write a report of each into its run directory.

    Args:
        request: evaluation data, metrics and limits; data may be a folder with a file of each model's name.
        run: the run directory in which the folder was quantized.
        folder: of the quantized models.
        progress: is called after each batch.
        restart: start from the beginning even if earlier evaluations could be continued.
        thumbnails: show the samples that change their class on the pages, if they are images.

    Returns:
        The evaluations by the quantized files; those without data are left out.

    Raises:
        MissingStageError: no folder was quantized in that run directory.
        ModelFolderError: its summary is damaged.
        EmptyDataError: there are no data for any of the files.
        PtqError: as ``run_evaluate`` does; the message names the file.
    """
    summary = run.path / SUMMARY
    if not summary.is_file():
        raise MissingStageError(
            f"'{folder}' is a folder, and nothing was made in '{run.path}' with ptq quantize FOLDER",
            hint="name a quantized model; a run directory is named with --run",
        )
    files = dict(_quantized(summary))
    named = request.settings.get(EVALUATION)
    data = data_by_file(named, files)
    if named is not None:
        files = {file: name for file, name in files.items() if data[file] is not None}
    if not files:
        raise no_data("evaluation", "--eval-data")
    resolved = resolve(request)
    tokenizer = next((item for item in (folder / TOKENIZER,) if item.is_file()), None)
    found = {}
    for number, (file, name) in enumerate(files.items(), 1):
        progress(Progress(f"file {number} of {len(files)}: {name.as_posix()}", 0, None))
        settings = own_settings(request, resolved, {EVALUATION: data[file]}, tokenizer)
        with named_errors(name):
            found[name] = run_evaluate(
                replace(request, settings=settings),
                RunDirectory(run.path / file.with_suffix("")),
                folder / name,
                progress,
                restart=restart,
                thumbnails=thumbnails,
            )
    return found


def require_sole(models: Sequence[Path], shard: str | None) -> None:
    """Refuse other models beside a folder, and shards of it.

    Raises:
        UsageError: there are some.

    Example:
        >>> require_sole([Path("exported_q4")], None)
    """
    if len(models) > 1 or shard is not None:
        what = "with --shard" if shard is not None else "together with other models"
        raise UsageError(
            f"a folder is not evaluated {what}", hint="name the files in it, each with its --run RUN/NAME"
        )


def _quantized(summary: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file that was quantized with its quantized model, both from their folders."""
    hint = "run ptq quantize with the folder again"
    try:
        content = json.loads(summary.read_text(encoding="utf-8"))
        version, suffix = content["format_version"], str(content["suffix"])
        files = [str(item["file"]) for item in content["files"] if item["run"] is not None]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(
            f"'{summary}' is damaged: it is not a summary of a folder", hint=hint
        ) from error
    if version != FORMAT_VERSION:
        raise ModelFolderError(
            f"'{summary}' has format version {version}, expected {FORMAT_VERSION}", hint=hint
        )
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ModelFolderError(f"'{summary}' names a file outside the folder: '{name}'", hint=hint)
        file = Path(name)
        yield file, file.with_name(f"{file.stem}_{suffix}{file.suffix}")
