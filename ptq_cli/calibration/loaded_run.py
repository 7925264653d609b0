"""A calibrated run is read again, and refused if the recipe or the model has changed since."""

import ast
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ptq_cli.calibration.provenance import HASH_PREFIX, READING, RECOVERY, TARGET, settings_of
from ptq_cli.collectors.calibration_file import Calibration, load_calibration
from ptq_cli.collectors.share import Share
from ptq_cli.core.errors import IncompleteCalibrationError, StaleCalibrationError
from ptq_cli.core.read_files import sha256_file
from ptq_cli.recipe.locations import is_target_file, map_locations, relative_location, resolve_location
from ptq_cli.recipe.recipe_layers import RecipeLayer, file_layer, table_layer
from ptq_cli.recipe.recovery_rungs import REWRITING
from ptq_cli.recipe.schema import Recipe
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.run_directory import RunDirectory

if TYPE_CHECKING:
    import onnx_ir as ir

    from ptq_cli.models.files.stored import StoredModel


HASHING_THREADS = 2
"""One for the float model, one for the file that it was made from; a third core works meanwhile."""
LOCATIONS = ("model.path", "model.arch", "text.tokenizer", "calibration.data", TARGET)


class LoadedRun(NamedTuple):
    """What a calibrated run holds.

    Attributes:
        resolved: the run's recipe with this request's flags, and what it names.
    """

    resolved: Resolved
    calibration: Calibration
    float_model: "StoredModel"
    graph: "ir.Model"


EXPORTED = ("amax", "weights", "activations", "override", "recovery", "export")
"""Sections of a recipe that an export's flags set, besides the target."""


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
    named = {"quantization": {"target": ast.literal_eval(stored[TARGET])}}
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
            key not in (TARGET, RECOVERY)
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
    is_name = key == TARGET and not is_target_file(str(ast.literal_eval(str(text))))
    if key not in LOCATIONS or is_name:
        return str(text)
    # A path reads as the user would type it, not as it looks from the run directory.
    location = resolve_location(str(ast.literal_eval(str(text))), run.path.absolute())
    return repr(relative_location(location, Path.cwd()))


def _stale(message: str) -> StaleCalibrationError:
    return StaleCalibrationError(message, hint="run ptq calibrate again, or undo the change")
