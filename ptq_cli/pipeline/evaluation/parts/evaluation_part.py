"""One part of an evaluation: measured by a process of its own, and joined with the others'."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.calibdata.ahead import decoded_ahead
from ptq_cli.calibdata.dataset.selection import Selection, Shard
from ptq_cli.collectors.artifact.share import Share
from ptq_cli.core.errors import EvaluationFileError, InputFileError, OutputFileError, ReportError
from ptq_cli.core.files import write_together
from ptq_cli.core.work.progress import ProgressCallback
from ptq_cli.core.work.schedule import Schedule
from ptq_cli.pipeline.calibration.calibration_checkpoint import NO_CHECKPOINTS
from ptq_cli.pipeline.calibration.measure import checked
from ptq_cli.pipeline.evaluation.measuring.evaluation_checkpoint import Tell
from ptq_cli.pipeline.evaluation.measuring.evaluation_data import EvaluationSet, MeasuredSet
from ptq_cli.pipeline.evaluation.measuring.one_pass import (
    EvaluatedModels,
    OpenedPass,
    evaluations_of,
    open_pass,
    teller,
)
from ptq_cli.pipeline.evaluation.parts.evaluation_shard import (
    EvaluationShard,
    ShardFacts,
    load_shard,
    parse_shard_bytes,
    shard_bytes,
)
from ptq_cli.pipeline.evaluation.parts.joined_shards import NamedShard, joined_shards
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.report.evaluation.evaluator import Evaluation, Watch
from ptq_cli.report.evaluation.part_evaluator import PartEvaluator
from ptq_cli.report.evaluation.run_models import run_evaluator

if TYPE_CHECKING:
    from ptq_cli.pipeline.calibration.torchrun.distributed import Group


@dataclass(frozen=True)
class ShardOrigin:
    """What the file of a part has to say, so that the reports can be made from it alone.

    Attributes:
        folder: the run directory, where paths begin.
        recipe: all settings as TOML.
        models: the quantized models' files.
        thumbnails: whether the samples that change their class are shown.
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
    watches: Sequence[Watch] = (),
    *,
    origin: ShardOrigin = NO_ORIGIN,
    checkpoint: Path | None = None,
    group: "Group | None" = None,
) -> EvaluationShard:
    """Run all models over one share of the batches, and return what each batch adds to the metrics.

    Args:
        resolved: the recipe, and the machine that runs the models.
        models: what runs.
        evaluation_set: the data and metrics.
        shard: which of the batches.
        progress: is called after each batch.
        watches: one for each quantized model, which sees its outputs too; they are new.
        origin: what the file has to say besides.
        checkpoint: where what was measured so far is written; None for nowhere.
        group: the processes that share the batches, which hear of an error of one.

    Raises:
        LabelError: a label does not fit a metric.
        MetricError: an output does not fit a metric or holds NaN, or a metric cannot be measured in parts.
        MergeError: a batch other than the last one is not full.
    """
    tell, dataset = teller(progress), evaluation_set.dataset
    opened = open_pass(resolved, models, evaluation_set, progress, watches, origin.folder)
    evaluator = PartEvaluator(opened.make, shard, evaluation_set.batch_size)
    facts = _facts(opened, evaluation_set, origin)
    part = _Part(evaluator, facts, shard, evaluation_set.batch_size)
    if checkpoint is not None and not dataset.is_resumable:
        tell(NO_CHECKPOINTS)
        checkpoint = None
    if checkpoint is not None:
        part.resume(checkpoint, tell)
    every = Schedule(resolved.recipe.evaluation.checkpoint_every)

    def after_batch() -> None:
        if group is not None:
            group.after_batch(len(evaluator.batches), evaluator.samples)
        if checkpoint is not None and every.is_due():
            with every.writing():
                part.save(checkpoint, tell)

    selection = Selection(shard, len(evaluator.batches))
    whole = Selection(shard)
    total = whole.samples(dataset.count, evaluation_set.batch_size) if dataset.count is not None else None
    batches = checked(dataset.batches(evaluation_set.batch_size, selection))
    with closing(decoded_ahead(batches, resolved.machine.prefetch)) as decoded:
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
    watches: Sequence[Watch] = (),
) -> tuple[Evaluation, ...]:
    """Run all models over the evaluation set once, each process of a group a share of the batches.

    Returns what ``evaluate_pass`` returns, on every process. There are no checkpoints.

    Args:
        resolved: the recipe, and this process's part of the machine.
        models: what runs.
        evaluation_set: the data and metrics.
        progress: is called after each batch.
        group: the processes.
        watches: one for each quantized model; they are new, and have seen all samples at the end.

    Raises:
        PtqError: as ``evaluate_part`` does, also that of another process.
    """
    part = evaluate_part(resolved, models, evaluation_set, group.shard, progress, watches, group=group)
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

    def save(self, path: Path, tell: Tell) -> None:
        """Write a checkpoint, or tell that it cannot be written."""
        try:
            write_together({path: shard_bytes(self.shard(finished=False))})
        except OutputFileError as error:
            tell(f"no checkpoint was written, the evaluation continues: {error.message}")

    def resume(self, path: Path, tell: Tell) -> None:
        """Go on from a checkpoint of this very part, or tell why not."""
        if not path.is_file():
            return
        try:
            found = load_shard(path)
            reason = self._difference(found)
            if not reason:
                self._evaluator.resume(found.batches, found.watched)
        except (EvaluationFileError, InputFileError, ReportError, ValueError, KeyError) as error:
            reason = f"it is damaged ({type(error).__name__})"
        if reason:
            tell(f"not continuing the earlier evaluation in '{path}', but starting again: {reason}")
            return
        tell(
            f"continuing an earlier evaluation after {self._evaluator.samples} samples; "
            "--restart starts again"
        )

    def _difference(self, found: EvaluationShard) -> str:
        identity = self._facts.identity
        changed = [key for key in identity if found.facts.identity.get(key) != identity[key]]
        if changed:
            return f"{changed[0]} changed since"
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
