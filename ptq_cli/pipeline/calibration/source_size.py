"""The size of the file that the user brought, which is what a quantized file is compared with."""

from collections.abc import Mapping
from pathlib import Path

from ptq_cli.models.files.stored import read_model
from ptq_cli.models.loading.detect import ModelKind, detect_kind
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.pipeline.calibration.provenance import HASH_PREFIX
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.locations import resolve_location


def opened_bytes(file: SourceFile) -> int | None:
    """Return the size of the files of a model that was opened, if it is ONNX; None otherwise."""
    if file.kind is not ModelKind.ONNX:
        return None
    return sum(path.stat().st_size for path in (file.path, *read_model(file.path).data))


def source_bytes(model: str | None, settings: Mapping[str, str], run: RunDirectory) -> int | None:
    """Return the size of an ONNX file, with its external data, that a calibration was made from.

    Preparation may store a constant twice, or leave out what nothing reads, so that its file says little
    about what quantization saves.

    Args:
        model: the file that the recipe names.
        settings: of the calibration, which names each file that it was made from.
        run: the run directory, from which those paths begin.

    Units:
        bytes.

    Edge case:
        None of a model that is not ONNX, and where a file is not there any more.

    Example:
        >>> source_bytes("no-such-model.onnx", {}, RunDirectory(Path("ptq-run"))) is None
        True
    """
    if model is None or not Path(model).is_file() or detect_kind(Path(model)) is not ModelKind.ONNX:
        return None
    keys = [key.removeprefix(HASH_PREFIX) for key in settings if key.startswith(HASH_PREFIX)]
    files = [Path(resolve_location(key, run.path.absolute())) for key in keys]
    if not files or not all(path.is_file() for path in files):
        return None
    return sum(path.stat().st_size for path in files)
