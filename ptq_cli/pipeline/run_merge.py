"""``merge``: the shards of a calibration or an evaluation become what one process would have written.

Whole calibrations of one model on different data become one as well, which has seen all of them.
"""

import ast
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ptq_cli.calibration.measure import require_samples_seen
from ptq_cli.calibration.provenance import HASH_PREFIX, LOCATIONS
from ptq_cli.collectors.calibration_file import (
    NamedCalibration,
    Provenance,
    calibration_bytes,
    different,
    join_calibrations,
    load_calibration,
    merge_calibrations,
)
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import (
    CalibrationFileError,
    EvaluationFileError,
    IncompleteEvaluationError,
    MergeError,
    StaleCalibrationError,
    UsageError,
)
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.core.read_files import parse_toml, read_toml, require_file
from ptq_cli.models.files.stored import read_model
from ptq_cli.pipeline.evaluation.evaluation_set import SetSummary, noted_evaluation
from ptq_cli.pipeline.evaluation.opened_pass import (
    OpenedModels,
    evaluations_of,
    evaluator_maker,
    open_models,
    pass_identity,
)
from ptq_cli.pipeline.evaluation.quantized_models import open_evaluation_subject
from ptq_cli.pipeline.evaluation.reports import EvaluationResult, make_reports
from ptq_cli.pipeline.evaluation.shards import (
    RUN_SHARD_AGAIN,
    NamedShard,
    ShardFacts,
    first_difference,
    joined_shards,
    load_shard,
    not_the_same,
    require_whole,
)
from ptq_cli.recipe.locations import is_target_file, map_locations, relative_location, resolve_location
from ptq_cli.recipe.recipe_layers import (
    RecipeLayer,
    merge_layers,
    recipe_to_table,
    recipe_to_toml,
    table_layer,
)
from ptq_cli.recipe.schema import Recipe
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.parts import Work
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory

# Settings that may differ from shard to shard: how fast a machine runs, and not what it computes. Of a
# device it is the number of the GPU; its kind stands in the provenance, which is compared as well.
OF_THE_MACHINE = ("runtime.device", "runtime.threads", "runtime.checkpoint_every")


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
        """The file with the statistics."""
        return self.run.calibration


@dataclass(frozen=True)
class _Shard:
    """What a run is made from, its paths relative to the merged run."""

    run: RunDirectory
    provenance: Provenance
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"'{self.run.path}'"


def run_merge(runs: Sequence[RunDirectory], run: RunDirectory, *, partial: bool = False) -> MergeResult:
    """Merge the calibrations of shards, and write what one calibration of the whole would have written.

    Where they are whole calibrations on different data, settings that these do not depend on are the first
    run's.

    With ``partial`` shards may be missing; what is written is then a part as well.
    """
    _require_runs(runs, run)
    shards = _read_shards(runs, run)
    first = min(
        shards, key=lambda shard: min(shard.provenance.share.batches) if shard.provenance.share else 1
    )
    require_outputs(run, input_files(first.recipe))
    joins = _are_whole(shards)
    if not joins:
        for shard in shards:
            _require_same_recipe(shards[0], shard)
    model = read_model(first.run.float_model).copied(run.path, run.float_model.name)
    if joins:
        merged = join_calibrations(_named(shards))
    else:
        merged = merge_calibrations(_named(shards), partial=partial)
        require_samples_seen(merged.provenance)
    write_together(
        {
            **model.files(run.float_model),
            run.recipe: recipe_to_toml(first.recipe, run.path).encode(),
            run.calibration: calibration_bytes(merged),
        }
    )
    share, provenance = merged.provenance.share, merged.provenance
    return MergeResult(
        run=run,
        runs=len(runs),
        samples=provenance.samples,
        method=provenance.method,
        tensors=len(merged.statistics),
        shards=share.describe() if share is not None else "",
        missing=share.describe_missing() if share is not None else "",
    )


