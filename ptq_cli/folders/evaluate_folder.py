"""``evaluate``, ``verify`` and ``export --float`` for each file of a folder."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from ptq_cli.core.errors import MissingStageError, ModelFolderError, UsageError
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.evaluation.verification import Verification
from ptq_cli.folders.file_requests import data_by_file, named_errors, own_request
from ptq_cli.folders.model_folder import (
    TOKENIZER,
    base_name,
    carried_files,
    lay_out,
    open_folder,
    quantized_files,
)
from ptq_cli.folders.quantize_folder import SUMMARY, FolderResult
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.evaluation.reports import EvaluationResult
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_prepare import PrepareResult, make_preparation
from ptq_cli.pipeline.run_verify import VerifyOptions, run_verify
from ptq_cli.recipe.assignments import Once
from ptq_cli.setup.output_checks import require_free_outputs
from ptq_cli.setup.resolve import Request, no_data, resolve
from ptq_cli.setup.run_directory import RunDirectory

_EVALUATION = "eval_data"


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
    named = request.settings.get(_EVALUATION)
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
        own = own_request(resolved, {_EVALUATION: data[file]}, tokenizer)
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


@dataclass(frozen=True)
class VerifiedFolder:
    """What ``ptq verify`` prints for a folder."""

    files: Annotated[tuple[Verification, ...], "As for a single model, of each."]


@dataclass(frozen=True)
class PreparedFolder:
    """What ``ptq export --float`` prints for a folder."""

    files: Annotated[tuple[PrepareResult, ...], "As for a single model, of each."]


def run_verify_folder(
    request: Request,
    run: RunDirectory,
    folder: Path,
    options: VerifyOptions,
    progress: ProgressCallback = silent,
) -> list[Verification]:
    """Verify each quantized ONNX file of a folder; nothing is written.

    Data may be a folder with a file of each float model's name.
    """
    files = quantized_files(folder)
    resolved = resolve(request)
    tokenizer = next((item for item in (folder / TOKENIZER,) if item.is_file()), None)
    named = {file: file.relative_to(folder).with_name(f"{base_name(file)}{file.suffix}") for file in files}
    data = data_by_file(resolved.recipe.calibration.data, set(named.values()))
    found = []
    for number, file in enumerate(files, 1):
        progress(Progress(f"file {number} of {len(files)}: {file.name}", 0, None))
        own = {"data": data[named[file]]} if "data" in request.settings else {}
        with named_errors(file):
            found.append(run_verify(own_request(resolved, own, tokenizer), run, file, options, progress))
    return found


def run_prepare_folder(request: Request, output: Path) -> list[PrepareResult]:
    """Prepare each ONNX file of a folder, compare it with its source, and write all of them together."""
    resolved = resolve(request)
    folder = open_folder(Path(resolved.recipe.model.path or ""), (output,))
    data = data_by_file(resolved.recipe.calibration.data, folder.files)
    outputs = {file: output / file for file in folder.files}
    require_free_outputs(outputs.values(), folder.inputs())
    results, models = [], dict[Path, StoredModel]()
    for file in folder.files:
        asked = own_request(resolved, {"data": data[file]}, folder.tokenizer, folder.source(file))
        with named_errors(folder.shown(file)):
            result, models[file] = make_preparation(resolve(asked), outputs[file])
        results.append(result)
    copies = {output / file: (folder.path / file).read_bytes() for file in carried_files(folder, output)}
    layout = lay_out(folder, models, outputs, "")  # It keeps the folder in which files of constants wait.
    write_together({**layout.files, **copies})
    return results
