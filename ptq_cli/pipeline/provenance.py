"""Does a calibration still fit the recipe and the model? What it depends on is written into it."""

from pathlib import Path
from typing import Any

from ptq_cli.collectors.artifact import Calibration, load_calibration
from ptq_cli.core.errors import StaleCalibrationError
from ptq_cli.core.files import sha256_file
from ptq_cli.pipeline.resolve import Request, resolve
from ptq_cli.pipeline.run_directory import RunDirectory
from ptq_cli.recipe.encode import recipe_to_table
from ptq_cli.recipe.layers import table_layer
from ptq_cli.recipe.locations import map_locations, relative_location
from ptq_cli.recipe.schema import Recipe

DEPENDS_ON = (
    "model.path",
    "model.arch",
    "model.input_shape",
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
    "quantization.target",
)
"""Settings that the statistics depend on. Batch size and threads change nothing, so they are not here."""


def settings_of(recipe: Recipe, run: RunDirectory) -> dict[str, str]:
    """Return the settings that the statistics depend on, as text, with paths relative to the run directory.

    Example:
        >>> settings_of(Recipe(), RunDirectory(Path("ptq-run")))["calibration.method"]
        "'histogram'"
    """
    table = recipe_to_table(recipe, run.path)
    texts = {}
    for key in DEPENDS_ON:
        section, _, name = key.partition(".")
        texts[key] = repr(table[section].get(name))
    return texts


def flags_to_store(request: Request, run: RunDirectory) -> dict[str, Any]:
    """Return the flags' table with paths relative to the run directory, so that both can move together."""
    return map_locations(request.flags().table, lambda location: relative_location(location, run.path))


def load_run(request: Request, run: RunDirectory) -> tuple[Recipe, Calibration]:
    """Return the recipe and the calibration of a run, if they still fit each other and the float model.

    The flags of the calibration are repeated beneath this request's own, so that ``ptq export`` needs none
    of them again.

    Raises:
        MissingStageError: nothing was calibrated in the run directory.
        CalibrationFileError: the calibration is damaged.
        StaleCalibrationError: the model or a setting has changed since; the message says which.
    """
    calibration = load_calibration(run.require_stage(run.calibration, "ptq calibrate"))
    run.require_stage(run.float_model, "ptq calibrate")
    stored = calibration.provenance
    if sha256_file(run.float_model) != stored.model:
        raise _stale(f"'{run.float_model}' is not the model that was calibrated")
    recipe = resolve(request, table_layer(stored.flags, run.path, "the calibration's flags"))
    for key, text in settings_of(recipe, run).items():
        if text != stored.settings.get(key):
            raise _stale(f"'{key}' was {stored.settings.get(key)} when it was calibrated, and is {text} now")
    source = Path(recipe.model.path) if recipe.model.path is not None else None
    # The source may be gone by now (a CI job may keep the run directory alone); if it is there, it must fit.
    if source is not None and source.is_file() and sha256_file(source) != stored.source:
        raise _stale(f"'{recipe.model.path}' has changed since it was calibrated")
    return recipe, calibration


def _stale(message: str) -> StaleCalibrationError:
    return StaleCalibrationError(message, hint="run ptq calibrate again")
