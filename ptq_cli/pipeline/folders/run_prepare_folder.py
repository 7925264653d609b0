"""``prepare`` for a folder: each ONNX file becomes the float model that is measured."""

from dataclasses import replace
from pathlib import Path

from ptq_cli.core.files import write_together
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.folders.data_of_files import data_by_file
from ptq_cli.pipeline.folders.folder_layout import carried_files, lay_out
from ptq_cli.pipeline.folders.folder_requests import named_errors, own_settings
from ptq_cli.pipeline.folders.model_folder import open_folder
from ptq_cli.pipeline.preparing.run_prepare import PrepareResult, make_preparation
from ptq_cli.pipeline.run.output_checks import require_free_outputs
from ptq_cli.pipeline.run.resolve import Request, resolve


def run_prepare_folder(request: Request, output: Path) -> list[PrepareResult]:
    """Prepare each ONNX file of a folder, compare it with its source, and write all of them together.

    Args:
        request: the folder; data, where named, are what the models are compared on.
        output: another folder, which gets the configurations and tokenizers too.

    Raises:
        ModelFolderError: the folder holds no float ONNX files.
        PtqError: as ``run_prepare`` does; the message names the file.
    """
    resolved = resolve(request)
    folder = open_folder(Path(resolved.recipe.model.path or ""), (output,))
    data = data_by_file(resolved.recipe.calibration.data, folder.files)
    outputs = {file: output / file for file in folder.files}
    inputs = {f"the model's {path.name}": path for found in folder.data.values() for path in found}
    inputs |= {f"the model's {file.as_posix()}": folder.path / file for file in folder.files}
    require_free_outputs(outputs.values(), inputs)
    results, models = [], dict[Path, StoredModel]()
    for file in folder.files:
        settings = own_settings(request, resolved, {"data": data[file]}, folder.tokenizer)
        with named_errors(file):
            made = make_preparation(
                resolve(replace(request, model=folder.path / file, settings=settings)), outputs[file]
            )
        results.append(made.result)
        models[file] = made.model
    copies = {output / file: (folder.path / file).read_bytes() for file in carried_files(folder, output)}
    layout = lay_out(folder, models, outputs, "")  # It keeps the folder in which files of constants wait.
    write_together({**layout.files, **copies})
    return results
