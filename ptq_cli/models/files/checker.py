"""ONNX's checker, asked about a model as its files will hold it."""

from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.models.files.constants_file import cannot_write
from ptq_cli.models.files.stored import StoredModel

CHECKED_NAME = "checked.onnx"
CHECKED_WHOLE = 2**28
"""Bytes; of a larger graph the checker is shown no more than type and shape of its large constants."""


def check_stored(stored: StoredModel, model: ir.Model, what: str) -> None:
    """Run the ONNX checker with full checks on what ``store_model`` returned.

    Args:
        stored: of a model with constants in a file, the checker looks whether they are where the graph says.
        model: that it was made of.
        what: the model's name in messages.

    Raises:
        InvalidOnnxError: the checker does not accept it.
        OutputFileError: the graph cannot be written beside its constants, where the checker looks for them.
    """
    try:
        if stored.folder is not None and stored.data:
            _check_beside_data(stored, stored.folder)
        elif len(stored.content) > CHECKED_WHOLE:
            CheckerPass(full_check=True)(model)
        else:
            onnx.checker.check_model(stored.content, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InvalidOnnxError(
            f"'{what}' fails the ONNX checker: {first_line(error)}", hint="export it again"
        ) from error


def _check_beside_data(stored: StoredModel, folder: Path) -> None:
    path = folder / CHECKED_NAME
    try:
        path.write_bytes(stored.content)
    except OSError as error:
        raise cannot_write(path, error) from error
    onnx.checker.check_model(str(path), full_check=True)
    path.unlink()
