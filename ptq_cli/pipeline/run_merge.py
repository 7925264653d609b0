"""``merge``: the runs of several shards become the run that one calibration would have written.

Whole calibrations of one model on different data become one as well, which has seen all of them.
"""

import ast
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ptq_cli.calibration.loaded_run import LOCATIONS
from ptq_cli.calibration.measure import require_samples_seen
from ptq_cli.calibration.provenance import HASH_PREFIX
from ptq_cli.collectors.calibration_file import (
    Counted,
    Item,
    NamedCalibration,
    Provenance,
    calibration_bytes,
    different,
    join_calibrations,
    load_calibration,
    merge_calibrations,
)
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import CalibrationFileError, StaleCalibrationError, UsageError
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.read_files import read_toml, require_file
from ptq_cli.models.files.stored import read_model
from ptq_cli.recipe.recipe_layers import (
    is_target_file,
    map_locations,
    merge_layers,
    recipe_to_table,
    recipe_to_toml,
    relative_location,
    resolve_location,
    table_layer,
)
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recover.moments_file import load_moments, moments_bytes
from ptq_cli.recover.tensor_moments import TensorMoments
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.run_directory import RunDirectory

OF_THE_MACHINE = (
    "runtime.device",
    "runtime.threads",
    "runtime.prefetch",
    "calibration.checkpoint_every",
    "evaluation.checkpoint_every",
)
"""Settings that may differ from shard to shard: how fast a machine runs, and not what it computes. Of a
device it is the number of the GPU; its kind stands in the provenance, which is compared as well."""


@dataclass(frozen=True, kw_only=True)
class MergeResult:
    """What ``ptq merge`` made of calibrations."""

    DERIVED: ClassVar[tuple[str, ...]] = ("merged",)

    run: Annotated[RunDirectory, "Where the files are."]
    runs: Annotated[int, "How many runs were merged."]
    samples: Annotated[int, "How many samples they have seen together."]
    method: Annotated[str, "The collector."]
    tensors: Annotated[int, "How many tensors were measured."]
    shards: Annotated[str, "Which shards the result holds, such as shards 1 and 2 of 8; empty for all."]
    missing: Annotated[str, "Those that it does not hold."]

    @property
    def merged(self) -> Path:
        """The file with the statistics, or with the moments."""
        return self.run.moments if self.method == "moments" else self.run.calibration


@dataclass(frozen=True)
class _Shard:
    """What a run is made from, its paths relative to the merged run; in the run they begin at ``base``."""

    run: RunDirectory
    provenance: Provenance
    recipe: Recipe
    base: Path

    @property
    def has_moments(self) -> bool:
        """Whether it holds moments beside a whole calibration: these are what it shares with others."""
        return self.provenance.share is None and self.run.moments.is_file()

    @property
    def name(self) -> str:
        return f"'{self.run.path}'"


def run_merge(runs: Sequence[RunDirectory], run: RunDirectory, *, partial: bool = False) -> MergeResult:
    """Merge the calibrations of shards, and write what one calibration of the whole would have written.

    Where every run holds the same whole calibration and moments, it is the moments that are merged. Where
    they hold whole calibrations on different data, settings that these do not depend on are the first run's.

    With ``partial`` shards may be missing; what is written is then a part as well.
    """
    _require_runs(runs, run)
    shards = _read_shards(runs, run)
    first = min(
        shards, key=lambda shard: min(shard.provenance.share.batches) if shard.provenance.share else 1
    )
    require_outputs(run, input_files(first.recipe))
    joins = _are_whole(shards)
    for shard in shards:
        if not joins:
            _require_same_recipe(shards[0], shard)
    model = read_model(first.run.float_model).copied(run.path, run.float_model.name)
    files: dict[Path, Content] = {
        **model.files(run.float_model),
        run.recipe: recipe_to_toml(first.recipe, run.path).encode(),
    }
    if joins:
        joined = join_calibrations(_parts(shards))
        return _written({**files, run.calibration: calibration_bytes(joined)}, run, len(runs), joined)
    if all(shard.has_moments for shard in shards):
        moments = merge_calibrations(_moment_parts(shards, run), partial=partial)
        whole = replace(load_calibration(first.run.calibration), provenance=first.provenance)
        files |= {run.calibration: calibration_bytes(whole), run.moments: moments_bytes(moments)}
        return _written(files, run, len(runs), moments)
    merged = merge_calibrations(_parts(shards), partial=partial)
    require_samples_seen(merged.provenance)
    return _written({**files, run.calibration: calibration_bytes(merged)}, run, len(runs), merged)


def _written(
    files: Mapping[Path, Content], run: RunDirectory, runs: int, merged: Counted[Item]
) -> MergeResult:
    write_together(files)
    share, provenance = merged.provenance.share, merged.provenance
    return MergeResult(
        run=run,
        runs=runs,
        samples=provenance.samples,
        method=provenance.method,
        tensors=len(merged.statistics),
        shards=share.describe() if share is not None else "",
        missing=share.describe_missing() if share is not None else "",
    )


