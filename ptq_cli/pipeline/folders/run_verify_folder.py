"""``verify`` for a folder: each quantized ONNX file is verified."""

from dataclasses import replace
from pathlib import Path

from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.pipeline.folders.data_of_files import data_by_file
from ptq_cli.pipeline.folders.folder_requests import named_errors, own_settings
from ptq_cli.pipeline.folders.model_folder import TOKENIZER, base_name, quantized_files
from ptq_cli.pipeline.inspection.run_verify import VerifyOptions, run_verify
from ptq_cli.pipeline.run.resolve import Request, resolve
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.report.proof.verification import Verification


def run_verify_folder(
    request: Request,
    run: RunDirectory,
    folder: Path,
    options: VerifyOptions,
    progress: ProgressCallback = silent,
) -> list[Verification]:
    """Verify each quantized ONNX file of a folder; nothing is written.

    Args:
        request: target, data and threads; data may be a folder with a file of each float model's name.
        run: as for ``run_verify``.
        folder: of the models.
        options: the gate, and made-up inputs.
        progress: is called as the work proceeds.

    Raises:
        ModelFolderError: the folder holds no quantized files.
        PtqError: as ``run_verify`` does; the message names the file.
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
        settings = own_settings(request, resolved, own, tokenizer)
        with named_errors(file):
            found.append(run_verify(replace(request, settings=settings), run, file, options, progress))
    return found
