"""``quantize`` for a folder: each ONNX file is quantized, and what they share is stored once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ptq_cli.core.errors import NothingToQuantizeError, OutputFileError
from ptq_cli.core.files import Content, PartialFolder, write_together
from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.exporting.decided_once import DecidedWeights
from ptq_cli.pipeline.folders.file_suffix import require_suffix, suffix_of
from ptq_cli.pipeline.folders.folder_layout import carried_files, lay_out
from ptq_cli.pipeline.folders.folder_requests import FileRequest, file_requests, named_errors
from ptq_cli.pipeline.folders.folder_result import SUMMARY, FolderResult, QuantizedFolderFile
from ptq_cli.pipeline.folders.model_folder import ModelFolder, open_folder
from ptq_cli.pipeline.run.output_checks import input_files, require_free_outputs, require_outputs
from ptq_cli.pipeline.run.reading import no_data
from ptq_cli.pipeline.run.resolve import Request, Resolved, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.run_quantize import (
    MadeQuantization,
    QuantizationResult,
    discard_checkpoints,
    is_evaluated,
    make_quantization,
)

EXPORT = "export"
"""Folder of the quantized models in the run directory, if no other one is named."""
HELD = 1 << 24
"""Bytes of a file that wait in memory until all files of the folder are finished."""


def run_quantize_folder(
    request: Request,
    run: RunDirectory,
    output: Path | None = None,
    *,
    suffix: str | None = None,
    evaluate: bool | None = None,
    restart: bool = False,
    thumbnails: bool = False,
    progress: ProgressCallback = silent,
) -> FolderResult:
    """Quantize each ONNX file of a folder; every file but a checkpoint is written at the end, or none.

    Args:
        request: all settings; the model is a folder.
        run: the run directory, in which each file has one of its own.
        output: the folder of the quantized models, or None for one in the run directory.
        suffix: of their names, or None for that of the form, such as ``q4``.
        evaluate: as for ``run_quantize``; files without evaluation data are not evaluated.
        restart: start from the beginning even if earlier calibrations could be continued.
        thumbnails: show the samples that change their class on the pages, if they are images.
        progress: is called after each batch.

    Raises:
        ModelFolderError: the folder holds no float ONNX files.
        UsageError: an output would overwrite an input, or the suffix cannot be part of a name.
        EmptyDataError: a file needs calibration data and has none.
        NothingToQuantizeError: nothing can be quantized in any of the files.
        PtqError: as ``run_quantize`` does; the message names the file.
    """
    resolved = resolve(request)
    ending = require_suffix(suffix) if suffix is not None else suffix_of(resolved.recipe)
    target = output or run.path / EXPORT
    folder = open_folder(Path(resolved.recipe.model.path or ""), (run.path, target), ending)
    asked = file_requests(folder, request, resolved, run, target, ending)
    wanted = is_evaluated(resolved.recipe.gate, request.settings, evaluate, thumbnails=thumbnails)
    if wanted and not any(item.has_evaluation for item in asked):
        raise no_data("evaluation", "--eval-data")
    require_places(folder, resolved, asked, target)
    making = _Making(folder, run)
    decided = DecidedWeights() if len(asked) > 1 else None
    try:
        for number, item in enumerate(asked, 1):
            progress(Progress(f"file {number} of {len(asked)}: {item.file.as_posix()}", 0, None))
            make = partial(
                make_quantization,
                item.request,
                item.resolved,
                item.run,
                item.output,
                evaluate=wanted and item.has_evaluation,
                restart=restart,
                thumbnails=thumbnails,
                progress=progress,
                decided=decided,
            )
            with named_errors(item.file):
                making.add(item, make)
        result = making.finish(target, ending)
    finally:
        making.discard()
    for item in asked:
        discard_checkpoints(item.run)
    return result


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A file that is quantized and not written yet.

    Attributes:
        asked: what was asked of it.
        model: the quantized model, or the float model if nothing of it can be quantized.
        result: what was done; None if nothing was.
        reason: why nothing was.
    """

    asked: FileRequest
    model: StoredModel
    result: QuantizationResult | None = None
    reason: str = ""


