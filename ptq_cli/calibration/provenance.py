"""Provenance of a calibration, which is written into it: settings, files and their size, kind of device."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptq_cli.core.errors import InputFileError
from ptq_cli.core.read_files import sha256_file
from ptq_cli.models.files.stored import data_files
from ptq_cli.models.loading.detect import ModelKind, detect_kind
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.models.static_shapes import SAMPLES
from ptq_cli.recipe.locations import map_locations, relative_location, resolve_location
from ptq_cli.recipe.recipe_layers import recipe_to_table
from ptq_cli.recipe.recovery_rungs import rewriting_rungs
from ptq_cli.recipe.schema import Recipe
from ptq_cli.runtime.machine import Device
from ptq_cli.setup.output_checks import arch_file
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

TARGET = "quantization.target"
RECOVERY = "recovery.rungs"  # of these, the rungs that change the float model
RENAME = "data.rename"
READING = (
    RENAME,
    "data.carry",
    "data.steps",
    "data.frame",
    "text.tokenizer",
    "text.columns",
    "text.label_column",
    "text.window",
    "text.stride",
    "text.tail",
    "text.pack",
    "text.pairs",
    "text.mask_share",
)
"""How data is read; an evaluation may read other data in another way."""
DEPENDS_ON = (
    "model.path",
    "model.arch",
    "model.inputs",
    "model.input_shape",
    *READING,
    "data.batch_axis",
    "image.mode",
    "image.resize",
    "image.crop",
    "image.scale",
    "image.mean",
    "image.std",
    "image.layout",
    "calibration.data",
    "calibration.method",
    "calibration.samples",
    "calibration.set_aside",
    "calibration.activation_axis",
    "calibration.allow_nonfinite",
    TARGET,
    RECOVERY,
)
"""Settings that the statistics depend on. Batch size and threads change nothing, so they are not here."""


DEVICE_KIND = "runtime.device"
"""Parts of one calibration are made on one kind of device: activations of another differ in their last bits.
What is decided from a whole one holds for both, so a later stage may have another setting."""

HASH_PREFIX = "sha256 of "
"""Begins the key of a file that the model was made from; the rest is its path from the run directory."""


def settings_of(recipe: Recipe, run: RunDirectory) -> dict[str, str]:
    """The settings that the statistics depend on, as text; paths are relative to the run directory."""
    table = recipe_to_table(recipe, run.path)
    texts = {}
    for key in DEPENDS_ON:
        section, _, name = key.partition(".")
        value = table[section].get(name)
        if key == RECOVERY:
            value = list(rewriting_rungs(recipe))
        if key == "model.input_shape":  # The batch is that of the quantized model alone.
            value = {name: shape for name, shape in value.items() if name != SAMPLES}
        # Flags come back from the artifact in the order of their names.
        texts[key] = repr(dict(sorted(value.items())) if isinstance(value, dict) else value)
    return texts


def device_kind(device: Device) -> dict[str, str]:
    """The kind of device that statistics are made on, as ``settings_of`` returns settings."""
    return {DEVICE_KIND: repr(device.kind)}


def source_hashes(arch: str | None, file: SourceFile, run: RunDirectory) -> dict[str, str]:
    """The hash of each file that the float model was made from, by its path from the run directory.

    What the architecture's file itself imports is not covered.
    """
    hashes = {}
    for path in _source_files(arch, file):
        try:
            hashes[f"{HASH_PREFIX}{os.path.relpath(path, run.path)}"] = sha256_file(path)
        except OSError as error:
            raise InputFileError(
                f"'{path}' cannot be read: {error.strerror}", hint="check whether it was moved"
            ) from error
    return hashes


def _source_files(arch: str | None, file: SourceFile) -> Iterator[Path]:
    yield file.path
    if file.kind is ModelKind.ONNX:
        from ptq_cli.models.files.stored import data_files

        yield from data_files(file.path)
    code = arch_file(arch)
    if code is not None and file.kind in (ModelKind.CHECKPOINT, ModelKind.SAFETENSORS):
        yield Path(code)


def flags_to_store(request: Request, run: RunDirectory) -> dict[str, Any]:
    """The flags that the statistics depend on, so that ``ptq export`` need not be given them again.

    Paths are relative to the run directory, so that both can move together. The others are left out: a limit
    or a number of threads holds for the command that it was given to.
    """
    table = map_locations(request.flags().table, lambda location: relative_location(location, run.path))
    kept: dict[str, Any] = {}
    for key in DEPENDS_ON:
        section, _, name = key.partition(".")
        if name in table.get(section, {}):
            kept.setdefault(section, {})[name] = table[section][name]
    return kept


def opened_bytes(file: SourceFile) -> int | None:
    """The size of the files of a model that was opened, if it is ONNX; None otherwise."""
    if file.kind is not ModelKind.ONNX:
        return None
    return sum(path.stat().st_size for path in (file.path, *data_files(file.path)))


def source_bytes(model: str | None, settings: Mapping[str, str], run: RunDirectory) -> int | None:
    """The size of an ONNX file, with its external data, that a calibration was made from.

    Preparation may store a constant twice, or leave out what nothing reads, so that its file says little
    about what quantization saves. ``settings`` are of the calibration, and name each file that it was made
    from. None of a model that is not ONNX, and where a file is not there any more.

    Units:
        bytes.
    """
    if model is None or not Path(model).is_file() or detect_kind(Path(model)) is not ModelKind.ONNX:
        return None
    keys = [key.removeprefix(HASH_PREFIX) for key in settings if key.startswith(HASH_PREFIX)]
    files = [Path(resolve_location(key, run.path.absolute())) for key in keys]
    if not files or not all(path.is_file() for path in files):
        return None
    return sum(path.stat().st_size for path in files)
