"""``evaluate`` for a folder that was quantized: each file is compared with its float model."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ptq_cli.core.errors import (
    MissingStageError,
    ModelFolderError,
    UsageError,
)
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.folders.data_of_files import data_by_file
from ptq_cli.folders.file_requests import named_errors, own_request
from ptq_cli.folders.model_folder import TOKENIZER
from ptq_cli.folders.quantize_folder import SUMMARY, FolderResult
from ptq_cli.pipeline.evaluation.reports import EvaluationResult
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.recipe.assignments import Once
from ptq_cli.setup.resolve import Request, no_data, resolve
from ptq_cli.setup.run_directory import RunDirectory

EVALUATION = "eval_data"


def run_evaluate_folder(
    request: Request,
    run: RunDirectory,
    folder: Path,
    once: Once = Once(),
    progress: ProgressCallback = silent,
) -> dict[Path, EvaluationResult]:
    """Evaluate the quantized models of a folder, and write a report of each into its run directory.

    Evaluation data may be a folder with a file of each model's name; those without are left out of the
    result.
    """
    summary = run.path / SUMMARY
    if not summary.is_file():
        raise MissingStageError(
            f"'{folder}' is a folder, and '{run.path}' has no results of ptq quantize FOLDER",
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
        own = own_request(resolved, {EVALUATION: data[file]}, tokenizer)
        with named_errors(name):
            where = RunDirectory(run.path / file.with_suffix(""))
            found[name] = run_evaluate(own, where, folder / name, once, progress)
    return found


def require_sole(models: Sequence[Path], shard: str | None) -> None:
    """Refuse other models beside a folder, and shards of it."""
    if len(models) > 1 or shard is not None:
        what = "with --shard" if shard is not None else "together with other models"
        raise UsageError(
            f"a folder is not evaluated {what}", hint="name the files in it, each with its --run RUN/NAME"
        )


def _quantized(summary: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file that was quantized with its quantized model, both from their folders."""
    hint = FolderResult.FORMAT.hint
    try:
        content = json.loads(summary.read_text(encoding="utf-8"))
        header, suffix = {key: content[key] for key in FolderResult.FORMAT.header}, str(content["suffix"])
        files = [str(item["file"]) for item in content["files"] if item["result"] is not None]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFolderError(
            f"'{summary}' is damaged: it is not a summary of a folder", hint=hint
        ) from error
    if header != FolderResult.FORMAT.header:
        version = header["format_version"]
        raise ModelFolderError(f"'{summary}' has format version {version}, expected 1", hint=hint)
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ModelFolderError(f"'{summary}' names a file outside the folder: '{name}'", hint=hint)
        file = Path(name)
        yield file, file.with_name(f"{file.stem}_{suffix}{file.suffix}")