class _Making:
    """A folder on its way to be quantized: what is finished waits until all of it is."""

    def __init__(self, folder: ModelFolder, run: RunDirectory) -> None:
        self._folder, self._run = folder, run
        self._made: list[_Made] = []
        self._files: dict[Path, Content] = {}
        self._waiting: PartialFolder | None = None
        self._keepers: list[PartialFolder | None] = []
        self._refused: NothingToQuantizeError | None = None

    def add(self, item: FileRequest, make: Callable[[], MadeQuantization]) -> None:
        """Quantize a file; a model of which nothing can be quantized stays float, so that none is missing."""
        try:
            made = make()
        except NothingToQuantizeError as error:
            self._refused = error
            model = read_model(self._folder.path / item.file)
            self._made.append(_Made(asked=item, model=model, reason=error.message))
            return
        own = made.model.files(item.output)
        for path, content in made.files.items():
            if path not in own:
                self._files[path] = self._held(content)
        self._keepers.append(made.float_model.keeper)
        self._made.append(_Made(asked=item, model=made.model, result=made.result))

    def finish(self, output: Path, suffix: str) -> FolderResult:
        """Write all files together.

        Raises:
            NothingToQuantizeError: nothing can be quantized in any of them.
            OutputFileError: a file cannot be written.
        """
        if self._refused is not None and all(item.result is None for item in self._made):
            raise self._refused
        folder = self._folder
        models = {item.asked.file: item.model for item in self._made}
        outputs = {item.asked.file: item.asked.output for item in self._made}
        layout = lay_out(folder, models, outputs, suffix)
        carried = carried_files(folder, output)
        result = FolderResult(
            folder=folder.path,
            output=output,
            run=self._run,
            suffix=suffix,
            files=tuple(
                QuantizedFolderFile(
                    file=item.asked.file,
                    output=item.asked.output,
                    run=item.asked.run,
                    float_bytes=folder.bytes([item.asked.file]),
                    bytes=layout.models[item.asked.file].size,
                    result=item.result,
                    reason=item.reason,
                )
                for item in self._made
            ),
            carried=tuple(carried),
            left_out=folder.left_out,
            float_bytes=folder.bytes(folder.files),
            bytes=layout.bytes,
            shared=layout.shared,
            saved=layout.saved,
        )
        copies = {output / file: (folder.path / file).read_bytes() for file in carried}
        summary = {result.summary: result.to_json().encode()}
        write_together({**self._files, **layout.files, **copies, **summary})
        return result

    def discard(self) -> None:
        """Remove what waits on disk and was not written."""
        if self._waiting is not None:
            self._waiting.remove()
        for item in self._made:
            item.model.discard()

    def _held(self, content: Content) -> Content:
        """Return the content of a file, a large one on disk."""
        if isinstance(content, Path) or len(content) < HELD:
            return content
        if self._waiting is None:
            self._waiting = PartialFolder(self._run.path, SUMMARY)
        path = self._waiting.path / str(len(self._files))
        path.write_bytes(content)
        return path


def require_places(
    folder: ModelFolder, resolved: Resolved, asked: Sequence[FileRequest], output: Path
) -> None:
    """Check that all outputs can be written, and that none is an input.

    Raises:
        OutputFileError: one cannot be written; or the folder of the outputs is a file.
        UsageError: one is an input.
    """
    if output.exists() and not output.is_dir():
        raise OutputFileError(
            f"cannot write into '{output}': it is a file, and the model is a folder",
            hint="name a folder with --output",
        )
    inputs = {name: path for name, path in input_files(resolved.recipe).items() if not path.is_dir()}
    inputs |= {f"the model's {file.as_posix()}": folder.path / file for file in folder.files}
    inputs |= {f"the model's {path.name}": path for found in folder.data.values() for path in found}
    for item in asked:
        require_outputs(item.run, inputs, item.output)
    require_free_outputs([output / file for file in carried_files(folder, output)], inputs)