def _are_whole(shards: Sequence[_Shard]) -> bool:
    """Whether runs hold whole calibrations, each on data of its own."""
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
    """Read the provenance and the recipe of each run.

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
    return _Shard(run, _moved(calibration.provenance, base, target), recipe)


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
    one, two = (_settings_that_matter(shard.recipe) for shard in (first, other))
    for key in sorted(one.keys() | two.keys()):
        if one.get(key) != two.get(key):
            raise different(first.name, other.name, f"'{key}'", one.get(key), two.get(key))


def _settings_that_matter(recipe: Recipe) -> dict[str, Any]:
    """Settings by their full name, but those of the machine, with paths as a user types them."""
    # Paths from the current folder: they stand in the message.
    table = recipe_to_table(recipe, Path())
    settings: dict[str, Any] = {}
    for section, values in table.items():
        named = values.items() if isinstance(values, dict) else [("", values)]
        settings |= {f"{section}.{name}".rstrip("."): value for name, value in named}
    return {key: value for key, value in settings.items() if key not in OF_THE_MACHINE}


def _named(shards: Sequence[_Shard]) -> Iterator[NamedCalibration[TensorStatistics]]:
    # Read once more, one at a time: thousands of shards do not fit into memory together.
    for shard in shards:
        calibration = load_calibration(shard.run.calibration)
        yield NamedCalibration(shard.name, replace(calibration, provenance=shard.provenance))


def run_merge_evaluation(
    inputs: Sequence[Path], run: RunDirectory, progress: ProgressCallback = silent
) -> tuple[EvaluationResult, ...]:
    """Join the shards of an evaluation, and write the reports that one process would have written.

    The latency is measured here, and limits are judged here. The evaluation data is not read.
    """
    read = [(path, NamedShard(f"'{path}'", load_shard(path))) for path in shard_files(inputs)]
    # Settings of the machine may differ; those of the first shard hold, in whatever order they are named.
    read.sort(key=lambda item: min(item[1].shard.share.batches))
    shards = [named for _, named in read]
    require_whole(shards)
    bases = [_base(named.shard.facts, path, run) for path, named in read]
    layers = [_layer(named, base) for named, base in zip(shards, bases, strict=True)]
    _require_same_evaluation(shards, layers)
    first, facts = shards[0], shards[0].shard.facts
    own = [run.path / text for text in facts.models]
    paths = [
        path if path.is_file() else bases[0] / text for path, text in zip(own, facts.models, strict=True)
    ]
    opened = open_models(Request(settings={}, given=layers[0]), run, paths)
    work = Work(resolved=opened.resolved(run), run=run, progress=progress)
    summary, recipe = _summary(first, opened), work.resolved.recipe
    subject = open_evaluation_subject(work, opened.loaded.calibration, opened.pairs, summary)
    models, watches = subject.models, subject.watches
    _require_own(first, pass_identity(recipe, models, summary, bases[0]), run)
    make = evaluator_maker(models, summary, watches)
    evaluations = evaluations_of(joined_shards(shards, make), summary.outputs, facts.axes)
    made = make_reports(work, subject, evaluations)
    write_together({path: content for item in made for path, content in item.files.items()})
    return tuple(item.result for item in made)


def _base(facts: ShardFacts, file: Path, run: RunDirectory) -> Path:
    """Where the paths of a shard begin."""
    # That is the folder it lies in, if its data is found from there. Otherwise the file has come from another
    # machine, and its paths are taken from the run directory, of which that machine had a copy.
    data = _recipe_table(facts, str(file)).get("evaluation", {}).get("data", "")
    here = file.parent
    if not isinstance(data, str) or not data:
        return run.path
    location = resolve_location(data, here.absolute()).partition(".py:")
    return here if Path(location[0] + location[1][:3]).exists() else run.path


def _recipe_table(facts: ShardFacts, name: str) -> dict[str, dict[str, object]]:
    try:
        return parse_toml(facts.recipe)
    except ValueError as error:
        raise EvaluationFileError(
            f"{name} is damaged: its recipe is not valid TOML", hint=RUN_SHARD_AGAIN
        ) from error


def _layer(named: NamedShard, base: Path) -> RecipeLayer:
    return table_layer(_recipe_table(named.shard.facts, named.name), base, f"the recipe of {named.name}")


def _require_same_evaluation(shards: Sequence[NamedShard], layers: Sequence[RecipeLayer]) -> None:
    tables = [_settings_that_matter(merge_layers([layer])) for layer in layers]
    texts = [{key: str(value) for key, value in table.items()} for table in tables]
    for named, text in zip(shards, texts, strict=True):
        if key := first_difference(texts[0], text):
            one, two = texts[0].get(key, "not set"), text.get(key, "not set")
            raise not_the_same(shards[0].name, named.name, f"'{key}'", one, two)


def _summary(first: NamedShard, opened: OpenedModels) -> SetSummary:
    """Summary of the evaluation, as a shard says it."""
    facts, recipe = first.shard.facts, opened.loaded.resolved.recipe
    noted = SetSummary(
        source=str(recipe.evaluation.data),
        data_digest=facts.data_digest,
        class_names=facts.class_names,
        batch_size=first.shard.share.batch_size,
        outputs=(),
        varying=frozenset(),
        metrics=(),
        is_step=facts.unit == "step",
        baseline=None,
    )
    found = noted_evaluation(recipe, opened.loaded.graph, noted, with_labels=bool(facts.metrics))
    if len(facts.axes) != len(found.outputs):
        raise EvaluationFileError(
            f"{first.name} is damaged: it has {len(facts.axes)} outputs, the model has {len(found.outputs)}",
            hint=RUN_SHARD_AGAIN,
        )
    return found


def _require_own(first: NamedShard, identity: Mapping[str, str], run: RunDirectory) -> None:
    """Refuse shards of other models than those of the run, or that another version of ptq has made."""
    if key := first_difference(first.shard.facts.identity, identity):
        raise MergeError(
            f"{first.name} is not a shard of an evaluation of the models in '{run.path}': {key} differs",
            hint="pass the run directory that was evaluated with --run, or evaluate the shards again",
        )


def holds_evaluation(inputs: Sequence[Path]) -> bool:
    """Whether shards of an evaluation are to be merged, and not those of a calibration.

    A file that is missing counts by its name, and is named when it is read.

    Example:
        >>> holds_evaluation([Path("no-such-run")]), holds_evaluation([Path("no-such-shard.safetensors")])
        (False, True)
    """
    return any(_is_file(path) or RunDirectory(path).evaluation_shards() for path in inputs)


def shard_files(inputs: Sequence[Path]) -> list[Path]:
    """The files of all shards."""
    files: list[Path] = []
    for path in inputs:
        found = [path] if _is_file(path) else RunDirectory(path).evaluation_shards()
        if not found:
            raise IncompleteEvaluationError(
                f"'{path}' is not an evaluation shard, but other inputs are",
                hint="name the runs of ptq evaluate --shard; to merge calibrations, remove the "
                "evaluation.shard files of earlier evaluations from the other runs",
            )
        files += found
    return files


def evaluated_run(inputs: Sequence[Path]) -> RunDirectory:
    """The run directory whose models the shards are of: the first that has models beside its shards.

    The default one, if the shards lie where no models are, as those do that were fetched.

    Example:
        >>> evaluated_run([Path("no-such-run")]).path.as_posix()
        'ptq-run'
    """
    runs = [RunDirectory(path.parent if _is_file(path) else path) for path in inputs]
    return next((run for run in runs if run.float_model.is_file()), RunDirectory(DEFAULT_RUN))


def _is_file(path: Path) -> bool:
    return path.name.endswith(".safetensors") and not path.is_dir()
