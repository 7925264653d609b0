"""``verify`` and ``prepare`` for a folder: each ONNX file is verified, or becomes the float model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ptq_cli.core.files import write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.evaluation.proof.verification import Verification
from ptq_cli.folders.data_of_files import data_by_file
from ptq_cli.folders.file_requests import named_errors, own_request
from ptq_cli.folders.folder_layout import carried_files, lay_out
from ptq_cli.folders.model_folder import TOKENIZER, base_name, open_folder, quantized_files
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.run_prepare import PrepareResult, make_preparation
from ptq_cli.pipeline.run_verify import VerifyOptions, run_verify
from ptq_cli.setup.output_checks import require_free_outputs
from ptq_cli.setup.resolve import Request, resolve
from ptq_cli.setup.run_directory import RunDirectory


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
        asked = own_request(resolved, {"data": data[file]}, folder.tokenizer, folder.path / file)
        with named_errors(file):
            result, models[file] = make_preparation(resolve(asked), outputs[file])
        results.append(result)
    copies = {output / file: (folder.path / file).read_bytes() for file in carried_files(folder, output)}
    layout = lay_out(folder, models, outputs, "")  # It keeps the folder in which files of constants wait.
    write_together({**layout.files, **copies})
    return results