def _are_whole(shards: Sequence[_Shard]) -> bool:
    """Return whether runs hold whole calibrations, each on data of its own."""
    data = {shard.provenance.data for shard in shards}
    whole = all(shard.provenance.share is None for shard in shards)
    return whole and len(data) == len(shards) > 1


def _require_runs(runs: Sequence[RunDirectory], run: RunDirectory) -> None:
    hint = "name the runs that hold shards, such as run-1 and run-2, or run ptq evaluate --shard first"
    if not runs:
        raise UsageError(f"no runs were given, and '{run.path}' has no evaluation shards", hint=hint)
    if all(os.path.realpath(shard.path) != os.path.realpath(run.path) for shard in runs):
        return
    if len(runs) == 1:
        raise UsageError(f"'{run.path}' has no evaluation shards, and is the only run to merge", hint=hint)
    raise UsageError(
        f"'{run.path}' would overwrite one of the runs that it is made from",
        hint="pass another run directory with --run",
    )


def _read_shards(runs: Sequence[RunDirectory], target: RunDirectory) -> list[_Shard]:
    """Return what each run is made from.

    The paths in a run directory start at it. If the model lies there, they are taken so, and made relative to
    the merged run. A run that came from another machine may have been moved without its model; where the
    model lies from the merged run's own folder, the paths are taken as they are.
    """
    bases: tuple[Callable[[RunDirectory], Path], ...] = (lambda run: run.path, lambda _run: target.path)
    readings = [[_read_shard(run, base(run), target) for run in runs] for base in bases]
    found = (reading for reading in readings if Path(reading[0].recipe.model.path or "").is_file())
    return next(found, readings[0])


def _read_shard(run: RunDirectory, base: Path, target: RunDirectory) -> _Shard:
    calibration = load_calibration(run.require_stage(run.calibration, "ptq calibrate"))
    model = require_file(run.require_stage(run.float_model, "ptq calibrate"), "float model")
    if read_model(model).sha256 != calibration.provenance.model:
        raise StaleCalibrationError(
            f"'{run.float_model}' is not the model that was calibrated", hint="run ptq calibrate again"
        )
    path = run.require_stage(run.recipe, "ptq calibrate")
    recipe = merge_layers([table_layer(read_toml(path, "recipe", str(path)), base, str(path))])
    return _Shard(run, _moved(calibration.provenance, base, target), recipe, base)


def _moved(provenance: Provenance, base: Path, target: RunDirectory) -> Provenance:
    def move(location: str) -> str:
        return relative_location(resolve_location(location, base.absolute()), target.path)

    settings = {}
    for key, text in provenance.settings.items():
        if key.startswith(HASH_PREFIX):
            settings[f"{HASH_PREFIX}{move(key.removeprefix(HASH_PREFIX))}"] = text
        elif key in LOCATIONS and text != "None" and not _is_name(key, text):
            settings[key] = repr(move(_location(key, text)))
        else:
            settings[key] = text
    flags = table_layer(provenance.flags, base, "the calibration's flags").table
    flags = map_locations(flags, lambda location: relative_location(location, target.path))
    return replace(provenance, settings=settings, flags=flags)


def _is_name(key: str, text: str) -> bool:
    return key == "quantization.target" and not is_target_file(_location(key, text))


def _location(key: str, text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    # What a text that was made to do harm raises: no literal, too deep, too large.
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise CalibrationFileError(
            f"a calibration's '{key}' is not a string: {text[:40]}", hint="run ptq calibrate again"
        ) from error


def _require_same_recipe(first: _Shard, other: _Shard) -> None:
    one, two = (settings_by_name(shard.recipe) for shard in (first, other))
    for key in sorted(one.keys() | two.keys()):
        if one.get(key) != two.get(key) and key not in OF_THE_MACHINE:
            raise different(first.name, other.name, f"'{key}'", one.get(key), two.get(key))


def settings_by_name(recipe: Recipe) -> dict[str, Any]:
    """Return all settings by their full name, with paths as a user types them."""
    # Paths from the current folder, as the user types them: they stand in the message.
    table = recipe_to_table(recipe, Path())
    settings: dict[str, Any] = {}
    for section, values in table.items():
        named = values.items() if isinstance(values, dict) else [("", values)]
        settings |= {f"{section}.{name}".rstrip("."): value for name, value in named}
    return settings


def _parts(shards: Sequence[_Shard]) -> Iterator[NamedCalibration[TensorStatistics]]:
    # Read once more, one at a time: thousands of shards do not fit into memory together.
    for shard in shards:
        calibration = load_calibration(shard.run.calibration)
        yield NamedCalibration(shard.name, replace(calibration, provenance=shard.provenance))


def _moment_parts(
    shards: Sequence[_Shard], target: RunDirectory
) -> Iterator[NamedCalibration[TensorMoments]]:
    for shard in shards:
        moments = load_moments(shard.run.moments)
        yield NamedCalibration(
            shard.name, replace(moments, provenance=_moved(moments.provenance, shard.base, target))
        )
