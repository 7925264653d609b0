"""The parts of an evaluation become the whole: refused unless they are parts of the same one."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.calibdata.dataset.batches import checked
from ptq_cli.calibdata.dataset.decode_ahead import decoded_ahead
from ptq_cli.calibdata.dataset.selection import Selection, Shard
from ptq_cli.collectors.calibration_file import require_dealt
from ptq_cli.collectors.share import Share
from ptq_cli.core.errors import (
    EvaluationFileError,
    IncompleteEvaluationError,
    MergeError,
    OverlappingShardsError,
    ReportError,
    UsageError,
)
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import ProgressCallback
from ptq_cli.evaluation.runs.changed_classes import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluation, Evaluator
from ptq_cli.evaluation.runs.parts import PartEvaluator, joined_batches
from ptq_cli.evaluation.runs.run_models import run_evaluator
from ptq_cli.pipeline.evaluation.evaluation_checkpoint import WORK
from ptq_cli.pipeline.evaluation.evaluation_data import EvaluationSet, MeasuredSet
from ptq_cli.pipeline.evaluation.evaluation_shard import (
    AGAIN,
    EvaluationShard,
    ShardFacts,
    load_shard,
    parse_shard_bytes,
    shard_bytes,
)
from ptq_cli.pipeline.evaluation.one_pass import (
    EvaluatedModels,
    OpenedPass,
    evaluations_of,
    evaluator_maker,
    open_pass,
    teller,
)
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.resumable import NO_CHECKPOINTS, Checkpoints, Tell, read_checkpoint
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory

if TYPE_CHECKING:
    from ptq_cli.setup.distributed import Group


SHOWN_LENGTH = 60
HINT = "evaluate every shard with the same models, data, settings and batch size"


@dataclass(frozen=True)
class NamedShard:
    """A part, and what to call it in a message."""

    name: str
    shard: EvaluationShard


def joined_shards(
    shards: Sequence[NamedShard],
    measured: MeasuredSet,
    models: EvaluatedModels,
    watches: Sequence[ChangeCollector],
    *,
    with_pytorch: bool,
) -> Evaluator:
    """Return an evaluator that has seen what all parts have seen together.

    The ``watches`` are new, and have seen all samples at the end.
    """
    require_whole(shards)
    make = evaluator_maker(models, measured, watches, with_pytorch=with_pytorch)
    batches = [batch for named in shards for batch in named.shard.batches]
    watched = [named.shard.watched for named in shards]
    try:
        return joined_batches(make, batches, watched, shards[0].shard.share.batch_size)
    except (ValueError, KeyError, IndexError, TypeError, ReportError) as error:
        # Checksums protect against damage, not against a file that was made to look like a shard.
        raise EvaluationFileError(
            f"the shards cannot be joined: one is damaged ({type(error).__name__})", hint=AGAIN
        ) from error


def require_whole(shards: Sequence[NamedShard]) -> None:
    """Refuse parts that do not make a whole."""
    first, holders = shards[0], dict[int, str]()
    for named in shards:
        share = named.shard.share
        # Checked first: a checkpoint's other facts may be right, and its batches still incomplete.
        if not share.finished:
            raise IncompleteEvaluationError(
                f"{named.name} is a checkpoint of {share.describe()}, which is not finished",
                hint="run `ptq evaluate` for it again; it continues where it stopped",
            )
        one, two = (_described(item.shard) for item in (first, named))
        if key := first_difference(one, two):
            raise not_the_same(first.name, named.name, key, one.get(key, ""), two.get(key, ""))
        for number in share.batches:
            if number in holders:
                raise OverlappingShardsError(
                    f"{holders[number]} and {named.name} both hold shard {number} of {share.count}",
                    hint="name each shard once",
                )
            holders[number] = named.name
    batches = {number: count for named in shards for number, count in named.shard.share.batches.items()}
    whole = replace(first.shard.share, batches=batches)
    if not whole.is_whole:
        raise IncompleteEvaluationError(
            f"not among the shards: {whole.describe_missing()}",
            hint="run ptq evaluate --shard for the missing shards, and name all of them",
        )
    # Last: only all shards together tell how many batches each of them should have.
    require_dealt(whole)


def _described(shard: EvaluationShard) -> dict[str, str]:
    return {**shard.facts.identity, "the number of shards": str(shard.share.count)}


def first_difference(one: Mapping[str, str], two: Mapping[str, str]) -> str:
    """Return the name of the first entry that differs; an empty text if none does."""
    keys = [*one, *(key for key in two if key not in one)]
    return next((key for key in keys if one.get(key) != two.get(key)), "")


def not_the_same(first: str, other: str, key: str, one: str, two: str) -> MergeError:
    """Return the error that says in what two parts differ."""
    found = f"{key} is {_short(one)} in the first and {_short(two)} in the second"
    return MergeError(f"{first} and {other} are not shards of the same evaluation: {found}", hint=HINT)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


# Which shards of an evaluation ``merge`` is given, and whose they are.


SUFFIX = ".safetensors"


def holds_evaluation(inputs: Sequence[Path]) -> bool:
    """Return whether shards of an evaluation are to be merged, and not those of a calibration.

    A file that is missing counts by its name, and is named when it is read.

    Example:
        >>> holds_evaluation([Path("no-such-run")]), holds_evaluation([Path("no-such-shard.safetensors")])
        (False, True)
    """
    return any(_is_file(path) or RunDirectory(path).evaluation_shards() for path in inputs)


def shard_files(inputs: Sequence[Path]) -> list[Path]:
    """Return the files of all shards."""
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
    """Return the run directory whose models the shards are of: the first that has models beside its shards.

    The default one, if the shards lie where no models are, as those do that were fetched.

    Example:
        >>> evaluated_run([Path("no-such-run")]).path.as_posix()
        'ptq-run'
    """
    runs = [RunDirectory(path.parent if _is_file(path) else path) for path in inputs]
    return next((run for run in runs if run.float_model.is_file()), RunDirectory(DEFAULT_RUN))


def _is_file(path: Path) -> bool:
    return path.name.endswith(SUFFIX) and not path.is_dir()


# One part of an evaluation: measured by a process of its own, and joined with the others'.


@dataclass(frozen=True)
class ShardOrigin:
    """What the file of a part has to say, so that the reports can be made from it alone.

    Attributes:
        folder: the run directory, where paths begin.
    """

    folder: Path = Path()
    recipe: str = ""
    models: tuple[str, ...] = ()
    thumbnails: bool = False


NO_ORIGIN = ShardOrigin()
"""Of a part that is not stored: the ranks of torchrun hold all of it in memory."""


def evaluate_part(
    resolved: Resolved,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    shard: Shard,
    progress: ProgressCallback,
    watches: Sequence[ChangeCollector] = (),
    *,
    origin: ShardOrigin = NO_ORIGIN,
    checkpoint: Path | None = None,
    group: "Group | None" = None,
) -> EvaluationShard:
    """Run all models over one share of the batches, and return what each batch adds to the metrics.

    ``origin`` is what the file has to say besides; without a ``checkpoint`` nothing is written on the way.
    The processes of a ``group`` hear of an error of one.
    """
    tell, dataset = teller(progress), evaluation_set.dataset
    if evaluation_set.carries:
        raise UsageError(
            "recordings are evaluated by one process: each model reads its own states",
            hint="leave --shard out; calibrations are divided by recordings",
        )
    if evaluation_set.continuation is not None:
        raise UsageError(
            "prompts are continued by one process", hint="leave --generate out, or --shard and torchrun"
        )
    opened = open_pass(resolved, models, evaluation_set, progress, watches, origin.folder)
    evaluator = PartEvaluator(opened.make, shard, evaluation_set.batch_size)
    facts = _facts(opened, evaluation_set, origin)
    part = _Part(evaluator, facts, shard, evaluation_set.batch_size)
    if checkpoint is not None and not dataset.is_resumable:
        tell(NO_CHECKPOINTS)
        checkpoint = None
    if checkpoint is not None:
        # Before the schedule starts, so that reading an old checkpoint does not count as work.
        part.resume(checkpoint, tell)
    every = resolved.recipe.runtime.checkpoint_every
    checkpoints = None if checkpoint is None else Checkpoints(checkpoint, WORK, every, tell)

    def after_batch() -> None:
        if group is not None:
            group.after_batch(len(evaluator.batches), evaluator.samples)
        if checkpoints is not None and checkpoints.is_due():
            checkpoints.write(part.save)

    selection = Selection(shard, len(evaluator.batches))
    whole = Selection(shard)
    total = whole.samples(dataset.count, evaluation_set.batch_size) if dataset.count is not None else None
    batches = checked(dataset.batches(evaluation_set.batch_size, selection))
    with closing(decoded_ahead(batches)) as decoded:
        run_evaluator(
            evaluator, opened.runs, decoded, total=total, progress=progress, after_batch=after_batch
        )
    return part.shard(finished=True)


def evaluate_together(
    resolved: Resolved,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    progress: ProgressCallback,
    group: "Group",
    watches: Sequence[ChangeCollector] = (),
) -> tuple[Evaluation, ...]:
    """Run all models over the evaluation set once, each process of a group a share of the batches.

    Returns what ``evaluate_pass`` returns, on every process. There are no checkpoints.
    """
    part = evaluate_part(resolved, models, evaluation_set, group.shard, progress, watches, group=group)
    # The bytes of the files that shards have: what is proven of these holds for ranks.
    contents = group.exchange(shard_bytes(part), group.next_place())
    names = [f"rank {rank}" for rank in range(len(contents))]
    shards = [
        NamedShard(name, parse_shard_bytes(content, name))
        for name, content in zip(names, contents, strict=True)
    ]
    evaluator = joined_shards(
        shards,
        MeasuredSet.of(evaluation_set),
        models,
        watches,
        with_pytorch=resolved.recipe.evaluation.with_pytorch,
    )
    return evaluations_of(evaluator, evaluation_set.outputs, part.facts.axes)


class _Part:
    """What was measured so far, as it is stored."""

    def __init__(self, evaluator: PartEvaluator, facts: ShardFacts, shard: Shard, batch_size: int) -> None:
        self._evaluator, self._facts = evaluator, facts
        self._shard, self._batch_size = shard, batch_size

    def shard(self, *, finished: bool) -> EvaluationShard:
        """Return what was measured so far."""
        batches = tuple(self._evaluator.batches)
        share = Share(self._shard.count, {self._shard.number: len(batches)}, self._batch_size, finished)
        return EvaluationShard(
            facts=self._facts, share=share, batches=batches, watched=self._evaluator.watches_state()
        )

    def save(self, path: Path) -> None:
        """Write what was measured so far, atomically."""
        write_together({path: shard_bytes(self.shard(finished=False))})

    def resume(self, path: Path, tell: Tell) -> None:
        """Go on from a checkpoint of this very part, or tell why not."""
        if read_checkpoint(path, WORK, load_shard, self._refusal, tell) is not None:
            tell(
                f"continuing an earlier evaluation after {self._evaluator.samples} samples; "
                "--set run.restart=true starts again"
            )

    def _refusal(self, found: EvaluationShard) -> str:
        reason = self._difference(found)
        if not reason:
            try:
                self._evaluator.resume(found.batches, found.watched)
            except (ReportError, ValueError, KeyError) as error:
                reason = f"it is damaged ({type(error).__name__})"
        return reason

    def _difference(self, found: EvaluationShard) -> str:
        identity = self._facts.identity
        changed = [key for key in identity if found.facts.identity.get(key) != identity[key]]
        if changed:
            return f"{changed[0]} changed since"
        # The number of batches is not compared: an earlier checkpoint has fewer or more of them.
        mine = self.shard(finished=False).share
        is_same = (found.share.count, found.share.batches.keys()) == (mine.count, mine.batches.keys())
        return "" if is_same else f"it is for {found.share.describe()}"


def _facts(opened: OpenedPass, evaluation_set: EvaluationSet, origin: ShardOrigin) -> ShardFacts:
    return ShardFacts(
        identity=dict(opened.identity),
        recipe=origin.recipe,
        models=origin.models,
        thumbnails=origin.thumbnails,
        data_digest=evaluation_set.dataset.digest(),
        unit="step" if evaluation_set.is_step else "sample",
        class_names=tuple(evaluation_set.dataset.class_names),
        metrics=tuple(judged.spec.name for judged in evaluation_set.metrics),
        axes=opened.axes,
    )
