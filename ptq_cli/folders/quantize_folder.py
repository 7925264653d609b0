"""``quantize`` for a folder: each ONNX file is quantized, and what they share is stored once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from ptq_cli.core.documents import FileFormat, to_json
from ptq_cli.core.errors import (
    ModelFolderError,
    NothingGainedError,
    NothingToQuantizeError,
    OutputFileError,
    UsageError,
)
from ptq_cli.core.files import Content, PartialFolder, write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.folders.file_requests import FileRequest, file_requests, named_errors
from ptq_cli.folders.hub_config import HubConfig, hub_config
from ptq_cli.folders.model_folder import (
    FolderLayout,
    ModelFolder,
    carried_files,
    hub_folder,
    lay_out,
    open_folder,
)
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.models.loading.source import ModelKind, detect_kind
from ptq_cli.pipeline.given_weights import DecidedWeights
from ptq_cli.pipeline.run_quantize import (
    MadeQuantization,
    QuantizationResult,
    discard_checkpoints,
    is_evaluated,
    make_quantization,
)
from ptq_cli.pipeline.statement import parse_statement
from ptq_cli.recipe.assignments import Once
from ptq_cli.recipe.model_names import suffix_of
from ptq_cli.setup.output_checks import input_files, require_free_outputs, require_outputs
from ptq_cli.setup.parts import Work
from ptq_cli.setup.resolve import Request, Resolved, no_data, resolve
from ptq_cli.setup.run_directory import RunDirectory, statement_path

SUMMARY = "folder.json"


@dataclass(frozen=True, kw_only=True)
class QuantizedFolderFile:
    """One file of a folder, quantized."""

    file: Annotated[Path, "The float model's path in the folder."]
    output: Annotated[Path, "Where the quantized model is."]
    run: Annotated[RunDirectory, "Its run directory."]
    float_bytes: Annotated[int, "Size of the float model, with the constants that it shares with others."]
    bytes: Annotated[int, "Size of the quantized model, likewise."]
    result: Annotated[
        QuantizationResult | None,
        "What was done; None if nothing of the model can be quantized, and it was copied.",
    ]
    reason: Annotated[str, "Why it was copied."] = ""

    @property
    def passed(self) -> bool:
        """Whether no limit failed."""
        evaluation = self.result.evaluation if self.result is not None else None
        return evaluation is None or evaluation.report.verdict != "fail"


@dataclass(frozen=True, kw_only=True)
class FolderResult:
    """What ``ptq quantize`` made of a folder; ``folder.json`` holds the same."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.folder",
        version=1,
        noun="summary",
        error=ModelFolderError,
        hint="run ptq quantize with the folder again",
    )

    folder: Annotated[Path, "Where the float models are."]
    output: Annotated[Path, "Where the quantized models are."]
    run: Annotated[RunDirectory, "Where the summary is; each file has a run directory in it."]
    suffix: Annotated[str, "Of the quantized files' names."]
    files: Annotated[tuple[QuantizedFolderFile, ...], "The models."]
    carried: Annotated[tuple[Path, ...], "Configurations and tokenizers that lie in the output, too."]
    config: Annotated[
        Path | None,
        "Says how they were quantized, in the keys of Optimum or Transformers.js; null if the folder has not "
        "the form of the hub, or if neither has words for it.",
    ]
    left_out: Annotated[tuple[Path, ...], "Files that were quantized already."]
    float_bytes: Annotated[int, "Size of the float models; constants that files share count once."]
    bytes: Annotated[int, "Size of the quantized models, likewise."]
    shared_constants: Annotated[int, "Number of constants that several quantized models read from one file."]
    saved_bytes: Annotated[int, "Bytes that copies of these would take."]

    @property
    def summary(self) -> Path:
        """The summary for programs."""
        return self.run.path / SUMMARY

    @property
    def passed(self) -> bool:
        """Whether no limit failed for any file."""
        return all(item.passed for item in self.files)


EXPORT = "export"  # folder of the quantized models in the run directory, if no other one is named
HELD = 1 << 24  # bytes of a file that wait in memory until all files of the folder are finished


