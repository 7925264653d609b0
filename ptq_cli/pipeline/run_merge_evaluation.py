"""``merge`` of an evaluation: the reports that one process would have written, from the parts of several."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ptq_cli.core.errors import EvaluationFileError, MergeError
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.core.read_files import parse_toml
from ptq_cli.pipeline.evaluation.evaluation_data import MeasuredSet, noted_evaluation
from ptq_cli.pipeline.evaluation.evaluation_shard import AGAIN, ShardFacts, load_shard
from ptq_cli.pipeline.evaluation.joined_shards import (
    NamedShard,
    first_difference,
    joined_shards,
    not_the_same,
    require_whole,
    shard_files,
)
from ptq_cli.pipeline.evaluation.made_reports import EvaluationResult, make_reports, open_judged
from ptq_cli.pipeline.evaluation.one_pass import OpenedModels, evaluations_of, open_models, pass_identity
from ptq_cli.pipeline.run_merge import OF_THE_MACHINE, settings_by_name
from ptq_cli.recipe.locations import resolve_location
from ptq_cli.recipe.recipe_layers import RecipeLayer, merge_layers, table_layer
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory


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
    _require_same_settings(shards, layers)
    first, facts = shards[0], shards[0].shard.facts
    own = [run.path / text for text in facts.models]
    paths = [
        path if path.is_file() else bases[0] / text for path, text in zip(own, facts.models, strict=True)
    ]
    opened = open_models(Request(settings={}, given=layers[0]), run, paths)
    resolved = opened.resolved(run)
    measured = _measured(first, opened)
    judged, models, changed = open_judged(
        resolved, opened.loaded.calibration, run, opened.pairs, measured, thumbnails=facts.thumbnails
    )
    settings, image = resolved.recipe.evaluation, resolved.recipe.image
    _require_own(first, pass_identity(settings, image, models, measured, changed, bases[0]), run)
    evaluator = joined_shards(
        shards, measured, models, changed, with_pytorch=resolved.recipe.evaluation.with_pytorch
    )
    evaluations = evaluations_of(evaluator, measured.outputs, facts.axes)
    made = make_reports(
        resolved,
        opened.loaded.calibration,
        judged,
        measured,
        evaluations,
        changed,
        run,
        opened.runs,
        progress,
    )
    write_together({path: content for item in made for path, content in item.files.items()})
    return tuple(item.result for item in made)


def _base(facts: ShardFacts, file: Path, run: RunDirectory) -> Path:
    """Return where the paths of a shard begin.

    That is the folder it lies in, if its data is found from there. Otherwise the file has come from
    another machine, and its paths are taken from the run directory, of which that machine had a copy.
    """
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
        raise EvaluationFileError(f"{name} is damaged: its recipe is not valid TOML", hint=AGAIN) from error


def _layer(named: NamedShard, base: Path) -> RecipeLayer:
    return table_layer(_recipe_table(named.shard.facts, named.name), base, f"the recipe of {named.name}")


def _require_same_settings(shards: Sequence[NamedShard], layers: Sequence[RecipeLayer]) -> None:
    tables = [settings_by_name(merge_layers([layer])) for layer in layers]
    texts = [
        {key: str(value) for key, value in table.items() if key not in OF_THE_MACHINE} for table in tables
    ]
    for named, text in zip(shards, texts, strict=True):
        if key := first_difference(texts[0], text):
            one, two = texts[0].get(key, "not set"), text.get(key, "not set")
            raise not_the_same(shards[0].name, named.name, f"'{key}'", one, two)


def _measured(first: NamedShard, opened: OpenedModels) -> MeasuredSet:
    """Return what was measured on which data, as a shard says it."""
    facts, recipe = first.shard.facts, opened.loaded.resolved.recipe
    noted = MeasuredSet(
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
            hint=AGAIN,
        )
    return found


def _require_own(first: NamedShard, identity: Mapping[str, str], run: RunDirectory) -> None:
    """Refuse shards of other models than those of the run, or that another version of ptq has made."""
    if key := first_difference(first.shard.facts.identity, identity):
        raise MergeError(
            f"{first.name} is not a shard of an evaluation of the models in '{run.path}': {key} differs",
            hint="pass the run directory that was evaluated with --run, or evaluate the shards again",
        )
