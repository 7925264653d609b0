"""Provenance of a calibration; a calibrated run read again, refused if recipe or model changed since."""

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ptq_cli.collectors.calibration_file import Calibration, Share, load_calibration
from ptq_cli.core.errors import IncompleteCalibrationError, InputFileError, StaleCalibrationError
from ptq_cli.core.read_files import sha256_file
from ptq_cli.models.files.stored import data_files
from ptq_cli.models.fixed_inputs import SAMPLES
from ptq_cli.models.loading.source import HUB_CONFIG, ModelKind, SourceFile, detect_kind, hub_weights
from ptq_cli.recipe.locations import is_target_file, map_locations, relative_location, resolve_location
from ptq_cli.recipe.recipe_layers import RecipeLayer, file_layer, recipe_to_table, table_layer
from ptq_cli.recipe.recovery_rungs import REWRITING, rewriting_rungs
from ptq_cli.recipe.schema import Recipe
from ptq_cli.runtime.machine import Device
from ptq_cli.setup.output_checks import arch_file
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.run_directory import RunDirectory

if TYPE_CHECKING:
    import onnx_ir as ir

    from ptq_cli.models.files.stored import StoredModel


TARGET_KEY = "quantization.target"
RECOVERY = "recovery.rungs"  # of these, the rungs that change the float model
RENAME = "data.rename"
# How data is read; an evaluation may read other data in another way.
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
# Settings that the statistics depend on. Batch size and threads change nothing, so they are not here.
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
    TARGET_KEY,
    RECOVERY,
)


# Parts of one calibration are made on one kind of device: activations of another differ in their last bits.
# What is decided from a whole one holds for both, so a later stage may have another setting.
DEVICE_KIND = "runtime.device"