def run_quantize_folder(
    request: Request,
    run: RunDirectory,
    output: Path | None = None,
    once: Once = Once(),
    progress: ProgressCallback = silent,
    *,
    for_hub: bool = False,
) -> FolderResult:
    """Quantize each ONNX file of a folder; every file but a checkpoint is written at the end, or none.

    The suffix is that of the form, such as ``q4``; files without evaluation data are not evaluated.
    With ``for_hub``, models get the places and names that loaders look for by default, a single file too.
    """
    resolved = resolve(request)
    ending = suffix_of(resolved.recipe, by_default=for_hub)
    target = output or run.path / EXPORT
    named = resolved.recipe.model.path
    if named is None:
        raise UsageError("no model was given", hint="name its file or folder")
    folder = (hub_folder if for_hub else open_folder)(Path(named), (run.path, target), ending)
    asked = file_requests(folder, resolved, run, target, ending)
    wanted = is_evaluated(resolved.recipe.gate, request.settings, once)
    if wanted and not any(item.has_evaluation for item in asked):
        raise no_data("evaluation", "--eval-data")
    require_places(folder, resolved, asked, target)
    making = _Making(folder, run)
    decided = DecidedWeights() if len(asked) > 1 else None
    try:
        for number, item in enumerate(asked, 1):
            shown = folder.shown(item.file)
            progress(Progress(f"file {number} of {len(asked)}: {shown.as_posix()}", 0, None))
            work = Work(resolved=item.resolved, run=item.run, progress=progress)
            own = replace(once, evaluate=wanted and item.has_evaluation)
            make = partial(make_quantization, work, item.output, own, decided)
            with named_errors(shown):
                making.add(item, make)
        result = making.finish(target, ending, hub_config(resolved) if folder.is_hub else None)
    finally:
        making.discard()
    for item in asked:
        discard_checkpoints(item.run)
    return result


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A file that is quantized and not written yet.

    Attributes:
        model: the quantized model, or the float model if nothing of it can be quantized.
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
        self._refused: NothingToQuantizeError | NothingGainedError | None = None

    def add(self, item: FileRequest, make: Callable[[], MadeQuantization]) -> None:
        """Quantize a file; a model that gains nothing stays float, so that none is missing."""
        try:
            made = make()
        except (NothingToQuantizeError, NothingGainedError) as error:
            self._refused, source = error, self._folder.source(item.file)
            if detect_kind(source) is not ModelKind.ONNX:
                raise
            model = read_model(source)
            self._made.append(_Made(asked=item, model=model, reason=error.message))
            return
        own = made.model.files(item.output)
        for path, content in made.files.items():
            if path not in own:
                self._files[path] = self._held(content)
        self._keepers.append(made.float_model.keeper)
        self._made.append(_Made(asked=item, model=made.model, result=made.result))

    def finish(self, output: Path, suffix: str, config: HubConfig | None) -> FolderResult:
        """Write all files together."""
        if self._refused is not None and all(item.result is None for item in self._made):
            raise self._refused
        folder = self._folder
        models = {item.asked.file: item.model for item in self._made}
        outputs = {item.asked.file: item.asked.output for item in self._made}
        layout = lay_out(folder, models, outputs, suffix)
        self._restate(layout)
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
            config=output / config.name if config is not None else None,
            left_out=folder.left_out,
            float_bytes=folder.bytes(folder.files),
            bytes=layout.bytes,
            shared_constants=layout.shared,
            saved_bytes=layout.saved,
        )
        copies = {output / file: (folder.path / file).read_bytes() for file in carried}
        if config is not None:
            layers = [item.result.export.layers if item.result is not None else () for item in self._made]
            copies[output / config.name] = config.content(layers, output)
        summary = {result.summary: to_json(result).encode()}
        write_together({**self._files, **layout.files, **copies, **summary})
        return result

    def _restate(self, layout: FolderLayout) -> None:
        """Let the statement of each file name the constants that it shares with others."""
        for item in self._made:
            placed = layout.models[item.asked.file]
            if item.result is None or placed is item.model:
                continue
            place = statement_path(item.asked.output)
            content = self._files[place]
            content = content.read_bytes() if isinstance(content, Path) else content
            found = parse_statement(content, place)
            self._files[place] = found.in_folder(placed, item.asked.output.name).content()

    def discard(self) -> None:
        """Remove what waits on disk and was not written."""
        if self._waiting is not None:
            self._waiting.remove()
        for item in self._made:
            item.model.discard()

    def _held(self, content: Content) -> Content:
        """The content of a file, a large one on disk."""
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
    """Check that all outputs can be written, and that none is an input."""
    if output.exists() and not output.is_dir():
        raise OutputFileError(
            f"cannot write into '{output}': it is a file, and the model is a folder",
            hint="name a folder with --output",
        )
    inputs = {name: path for name, path in input_files(resolved.recipe).items() if not path.is_dir()}
    inputs |= folder.inputs()
    for item in asked:
        require_outputs(item.run, inputs, item.output)
    require_free_outputs([output / file for file in carried_files(folder, output)], inputs)
