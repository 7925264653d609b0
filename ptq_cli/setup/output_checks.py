"""Outputs are looked at before the work begins: an hour of calibration must not end at a read-only folder."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from ptq_cli.core.errors import OutputFileError, UsageError
from ptq_cli.core.files import replaced_file
from ptq_cli.recipe.schema import Recipe
from ptq_cli.setup.run_directory import RunDirectory, statement_path


def require_outputs(run: RunDirectory, inputs: Mapping[str, Path], output: Path | None = None) -> None:
    """Check that every output can be written, and that none would overwrite what it is made from.

    All files of the run directory count, whichever the stage at hand writes; ``inputs`` is as ``input_files``
    returns it.
    """
    taken = dict(inputs)
    for path in _all_outputs(run, output):
        _require_free(path, taken, "pass another file with --output, or another run directory with --run")
        taken[f"the run's own {path.name}"] = path


def _all_outputs(run: RunDirectory, output: Path | None) -> Iterator[Path]:
    yield from (run.float_model, run.calibration, run.checkpoint, run.recipe, run.evaluation_checkpoint)
    yield from (*report_outputs(run), run.analysis, run.devices, run.tuning, run.profile, run.model_location)
    model = output or run.quantized_model  # Last: it looks for files, in a folder that may not be one.
    yield from (model, statement_path(model))


def report_outputs(run: RunDirectory) -> tuple[Path, ...]:
    """The files of a report."""
    return (run.report_json, run.report_markdown, run.junit, run.report_html, run.details, run.report_recipe)


def require_free_outputs(outputs: Iterable[Path], inputs: Mapping[str, Path]) -> None:
    """Check that files can be written, and that none of them is what they are made from."""
    for output in outputs:
        _require_free(output, inputs, "pass another run directory with --run")


def require_output(output: Path, inputs: Mapping[str, Path]) -> None:
    """Check that a single output can be written, and that it would not overwrite what it is made from."""
    _require_free(output, inputs, "pass another file with --output")


def require_data_output(output: Path, model: Path) -> None:
    """Check that a large model's constants would not overwrite a file that the model is made from."""
    from ptq_cli.models.files.mapped_constants import data_path
    from ptq_cli.models.files.stored import data_files
    from ptq_cli.models.loading.source import ModelKind, detect_kind

    if not model.is_file() or detect_kind(model) is not ModelKind.ONNX:
        return
    target = data_path(output)
    if os.path.realpath(target) in {os.path.realpath(data) for data in data_files(model)}:
        raise UsageError(
            f"'{target}' would overwrite data of the model that it is made from",
            hint="pass another file with --output",
        )


def _require_free(path: Path, taken: Mapping[str, Path], hint: str) -> None:
    for what, other in taken.items():
        # Links included: replacing a file under another name of it loses it all the same.
        if os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"'{path}' would overwrite {what}", hint=hint)
    _require_writable(path)


def _require_writable(output: Path) -> None:
    folder = replaced_file(output).parent
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        is_folder = folder.is_dir()
    except OSError as error:  # a name that is too long, or a folder that may not be entered
        reason = (error.strerror or str(error)).lower()
        raise OutputFileError(f"cannot write '{output}': {reason}", hint="name another folder") from error
    if not is_folder:
        raise OutputFileError(
            f"cannot write '{output}': '{folder}' is a file, expected a folder", hint="name another folder"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputFileError(
            f"cannot write '{output}': the folder '{folder}' is read-only", hint="check its permissions"
        )
    try:
        # Permissions alone do not tell: root has all of them, and some file systems take no file.
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputFileError(
            f"cannot write '{output}': the folder '{folder}' takes no file: {reason}",
            hint="name another folder",
        ) from error


def input_files(recipe: Recipe) -> dict[str, Path]:
    """The files that outputs are made from, by what they are."""
    named = (
        ("the model that it is made from", recipe.model.path),
        ("the architecture's file", arch_file(recipe.model.arch)),
        ("the calibration data", recipe.calibration.data),
        ("the evaluation data", recipe.evaluation.data),
        ("the baseline", recipe.gate.baseline),
    )
    return {what: Path(path) for what, path in named if path is not None}


def arch_file(arch: str | None) -> str | None:
    """The file of ``--arch file.py:callable``, or None if it is not a file.

    Example:
        >>> arch_file("model.py:build"), arch_file("package.module:build")
        ('model.py', None)
    """
    location = (arch or "").rpartition(":")[0]
    return location if location.endswith(".py") else None