# Begins the key of a file that the model was made from; the rest is its path from the run directory.
HASH_PREFIX = "sha256 of "


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
    if file.kind is ModelKind.HUB:
        yield from (file.path / HUB_CONFIG, *hub_weights(file.path))
        return
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

    Units: bytes.
    """
    if model is None or not Path(model).is_file() or detect_kind(Path(model)) is not ModelKind.ONNX:
        return None
    keys = [key.removeprefix(HASH_PREFIX) for key in settings if key.startswith(HASH_PREFIX)]
    files = [Path(resolve_location(key, run.path.absolute())) for key in keys]
    if not files or not all(path.is_file() for path in files):
        return None
    return sum(path.stat().st_size for path in files)


# One for the float model, one for the file that it was made from; a third core works meanwhile.
HASHING_THREADS = 2
LOCATIONS = ("model.path", "model.arch", "text.tokenizer", "calibration.data", TARGET_KEY)


class LoadedRun(NamedTuple):
    """What a calibrated run holds.

    Attributes:
        resolved: the run's recipe with this request's flags, and what it names.
    """

    resolved: Resolved
    calibration: Calibration
    float_model: "StoredModel"
    graph: "ir.Model"


# Sections of a recipe that an export's flags set, besides the target.
EXPORTED = ("amax", "weights", "activations", "override", "accuracy", "recovery", "export")


def load_run(request: Request, run: RunDirectory) -> LoadedRun:
    """Load a run, if its parts still fit each other.

    The flags of the calibration are repeated below this request's own, so that ``ptq export`` needs none
    of them again. Where there is no recipe file at hand, as in another folder, the run's own takes its place.
    """
    with loaded_run(request, run) as found:
        return found


@contextmanager
def loaded_run(request: Request, run: RunDirectory, *, reset: bool = False) -> Iterator[LoadedRun]:
    """Yield what ``load_run`` returns, while other threads hash the files that it comes from.

    With ``reset``, what earlier exports set in the run's own recipe is left out.

    The block may work with it, and must write nothing that stays: only at its end is it known to fit. Where a
    file has changed, that is the error, whatever the block made of the file.
    """
    from ptq_cli.models.files.stored import read_parsed

    calibration = load_calibration(run.require_stage(run.calibration, "ptq calibrate"))
    run.require_stage(run.float_model, "ptq calibrate")
    stored = calibration.provenance
    if stored.share is not None:
        raise incomplete(run, stored.share)
    with ThreadPoolExecutor(HASHING_THREADS, "hash") as pool:
        files = pool.submit(_require_same_files, stored.settings, run)
        float_model, message = read_parsed(run.float_model)
        digest = pool.submit(lambda: float_model.sha256)

        def require_same() -> None:
            if digest.result() != stored.model:
                raise _stale(f"'{run.float_model}' is not the model that was calibrated")
            files.result()

        try:
            own = file_layer(run.recipe) if run.recipe.is_file() else None
            if own is not None and reset:
                own = _before_exports(own, stored.settings, run)
            flags = table_layer(stored.flags, run.path, "the calibration's flags")
            target = _calibrated_target(stored.settings, run)
            resolved = resolve(request, earlier=flags, otherwise=own, target=target)
            _require_same_settings(settings_of(resolved.recipe, run), stored.settings, run)
            _require_rungs(resolved.recipe.recovery.rungs, stored.settings)
            graph = float_model.load(message)
            del message  # The constants in it are let go with the graph's.
            yield LoadedRun(resolved, calibration, float_model, graph)
        except Exception:
            require_same()
            raise
        require_same()


def _before_exports(own: RecipeLayer, stored: dict[str, str], run: RunDirectory) -> RecipeLayer:
    """A run's own recipe with the calibration's target, and without what exports set."""
    table = {name: section for name, section in own.table.items() if name not in EXPORTED}
    return replace(own, table={**table, **_calibrated_target(stored, run).table})


def _calibrated_target(stored: dict[str, str], run: RunDirectory) -> RecipeLayer:
    named = {"quantization": {"target": ast.literal_eval(stored[TARGET_KEY])}}
    table = map_locations(named, lambda text: resolve_location(text, run.path.absolute()))
    return table_layer(table, run.path, "the calibration")


def incomplete(run: RunDirectory, share: Share) -> IncompleteCalibrationError:
    """The error that says what a calibration has seen, and what is missing."""
    if not share.finished:
        return IncompleteCalibrationError(
            f"'{run.calibration}' is a checkpoint of {share.describe()}, which is not finished",
            hint="run ptq calibrate for it again; it continues from calibration.partial.safetensors",
        )
    return IncompleteCalibrationError(
        f"'{run.calibration}' holds {share.describe()}, missing: {share.describe_missing()}",
        hint="run ptq merge to combine the shards",
    )


def _require_same_settings(settings: dict[str, str], stored: dict[str, str], run: RunDirectory) -> None:
    defaults = settings_of(Recipe(), run)
    for key, text in settings.items():
        # A target decides which tensors are measured, and nothing of what is kept of one. Where those of
        # another were measured too, that can be exported for; ``require_ranges`` says which were not.
        # Names are those of the data that is read now, which is another one, and so are texts.
        if (
            key not in (TARGET_KEY, RECOVERY)
            and key not in READING
            and text != (before := stored.get(key, defaults.get(key)))
        ):
            was, now = _shown(key, before, run), _shown(key, text, run)
            raise _stale(f"'{key}' was {was} when it was calibrated, and is {now} now")


def _require_rungs(asked: Sequence[str], stored: dict[str, str]) -> None:
    """Require that rungs which are named were climbed before the calibration; ``all`` names none of them."""
    for name in asked:
        if name in REWRITING and repr(name) not in stored.get(RECOVERY, ""):
            raise StaleCalibrationError(
                f"--recover {name} changes the model before it is calibrated, and it was calibrated without",
                hint=f"run ptq calibrate --recover {name}, or leave {name} out",
            )


def _require_same_files(stored: dict[str, str], run: RunDirectory) -> None:
    for key, digest in stored.items():
        if not key.startswith(HASH_PREFIX):
            continue
        path = Path(resolve_location(key.removeprefix(HASH_PREFIX), run.path.absolute()))
        # It may be gone by now (a CI job may keep the run directory alone); if it is there, it must fit.
        if path.is_file() and sha256_file(path) != digest:
            raise _stale(f"'{path}' has changed since it was calibrated")


def _shown(key: str, text: str | None, run: RunDirectory) -> str:
    if text in (None, "None"):
        return "not set"
    is_name = key == TARGET_KEY and not is_target_file(str(ast.literal_eval(str(text))))
    if key not in LOCATIONS or is_name:
        return str(text)
    # A path reads as the user would type it, not as it looks from the run directory.
    location = resolve_location(str(ast.literal_eval(str(text))), run.path.absolute())
    return repr(relative_location(location, Path.cwd()))


def _stale(message: str) -> StaleCalibrationError:
    return StaleCalibrationError(message, hint="run ptq calibrate again, or undo the change")
